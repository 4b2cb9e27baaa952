"""A phase and the message that announces it; public.

A phase is a set of nodes of one depth and the number of pulls each gets from every
client. Phases that end in a release and the silent tail of a run look the same to a client.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, islice, takewhile

import numpy as np
import numpy.typing as npt

from privbo.algorithms.elimination.pulls import judge, pull_nodes, recommend
from privbo.algorithms.elimination.settings import TreeSettings
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Broadcast, ClientHistory, Evaluate, FloatArray, IntArray, Setting


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Nodes of one depth and the pulls each gets from every client; public.

    Attributes:
        depth: Depth of all nodes.
        nodes: Indices, ``(K,)``.
        pulls: Pulls of every node by every client, ``(K,)``.
        best: Depth and index of the node that is best so far, or None at the start.
        sends: Whether clients answer with their mean rewards; not in the silent end of a run.
    """

    depth: int
    nodes: IntArray
    pulls: IntArray
    best: tuple[int, int] | None
    sends: bool = True

    @property
    def length(self) -> int:
        """Pulls of one client in this phase."""
        return int(self.pulls.sum())

    def broadcast(self, round_: int) -> Broadcast:
        """The message: 2 K + 4 integers and whether clients answer."""
        best = (-1, -1) if self.best is None else self.best
        arrays = {
            "depth": np.array(self.depth),
            "nodes": self.nodes,
            "pulls": self.pulls,
            "best": np.array(best, dtype=np.int64),
            "sends": np.array(self.sends),
        }
        return Broadcast(round=round_, arrays=arrays)

    @staticmethod
    def of(broadcast: Broadcast) -> Phase:
        """The phase a message announces.

        Raises:
            ConfigurationError: If the message announces none.
        """
        arrays = broadcast.arrays
        if not {"depth", "nodes", "pulls", "best", "sends"} <= arrays.keys():
            raise ConfigurationError(f"the broadcast holds {sorted(arrays)}; it announces no phase")
        best = arrays["best"]
        return Phase(
            depth=int(arrays["depth"]),
            nodes=np.asarray(arrays["nodes"], dtype=np.int64),
            pulls=np.asarray(arrays["pulls"], dtype=np.int64),
            best=None if best[0] < 0 else (int(best[0]), int(best[1])),
            sends=bool(arrays["sends"]),
        )

    @property
    def equal_pulls(self) -> int:
        """Pulls that every node of an answered phase gets from every client.

        Raises:
            ConfigurationError: If they differ: then how far one reward moves an answer depends on the node.
        """
        found = {int(pulls) for pulls in self.pulls}
        if len(found) != 1 or len(self.pulls) != len(self.nodes) or min(found) < 1:
            raise ConfigurationError(
                f"{len(self.nodes)} nodes with pulls {sorted(found)[:5]}; an answered phase has one number for all"
            )
        return found.pop()


def count_fitting(lengths: Iterable[int], horizon: int, most: int) -> int:
    """Number of leading phases, at least one and at most ``most``, that fit a horizon together.

    Lengths are asked for one by one, because those of very deep phases exceed floating point.
    """
    totals = accumulate(islice(lengths, most))
    return max(1, sum(1 for _ in takewhile(lambda total: total <= horizon, totals)))


def equal_pulls(nodes: IntArray, pulls: int) -> IntArray:
    """The same number of pulls for every node."""
    return np.full(len(nodes), pulls, dtype=np.int64)


def cut_to(pulls: IntArray, budget: int) -> IntArray:
    """Pulls in order until the budget is spent."""
    before = np.cumsum(pulls) - pulls
    return np.asarray(np.clip(budget - before, 0, pulls))


def among_best(means: FloatArray, count: int) -> npt.NDArray[np.bool_]:
    """Which entries are among the ``count`` largest; ties go to the first."""
    chosen = np.zeros(len(means), dtype=bool)
    chosen[np.argsort(-means, kind="stable")[:count]] = True
    return chosen


