"""Private best-arm identification against plain re-implementations; its price, its budget and its errors."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import privbo as pb
from experiments.baselines.best_arm import BestArm, TopTwo
from experiments.baselines.common import Question, Seen
from experiments.baselines.halving import (
    early_stopping,
    halving_rungs,
    hyperband,
    hyperband_brackets,
    successive_halving,
    uniform,
)
from experiments.baselines.hoo import HOO
from experiments.baselines.tree import Tree, TreeBandit
from experiments.baselines.trees import HCT, VHCT
from privbo.algorithms.elimination.settings import Partition
from tests.baselines.calls import Calls
from tests.baselines.test_f_lcb import Table

N, K = 5, 6
MEANS = np.array([0.2, 0.35, 0.5, 0.8, 0.4, 0.3])
SPACE = {"arm": pb.Int(0, K - 1)}
REWARD = pb.Privacy(noise_multiplier=0.5, noise="simulation", unit="reward")


def pulled() -> Calls:
    """Coins: the j-th pull of an arm by a client is always the same."""

    def coin(client: int, arm: int, pull: int) -> float:
        return float(np.random.default_rng([client, arm, pull]).random() < MEANS[arm])

    return Calls(SPACE, N, coin, lambda unit: min(int(unit[0] * K), K - 1))


HALVING, TOP_TWO = BestArm(rule="halving", horizon=96), BestArm(horizon=300, delta_b=0.2)


@pytest.mark.parametrize(
    ("algorithm", "privacy", "expected"),
    [
        (HALVING, pb.NoPrivacy(), "ba201023a3"),
        (HALVING, REWARD, "5d9f565994"),
        (TOP_TWO, pb.NoPrivacy(), "05d1b38906"),
        (TOP_TWO, REWARD, "30685d00d5"),
    ],
)
def test_every_pull_is_that_of_the_plain_algorithm(algorithm: BestArm, privacy, expected: str) -> None:
    """Golden: pulls of a re-implementation with dictionaries, told what was released."""
    calls = pulled()
    record = pb.run(calls.problem, algorithm, privacy=privacy, rounds=40, seed=4)
    assert calls.digest == expected
    assert max(map(len, calls.made)) <= algorithm.horizon
    assert record.best(client=0).params == {"arm": 3}


def test_one_reward_is_in_one_release_and_the_run_costs_what_one_release_costs() -> None:
    problem = pulled().problem
    privacy = pb.Privacy(epsilon=1.0, delta=1e-5, unit="reward", noise="simulation")
    multipliers = set()
    for algorithm in (BestArm(), BestArm(rule="halving"), BestArm(rule="halving", horizon=K)):
        plan = pb.plan(problem, algorithm, privacy=privacy, rounds=40)
        multipliers.add(round(plan.noise_multiplier or 0.0, 6))
        record = pb.run(problem, algorithm, privacy=privacy, rounds=40)
        assert 0.99 < record.epsilon() <= 1.0
        assert len(record.releases) <= plan.releases
    assert len(multipliers) == 1  # however many releases
    clients = pb.Privacy(epsilon=1.0, delta=1e-5, noise="simulation")
    plan = pb.plan(problem, BestArm(), privacy=clients, rounds=40)
    assert plan.releases > 10
    assert 0.99 < min(plan.epsilon().values()) <= 1.0


@pytest.mark.parametrize(("stddev", "sure"), [(0.0, True), (0.15, True), (0.25, False)])
def test_noise_of_a_release_is_part_of_what_is_not_sure(stddev: float, sure: bool) -> None:
    """.8^2 / 4 variances against log(4 / .05), variances 1 / 3200 and the noise: .19 and more leaves it open."""
    arms = np.array([[0.0], [1.0]])
    rule = TopTwo(arms=arms, budget=10_000, n_clients=8, width=1.0, delta_b=0.05)
    said = Seen.nothing(1).with_more(Question(points=arms, pulls=100), np.array([0.9, 0.1]), stddev)
    assert (rule.propose(said, 1) is None) is sure


# ---- successive halving, Hyperband, uniform play and early stopping on resumable arms


def curve(limit, reach=1.0, fails_at=None):
    """A learning curve limit + reach / k."""
    lengths = range(1, 301)
    error = FloatingPointError("diverged")
    return Table([limit + reach / k for k in lengths], [reach / k for k in lengths], raises_at=fails_at, error=error)


CURVES = [0.5, 0.1, 0.9, 0.3, 0.7, 0.2, 0.8, 0.4]


@given(n_arms=st.integers(1, 40), budget=st.integers(1, 300), factor=st.integers(2, 5), seed=st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_no_rival_passes_its_budget(n_arms, budget, factor, seed) -> None:
    arms = [curve(0.1 * i) for i in range(n_arms)]
    for found in (
        uniform(arms, budget=budget),
        early_stopping(arms, budget=budget, patience=2, min_gain=0.0),
        successive_halving(arms, budget=budget, factor=factor),
        hyperband(arms, budget=budget, seed=seed, factor=factor),
    ):
        assert 1 <= len(found.played) <= budget
        assert found.chosen is not None


def test_halving_doubles_the_pulls_of_those_that_stay() -> None:
    """Jamieson and Talwalkar 2016, Figure 1: 8 arms, budget 48, rungs of 2, 4 and 8 pulls."""
    arms = [curve(limit) for limit in CURVES]
    found = successive_halving(arms, budget=48)
    np.testing.assert_array_equal(np.sort(found.pulls), [2, 2, 2, 2, 6, 6, 14, 14])
    assert all(arm.started == 1 for arm in arms)  # states are carried on
    assert halving_rungs(8, 2) == 3
    assert halving_rungs(1, 2) == 1


def test_hyperband_brackets() -> None:
    """Li et al. 2018, Table 1: R = 81, factor 3 (81 arms and more are there)."""
    brackets = hyperband_brackets(81, 1000, 3)
    assert [bracket[0] for bracket in brackets] == [(81, 1), (34, 3), (15, 9), (8, 27), (5, 81)]
    assert brackets[0] == [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)]


def test_failing_arms_are_retired() -> None:
    arms = [curve(0.0, fails_at=2), curve(0.5), curve(0.6, reach=math.nan)]
    for found in (uniform(arms, budget=40), successive_halving(arms, budget=40)):
        assert found.chosen == 1
        assert found.retired == {0: "FloatingPointError: diverged", 2: "value nan is not finite"}
    assert uniform([curve(0.0, fails_at=1)], budget=5).chosen is None


# ---- tree baselines: PyXAB's pulls node for node with the flag, no lost subtrees without it


def garland(x: float) -> float:
    return x * (1 - x) * (4 - math.sqrt(abs(math.sin(60 * x))))


def same_pulls(ours: TreeBandit, theirs, noise: np.ndarray) -> None:
    for turn, disturbance in enumerate(noise, 1):
        x = float(ours.tree.point(ours.select())[0])
        assert x == theirs.pull(turn)[0]
        ours.receive(garland(x) + disturbance)
        theirs.receive_reward(turn, garland(x) + disturbance)


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
    same_pulls(ours, theirs, noise)


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
