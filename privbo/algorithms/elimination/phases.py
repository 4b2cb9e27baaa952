"""A phase, the message that announces it, and the clients that play it.

A phase is a set of nodes of one depth and the number of pulls each gets from every
client. Phases that end in a release and the silent tail of a run look the same to a client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from privbo.algorithms.elimination.partition import Partition
from privbo.algorithms.elimination.rewards import pull_nodes
from privbo.algorithms.elimination.sharing import Sharing
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Broadcast, ClientHistory, Evaluate, FloatArray, IntArray, Setting


@dataclass(frozen=True, kw_only=True)
class Phase:
    """What clients are asked to pull; public.

    Attributes:
        depth: Depth of all nodes.
        nodes: Indices, ``(K,)``.
        pulls: Pulls of every node by every client, ``(K,)``.
        best: Depth and index of the node that is best so far, or None at the start.
    """

    depth: int
    nodes: IntArray
    pulls: IntArray
    best: tuple[int, int] | None

    @property
    def length(self) -> int:
        """Pulls of one client in this phase."""
        return int(self.pulls.sum())

    def broadcast(self, round_: int) -> Broadcast:
        """The message; K + 4 integers when all pulls are equal."""
        best = (-1, -1) if self.best is None else self.best
        arrays = {
            "depth": np.array(self.depth),
            "nodes": self.nodes,
            "pulls": self.pulls,
            "best": np.array(best, dtype=np.int64),
        }
        return Broadcast(round=round_, arrays=arrays)

    @staticmethod
    def of(broadcast: Broadcast) -> Phase:
        """The phase a message announces.

        Raises:
            ConfigurationError: If the message announces none.
        """
        arrays = broadcast.arrays
        if not {"depth", "nodes", "pulls", "best"} <= arrays.keys():
            raise ConfigurationError(f"the broadcast holds {sorted(arrays)}; it announces no phase")
        best = arrays["best"]
        return Phase(
            depth=int(arrays["depth"]),
            nodes=np.asarray(arrays["nodes"], dtype=np.int64),
            pulls=np.asarray(arrays["pulls"], dtype=np.int64),
            best=None if best[0] < 0 else (int(best[0]), int(best[1])),
        )


def equal_pulls(nodes: IntArray, pulls: int) -> IntArray:
    """The same number of pulls for every node."""
    return np.full(len(nodes), pulls, dtype=np.int64)


def cut_to(pulls: IntArray, budget: int) -> IntArray:
    """Pulls in order until the budget is spent."""
    before = np.cumsum(pulls) - pulls
    return np.asarray(np.clip(budget - before, 0, pulls))


class PhaseCohort:
    """Clients that all pull what the server announces and answer with centred mean rewards.

    Args:
        setting: What both sides are told.
        partition: The shared partition.
        clients: Global numbers, ``(n,)``.
        evaluate: The clients' objectives.
        sharing: How mean rewards leave a client.
    """

    def __init__(
        self,
        setting: Setting,
        *,
        partition: Partition,
        clients: IntArray,
        evaluate: Evaluate,
        sharing: Sharing,
    ) -> None:
        self._space = setting.space
        self._partition = partition
        self._clients = np.asarray(clients, dtype=np.int64)
        self._evaluate = evaluate
        self._sharing = sharing
        self._unit = setting.unit
        empty = np.zeros(0, dtype=np.int64)
        self._depths, self._nodes, self._pulls, self._rounds = empty, empty, empty, empty
        self._means = np.zeros((len(self._clients), 0))
        self._worked = np.zeros((len(self._clients), 0), dtype=np.int64)
        self._best = np.array([0, 0], dtype=np.int64)
        self.n_clipped = 0

    @property
    def clients(self) -> IntArray:
        """Global numbers of the clients."""
        return self._clients

    def respond(self, broadcast: Broadcast) -> FloatArray:
        """Pull, and answer with centred means ``(n, K)``."""
        if not np.any(self._rounds == broadcast.round):
            self._play(Phase.of(broadcast), broadcast.round)
        here = self._rounds == broadcast.round
        means = self._means[:, here]
        if not means.size:
            return means
        worked = self._worked[:, here] / self._pulls[here] if self._unit == "reward" else None
        return self._sharing.vector(means, worked)

    def _play(self, phase: Phase, round_: int) -> None:
        self._best = np.array(phase.best if phase.best is not None else (0, 0), dtype=np.int64)
        n, k = len(self._clients), len(phase.nodes)
        if k == 0:
            return
        points = self._points(phase.depth, phase.nodes)
        pulled = pull_nodes(
            self._evaluate,
            self._sharing.allowed,
            np.repeat(self._clients, k),
            np.tile(points, (n, 1)),
            np.tile(phase.pulls, n),
            self._unit,
        )
        self.n_clipped += pulled.n_clipped
        self._means = np.concatenate([self._means, pulled.means.reshape(n, k)], axis=1)
        self._worked = np.concatenate([self._worked, pulled.worked.reshape(n, k)], axis=1)
        self._depths = np.append(self._depths, np.full(k, phase.depth))
        self._nodes = np.append(self._nodes, phase.nodes)
        self._pulls = np.append(self._pulls, phase.pulls)
        self._rounds = np.append(self._rounds, np.full(k, round_))

    def _points(self, depth: int, nodes: IntArray) -> FloatArray:
        return self._space.snap(self._partition.centres(depth, nodes))

    def snapshot(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """Everything (private)."""
        return {
            "depths": self._depths,
            "nodes": self._nodes,
            "pulls": self._pulls,
            "rounds": self._rounds,
            "means": self._means,
            "worked": self._worked,
            "best": self._best,
            "n_clipped": np.array(self.n_clipped),
        }

    def restore(self, snapshot: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Take the state of ``snapshot``."""
        self._depths, self._nodes, self._pulls, self._rounds, self._best = (
            np.array(snapshot[name], dtype=np.int64) for name in ("depths", "nodes", "pulls", "rounds", "best")
        )
        self._means = np.array(snapshot["means"], dtype=np.float64)
        self._worked = np.array(snapshot["worked"], dtype=np.int64)
        self.n_clipped = int(np.asarray(snapshot["n_clipped"]).item())

    def history(self) -> ClientHistory:
        """One evaluation per node and phase: its value is the mean of the client's pulls (private).

        Every client would use the node that is best for their average.
        """
        n, d = len(self._clients), self._space.n_dims
        points = np.zeros((len(self._nodes), d))
        for depth in np.unique(self._depths):
            at = self._depths == depth
            points[at] = self._points(int(depth), self._nodes[at])
        best = self._points(int(self._best[0]), self._best[1:])
        return ClientHistory(
            units=np.broadcast_to(points, (n, *points.shape)),
            values=self._means.copy(),
            rounds=self._rounds.copy(),
            recommended=np.broadcast_to(best, (n, d)),
        )
