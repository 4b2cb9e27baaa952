"""Simulated clients that hold test functions, and the book of what their pulls were worth.

Every client holds the function shifted horizontally by its own normal draw and moved
vertically by its own share, both from a stated seed. A client's pull is the mean plus
reward noise; the environment keeps the noiseless rewards of all pulls, so regret is known
exactly however the algorithm reports.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal, Protocol, TypeAlias

import numpy as np

import privbo as pb
from experiments.problems.objectives import Function, Named
from privbo.protocol.messages import FloatArray, IntArray

Noise: TypeAlias = Literal["uniform", "inside", "normal-inside", "none"]


def draw_noise(
    generator: np.random.Generator, noise: Noise, means: FloatArray, counts: IntArray, width: float
) -> FloatArray:
    """Mean of the reward noise over ``counts`` pulls at noiseless rewards ``means``.

    ``"uniform"``: uniform on +-width, rewards in [-width, 1 + width]. ``"inside"``: uniform
    on +-min(width, f, 1 - f), so that rewards stay in [0, 1]. ``"normal-inside"``: normal
    with deviation ``width`` truncated to +-min(f, 1 - f) (rejection). Up to 48 pulls are drawn
    one by one; the mean of more is normal to within what any experiment here resolves,
    with the exact variance and cut at the exact bound.
    """
    if noise == "none":
        return np.zeros(len(means))
    inside = np.minimum(means, 1 - means)
    if noise == "normal-inside":
        return _truncated_normal_means(generator, inside, counts, width)
    bound = np.full(len(means), width) if noise == "uniform" else np.minimum(width, inside)
    few = counts <= 48
    drawn = np.zeros(len(means))
    for turn in range(int(counts[few].max(initial=0))):
        due = np.flatnonzero(few & (counts > turn))
        drawn[due] += generator.uniform(-1, 1, len(due))
    many = ~few
    drawn[many] = generator.normal(0, 1, int(many.sum())) * np.sqrt(counts[many] / 3)
    return bound * np.clip(drawn / np.maximum(counts, 1), -1, 1)


def _truncated_normal_means(
    generator: np.random.Generator, inside: FloatArray, counts: IntArray, width: float
) -> FloatArray:
    """Mean of ``counts`` draws of a symmetrically truncated normal: exact variance, normal for many pulls."""
    from scipy.special import ndtri
    from scipy.stats import norm

    a = inside / width
    mass = 2 * norm.cdf(a) - 1
    few = counts <= 48
    drawn = np.zeros(len(inside))
    for turn in range(int(counts[few].max(initial=0))):
        due = np.flatnonzero(few & (counts > turn) & (a > 0))
        drawn[due] += ndtri(0.5 + mass[due] * generator.uniform(-0.5, 0.5, len(due)))
    many = np.flatnonzero(~few & (a > 0))
    variance = 1 - 2 * a[many] * norm.pdf(a[many]) / mass[many]
    drawn[many] = generator.normal(0, 1, len(many)) * np.sqrt(counts[many] * np.maximum(variance, 0))
    return width * np.clip(drawn / np.maximum(counts, 1), -a, a)


class Model(Protocol):
    """Noiseless rewards of clients."""

    name: str
    n_dims: int
    n_clients: int

    def values(self, clients: IntArray, units: FloatArray) -> FloatArray:
        """Noiseless reward of ``clients[i]`` at ``units[i]``, ``(n,)``."""
        ...

    def average(self, units: FloatArray) -> FloatArray:
        """The average objective at points ``(n, d)``."""
        ...

    @property
    def local_bests(self) -> FloatArray:
        """Best value of every client, ``(M,)``."""
        ...

    @property
    def global_optimum(self) -> FloatArray:
        """Maximiser of the average objective, ``(d,)``."""
        ...

    @property
    def global_optima(self) -> FloatArray:
        """All such places where there are several alike, ``(n, d)``."""
        ...


class Shifted:
    """Every client holds the same function, moved by its own shift.

    Args:
        named: The function.
        n_clients: M.
        seed: Of the shifts.
        shift: Standard deviation of the horizontal shifts, in units of the cube; points that
            leave the cube are moved to its edge.
        vertical: v in ``(1 - v) f + v u`` with u uniform per client.
    """

    def __init__(self, named: Named, n_clients: int, *, seed: int, shift: float = 0.0, vertical: float = 0.0) -> None:
        hidden = np.random.default_rng([seed, 1])
        self.named = named
        self.name, self.n_dims, self.n_clients = named.name, named.n_dims, n_clients
        self.shifts = shift * hidden.standard_normal((n_clients, named.n_dims))
        self.scale = 1.0 - vertical
        self.offsets = vertical * hidden.uniform(0, 1, n_clients)

    def values(self, clients: IntArray, units: FloatArray) -> FloatArray:
        """Noiseless rewards."""
        moved = np.clip(units - self.shifts[clients], 0.0, 1.0)
        return np.asarray(self.scale * self.named.function(moved) + self.offsets[clients])

    def average(self, units: FloatArray) -> FloatArray:
        """The average objective."""
        total = np.zeros(len(units))
        rows = max(1, 2**16 // max(1, len(units)))  # a batch that stays in the cache
        for start in range(0, self.n_clients, rows):
            moved = np.clip(units - self.shifts[start : start + rows, None], 0.0, 1.0)
            total += self.named.function(moved).sum(axis=0)
        return np.asarray(self.scale * total / self.n_clients + self.offsets.mean())

    @property
    def local_bests(self) -> FloatArray:
        """Best values (shifts keep every optimum inside the cube)."""
        return np.asarray(self.scale * self.named.maximum + self.offsets)

    @cached_property
    def global_optimum(self) -> FloatArray:
        """A grid, then ever finer ones around its best point; in more than two dimensions the shifted centre."""
        d = self.n_dims
        if not np.any(self.shifts):
            return np.array(self.named.optimum)
        if d > 2:
            return np.asarray(np.array(self.named.optimum) + self.shifts.mean(axis=0))
        return grid_maximum(self.average, d, 2001 if d == 1 else 61)

    @cached_property
    def global_optima(self) -> FloatArray:
        """The optimum first; where the function has several, the tops near each of them too."""
        places = (self.named.optimum, *self.named.others) if self.named.others else ()
        tops = [grid_maximum(self.average, self.n_dims, 21, at=np.array(place), width=0.05) for place in places]
        return np.stack([self.global_optimum, *tops])


def grid_maximum(
    function: Function, d: int, side: int, *, at: FloatArray | None = None, width: float = 0.5
) -> FloatArray:
    """Maximum of a function on the unit cube (or within ``width`` of ``at``), by a grid and six finer ones."""
    middle = np.full(d, 0.5) if at is None else at
    axes = np.meshgrid(*[np.linspace(-width, width, side)] * d, indexing="ij")
    grid = np.clip(middle + np.stack(axes, axis=-1).reshape(-1, d), 0, 1)
    best, width = grid[np.argmax(function(grid))], 4.0 * width / (side - 1)
    for _ in range(6):
        steps = np.meshgrid(*[np.linspace(-width, width, 21)] * d, indexing="ij")
        near = np.clip(best + np.stack(steps, axis=-1).reshape(-1, d), 0, 1)
        best, width = near[np.argmax(function(near))], width / 8
    return np.asarray(best)


class Environment:
    """Clients that answer pulls with noisy rewards, and the book of what those were worth.

    Args:
        model: What clients earn without noise.
        seed: Of the reward noise.
        noise, width: See ``draw_noise``.
        horizon: Pulls of one client that are booked.
    """

    def __init__(
        self, model: Model, *, seed: int, noise: Noise = "uniform", width: float = 0.1, horizon: int = 0
    ) -> None:
        self.model = model
        self.n_clients = model.n_clients
        self._noise, self._width = noise, width
        self._generator = np.random.default_rng([seed, 3])
        self._steps = np.zeros(horizon + 1)
        self._time = np.zeros(model.n_clients, dtype=np.int64)

    @property
    def reward_range(self) -> tuple[float, float]:
        """Bounds of a reward."""
        margin = self._width if self._noise == "uniform" else 0.0
        return (-margin, 1.0 + margin)

    def __call__(self, clients: IntArray, units: FloatArray) -> FloatArray:
        """One pull each."""
        return self.pull(clients, units, np.ones(len(clients), dtype=np.int64))

    def pull(self, clients: IntArray, units: FloatArray, counts: IntArray) -> FloatArray:
        """Mean rewards of ``counts`` pulls each; NaN for none."""
        means = self.model.values(clients, units)
        self._keep(clients, means, counts)
        rewards = means + draw_noise(self._generator, self._noise, means, counts, self._width)
        return np.where(counts > 0, rewards, np.nan)

    def _keep(self, clients: IntArray, means: FloatArray, counts: IntArray) -> None:
        """Book noiseless rewards in the order the clients earned them."""
        last = len(self._steps) - 1
        if len(clients) == self.n_clients and np.all(counts == 1):
            starts = self._time[clients]
            if starts.min() == starts.max():  # everyone pulls once: the common case of the silent stage
                total = float(means.sum())
                self._steps[min(int(starts[0]), last)] += total
                self._steps[min(int(starts[0]) + 1, last)] -= total
                self._time[clients] += 1
                return
        order = np.argsort(clients, kind="stable")
        who, worth, many = clients[order], means[order], counts[order]
        ends = np.cumsum(many)
        first = np.searchsorted(who, who)
        starts = self._time[who] + (ends - many) - (ends[first] - many[first])
        self._steps += np.bincount(np.minimum(starts, last), weights=worth, minlength=last + 1)
        self._steps -= np.bincount(np.minimum(starts + many, last), weights=worth, minlength=last + 1)
        self._time += np.bincount(clients, weights=counts, minlength=self.n_clients).astype(np.int64)

    @property
    def pulls(self) -> IntArray:
        """Pulls of every client so far."""
        return self._time

    def regret(self, best: float) -> FloatArray:
        """Cumulative regret per client against ``best``, averaged over clients, after 1..T pulls."""
        reward = np.cumsum(self._steps[:-1]) / self.n_clients
        return np.asarray(np.cumsum(best - reward))

    @property
    def local_best(self) -> float:
        """Mean over clients of the best value of each."""
        return float(self.model.local_bests.mean())

    @property
    def global_best(self) -> float:
        """Largest value of the average objective."""
        return float(self.model.average(self.model.global_optimum[None])[0])

    def problem(self) -> pb.Problem:
        """The clients as a problem."""
        return pb.Problem(
            space={f"x{i}": pb.Real(0.0, 1.0) for i in range(self.model.n_dims)},
            batch_objective=self,
            n_clients=self.n_clients,
            name=self.model.name,
            provenance="simulation",
        )
