"""Parallel X-armed bandit: m players look for the optimum of one function together.

Chen, Liu, Zhang, Li, "A parallel algorithm for X-armed bandits". At every depth all players
pull all active nodes equally often, exchange means once, and keep what lies within
``3 nu1 rho^h`` of the best. Judged by simple regret: what is returned, in the last broadcast, is the
best node of the last completed depth, whose loss is at most ``6 nu1 rho^h`` with probability 1 - delta_b.
A player uses the point it has seen with the largest lower confidence bound of its own rewards.

Private form: mean vectors are centred and clipped as in Fed-PNE, and the margin grows by
twice the half-width of the release's noise, so the optimum's cell is kept as before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import field
from itertools import chain
from typing import ClassVar, Literal

import numpy as np

from privbo.algorithms.elimination.alone import PersonalElimination, alone
from privbo.algorithms.elimination.confidence import noise_half_width
from privbo.algorithms.elimination.phases import Phase, PhaseCohort, count_fitting, equal_pulls
from privbo.algorithms.elimination.settings import HOEFFDING, Fraction, SharingSettings
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Ask, Broadcast, Evaluate, FloatArray, IntArray, Release, Request, Setting
from privbo.protocol.settings import Count, Positive, settings


@settings(table="algorithm")
class ParallelXArmed(SharingSettings):
    """Level-order search for the optimum of one function by many players.

    ``rounds`` of a run is the largest number of exchanges.

    Attributes:
        horizon: n, pulls of every player.
        evaluations: Most pulls of every player where that is less than n; a pull is one call of the objective.
        nu1: Variation of the function over the space, > 0.
        rho: Factor by which it shrinks with every depth, in (0, 1).
        delta_b: Failure probability of the bandit (not of privacy); None is 1/n.
        n_children: k, 2 or 3.
        clip: s in ``S = s sqrt(K)``; None is half the reward range, which clips nothing.
        widen: w, the multiple of the noise half-width in the margin.
        centre: ``"middle"`` or ``"client"``, what a player subtracts before sending.
        reward_range: Declared bounds of a reward.
        outside: ``"clip"`` clips rewards outside, so that what is certified speaks of the clipped
            objective; ``"absent"`` counts them as failed. Their client's own side is told.

    Raises:
        ConfigurationError: If a setting is impossible.

    Example:
        >>> import privbo as pb
        >>> algorithm = pb.ParallelXArmed(horizon=2000, nu1=0.5, rho=0.5)
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda client, p: 1 - p["x"], n_clients=16)
        >>> pb.plan(problem, algorithm, privacy=pb.Privacy(epsilon=2.0), rounds=4).releases
        4
    """

    answers_together: ClassVar[bool] = True
    type: Literal["parallel"] = field(default="parallel", repr=False)
    horizon: Count = 10_000
    nu1: Positive = 1.37
    rho: Fraction = 2.0**-0.5
    delta_b: Fraction | None = None

    def pulls_per_player(self, depth: int, n_nodes: int, n_players: int) -> int:
        """T_h, so that every mean is within ``nu1 rho^h`` of its node with the probability the run needs."""
        delta_b = 1.0 / self.budget if self.delta_b is None else self.delta_b
        log = math.log(math.pi**2 * (depth + 1) ** 2 * n_nodes / (3 * delta_b))
        return max(1, math.ceil(log / (2 * self.confidence(n_players).variation(depth) ** 2 * n_players)))

    def server(self, setting: Setting) -> ParallelServer:
        """Make the public side."""
        return ParallelServer(self, setting)

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> PhaseCohort:  # noqa: ARG002 (the protocol's)
        """Make the private side; players draw nothing at random."""
        return PhaseCohort(self, setting, clients=clients, evaluate=evaluate)

    def local(self) -> PersonalElimination:
        """Give the control: every player alone; ``c = 1/sqrt(2)`` makes its margin ``3 nu1 rho^h`` too."""
        return alone(self, c=HOEFFDING, stage2="printed")


class ParallelServer:
    """The public side: active nodes of one depth."""

    def __init__(self, algorithm: ParallelXArmed, setting: Setting) -> None:
        self._algorithm = algorithm
        self._setting = setting
        self._n_players = setting.n_clients
        self._partition = algorithm.partition(setting)
        self._round = 0
        self._spent = 0
        self._best: tuple[int, int] | None = None
        self._active = 0, np.zeros(1, dtype=np.int64)
        self._phase = self._fitting(0, np.zeros(1, dtype=np.int64))
        if self._phase is None:
            raise ConfigurationError(
                f"{algorithm.budget} pulls of a player do not hold one depth for {self._n_players} players; "
                "raise horizon, evaluations or nu1"
            )
        # No run makes more: every depth below the root has at least k nodes.
        k, players = algorithm.n_children, self._n_players
        depths = range(1, self._partition.max_depth + 1)
        least = (k * algorithm.pulls_per_player(depth, k, players) for depth in depths)
        lengths = chain([algorithm.pulls_per_player(0, 1, players)], least)
        self._n_releases = count_fitting(lengths, algorithm.budget, setting.rounds)

    @property
    def best(self) -> tuple[int, int] | None:
        """Depth and index of the best node of the last completed depth."""
        return self._best

    def plan(self) -> Iterator[Request]:
        """P requests, for as many nodes as each depth could hold."""
        for depth in range(self._n_releases):
            n_nodes = min(self._algorithm.n_children**depth, self._algorithm.budget)
            pulls = self._algorithm.pulls_per_player(depth, n_nodes, self._n_players)
            yield self._algorithm.sharing.request(n_nodes, pulls, self._setting)

    def ask(self) -> Ask | None:
        """The next depth; at the end one silent message that tells the players the result."""
        if self._phase is None:
            return None
        broadcast = self._phase.broadcast(self._round)
        return Ask(broadcast=broadcast, request=self.request_for(broadcast))

    def request_for(self, broadcast: Broadcast) -> Request | None:
        """Give the request for the depth that a broadcast announces; None for the message at the end."""
        phase = Phase.of(broadcast)
        sharing = self._algorithm.sharing
        return sharing.request(len(phase.nodes), phase.equal_pulls, self._setting) if phase.sends else None

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
        margin = (
            3 * self._algorithm.confidence(self._n_players).variation(phase.depth) + 2 * self._algorithm.widen * noise
        )
        survivors = phase.nodes[means >= means.max() - margin]
        order = np.argsort(-means, kind="stable")
        self._active = phase.depth, phase.nodes[order[np.isin(phase.nodes[order], survivors)]]
        following = None
        if self._round < self._n_releases and phase.depth < self._partition.max_depth:
            following = self._fitting(phase.depth + 1, self._partition.children(survivors))
        self._phase = self._farewell(self._best) if following is None else following

    def propose(self, count: int) -> FloatArray:
        """Candidates for a common setting: centres of the nodes that are still active, best means first."""
        return self._partition.candidates(self._setting.space, *self._active, count)

    def _fitting(self, depth: int, nodes: IntArray) -> Phase | None:
        """The phase of a depth, or None if the horizon does not hold it."""
        pulls = self._algorithm.pulls_per_player(depth, len(nodes), self._n_players)
        if len(nodes) * pulls > self._algorithm.budget - self._spent:
            return None
        return Phase(depth=depth, nodes=nodes, pulls=equal_pulls(nodes, pulls), best=self._best)

    @staticmethod
    def _farewell(best: tuple[int, int]) -> Phase:
        none = np.zeros(0, dtype=np.int64)
        return Phase(depth=best[0], nodes=none, pulls=none, best=best, sends=False)
