"""Public result of a shared phase: the nodes the server kept, as they travel with the next broadcast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from privbo.protocol.messages import Broadcast, FloatArray, IntArray


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Nodes the server keeps of one depth, their average means and radii."""

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
        """Read a broadcast; None if it says nothing of a phase."""
        arrays = broadcast.arrays
        if "kept_nodes" not in arrays:
            return None
        return Kept(
            depth=int(arrays["kept_depth"]),
            nodes=np.asarray(arrays["kept_nodes"], dtype=np.int64),
            means=np.asarray(arrays["kept_means"], dtype=np.float64),
            radii=np.asarray(arrays["kept_radii"], dtype=np.float64),
        )


def pack(kept: Mapping[int, Kept]) -> dict[str, npt.NDArray[np.generic]]:
    """Named arrays for a snapshot."""
    rows = [kept[depth] for depth in sorted(kept)]
    return {
        "kept_sizes": np.array([[k.depth, len(k.nodes)] for k in rows], dtype=np.int64).reshape(-1, 2),
        "kept_nodes": np.concatenate([np.zeros(0, dtype=np.int64), *(k.nodes for k in rows)]),
        "kept_means": np.concatenate([np.zeros(0), *(k.means for k in rows)]),
        "kept_radii": np.concatenate([np.zeros(0), *(k.radii for k in rows)]),
    }


def unpack(arrays: Mapping[str, npt.NDArray[np.generic]]) -> dict[int, Kept]:
    """The parts that ``pack`` packed, by depth."""
    depths, sizes = np.asarray(arrays["kept_sizes"], dtype=np.int64).T
    nodes = np.split(np.asarray(arrays["kept_nodes"], dtype=np.int64), np.cumsum(sizes))
    means, radii = (
        np.split(np.asarray(arrays[name], dtype=np.float64), np.cumsum(sizes)) for name in ("kept_means", "kept_radii")
    )
    # Splitting leaves an empty part at the end, which belongs to no depth.
    parts = zip(depths, nodes, means, radii, strict=False)
    return {int(h): Kept(depth=int(h), nodes=n, means=m, radii=r) for h, n, m, r in parts}
