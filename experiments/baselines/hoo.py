"""HOO, the third tree baseline (truncated form, Bubeck et al. 2011)."""

from __future__ import annotations

import math

from experiments.baselines.tree import Tree, require_smoothness
from privbo.algorithms.elimination.settings import Partition
from privbo.protocol.errors import ConfigurationError


class HOO:
    """Truncated hierarchical optimistic optimisation: every pull splits the node it stops at.

    ``U = mean + sqrt(2 log n / visits) + nu1 rho^h`` with means over whole subtrees; nodes
    deeper than ``(log(n)/2 - log(1/nu1)) / log(1/rho)`` are not split.

    Args:
        partition, nu1, rho: As for ``HCT``.
        horizon: n, number of pulls.

    Raises:
        ConfigurationError: If a number is out of its range.
    """

    def __init__(self, partition: Partition, *, horizon: int, nu1: float = 1.0, rho: float = 0.5) -> None:
        require_smoothness(nu1, rho)
        if horizon < 1:
            raise ConfigurationError(f"horizon={horizon!r} must be at least 1")
        self.tree = Tree(partition)
        self._nu1, self._rho, self._log = nu1, rho, math.log(horizon)
        self._deepest = math.ceil((math.log(horizon) / 2 - math.log(1 / nu1)) / math.log(1 / rho))
        self._path: list[int] = []
        self.tree.split(0)

    def select(self) -> int:
        """Walk down to a leaf."""
        tree, node, path = self.tree, 0, [0]
        while tree.first[node] >= 0:
            node = tree.best_child(node)
            path.append(node)
        self._path = path
        return node

    def receive(self, reward: float) -> None:
        """Book the reward along the whole path and split the leaf."""
        tree = self.tree
        for node in self._path:
            tree.book(node, reward)
            visits = tree.visits[node]
            radius = math.sqrt(2 * self._log / visits)
            tree.uppers[node] = tree.totals[node] / visits + radius + self._nu1 * self._rho ** tree.depths[node]
        if tree.depths[self._path[-1]] <= self._deepest:
            tree.split(self._path[-1])
        tree.lift(self._path)
