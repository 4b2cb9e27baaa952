"""One optimistic tree per client, all of them at once: the silent stage that removes nothing.

Every client descends its own tree by ``B = min(U, largest B of the children)`` with
``U = mean + b + nu1 rho^h`` from its own pulls alone, pulls the node it stops at, and splits
it once it has tau_h pulls (the rule of HCT with the horizon's fixed confidence). What a
shared stage found out enters in two ways, neither of which can lose an optimum: the pulls
made then count, and the nodes the server kept may be passed without tau_h own pulls.
A region the server gave up is looked at again as soon as a client's own bound for it is
the largest.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from privbo.algorithms.elimination.pulls import PullTable
from privbo.algorithms.elimination.settings import Confidence, Partition
from privbo.protocol.messages import Array, Arrays, BoolArray, FloatArray, IntArray
from privbo.protocol.space import Space

# What a node holds that nobody has seen yet.
_FRESH = {"first": -1, "depths": 0, "indices": 0, "visits": 0, "means": 0.0, "bounds": np.inf, "open_": False}
_STATE = ("size", *_FRESH)


@dataclass
class Forest:
    """Trees as rows of arrays ``(n, capacity)``; node 0 of every row is its root.

    Attributes:
        partition, space, confidence: As for the run.
        size: Nodes in use, ``(n,)``.
        first: Position of a node's first child, -1 for a leaf.
        depths, indices: Which cell a node is.
        visits, means: Number and mean of the client's own pulls.
        bounds: B.
        open_: Whether a node may be passed before it has tau_h pulls.
        points: Centres, ``(n, capacity, d)``; derived, as all below.
        uppers: U.
        ways: Position of the first child of a node that may be passed now, else -1.
        due: tau_h of every depth.
    """

    partition: Partition
    space: Space
    confidence: Confidence
    size: IntArray
    first: IntArray
    depths: IntArray
    indices: IntArray
    visits: IntArray
    means: FloatArray
    bounds: FloatArray
    open_: BoolArray
    points: FloatArray = field(init=False)
    uppers: FloatArray = field(init=False)
    ways: IntArray = field(init=False)
    due: IntArray = field(init=False)

    def __post_init__(self) -> None:
        n, capacity = self.first.shape
        depths = range(self.partition.max_depth + 1)
        self.due = np.array([self.confidence.threshold(h) for h in depths], dtype=np.int64)
        self.points = np.zeros((n, capacity, self.space.n_dims))
        for node in range(capacity):
            self._place(np.arange(n), np.full(n, node))
        self._derive()

    def _derive(self) -> None:
        """U of all nodes, and which may be passed."""
        self.uppers = self._upper(self.visits, self.means, self.depths)
        passes = self.open_ | (self.visits >= self.due[self.depths])
        self.ways = np.where(passes, self.first, -1)

    @staticmethod
    def roots(n: int, partition: Partition, space: Space, confidence: Confidence) -> Forest:
        """Trees that are split once at the root."""
        state = {name: np.full((n, 1), fill) for name, fill in (_FRESH | {"open_": True}).items()}
        size = np.ones(n, dtype=np.int64)
        forest = Forest(partition=partition, space=space, confidence=confidence, size=size, **state)
        forest.split(np.arange(n), np.zeros(n, dtype=np.int64))
        forest._derive()
        return forest

    def split(self, rows: IntArray, nodes: IntArray) -> None:
        """Give one leaf of every tree in ``rows`` children; cells at the resolution of the space stay leaves."""
        deep = self.depths[rows, nodes] < self.partition.max_depth
        rows, nodes = rows[deep], nodes[deep]
        if not len(rows):
            return
        k = self.partition.n_children
        self._reserve(int(self.size[rows].max()) + k)
        start = self.size[rows]
        self.first[rows, nodes] = start
        self.size[rows] += k
        for j in range(k):
            self.depths[rows, start + j] = self.depths[rows, nodes] + 1
            self.indices[rows, start + j] = self.indices[rows, nodes] * k + j
            self._place(rows, start + j)

    def _place(self, rows: IntArray, nodes: IntArray) -> None:
        self.points[rows, nodes] = self.partition.points(
            self.space, self.depths[rows, nodes], self.indices[rows, nodes]
        )

    def _reserve(self, needed: int) -> None:
        capacity = self.first.shape[1]
        if needed <= capacity:
            return
        more = max(2 * capacity, needed, 16) - capacity
        for name, fill in (_FRESH | {"uppers": np.inf, "ways": -1}).items():
            array = getattr(self, name)
            setattr(self, name, np.pad(array, ((0, 0), (0, more)), constant_values=fill))
        self.points = np.pad(self.points, ((0, 0), (0, more), (0, 0)))

    def seed(self, depth: int, nodes: IntArray, means: FloatArray, pulls: int, survivors: IntArray) -> None:
        """Take over a shared phase, root first: own means ``(n, K)`` of ``pulls`` each, and nodes the server kept."""
        n, k = len(self.size), self.partition.n_children
        rows = np.arange(n)
        for j, index in enumerate(nodes):
            node = 0  # its position, while all trees are still alike
            for level in range(depth - 1, -1, -1):
                if self.first[0, node] < 0:
                    self.split(rows, np.full(n, node))
                node = int(self.first[0, node]) + (int(index) // k**level) % k
            self.visits[:, node] = pulls
            self.means[:, node] = means[:, j]
            if int(index) in survivors:
                self.open_[:, node] = True
                if self.first[0, node] < 0:
                    self.split(rows, np.full(n, node))

    def refresh(self) -> None:
        """All bounds from visits and means; children stand behind their parents."""
        self._derive()
        self.bounds = self.uppers.copy()
        k = self.partition.n_children
        for node in range(int(self.size.max()) - 1, -1, -1):
            rows = np.flatnonzero(self.first[:, node] >= 0)
            kids = self.first[rows, node][:, None] + np.arange(k)
            below = self.bounds[rows[:, None], kids].max(axis=1) if len(rows) else np.zeros(0)
            self.bounds[rows, node] = np.minimum(self.uppers[rows, node], below)

    def _upper(self, visits: IntArray, means: FloatArray, depths: IntArray) -> FloatArray:
        variation = self.confidence.nu1 * self.confidence.rho**depths
        return np.asarray(np.where(visits > 0, means + self.confidence.radius(visits) + variation, np.inf))

    def select(self) -> IntArray:
        """Descend every tree to where its client stops: positions ``(levels, n)``, the stop repeated to the end.

        Arrays are read flat, which is what makes ten thousand trees bearable.
        """
        n, capacity = self.first.shape
        ways, bounds = self.ways.reshape(-1), self.bounds.reshape(-1)
        path = [np.zeros(n, dtype=np.int64)]
        going = np.arange(n)
        while True:
            way = ways.take(going * capacity + path[-1].take(going))
            passes = way >= 0
            if not passes.any():
                return np.stack(path)
            if not passes.all():
                going, way = going[passes], way[passes]
            kids = going * capacity + way
            child, best = way, bounds.take(kids)
            for j in range(1, self.partition.n_children):
                offer = bounds.take(kids + j)
                better = offer >= best  # of equal ones the last
                child, best = np.where(better, way + j, child), np.where(better, offer, best)
            nodes = path[-1].copy()
            nodes[going] = child
            path.append(nodes)

    def receive(self, path: IntArray, rewards: FloatArray) -> None:
        """Book one reward per client at the end of its path."""
        rows, nodes = np.arange(len(rewards)), path[-1]
        here = rows * self.first.shape[1] + nodes
        visits, means = self.visits.reshape(-1), self.means.reshape(-1)
        count, mean, depth = visits.take(here) + 1, means.take(here), self.depths.reshape(-1).take(here)
        mean += (rewards - mean) / count
        visits[here], means[here] = count, mean
        self.uppers.reshape(-1)[here] = self._upper(count, mean, depth)
        self._lift(path)
        full = count >= self.due[depth]  # of their tau_h pulls: they are split and may be passed
        rows, nodes = rows[full], nodes[full]
        leaves = self.first[rows, nodes] < 0
        self.split(rows[leaves], nodes[leaves])
        self.ways[rows, nodes] = self.first[rows, nodes]

    def _lift(self, path: IntArray) -> None:
        """Bounds along every path from its end up, as far as they change."""
        capacity = self.first.shape[1]
        first, uppers, bounds = self.first.reshape(-1), self.uppers.reshape(-1), self.bounds.reshape(-1)
        changes = np.ones(path.shape[1], dtype=bool)
        for level in range(len(path) - 1, -1, -1):
            # The stop is repeated to the end: only its first place counts.
            due = changes if level == 0 else changes & (path[level] != path[level - 1])
            who = np.flatnonzero(due)
            if not len(who):
                continue
            here = who * capacity + path[level].take(who)
            bound, start = uppers.take(here), first.take(here)
            kids = who * capacity + np.maximum(start, 0)
            below = bounds.take(kids)
            for j in range(1, self.partition.n_children):
                below = np.maximum(below, bounds.take(kids + j))
            bound = np.where(start >= 0, np.minimum(bound, below), bound)
            changes[who] = bound != bounds.take(here)
            bounds[here] = bound

    def book(self, table: PullTable, nodes: IntArray, rewards: FloatArray, round_: int) -> PullTable:
        """Add pulls to a table, depth by depth: where every client stopped turn by turn, and its reward; ``(t, n)``."""
        places, size = np.arange(len(self.size)) * self.first.shape[1] + nodes, self.first.size
        pairs, turn = np.unique(self.depths.ravel()[places] * size + places, return_inverse=True)
        places, turn, good = pairs % size, turn.ravel(), np.isfinite(rewards).ravel()
        worked, earned = np.bincount(turn, weights=good), np.bincount(turn, weights=np.nan_to_num(rewards).ravel())
        with np.errstate(invalid="ignore"):
            return table.add(
                owners=places // self.first.shape[1],
                depth=self.depths.ravel()[places],
                nodes=self.indices.ravel()[places],
                pulls=np.bincount(turn),
                worked=worked.astype(np.int64),
                means=earned / worked,
                round_=round_,
            )

    def arrays(self) -> dict[str, Array]:
        """Named arrays for a snapshot."""
        return {f"forest_{name}": getattr(self, name) for name in _STATE}

    @staticmethod
    def of(arrays: Arrays, partition: Partition, space: Space, confidence: Confidence) -> Forest:
        """The forest of a snapshot."""
        state = {name: np.array(arrays[f"forest_{name}"]) for name in _STATE}
        return Forest(partition=partition, space=space, confidence=confidence, **state)
