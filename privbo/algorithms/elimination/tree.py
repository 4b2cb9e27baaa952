"""The partition every client and the server share: deterministic, seed-free, never stored.

A node is a pair (depth, index). Depth h holds ``k^h`` nodes; the children of node i are
``k i, ..., k i + k - 1`` and split dimension ``h mod d`` of its cell into k equal parts. A
set of nodes of one depth is an integer array, so 100,000 active nodes are less than a
megabyte. (The papers count nodes from 1; here they count from 0.)

Nodes' pulls and the width of their confidence intervals are those of Fed-PNE and PF-PNE (PF-PNE, section 3.1): with
``L = log(c1 T / delta_b)``, ``tau_h = ceil(c^2 L rho^(-2h) / nu1^2)`` pulls make the half-width ``b = c sqrt(L / n)``
at most ``nu1 rho^h``, the largest variation of the objective inside a cell of depth h. ``delta_b = 1 / M`` is the
bandits' failure probability and has nothing to do with the delta of privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privbo.protocol.common import different
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, IntArray
from privbo.protocol.space import Space

# The release noise of a whole run stays within its half-width with probability 1 - NOISE_FAILURE.
NOISE_FAILURE = 0.05


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


@dataclass(frozen=True, kw_only=True)
class Confidence:
    """Smoothness and confidence of a run.

    Attributes:
        horizon: T, pulls of one client over the whole run.
        n_clients: M.
        nu1: Variation of the objective over the whole space, > 0.
        rho: Factor by which it shrinks with every depth, in (0, 1).
        c: Width of confidence intervals, > 0; 0.1 covers reward noise of about +-0.1, the
            theory of rewards in [0, 1] asks for 2.
        c1: Factor inside the logarithm, > 0.
    """

    horizon: int
    n_clients: int
    nu1: float
    rho: float
    c: float
    c1: float

    @property
    def log_term(self) -> float:
        """``log(c1 T M)``, at least 0."""
        return max(0.0, math.log(self.c1 * self.horizon * self.n_clients))

    def threshold(self, depth: int) -> int:
        """tau_h: pulls, over all clients, that a node of this depth needs."""
        exact = self.c**2 * self.log_term * self.rho ** (-2 * depth) / self.nu1**2
        return max(1, math.ceil(exact)) if exact < 2.0**53 else 2**53

    def pulls_per_client(self, depth: int) -> int:
        """ceil(tau_h / M), so that every node reaches its threshold."""
        return -(-self.threshold(depth) // self.n_clients)

    def variation(self, depth: int) -> float:
        """``nu1 rho^h``."""
        return float(self.nu1 * self.rho**depth)

    def radius(self, pulls: float | IntArray | FloatArray) -> FloatArray:
        """``c sqrt(L / n)`` after ``n`` pulls; infinite after none."""
        with np.errstate(divide="ignore"):
            return np.asarray(self.c * np.sqrt(self.log_term / np.asarray(pulls, dtype=np.float64)))


def noise_half_width(noise_stddev: float, n_nodes: int, n_releases: int) -> float:
    """Half-width within which all noise of a run stays with probability 0.95.

    ``sigma sqrt(2 log(2 K P / 0.05))``: union bound over the K entries of each of P releases.

    Args:
        noise_stddev: Standard deviation of the noise in one released entry.
        n_nodes: K, entries of this release.
        n_releases: P, planned releases of the run.
    """
    return noise_stddev * math.sqrt(2.0 * math.log(2.0 * n_nodes * n_releases / NOISE_FAILURE))
