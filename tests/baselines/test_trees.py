"""Tree baselines: PyXAB's pulls node for node with the flag, no lost subtrees without it."""

import math
from typing import Any

import numpy as np
import pytest

from experiments.baselines.arms import fed1_ucb, random_arms
from experiments.baselines.hoo import HOO
from experiments.baselines.tree import Tree, TreeBandit
from experiments.baselines.trees import HCT, VHCT
from privbo.algorithms.elimination.settings import Partition


def garland(x: float) -> float:
    return x * (1 - x) * (4 - math.sqrt(abs(math.sin(60 * x))))


def pulls(bandit: TreeBandit, noise: np.ndarray) -> list[float]:
    points = []
    for disturbance in noise:
        x = float(bandit.tree.point(bandit.select())[0])
        points.append(x)
        bandit.receive(garland(x) + disturbance)
    return points


def oracle_pulls(oracle: Any, noise: np.ndarray) -> list[float]:
    points = []
    for turn, disturbance in enumerate(noise):
        x = oracle.pull(turn + 1)[0]
        points.append(x)
        oracle.receive_reward(turn + 1, garland(x) + disturbance)
    return points


@pytest.mark.parametrize(
    ("kind", "rounds", "seed"), [("HCT", 1000, 0), ("HCT", 1000, 1), ("VHCT", 1000, 0), ("HOO", 250, 0)]
)
def test_reproduces_pyxab_node_for_node(kind: str, rounds: int, seed: int) -> None:
    """PyXAB 0.3.0 on Garland with uniform noise +-0.1."""
    pyxab = pytest.importorskip(f"PyXAB.algos.{kind}")
    noise = np.random.default_rng(seed).uniform(-0.1, 0.1, rounds)
    partition = Partition(n_dims=1)
    if kind == "HOO":
        ours, theirs = HOO(partition, horizon=rounds), pyxab.T_HOO(domain=[[0, 1]], rounds=rounds)
    else:
        ours = {"HCT": HCT, "VHCT": VHCT}[kind](partition, resplit=True)
        theirs = getattr(pyxab, kind)(domain=[[0, 1]])
    assert pulls(ours, noise) == oracle_pulls(theirs, noise)


@pytest.mark.parametrize(("n_dims", "n_children"), [(1, 2), (3, 2), (2, 3)])
def test_a_nodes_point_is_the_partitions_to_the_last_bit(n_dims: int, n_children: int) -> None:
    """In trees that grow at random, down to the resolution of the space, and where a node is split again."""
    tree, rng = Tree(Partition(n_dims=n_dims, n_children=n_children)), np.random.default_rng(5)
    node = 0
    for _ in range(300):
        tree.split(node)
        tree.split(int(rng.integers(len(tree.depths))))
        node = tree.first[node] + int(rng.integers(n_children)) if tree.first[node] >= 0 else 0
    assert max(tree.depths) == tree.partition.max_depth
    for at, (depth, index) in enumerate(zip(tree.depths, tree.indices, strict=True)):
        assert (
            tree.point(at).tolist() == tree.partition.centres(depth, np.array([index]))[0].tolist() == tree.centre(at)
        )


@pytest.mark.parametrize("kind", [HCT, VHCT])
def test_leaf_checked_trees_never_lose_a_subtree(kind: Any) -> None:
    noise = np.random.default_rng(1).uniform(-0.1, 0.1, 2000)
    kept, lost = kind(Partition(n_dims=1)), kind(Partition(n_dims=1), resplit=True)
    pulls(kept, noise)
    pulls(lost, noise)

    def reachable(tree: Any) -> int:
        stack, seen = [0], 0
        while stack:
            node = stack.pop()
            seen += 1
            if tree.first[node] >= 0:
                stack += range(tree.first[node], tree.first[node] + 2)
        return seen

    assert reachable(kept.tree) == len(kept.tree.depths)
    assert reachable(lost.tree) < len(lost.tree.depths)  # the flag does what it says


def test_fed1_ucb_ends_on_the_best_arm() -> None:
    generator = np.random.default_rng(0)
    arms = random_arms(1, generator)
    spent = np.zeros(5, dtype=int)

    def pull(clients: np.ndarray, units: np.ndarray, counts: np.ndarray) -> np.ndarray:
        np.add.at(spent, clients, counts)
        return np.asarray(
            1 - np.abs(units[:, 0] - 0.4) + generator.normal(0, 0.1, len(clients)) / np.sqrt(np.maximum(counts, 1))
        )

    best = fed1_ucb(pull, n_clients=5, arms=arms, horizon=4000)
    assert best == arms[np.argmin(np.abs(arms[:, 0] - 0.4))]
    assert np.all(spent == 4000)
    assert random_arms(2, generator).shape == (400, 2)
    assert random_arms(10, generator).shape == (1000, 10)
