"""The public side of the parallel X-armed bandit: the active nodes of one depth."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np

from privbo.algorithms.elimination.confidence import noise_half_width
from privbo.algorithms.elimination.phases import Phase, count_fitting, equal_pulls
from privbo.algorithms.elimination.settings import ParallelSettings
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Ask, Broadcast, FloatArray, IntArray, Release, Request, Setting


class ParallelServer:
    """The public side: active nodes of one depth."""

    def __init__(self, algorithm: ParallelSettings, setting: Setting) -> None:
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
        margin = 3 * self._algorithm.variation(phase.depth) + 2 * self._algorithm.widen * noise
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
