"""FN-UCB, a neural federated baseline over fixed arms.

Dai, Shu, Verma, Fan, Low, Jaillet, "Federated neural bandits" (ICLR 2023), with the numbers of
the authors' published code, which the elimination papers ran. Every agent plays

    argmax over arms of (1 - a_t) UCB^a + a_t UCB^b,
    UCB^a = <g(x), theta> + nu_a sqrt(lambda) ||g(x)|| in V^-1 of all synchronised pulls and its own new ones,
    UCB^b = f(x) of the averaged network + nu_b sqrt(lambda) ||g(x)|| in the averaged inverse of all agents' own V,

with g(x) the gradient of the network at its start, theta the ridge solution in those features,
``V = lambda I + sum of g g^T``. Agents synchronise when one of them has
``(t - t_last) log(det V / det V_last) > threshold``.

Adapted, and so no reproduction: the paper draws contexts anew every round; here the arms are the same random
points of the search space in all rounds (20 per dimension, 1000 in high dimension, as the elimination papers do).
An agent's pulls are then counts and sums per arm, and agents that have the same counts choose alike: with
``threshold=0`` all agents move together. As in the code, and unlike the theory, gradients
are not divided by the root of the width, the weight a_t follows a fixed ramp, and
training stops after some rounds. Networks see points scaled to [-1, 1]. Compared in simulation only; nothing here
is private.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, IntArray, PullObjective


@dataclass(frozen=True, kw_only=True)
class FNUCB:
    """Settings of FN-UCB; the defaults are the published code's.

    Attributes:
        width: Hidden units of the network (one layer, ReLU).
        ridge: lambda.
        nu_a, nu_b: Widths of the two confidence bounds.
        threshold: D; 0 synchronises after every round.
        wait, ramp: a_t is 0 for ``wait`` rounds and then rises to 1 over ``ramp`` rounds.
        training_steps, learning_rate: Gradient steps after a synchronised round, and their length.
        training_rounds: Rounds after which networks are trained no more.

    Raises:
        ConfigurationError: If a number is out of its range.
    """

    width: int = 20
    ridge: float = 0.1
    nu_a: float = 0.1
    nu_b: float = 0.1
    threshold: float = 0.0
    wait: int = 3
    ramp: int = 700
    training_steps: int = 30
    learning_rate: float = 1e-2
    training_rounds: int = 2000

    def __post_init__(self) -> None:
        for name in ("ridge", "nu_a", "nu_b", "learning_rate"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigurationError(f"{name}={value!r} must be a finite number > 0")
        for name in ("width", "ramp"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name}={getattr(self, name)!r} must be at least 1")
        if not self.threshold >= 0:
            raise ConfigurationError(f"threshold={self.threshold!r} must be a number >= 0")

    def weight(self, turn: int) -> float:
        """a_t, what UCB^b counts for in the round after ``turn`` rounds."""
        return min(1.0, max(0.0, (turn - self.wait) / self.ramp))


@dataclass(frozen=True, kw_only=True)
class FNUCBOutcome:
    """Result of a run of FN-UCB.

    Attributes:
        best: The arm with the best mean over all pulls, ``(n_dims,)``.
        synchronisations: Rounds after which agents synchronised.
        floats_up: Numbers every agent sent: two symmetric matrices and two vectors each time.
    """

    best: FloatArray
    synchronisations: int
    floats_up: int


@dataclass
class Networks:
    """One network per agent, parameters as arrays; the first axis is the agent's."""

    inner: FloatArray  # (M, w, d)
    shift: FloatArray  # (M, w)
    outer: FloatArray  # (M, w)
    offset: FloatArray  # (M,)

    @staticmethod
    def alike(n: int, width: int, n_dims: int, generator: np.random.Generator) -> Networks:
        """Networks of equal standard normal parameters."""
        inner, shift = generator.standard_normal((width, n_dims)), generator.standard_normal(width)
        outer, offset = generator.standard_normal(width), float(generator.standard_normal())
        return Networks(
            np.repeat(inner[None], n, axis=0),
            np.repeat(shift[None], n, axis=0),
            np.repeat(outer[None], n, axis=0),
            np.full(n, offset),
        )

    def average(self) -> Networks:
        """Give the network whose parameters are the means."""
        return Networks(*(getattr(self, name).mean(axis=0, keepdims=True) for name in self.__dataclass_fields__))

    def _hidden(self, inputs: FloatArray) -> FloatArray:
        return np.asarray(np.maximum(inputs @ self.inner.transpose(0, 2, 1) + self.shift[:, None], 0.0))

    def values(self, inputs: FloatArray) -> FloatArray:
        """F at inputs ``(K, d)``, ``(M, K)``."""
        return np.asarray(np.einsum("mkw,mw->mk", self._hidden(inputs), self.outer) + self.offset[:, None])

    def features(self, inputs: FloatArray) -> FloatArray:
        """Gradient of the first network in all its parameters, ``(K, p)``."""
        hidden = self._hidden(inputs)[0]
        back = (hidden > 0) * self.outer[0]
        inner = (back[:, :, None] * inputs[:, None, :]).reshape(len(inputs), -1)
        return np.concatenate([inner, back, hidden, np.ones((len(inputs), 1))], axis=1)

    def train(self, inputs: FloatArray, counts: IntArray, means: FloatArray, settings: FNUCB) -> None:
        """Gradient descent on every agent's mean squared error plus ``ridge / pulls`` times half the squared norm."""
        total = counts.sum(axis=1)
        share = 2.0 * counts / total[:, None]
        decay, rate = settings.ridge / total, settings.learning_rate
        for _ in range(settings.training_steps):
            hidden = self._hidden(inputs)
            error = share * (np.einsum("mkw,mw->mk", hidden, self.outer) + self.offset[:, None] - means)
            back = (hidden > 0) * error[:, :, None] * self.outer[:, None]
            self.outer = self.outer - rate * (np.einsum("mkw,mk->mw", hidden, error) + decay[:, None] * self.outer)
            self.offset = self.offset - rate * (error.sum(axis=1) + decay * self.offset)
            self.inner = self.inner - rate * (back.transpose(0, 2, 1) @ inputs + decay[:, None, None] * self.inner)
            self.shift = self.shift - rate * (back.sum(axis=1) + decay[:, None] * self.shift)


