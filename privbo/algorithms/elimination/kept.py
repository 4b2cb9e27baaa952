"""What is known of a shared phase afterwards: what the server kept, and what the clients found themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from privbo.algorithms.elimination.pull_table import PullTable
from privbo.protocol.messages import Broadcast, FloatArray, IntArray


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What the server says of one depth: the nodes it keeps, their average means and radii."""

    depth: int
    nodes: IntArray
    means: FloatArray
    radii: FloatArray

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Named arrays for a broadcast."""
        return {
            "kept_depth": np.array(self.depth),
            "kept_nodes": self.nodes,
            "kept_means": self.means,
            "kept_radii": self.radii,
        }

    @staticmethod
    def of(broadcast: Broadcast) -> Kept | None:
        """What a broadcast says, or None if it says nothing."""
        arrays = broadcast.arrays
        if "kept_nodes" not in arrays:
            return None
        return Kept(
            depth=int(arrays["kept_depth"]),
            nodes=np.asarray(arrays["kept_nodes"], dtype=np.int64),
            means=np.asarray(arrays["kept_means"], dtype=np.float64),
            radii=np.asarray(arrays["kept_radii"], dtype=np.float64),
        )


@dataclass(frozen=True, kw_only=True)
class OwnPhase:
    """What the clients of a cohort found in a shared phase (private).

    Attributes:
        nodes: ``(K,)``.
        pulls: Of every node by every client.
        means: Of the pulls that worked, ``(n, K)``; NaN where none did.
        worked: How many did, ``(n, K)``.
    """

    nodes: IntArray
    pulls: int
    means: FloatArray
    worked: IntArray

    @staticmethod
    def of(rows: PullTable, n_clients: int) -> OwnPhase:
        """The phase whose rows these are, all clients in order, each with all nodes in order."""
        k = len(rows.nodes) // n_clients
        return OwnPhase(
            nodes=rows.nodes[:k],
            pulls=int(rows.pulls[0]),
            means=rows.means.reshape(-1, k),
            worked=rows.worked.reshape(-1, k),
        )


def pack(kept: Mapping[int, Kept]) -> dict[str, npt.NDArray[np.generic]]:
    """Named arrays for a snapshot."""
    rows = [kept[depth] for depth in sorted(kept)]
    return {
        "kept_sizes": np.array([[k.depth, len(k.nodes)] for k in rows], dtype=np.int64).reshape(-1, 2),
        "kept_nodes": np.concatenate([k.nodes for k in rows] or [np.zeros(0, dtype=np.int64)]),
        "kept_means": np.concatenate([k.means for k in rows] or [np.zeros(0)]),
        "kept_radii": np.concatenate([k.radii for k in rows] or [np.zeros(0)]),
    }


def unpack(arrays: Mapping[str, npt.NDArray[np.generic]]) -> dict[int, Kept]:
    """What ``pack`` packed, by depth."""
    kept, start = {}, 0
    for depth, size in np.asarray(arrays["kept_sizes"], dtype=np.int64):
        part = slice(start, start + int(size))
        kept[int(depth)] = Kept(
            depth=int(depth),
            nodes=np.asarray(arrays["kept_nodes"], dtype=np.int64)[part],
            means=np.asarray(arrays["kept_means"], dtype=np.float64)[part],
            radii=np.asarray(arrays["kept_radii"], dtype=np.float64)[part],
        )
        start += int(size)
    return kept
