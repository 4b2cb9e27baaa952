"""Single-client tree bandits, the baselines: HCT and VHCT (HOO beside them).

HCT: Azar, Lazaric, Brunskill 2014; VHCT: Li et al. 2021. Both walk down a tree of cells by
optimistic bounds, pull the node they stop at, and split it when it has been pulled often
enough. Nodes are entries of flat lists and only bounds on the walked path are recomputed, so
a round costs the depth of the tree.

PyXAB's HCT and VHCT split a node again when its doubled threshold is reached a second time,
which throws its subtree away; ``resplit=True`` does the same, for cross-checks.
"""

from __future__ import annotations

import math
from typing import Any

from experiments.baselines.tree import Tree, require_smoothness
from privbo.algorithms.elimination.settings import Partition
from privbo.protocol.errors import ConfigurationError


def _require(c: float, delta_b: float, nu1: float, rho: float) -> None:
    require_smoothness(nu1, rho)
    if not (math.isfinite(c) and c > 0):
        raise ConfigurationError(f"c={c!r} must be a finite number > 0")
    if not 0 < delta_b < 1:
        raise ConfigurationError(f"delta_b={delta_b!r} must lie in (0, 1)")


def _next_power_of_two(iteration: int) -> int:
    return 1 << (iteration - 1).bit_length()


class HCT:
    """High-confidence tree.

    With ``d~ = c1 delta_b / t+``, t+ the next power of two and ``c1 = (rho / (3 nu1))^(1/8)``:
    ``U = mean + nu1 rho^h + c sqrt(log(1/d~) / n)``; a node is split at
    ``tau_h = ceil(c^2 log(1/d~) rho^(-2h) / nu1^2)`` pulls.

    Args:
        partition: The partition.
        nu1, rho: Smoothness.
        c: Width of confidence intervals.
        delta_b: Failure probability of the bandit.
        resplit: Split inner nodes again as PyXAB does.

    Raises:
        ConfigurationError: If a number is out of its range.
    """

    def __init__(
        self,
        partition: Partition,
        *,
        nu1: float = 1.0,
        rho: float = 0.5,
        c: float = 0.1,
        delta_b: float = 0.01,
        resplit: bool = False,
    ) -> None:
        _require(c, delta_b, nu1, rho)
        self.tree = Tree(partition)
        self._c, self._nu1, self._rho = c, nu1, rho
        self._scaled = (rho / (3 * nu1)) ** 0.125 * delta_b
        self._resplit = resplit
        self._iteration = 1
        self._epoch = 0
        self._path = [0]
        self._thresholds: list[float] = []
        self._log_for_upper = 0.0
        self.tree.split(0)

    def _start_epoch(self, epoch: int) -> None:
        """Start the next epoch, when t+ doubles."""
        self._epoch = epoch
        log = math.log(1 / min(0.5, self._scaled / epoch))
        self._log_for_upper = math.log(1 / min(1.0, self._scaled / epoch))
        scale = self._c**2 * log
        deepest = min(self.tree.partition.max_depth, int(400 / -math.log(self._rho)))
        levels = [scale * self._rho ** (-2 * h) / self._nu1**2 for h in range(1, deepest + 2)]
        self._thresholds = [0.0, *(float(math.ceil(x)) for x in levels)]

    def select(self) -> int:
        """Walk down while nodes have their pulls."""
        epoch = _next_power_of_two(self._iteration)
        if epoch != self._epoch:
            self._start_epoch(epoch)
            self._path = [0]
        tree, path, thresholds = self.tree, self._path, self._thresholds
        first, visits, depths = tree.first, tree.visits, tree.depths
        node = path[-1]
        while first[node] >= 0 and visits[node] >= thresholds[depths[node]]:
            node = tree.best_child(node)
            path.append(node)
        return node

    def receive(self, reward: float) -> None:
        """Book the reward, refresh bounds, split the node when due."""
        tree = self.tree
        if self._iteration == self._epoch:
            for node, visits in enumerate(tree.visits):
                if visits:
                    tree.uppers[node] = self._upper(node)
            tree.lift_all()
        node = self._path[-1]
        tree.book(node, reward)
        self._iteration += 1
        tree.uppers[node] = self._upper(node)
        del self._path[tree.lift(self._path) :]
        if tree.visits[node] >= self._thresholds[tree.depths[node]] and (self._resplit or tree.first[node] < 0):
            tree.split(node)

    def _upper(self, node: int) -> float:
        tree = self.tree
        visits = tree.visits[node]
        radius = self._c * math.sqrt(self._log_for_upper / visits)
        return tree.totals[node] / visits + self._nu1 * self._rho ** tree.depths[node] + radius


class VHCT(HCT):
    """HCT with intervals from the empirical variance (Bernstein).

    ``U = mean + nu1 rho^h + c sqrt(2 v l / n) + 3 b c^2 l / n`` with ``l = log(1/d~)`` and v the
    node's variance, at least 0.001; thresholds per node.

    Args:
        partition: The partition.
        noise_bound: b, bound of the reward noise.
        settings: As for ``HCT``.

    Raises:
        ConfigurationError: If a number is out of its range.
    """

    def __init__(self, partition: Partition, *, noise_bound: float = 1.0, **settings: Any) -> None:  # noqa: ANN401 (as HCT)
        super().__init__(partition, **settings)
        self._noise_bound, self._due = noise_bound, 0.0

    def _variance(self, node: int) -> float:
        visits = self.tree.visits[node]
        if not visits:
            return 1e-3
        mean = self.tree.totals[node] / visits
        return max(self.tree.squares[node] / visits - mean * mean, 1e-3)

    def _threshold(self, node: int, log: float) -> float:
        depth, v = self.tree.depths[node], self._variance(node)
        if depth == 0:
            return 0.0
        slack = self._noise_bound * self._nu1 * self._rho**depth
        scale = self._c**2 * log * self._rho ** (-2 * depth) / self._nu1**2
        return float(math.ceil((v + 3 * slack + v * math.sqrt(1 + 6 * slack / v)) * scale))

    def select(self) -> int:
        """Walk down while nodes have their pulls."""
        log = math.log(1 / min(0.5, self._scaled / _next_power_of_two(self._iteration)))
        tree = self.tree
        node, path, due = 0, [0], 0.0
        while tree.first[node] >= 0 and tree.visits[node] >= due:
            node = tree.best_child(node)
            path.append(node)
            due = self._threshold(node, log)
        self._path, self._due = path, due
        return node

    def receive(self, reward: float) -> None:
        """Book the reward, refresh bounds, split the node when due."""
        tree = self.tree
        epoch = _next_power_of_two(self._iteration)
        self._log_for_upper = math.log(1 / min(1.0, self._scaled / epoch))
        if self._iteration == epoch:
            for node, visits in enumerate(tree.visits):
                if visits:
                    tree.uppers[node] = self._upper(node)
            tree.lift_all()
        node = self._path[-1]
        tree.book(node, reward)
        self._iteration += 1
        tree.uppers[node] = self._upper(node)
        tree.lift(self._path)
        if tree.visits[node] >= self._due and (self._resplit or tree.first[node] < 0):
            tree.split(node)

    def _upper(self, node: int) -> float:
        tree = self.tree
        visits, wide = tree.visits[node], self._c**2 * self._log_for_upper
        radius = math.sqrt(2 * wide * self._variance(node) / visits) + 3 * self._noise_bound * wide / visits
        return tree.totals[node] / visits + radius + self._nu1 * self._rho ** tree.depths[node]
