"""Fed-PNE: clients find the optimum of their average objective by phased node elimination.

Li et al., "Federated X-armed bandit". The server keeps a set of active nodes, all clients
pull every one of them equally often, and the averages decide which nodes go on to be split.
A run takes a handful of phases; each is one release.

Private form: a client's answer is its vector of mean rewards, centred, clipped to
``S = clip sqrt(K)``; every comparison of the server is widened by the release's noise.

*Certified* (the default): no cap, no clipping below the declared range. Where c covers the
reward noise, the optimum's cell survives with probability at least 1 - delta_b - 0.05.
*Heuristic* (``FedPNE.heuristic()``): a cap drops nodes untested and tight clipping biases
means, so no such probability is promised; the regret is far lower.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from privbo.elimination.confidence import Confidence, noise_half_width
from privbo.elimination.partition import Partition
from privbo.elimination.phases import Phase, PhaseCohort, cut_to, equal_pulls
from privbo.elimination.rewards import Centre, Outside, RewardRange
from privbo.errors import ConfigurationError
from privbo.protocol import Ask, Evaluate, FloatArray, IntArray, Release, Request, Setting

if TYPE_CHECKING:
    from privbo.elimination.alone import PersonalElimination

Expand: TypeAlias = Literal["ktau", "tau", "none"]
Tail: TypeAlias = Literal["commit", "printed", "stop"]


@dataclass(frozen=True, kw_only=True)
class FedPNE:
    """Federated phased node elimination.

    ``rounds`` of a run is the largest number of phases; a run that has made them, or whose
    next phase does not fit the horizon, plays its tail in silence.

    Attributes:
        horizon: T, pulls of every client.
        nu1: Variation of the average objective over the space, > 0.
        rho: Factor by which it shrinks with every depth, in (0, 1).
        c: Width of confidence intervals; 0.1 covers reward noise of about +-0.1.
        c1: Factor in their logarithm.
        n_children: k, 2 or 3.
        expand: Before a phase the nodes are split while ``"ktau"``: K tau_h < M (or at the
            root), ``"tau"``: tau_h < M, ``"none"``: never.
        tail: What is left of the horizon: ``"commit"`` plays the best node, ``"printed"``
            starts the phase that does not fit, ``"stop"`` leaves it.
        cap: Most active nodes after the first phase, or None; the best ones are kept. A
            capped run may drop the optimum untested.
        releases: Most releases, or None for as many as rounds and horizon allow. Noise that
            is larger than what still separates nodes makes late phases a lottery.
        clip: s in ``S = s sqrt(K)``; None is half the reward range, which clips nothing.
        widen: w, the multiple of the noise half-width by which radii are widened; below 1
            the survival of the optimum's cell is not covered.
        centre: ``"middle"`` or ``"client"``, what a client subtracts before sending.
        reward_range: Declared bounds of a reward.
        outside: ``"error"`` or ``"clip"`` for rewards outside.

    Raises:
        ConfigurationError: If a setting is impossible.
    """

    horizon: int = 5000
    nu1: float = 1.0
    rho: float = 0.5
    c: float = 0.1
    c1: float = 1.0
    n_children: int = 2
    expand: Expand = "ktau"
    tail: Tail = "commit"
    cap: int | None = None
    releases: int | None = None
    clip: float | None = None
    widen: float = 1.0
    centre: Centre = "middle"
    reward_range: tuple[float, float] = (0.0, 1.0)
    outside: Outside = "error"

    def __post_init__(self) -> None:
        self.confidence(1)
        require_private_form(self.cap, self.clip, self.widen, self.centre, self.n_children)
        if self.releases is not None and self.releases < 1:
            raise ConfigurationError(f"releases={self.releases!r} must be at least 1, or None")
        if self.expand not in ("ktau", "tau", "none"):
            raise ConfigurationError(f"expand={self.expand!r} must be 'ktau', 'tau' or 'none'")
        if self.tail not in ("commit", "printed", "stop"):
            raise ConfigurationError(f"tail={self.tail!r} must be 'commit', 'printed' or 'stop'")
        object.__setattr__(self, "reward_range", tuple(self.reward_range))
        _ = self.allowed

    @classmethod
    def heuristic(cls, **changes: Any) -> FedPNE:  # noqa: ANN401  # the fields of this class
        """The low-regret private form: at most 8 active nodes, 5 releases, s = 0.15, client-centred."""
        return replace(cls(cap=8, releases=5, clip=0.15, centre="client"), **changes)

    @property
    def is_certified(self) -> bool:
        """Whether the survival of the optimum's cell is covered (if c covers the reward noise)."""
        return self.cap is None and self.widen >= 1 and self.clipping_norm(1) >= self.allowed.half_width

    @property
    def allowed(self) -> RewardRange:
        """The declared range of rewards."""
        low, high = self.reward_range
        return RewardRange(low=low, high=high, outside=self.outside)

    def confidence(self, n_clients: int) -> Confidence:
        """Thresholds and radii for M clients."""
        return Confidence(horizon=self.horizon, n_clients=n_clients, nu1=self.nu1, rho=self.rho, c=self.c, c1=self.c1)

    def clipping_norm(self, n_nodes: int) -> float:
        """S for a phase of K nodes."""
        return (self.allowed.half_width if self.clip is None else self.clip) * math.sqrt(n_nodes)

    def server(self, setting: Setting) -> FedPNEServer:
        """The public side."""
        return FedPNEServer(self, setting)

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> PhaseCohort:  # noqa: ARG002
        """The private side; the clients draw nothing at random."""
        return PhaseCohort(
            setting,
            partition=Partition(n_dims=setting.space.n_dims, n_children=self.n_children),
            clients=clients,
            evaluate=evaluate,
            allowed=self.allowed,
            centre=self.centre,
        )

    def local(self) -> PersonalElimination:
        """Every client eliminates alone, with its own pulls."""
        from privbo.elimination.alone import PersonalElimination

        return PersonalElimination(
            horizon=self.horizon,
            nu1=self.nu1,
            rho=self.rho,
            c=self.c,
            c1=self.c1,
            n_children=self.n_children,
            reward_range=self.reward_range,
            outside=self.outside,
        )


