"""The public side of PF-PNE: the shared stage, then the clock of the silent one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np

from privbo.algorithms.elimination.alone_server import Alone, first_alone
from privbo.algorithms.elimination.confidence import noise_half_width
from privbo.algorithms.elimination.kept import Kept
from privbo.algorithms.elimination.phases import among_best, count_fitting
from privbo.algorithms.elimination.settings import PFPNESettings
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Ask, Broadcast, FloatArray, Release, Request, Setting


class PFPNEServer:
    """The public side of PF-PNE: shared phases, then a clock of silent rounds."""

    def __init__(self, algorithm: PFPNESettings, setting: Setting) -> None:
        self._algorithm = algorithm
        self._setting = setting
        self._sharing = algorithm.sharing
        self._confidence = algorithm.confidence(setting.n_clients)
        self._partition = algorithm.partition(setting)
        self._round = 0
        self._depth = 0
        self._nodes = np.zeros(1, dtype=np.int64)
        self._spent = 0
        self._kept: Kept | None = None
        self._alone: Alone | None = None
        if self._length() > algorithm.budget:
            raise ConfigurationError(
                f"{algorithm.budget} pulls of a client do not hold one phase for {setting.n_clients} clients; "
                "raise horizon or evaluations, or lower c"
            )
        self._n_releases = self._phases()

    def plan(self) -> Iterator[Request]:
        """H0 requests, or as many as the horizon or the rounds allow."""
        for depth in range(self._n_releases):
            n_nodes = min(self._algorithm.n_children**depth, self._algorithm.cap or self._algorithm.budget)
            yield self._sharing.request(n_nodes, self._pulls(depth), self._setting)

    def ask(self) -> Ask | None:
        """A shared phase, then one silent round per depth."""
        if self._alone is not None:
            return self._alone.ask(self._round, self._kept)
        pulls = self._pulls(self._depth)
        arrays = {"depth": np.array(self._depth), "nodes": self._nodes, "pulls": np.array(pulls)}
        kept = {} if self._kept is None else self._kept.arrays()
        broadcast = Broadcast(round=self._round, arrays=arrays | kept)
        return Ask(broadcast=broadcast, request=self.request_for(broadcast))

    def request_for(self, broadcast: Broadcast) -> Request | None:
        """Give the request for the nodes and pulls that a broadcast names; None in a silent round."""
        if "nodes" not in broadcast.arrays or "pulls" not in broadcast.arrays:
            return None
        nodes, pulls = broadcast.arrays["nodes"], int(broadcast.arrays["pulls"])
        if pulls < 1 or not len(nodes):
            raise ConfigurationError(f"{len(nodes)} nodes with {pulls} pulls; a shared phase has one or more of both")
        return self._sharing.request(len(nodes), pulls, self._setting)

    def tell(self, release: Release | None) -> None:
        """Eliminate on the average; after the last shared phase only count silent rounds."""
        self._round += 1
        if release is None or self._alone is not None:
            if self._alone is not None:
                self._alone = self._alone.after()
            return
        self._kept = self._eliminate(release)
        self._spent += self._length()
        self._depth += 1
        self._nodes = self._partition.children(self._kept.nodes)
        if self._depth == self._n_releases or self._spent + self._length() > self._algorithm.budget:
            self._alone = self._first_alone()

    def propose(self, count: int) -> FloatArray:
        """Candidates for a common setting: centres of the nodes that the shared stage kept, best means first."""
        if self._kept is None:
            return self._partition.candidates(self._setting.space, 0, np.zeros(1, dtype=np.int64), count)
        best_first = self._kept.nodes[np.argsort(-self._kept.means, kind="stable")]
        return self._partition.candidates(self._setting.space, self._kept.depth, best_first, count)

    def _phases(self) -> int:
        """Number of shared phases: H0, or as many as the rounds and pulls of a few nodes each allow."""
        n_children = self._algorithm.n_children
        least = (n_children * self._pulls(depth) for depth in range(1, self._partition.max_depth + 1))
        most = min(self._setting.rounds, self._algorithm.shared_depths)
        return count_fitting(chain([self._pulls(0)], least), self._algorithm.budget, most)

    def _pulls(self, depth: int) -> int:
        """Shared pulls of a node by each client."""
        return self._confidence.pulls_per_client(depth)

    def _length(self) -> int:
        """Most pulls of a client in the current phase."""
        return len(self._nodes) * self._pulls(self._depth)

    def _deficit(self, depth: int) -> float:
        """Deficit of a node's mean that may hide the optimum: the variation inside its cell."""
        return self._confidence.variation(depth)

    def _first_alone(self) -> Alone:
        """The first silent round."""
        start = self._depth if self._algorithm.stage2 == "warm" else 0
        return first_alone(self._confidence, self._partition, start, self._algorithm.stage2)

    def _eliminate(self, release: Release) -> Kept:
        """Survivors of mu + b + w beta + nu1 rho^h >= mu_best - b - w beta, with means and radii."""
        means, depth = release.values[0], self._depth
        pulls = self._pulls(depth) * self._setting.n_clients
        noise = noise_half_width(release.noise_stddev, len(means), self._n_releases)
        radius = float(self._confidence.radius(pulls)) + self._algorithm.widen * noise
        keep = means + radius + self._deficit(depth) >= means.max() - radius
        if self._algorithm.cap is not None:
            keep &= among_best(means, self._algorithm.cap // self._algorithm.n_children)
        return Kept(depth=depth, nodes=self._nodes[keep], means=means[keep], radii=np.full(int(keep.sum()), radius))