class _Agents:
    """All agents' pulls as counts and sums per arm, ``(M, K)``: all of them, and those since the last meeting."""

    def __init__(self, settings: FNUCB, features: FloatArray, n_clients: int) -> None:
        self.settings, self.features = settings, features
        shape = (n_clients, len(features))
        self.counts, self.sums = np.zeros(shape, dtype=np.int64), np.zeros(shape)
        self.met_counts, self.met_sums = self.counts[:1].copy(), self.sums[:1].copy()
        self.met_at, self.met_log = -1, self._gram(self.met_counts)[1]
        self.new_counts, self.new_sums = self.counts.copy(), self.sums.copy()
        self.own_inverse = self._gram(self.met_counts)[0][0]

    def _gram(self, counts: IntArray) -> tuple[FloatArray, FloatArray]:
        """Inverse and log-determinant of ``lambda I + sum of counts g g^T`` for every row of counts."""
        g = self.features
        grams = (g.T * counts[:, None, :]) @ g + self.settings.ridge * np.eye(g.shape[1])
        return np.asarray(np.linalg.inv(grams), dtype=np.float64), np.asarray(
            np.linalg.slogdet(grams)[1], dtype=np.float64
        )

    def _widths(self, inverses: FloatArray) -> FloatArray:
        g = self.features
        squares = np.einsum("ukp,kp->uk", g @ inverses, g)
        return np.asarray(np.sqrt(self.settings.ridge * np.maximum(squares, 0.0)))

    def upper_a(self) -> FloatArray:
        """UCB^a of every agent and arm, ``(M, K)``."""
        counts = self.met_counts + self.new_counts
        kinds, which = np.unique(counts, axis=0, return_inverse=True)
        which = which.reshape(-1)
        inverses = self._gram(kinds)[0]
        targets = (self.met_sums + self.new_sums) @ self.features
        theta = np.einsum("mpq,mq->mp", inverses[which], targets)
        return np.asarray(theta @ self.features.T + self.settings.nu_a * self._widths(inverses)[which])

    def width_b(self) -> FloatArray:
        """Width of UCB^b, ``(K,)``."""
        return np.asarray(self.settings.nu_b * self._widths(self.own_inverse[None])[0])

    def book(self, arms: IntArray, rewards: FloatArray) -> None:
        """One pull of every agent; a failed one counts for nothing."""
        rows = np.flatnonzero(~np.isnan(rewards))
        arms, rewards = arms[rows], rewards[rows]
        for counts, sums in ((self.counts, self.sums), (self.new_counts, self.new_sums)):
            counts[rows, arms] += 1
            sums[rows, arms] += rewards

    def must_meet(self, turn: int) -> bool:
        """Whether some agent has learnt enough since the last meeting."""
        kinds = np.unique(self.met_counts + self.new_counts, axis=0)
        gained = self._gram(kinds)[1].max() - self.met_log
        return bool((turn - self.met_at) * gained > self.settings.threshold)

    def meet(self, turn: int) -> None:
        """Add up what is new and average the inverses of all agents' own matrices."""
        self.met_counts = self.met_counts + self.new_counts.sum(axis=0, keepdims=True)
        self.met_sums = self.met_sums + self.new_sums.sum(axis=0, keepdims=True)
        self.new_counts[:], self.new_sums[:] = 0, 0.0
        self.met_at, self.met_log = turn, self._gram(self.met_counts)[1]
        kinds, many = np.unique(self.counts, axis=0, return_counts=True)
        self.own_inverse = np.average(self._gram(kinds)[0], axis=0, weights=many)


