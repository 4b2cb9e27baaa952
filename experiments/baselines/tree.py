"""A tree of cells as flat lists, and what a bandit that walks it offers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import numpy as np

from privbo.algorithms.elimination.settings import Partition
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, IntArray


class TreeBandit(Protocol):
    """Pull the node that ``select`` names, then hand its reward to ``receive``."""

    tree: Tree

    def select(self) -> int:
        """Position of the node to pull now."""
        ...

    def receive(self, reward: float) -> None:
        """Reward of that node."""
        ...


@dataclass
class Tree:
    """Nodes as flat lists; node 0 is the root.

    Attributes:
        depths, indices: Which cell a node is.
        cells: Its position along every dimension, counted in cells of its depth.
        first: Position of its first child; -1 for a leaf. Children stand side by side.
        visits, totals, squares: Number, sum and sum of squares of its rewards.
        uppers: U, its own optimistic bound; infinite before the first visit.
        bounds: B, the smaller of U and the largest B of its children.
    """

    partition: Partition
    depths: list[int] = field(default_factory=lambda: [0])
    indices: list[int] = field(default_factory=lambda: [0])
    cells: list[tuple[int, ...]] = field(default_factory=list)
    first: list[int] = field(default_factory=lambda: [-1])
    visits: list[int] = field(default_factory=lambda: [0])
    totals: list[float] = field(default_factory=lambda: [0.0])
    squares: list[float] = field(default_factory=lambda: [0.0])
    uppers: list[float] = field(default_factory=lambda: [math.inf])
    bounds: list[float] = field(default_factory=lambda: [math.inf])

    def __post_init__(self) -> None:
        if not self.cells:
            self.cells = [(0,) * self.partition.n_dims]

    def split(self, node: int) -> None:
        """Give a node (fresh) children; nodes at the resolution of the space stay leaves."""
        k, depth = self.partition.n_children, self.depths[node]
        if depth == self.partition.max_depth:
            return
        self.first[node] = len(self.depths)
        self.depths += [depth + 1] * k
        self.indices += [self.indices[node] * k + j for j in range(k)]
        cell, dim = self.cells[node], depth % self.partition.n_dims
        self.cells += [(*cell[:dim], cell[dim] * k + j, *cell[dim + 1 :]) for j in range(k)]
        self.first += [-1] * k
        self.visits += [0] * k
        self.totals += [0.0] * k
        self.squares += [0.0] * k
        self.uppers += [math.inf] * k
        self.bounds += [math.inf] * k

    def best_child(self, node: int) -> int:
        """Child with the largest bound; of equal ones the last."""
        best, bounds = self.first[node], self.bounds
        for child in range(best + 1, best + self.partition.n_children):
            if bounds[child] >= bounds[best]:
                best = child
        return best

    def book(self, node: int, reward: float) -> None:
        """One more reward of a node."""
        self.visits[node] += 1
        self.totals[node] += reward
        self.squares[node] += reward * reward

    def lift(self, path: list[int]) -> int:
        """Bounds along a path, from its end up to the first that does not change.

        Returns:
            How many nodes of the path, from the root, keep bound and choice.
        """
        bounds, uppers, first, k = self.bounds, self.uppers, self.first, self.partition.n_children
        for place in range(len(path) - 1, -1, -1):
            node = path[place]
            bound, start = uppers[node], first[node]
            if start >= 0:
                best = max(bounds[start : start + k])
                bound = min(bound, best)
            if bound == bounds[node]:
                return place + 1
            bounds[node] = bound
        return 1

    def lift_all(self) -> None:
        """All bounds; children stand behind their parents."""
        for node in range(len(self.depths) - 1, -1, -1):
            self.lift([node])

    def point(self, node: int) -> FloatArray:
        """Centre of a node's cell in the unit cube, ``(n_dims,)``."""
        return np.array(self.centre(node))

    def centre(self, node: int) -> list[float]:
        """The same as numbers."""
        scales = _scales(self.partition, self.depths[node])
        return [(cell + 0.5) / scale for cell, scale in zip(self.cells[node], scales, strict=True)]


@lru_cache(maxsize=1024)
def _scales(partition: Partition, depth: int) -> tuple[float, ...]:
    """Number of cells of a depth along every dimension."""
    return tuple(partition.scales(depth).tolist())


def require_smoothness(nu1: float, rho: float) -> None:
    """Refuse impossible smoothness.

    Raises:
        ConfigurationError: Unless nu1 > 0 and 0 < rho < 1.
    """
    if not (math.isfinite(nu1) and nu1 > 0):
        raise ConfigurationError(f"nu1={nu1!r} must be a finite number > 0")
    if not 0 < rho < 1:
        raise ConfigurationError(f"rho={rho!r} must lie in (0, 1)")


def locate(partition: Partition, depth: int, units: FloatArray) -> IntArray:
    """The node of a depth whose cell holds each point ``(n, n_dims)``; upper edges belong to the last cell."""
    k, d = partition.n_children, partition.n_dims
    left = np.array([k ** len(range(dim, depth, d)) for dim in range(d)], dtype=np.int64)
    cells = np.clip(np.floor(units * left.astype(np.float64)).astype(np.int64), 0, left - 1)
    nodes = np.zeros(len(units), dtype=np.int64)
    for level in range(depth):
        dim = level % d
        left[dim] //= k
        nodes = nodes * k + (cells[:, dim] // left[dim]) % k
    return nodes