def require_private_form(cap: int | None, clip: float | None, widen: float, centre: str, n_children: int) -> None:
    """Refuse impossible settings of a private form.

    Raises:
        ConfigurationError: Naming the setting and its bound.
    """
    if cap is not None and cap < n_children:
        raise ConfigurationError(f"cap={cap!r} must be at least n_children={n_children}, or None")
    if clip is not None and not (math.isfinite(clip) and clip > 0):
        raise ConfigurationError(f"clip={clip!r} must be a finite number > 0, or None for half the reward range")
    if not (math.isfinite(widen) and widen >= 0):
        raise ConfigurationError(f"widen={widen!r} must be a finite number >= 0")
    if centre not in ("middle", "client"):
        raise ConfigurationError(f"centre={centre!r} must be 'middle' or 'client'")


def mean_request(n_nodes: int, clipping_norm: float, n_clients: int) -> Request:
    """The average over all clients of one vector with an entry per node."""
    weights = np.full((1, n_clients), 1.0 / n_clients)
    return Request(dim=n_nodes, clipping_norm=clipping_norm, weights=weights)


class FedPNEServer:
    """The public side of Fed-PNE: active nodes, budget and the best node so far."""

    def __init__(self, algorithm: FedPNE, setting: Setting) -> None:
        self._algorithm = algorithm
        self._n_clients = setting.n_clients
        self._confidence = algorithm.confidence(setting.n_clients)
        self._partition = Partition(n_dims=setting.space.n_dims, n_children=algorithm.n_children)
        self._spent = 0
        self._round = 0
        self._best: tuple[int, int] | None = None
        self._silent = False
        self._first = self._start()
        self._phase: Phase | None = self._first
        most = setting.rounds if algorithm.releases is None else min(setting.rounds, algorithm.releases)
        self._n_releases = self._count_plan(most)

    @property
    def phase(self) -> Phase | None:
        """The phase that is played now; None when the run is over."""
        return self._phase

    @property
    def spent(self) -> int:
        """Pulls of one client in the phases before this one."""
        return self._spent

    def plan(self) -> Iterator[Request]:
        """P requests; those after the first for as many nodes as the phase could hold."""
        first = self._first
        n_nodes = len(first.nodes)
        for _ in range(self._n_releases):
            yield mean_request(n_nodes, self._algorithm.clipping_norm(n_nodes), self._n_clients)
            n_nodes = min(self._algorithm.n_children * n_nodes, self._algorithm.horizon)
            if self._algorithm.cap is not None:
                n_nodes = min(n_nodes, max(self._algorithm.cap, len(first.nodes)))

    def ask(self) -> Ask | None:
        """The current phase; without a request in the tail."""
        if self._phase is None:
            return None
        request = None
        if not self._silent:
            n_nodes = len(self._phase.nodes)
            request = mean_request(n_nodes, self._algorithm.clipping_norm(n_nodes), self._n_clients)
        return Ask(broadcast=self._phase.broadcast(self._round), request=request)

    def tell(self, release: Release | None) -> None:
        """Eliminate, split, and go on to the next phase or the tail."""
        phase = self._phase
        if phase is None:
            return
        self._spent += phase.length
        self._round += 1
        if release is None:
            self._phase = None
            return
        survivors = self._survivors(phase, release)
        following = self._next(phase.depth, survivors)
        if following is None or self._round == self._n_releases:
            following = self._tail(phase.depth, survivors)
            self._silent = True
        self._phase = following

    def _survivors(self, phase: Phase, release: Release) -> IntArray:
        """Nodes that stay, ``mu_i + b + w beta + nu1 rho^h >= mu_best - b - w beta``, best first cut to the cap."""
        means = release.values[0]
        best = int(np.argmax(means))
        self._best = (phase.depth, int(phase.nodes[best]))
        noise = noise_half_width(release.noise_stddev, len(means), self._n_releases)
        radius = self._confidence.radius(phase.pulls * self._n_clients) + self._algorithm.widen * noise
        upper = means + radius + self._confidence.variation(phase.depth)
        keep = upper >= means[best] - radius[best]
        keep[best] = True
        if self._algorithm.cap is not None:
            keep &= among_best(means, self._algorithm.cap // self._algorithm.n_children)
        return np.asarray(phase.nodes[keep])

    def _start(self) -> Phase:
        phase = self._next(-1, np.zeros(0, dtype=np.int64))
        if phase is None:
            raise ConfigurationError(
                f"horizon={self._algorithm.horizon} does not hold one phase for {self._n_clients} clients; "
                "raise horizon, lower c, or set expand='none'"
            )
        return phase

    def _next(self, depth: int, survivors: IntArray) -> Phase | None:
        """The phase of the survivors' children (the root at depth -1); None if it does not fit."""
        if depth == self._partition.max_depth:
            return None
        depth, nodes = depth + 1, self._partition.children(survivors) if depth >= 0 else np.zeros(1, dtype=np.int64)
        while depth < self._partition.max_depth and self._splits(depth, len(nodes)):
            depth, nodes = depth + 1, self._partition.children(nodes)
        pulls = self._confidence.pulls_per_client(depth)
        if len(nodes) * pulls > self._algorithm.horizon - self._spent:
            return None
        return Phase(depth=depth, nodes=nodes, pulls=equal_pulls(nodes, pulls), best=self._best)

    def _splits(self, depth: int, n_nodes: int) -> bool:
        """EXPAND: whether the nodes are split once more before they are pulled."""
        algorithm = self._algorithm
        if self._spent and algorithm.cap is not None and algorithm.n_children * n_nodes > algorithm.cap:
            return False  # before the first phase nothing is known, so nothing is capped
        if algorithm.expand == "ktau":
            return depth == 0 or n_nodes * self._confidence.threshold(depth) < self._n_clients
        return algorithm.expand == "tau" and self._confidence.threshold(depth) < self._n_clients

    def _tail(self, depth: int, survivors: IntArray) -> Phase | None:
        left = self._algorithm.horizon - self._spent
        if left == 0 or self._algorithm.tail == "stop" or self._best is None:
            return None
        if self._algorithm.tail == "printed" and depth < self._partition.max_depth:
            nodes = self._partition.children(survivors)
            each = max(self._confidence.pulls_per_client(depth + 1), -(-left // len(nodes)))
            pulls = cut_to(equal_pulls(nodes, each), left)
            played = pulls > 0
            return Phase(depth=depth + 1, nodes=nodes[played], pulls=pulls[played], best=self._best)
        best_depth, best = self._best
        pulls = np.array([left], dtype=np.int64)
        return Phase(depth=best_depth, nodes=np.array([best], dtype=np.int64), pulls=pulls, best=self._best)

    def _count_plan(self, most: int) -> int:
        """P: no run makes more releases, because every phase after the first has at least k nodes."""
        first = self._first
        spent, depth, count = first.length, first.depth + 1, 1
        while count < most and depth <= self._partition.max_depth:
            spent += self._algorithm.n_children * self._confidence.pulls_per_client(depth)
            if spent > self._algorithm.horizon:
                break
            depth, count = depth + 1, count + 1
        return count


def among_best(means: FloatArray, count: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which entries are among the ``count`` largest; ties go to the first."""
    chosen = np.zeros(len(means), dtype=bool)
    chosen[np.argsort(-means, kind="stable")[:count]] = True
    return chosen
