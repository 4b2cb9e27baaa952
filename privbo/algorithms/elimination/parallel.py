"""Parallel X-armed bandit: m players look for the optimum of one function together.

Chen, Liu, Zhang, Li, "A parallel algorithm for X-armed bandits". At every depth all players
pull all active nodes equally often, exchange means once, and keep what lies within
``3 nu1 rho^h`` of the best. Judged by simple regret: what is returned is the best node of
the last completed depth, whose loss is at most ``6 nu1 rho^h`` with probability 1 - delta_b.

Private form: mean vectors are centred and clipped as in Fed-PNE, and the margin grows by
twice the half-width of the release's noise, so the optimum's cell is kept as before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privbo.algorithms.elimination.confidence import noise_half_width, require_smoothness
from privbo.algorithms.elimination.partition import Partition
from privbo.algorithms.elimination.phases import Phase, PhaseCohort, equal_pulls
from privbo.algorithms.elimination.rewards import Centre, Outside, RewardRange
from privbo.algorithms.elimination.sharing import Sharing
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Ask, Evaluate, IntArray, Release, Request, Setting

if TYPE_CHECKING:
    from privbo.algorithms.elimination.alone import PersonalElimination


@dataclass(frozen=True, kw_only=True)
class ParallelXArmed:
    """Level-order search by many players.

    ``rounds`` of a run is the largest number of exchanges.

    Attributes:
        horizon: n, pulls of every player.
        nu1: Variation of the function over the space, > 0.
        rho: Factor by which it shrinks with every depth, in (0, 1).
        delta_b: Failure probability of the bandit (not of privacy); None is 1/n.
        n_children: k, 2 or 3.
        clip: s in ``S = s sqrt(K)``; None is half the reward range, which clips nothing.
        widen: w, the multiple of the noise half-width in the margin.
        centre: ``"middle"`` or ``"client"``, what a player subtracts before sending.
        reward_range: Declared bounds of a reward.
        outside: ``"error"`` or ``"clip"`` for rewards outside.

    Raises:
        ConfigurationError: If a setting is impossible.
    """

    horizon: int = 10_000
    nu1: float = 1.37
    rho: float = 2.0**-0.5
    delta_b: float | None = None
    n_children: int = 2
    clip: float | None = None
    widen: float = 1.0
    centre: Centre = "middle"
    reward_range: tuple[float, float] = (0.0, 1.0)
    outside: Outside = "error"

    def __post_init__(self) -> None:
        if isinstance(self.horizon, bool) or int(self.horizon) != self.horizon or self.horizon < 1:
            raise ConfigurationError(f"horizon={self.horizon!r} must be an integer >= 1")
        require_smoothness(self.nu1, self.rho)
        if self.delta_b is not None and not 0 < self.delta_b < 1:
            raise ConfigurationError(f"delta_b={self.delta_b!r} must lie in (0, 1), or None for 1/horizon")
        object.__setattr__(self, "reward_range", tuple(self.reward_range))
        _ = self.sharing

    @property
    def sharing(self) -> Sharing:
        """How mean rewards leave a player."""
        allowed = RewardRange.of(self.reward_range, self.outside)
        return Sharing(allowed=allowed, clip=self.clip, widen=self.widen, centre=self.centre)

    @property
    def caveat(self) -> str | None:
        """What a page of a run says of a heuristic form."""
        said = self.sharing.caveat(None)
        return said and f"{said}. The optimum may be lost with a probability nothing here bounds."

    def variation(self, depth: int) -> float:
        """``nu1 rho^h``."""
        return float(self.nu1 * self.rho**depth)

    def pulls_per_player(self, depth: int, n_nodes: int, n_players: int) -> int:
        """T_h, so that every mean is within ``nu1 rho^h`` of its node with the probability the run needs."""
        delta_b = 1.0 / self.horizon if self.delta_b is None else self.delta_b
        log = math.log(math.pi**2 * (depth + 1) ** 2 * n_nodes / (3 * delta_b))
        return max(1, math.ceil(log / (2 * self.variation(depth) ** 2 * n_players)))

    def server(self, setting: Setting) -> ParallelServer:
        """The public side."""
        return ParallelServer(self, setting)

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> PhaseCohort:  # noqa: ARG002 (the protocol's)
        """The private side; players draw nothing at random."""
        return PhaseCohort(
            setting,
            partition=Partition(n_dims=setting.space.n_dims, n_children=self.n_children),
            clients=clients,
            evaluate=evaluate,
            sharing=self.sharing,
        )

    def local(self) -> PersonalElimination:
        """Every player alone: ``c = 1/sqrt(2)`` makes its margin ``3 nu1 rho^h`` too."""
        from privbo.algorithms.elimination.alone import PersonalElimination

        return PersonalElimination(
            horizon=self.horizon,
            nu1=self.nu1,
            rho=self.rho,
            c=2.0**-0.5,
            n_children=self.n_children,
            stage2="printed",
            reward_range=self.reward_range,
            outside=self.outside,
        )


class ParallelServer:
    """The public side: active nodes of one depth."""

    def __init__(self, algorithm: ParallelXArmed, setting: Setting) -> None:
        self._algorithm = algorithm
        self._setting = setting
        self._n_players = setting.n_clients
        self._partition = Partition(n_dims=setting.space.n_dims, n_children=algorithm.n_children)
        self._round = 0
        self._spent = 0
        self._best: tuple[int, int] | None = None
        self._phase = self._fitting(0, np.zeros(1, dtype=np.int64))
        if self._phase is None:
            raise ConfigurationError(
                f"horizon={algorithm.horizon} does not hold one depth for {self._n_players} players; raise it or nu1"
            )
        self._n_releases = self._count_plan(setting.rounds)

    @property
    def best(self) -> tuple[int, int] | None:
        """Depth and index of the best node of the last completed depth."""
        return self._best

    def plan(self) -> Iterator[Request]:
        """P requests, for as many nodes as each depth could hold."""
        for depth in range(self._n_releases):
            n_nodes = min(self._algorithm.n_children**depth, self._algorithm.horizon)
            pulls = self._algorithm.pulls_per_player(depth, n_nodes, self._n_players)
            yield self._algorithm.sharing.request(n_nodes, pulls, self._setting)

    def ask(self) -> Ask | None:
        """The next depth; at the end one silent message that tells the players the result."""
        if self._phase is None:
            return None
        request = None
        if self._phase.length:
            n_nodes, pulls = len(self._phase.nodes), int(self._phase.pulls[0])
            request = self._algorithm.sharing.request(n_nodes, pulls, self._setting)
        return Ask(broadcast=self._phase.broadcast(self._round), request=request)

    def tell(self, release: Release | None) -> None:
        """Keep what may hold the optimum and go one level down."""
        phase = self._phase
        if phase is None:
            return
        self._round += 1
        if release is None:
            self._phase = None
            return
        self._spent += phase.length
        means = release.values[0]
        self._best = (phase.depth, int(phase.nodes[np.argmax(means)]))
        noise = noise_half_width(release.noise_stddev, len(means), self._n_releases)
        margin = 3 * self._algorithm.variation(phase.depth) + 2 * self._algorithm.widen * noise
        survivors = phase.nodes[means >= means.max() - margin]
        following = None
        if self._round < self._n_releases and phase.depth < self._partition.max_depth:
            following = self._fitting(phase.depth + 1, self._partition.children(survivors))
        self._phase = self._farewell(self._best) if following is None else following

    def _fitting(self, depth: int, nodes: IntArray) -> Phase | None:
        """The phase of a depth, or None if the horizon does not hold it."""
        pulls = self._algorithm.pulls_per_player(depth, len(nodes), self._n_players)
        if len(nodes) * pulls > self._algorithm.horizon - self._spent:
            return None
        return Phase(depth=depth, nodes=nodes, pulls=equal_pulls(nodes, pulls), best=self._best)

    @staticmethod
    def _farewell(best: tuple[int, int]) -> Phase:
        none = np.zeros(0, dtype=np.int64)
        return Phase(depth=best[0], nodes=none, pulls=none, best=best)

    def _count_plan(self, rounds: int) -> int:
        """P: no run makes more releases, because every depth below the root has at least k nodes."""
        k = self._algorithm.n_children
        spent, count = self._algorithm.pulls_per_player(0, 1, self._n_players), 1
        while count < rounds and count <= self._partition.max_depth:
            spent += k * self._algorithm.pulls_per_player(count, k, self._n_players)
            if spent > self._algorithm.horizon:
                break
            count += 1
        return count