_STATE = ("depths", "nodes", "pulls", "rounds", "means", "worked", "best")


class PhaseCohort:
    """Clients that all pull what the server announces and answer with centred mean rewards.

    Args:
        algorithm: The tree, and how mean rewards leave a client.
        setting: What both sides are told.
        clients: Global numbers, ``(n,)``.
        evaluate: The clients' objectives.
    """

    def __init__(
        self,
        algorithm: TreeSettings,
        setting: Setting,
        *,
        clients: IntArray,
        evaluate: Evaluate,
    ) -> None:
        self._space = setting.space
        self._partition = algorithm.partition(setting)
        self._clients = np.asarray(clients, dtype=np.int64)
        self._evaluate = evaluate
        self._sharing = algorithm.sharing
        self._radius = algorithm.confidence(setting.n_clients).radius
        self._unit = setting.unit
        empty = np.zeros(0, dtype=np.int64)
        self._depths, self._nodes, self._pulls, self._rounds = empty, empty, empty, empty
        self._means = np.zeros((len(self._clients), 0))
        self._worked = np.zeros((len(self._clients), 0), dtype=np.int64)
        self._best = np.array([0, 0], dtype=np.int64)

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

    def judge(self, broadcast: Broadcast, units: FloatArray) -> FloatArray:  # noqa: ARG002 (the protocol's)
        """Mean rewards of the clients' own pulls nearest to shared points, ``(n, k)``; NaN where none worked."""
        n, k = self._means.shape
        points = self._partition.points(self._space, self._depths, self._nodes)
        owners, worked, means = np.repeat(np.arange(n), k), self._worked.reshape(-1), self._means.reshape(-1)
        return judge(owners, np.tile(points, (n, 1)), worked, means, units, n)

    def _play(self, phase: Phase, round_: int) -> None:
        self._best = np.array(phase.best if phase.best is not None else (0, 0), dtype=np.int64)
        n, k = len(self._clients), len(phase.nodes)
        if k == 0:
            return
        points = self._partition.points(self._space, np.full(k, phase.depth), phase.nodes)
        pulled = pull_nodes(
            self._evaluate,
            self._sharing.allowed,
            np.repeat(self._clients, k),
            np.tile(points, (n, 1)),
            np.tile(phase.pulls, n),
            self._unit,
        )
        self._means = np.concatenate([self._means, pulled.means.reshape(n, k)], axis=1)
        self._worked = np.concatenate([self._worked, pulled.worked.reshape(n, k)], axis=1)
        self._depths = np.append(self._depths, np.full(k, phase.depth))
        self._nodes = np.append(self._nodes, phase.nodes)
        self._pulls = np.append(self._pulls, phase.pulls)
        self._rounds = np.append(self._rounds, np.full(k, round_))

    def snapshot(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """Everything (private)."""
        return {name: getattr(self, f"_{name}") for name in _STATE}

    def restore(self, snapshot: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Take the state of ``snapshot``."""
        for name in _STATE:
            setattr(self, f"_{name}", np.array(snapshot[name]))

    def history(self) -> ClientHistory:
        """One evaluation per node and phase: its value is the mean of the client's pulls (private).

        A client would use the node that is best for their average unless it has seen a better one, by the lower
        confidence bounds of its own pulls.
        """
        (n, k), d = self._means.shape, self._space.n_dims
        points = self._partition.points(self._space, self._depths, self._nodes)
        common = self._partition.points(self._space, self._best[:1], self._best[1:])
        return ClientHistory(
            units=np.broadcast_to(points, (n, k, d)),
            values=self._means.copy(),
            rounds=self._rounds.copy(),
            recommended=recommend(
                np.repeat(np.arange(n), k),
                np.tile(np.arange(k), n),
                self._worked.reshape(-1),
                self._means.reshape(-1),
                self._radius,
                points,
                np.broadcast_to(common, (n, d)),
            ),
        )
