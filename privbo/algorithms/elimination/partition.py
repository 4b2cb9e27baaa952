"""The partition every client and the server share: deterministic, seed-free, never stored.

A node is a pair (depth, index). Depth h holds ``k^h`` nodes; the children of node i are
``k i, ..., k i + k - 1`` and split dimension ``h mod d`` of its cell into k equal parts. A
set of nodes of one depth is an integer array, so 100,000 active nodes are less than a
megabyte. (The papers count nodes from 1; here they count from 0.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privbo.protocol.common import different
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, IntArray
from privbo.protocol.space import Space


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A k-ary partition of the unit cube.

    Attributes:
        n_dims: d, number of coordinates.
        n_children: k, 2 or 3.
    """

    n_dims: int
    n_children: int = 2

    @property
    def max_depth(self) -> int:
        """Deepest level whose indices fit 64-bit integers and whose centres fit doubles."""
        bits = math.log2(self.n_children)
        return min(int(52 / bits) * self.n_dims, int(62 / bits))

    def children(self, nodes: IntArray) -> IntArray:
        """Indices of all children, ``(k n,)``, those of one parent side by side."""
        return (nodes[:, None] * self.n_children + np.arange(self.n_children)).ravel()

    def centres(self, depth: int, nodes: IntArray) -> FloatArray:
        """Centres of cells in the unit cube, ``(n, n_dims)``.

        Raises:
            ConfigurationError: If ``depth`` has no nodes that numbers can represent.
        """
        if not 0 <= depth <= self.max_depth:
            raise ConfigurationError(
                f"depth={depth} must lie in [0, {self.max_depth}]; the settings ask for cells "
                "below the resolution of the search space: raise rho or lower the horizon"
            )
        numerators = np.zeros((len(nodes), self.n_dims))
        power = self.n_children**depth
        rest = np.asarray(nodes, dtype=np.int64)
        for level in range(depth):
            power //= self.n_children
            digit, rest = rest // power, rest % power
            column = numerators[:, level % self.n_dims]
            column *= self.n_children
            column += digit
        return np.asarray((numerators + 0.5) / self.scales(depth))

    def points(self, space: Space, depths: IntArray, nodes: IntArray) -> FloatArray:
        """Canonical points at the centres of cells of any depths, ``(n, n_dims)``."""
        points = np.zeros((len(nodes), self.n_dims))
        for depth in np.unique(depths):
            here = depths == depth
            points[here] = space.snap(self.centres(int(depth), nodes[here]))
        return points

    def candidates(self, space: Space, depth: int, nodes: IntArray, count: int) -> FloatArray:
        """Different canonical points at the centres of the first nodes, at most ``count``, ``(k, n_dims)``."""
        return different(self.points(space, np.full(len(nodes), depth), nodes))[:count]

    def scales(self, depth: int) -> FloatArray:
        """Number of cells of a depth along every dimension, ``(n_dims,)``."""
        splits = [len(range(dim, depth, self.n_dims)) for dim in range(self.n_dims)]
        return np.array([float(self.n_children**count) for count in splits])