def fn_ucb(
    pull: PullObjective,
    *,
    n_clients: int,
    arms: FloatArray,
    horizon: int,
    generator: np.random.Generator,
    settings: FNUCB | None = None,
) -> FNUCBOutcome:
    """FN-UCB over fixed arms; see the module's page for what is adapted.

    Args:
        pull: The clients.
        n_clients: M.
        arms: Points of the unit cube, ``(K, n_dims)``.
        horizon: T, pulls of one client.
        generator: Draws the networks' start, the same for all agents.
        settings: None is the published code's.

    Raises:
        ConfigurationError: If there is no arm or no pull.
    """
    if not len(arms) or horizon < 1:
        raise ConfigurationError(f"{len(arms)} arms, horizon={horizon}; give at least one of each")
    chosen = settings or FNUCB()
    inputs = 2.0 * arms - 1.0
    networks = Networks.alike(n_clients, chosen.width, arms.shape[1], generator)
    agents = _Agents(chosen, networks.features(inputs), n_clients)
    common, clients, one = networks.average(), np.arange(n_clients), np.ones(n_clients, dtype=np.int64)
    meetings = 0
    for turn in range(horizon):
        weight = chosen.weight(turn)
        upper = agents.upper_a()
        if weight > 0:
            upper = (1 - weight) * upper + weight * (common.values(inputs) + agents.width_b())
        picked = upper.argmax(axis=1)
        agents.book(picked, pull(clients, arms[picked], one))
        if not agents.must_meet(turn):
            continue
        meetings += 1
        agents.meet(turn)
        if chosen.weight(turn + 1) > 0 and turn < chosen.training_rounds and np.all(agents.counts.any(axis=1)):
            seen = np.flatnonzero(agents.counts.any(axis=0))
            counts = agents.counts[:, seen]
            networks.train(inputs[seen], counts, agents.sums[:, seen] / np.maximum(counts, 1), chosen)
            common = networks.average()
    totals = agents.counts.sum(axis=0)
    means = np.where(totals > 0, agents.sums.sum(axis=0) / np.maximum(totals, 1), -np.inf)
    p = agents.features.shape[1]
    return FNUCBOutcome(
        best=np.asarray(arms[int(np.argmax(means))]),
        synchronisations=meetings,
        floats_up=meetings * (p * (p + 1) + 2 * p),
    )
