"""A phase and the message that announces it; public.

A phase is a set of nodes of one depth and the number of pulls each gets from every
client. Phases that end in a release and the silent tail of a run look the same to a client.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, islice, takewhile

import numpy as np
import numpy.typing as npt

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Broadcast, FloatArray, IntArray


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
