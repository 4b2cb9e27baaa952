"""Private best-arm identification against plain re-implementations; its price, its budget and its errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import privbo as pb
from experiments.baselines.best_arm import BestArm
from experiments.baselines.common import Scores
from privbo.protocol.messages import FloatArray, IntArray, Setting

N, K = 5, 6
MEANS = np.array([0.2, 0.35, 0.5, 0.8, 0.4, 0.3])
SPACE = {"arm": pb.Int(0, K - 1)}
REWARD = pb.Privacy(noise_multiplier=0.5, noise="simulation", unit="reward")


class Pulls:
    """Coins: the j-th pull of an arm by a client is always the same; every one is written down."""

    def __init__(self, means: FloatArray = MEANS) -> None:
        self.means = means
        self.made: list[list[int]] = [[] for _ in range(N)]

    def __call__(self, clients: IntArray, units: FloatArray) -> FloatArray:
        arms = np.minimum((units[:, 0] * len(self.means)).astype(int), len(self.means) - 1)
        found = []
        for client, arm in zip(clients.tolist(), arms.tolist(), strict=True):
            found.append(coin(self.means, client, arm, self.made[client].count(arm)))
            self.made[client].append(arm)
        return np.array(found)

    def problem(self) -> pb.Problem:
        space = {"arm": pb.Int(0, len(self.means) - 1)}
        return pb.Problem(space=space, batch_objective=self, n_clients=N)


def coin(means: FloatArray, client: int, arm: int, pull: int) -> float:
    return float(np.random.default_rng([client, arm, pull]).random() < means[arm])


def fresh_mean(arm: int, first: int, pulls: int) -> float:
    """Plain mean over clients of pulls number ``first`` and on of an arm, less one half."""
    rewards = [coin(MEANS, n, arm, j) - 0.5 for n in range(N) for j in range(first, first + pulls)]
    return sum(rewards) / len(rewards)


def played(algorithm: Any, privacy: Any) -> tuple[Pulls, pb.Record]:
    pulls = Pulls()
    return pulls, pb.run(pulls.problem(), algorithm, privacy=privacy, rounds=40, seed=4)


@pytest.mark.parametrize("privacy", [pb.NoPrivacy(), REWARD], ids=["exact", "noisy"])
def test_halving_is_the_plain_one_on_what_was_released(privacy: Any) -> None:
    calls, record = played(BestArm(rule="halving", horizon=96), privacy)
    first = calls.made[0][:K]
    arms, used, order = first, dict.fromkeys(range(K), 0), list[int]()
    for release, pulls in zip(record.releases, (5, 10, 16), strict=True):
        told = release.values[0].tolist()
        if isinstance(privacy, pb.NoPrivacy):
            assert told == pytest.approx([fresh_mean(arm, used[arm], pulls) for arm in arms], abs=1e-12)
        else:
            assert release.noise_stddev == pytest.approx(0.5 / (pulls * N), rel=1e-3)
        order += arms * pulls
        used = {arm: used[arm] + pulls * (arm in arms) for arm in used}
        best = sorted(zip(told, arms, strict=True), key=lambda pair: -pair[0])
        winner, size = best[0][1], math.ceil(len(arms) / 2)
        arms = [arm for arm in arms if arm in {name for _, name in best[:size]}]
    assert all(made == order for made in calls.made)
    assert record.best(client=0).params == {"arm": winner}


@pytest.mark.parametrize("privacy", [pb.NoPrivacy(), REWARD], ids=["exact", "noisy"])
def test_top_two_is_the_plain_one_on_what_was_released(privacy: Any) -> None:
    algorithm = BestArm(horizon=300, delta_b=0.2)
    calls, record = played(algorithm, privacy)
    releases = list(record.releases)
    arms = calls.made[0][:K]
    mean = dict(zip(arms, releases[0].values[0].tolist(), strict=True))
    noise = dict.fromkeys(arms, releases[0].noise_stddev)
    size, count, used, spent, order = (
        dict.fromkeys(arms, 1),
        dict.fromkeys(arms, 1),
        dict.fromkeys(arms, 1),
        K,
        list(arms),
    )
    for release in releases[1:]:
        leader = max(arms, key=lambda a: mean[a])
        cost = {a: (mean[leader] - mean[a]) ** 2 / 2 / (0.25 / N / size[leader] + 0.25 / N / size[a]
                + noise[leader] ** 2 + noise[a] ** 2) for a in arms if a != leader}  # fmt: skip
        other = min(cost, key=lambda a: cost[a])
        bound = math.log((K - 1) * count[leader] * (count[leader] + 1) * count[other] * (count[other] + 1) / 0.2)
        assert cost[other] < bound
        arm = leader if count[leader] <= count[other] else other
        size[arm], count[arm] = 2 * size[arm], count[arm] + 1
        told = float(release.values[0, 0])
        if isinstance(privacy, pb.NoPrivacy):
            assert told == pytest.approx(fresh_mean(arm, used[arm], size[arm]), abs=1e-12)
        mean[arm], noise[arm] = told, release.noise_stddev
        used[arm], spent = used[arm] + size[arm], spent + size[arm]
        order += [arm] * size[arm]
    assert all(made == order for made in calls.made)
    assert spent <= 300
    assert record.best(client=0).params == {"arm": max(arms, key=lambda a: mean[a])}


def test_one_reward_is_in_one_release_and_the_run_costs_what_one_release_costs() -> None:
    problem = Pulls().problem()
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


def test_it_stops_when_it_is_sure_and_is_seldom_wrong() -> None:
    """Forty runs with a confidence of 80 %: more than 20 wrong ones have a probability below 1e-6 (binomial, .2)."""
    wrong = 0
    for seed in range(40):
        generator = np.random.default_rng(seed)
        means = generator.permutation([0.9, 0.4, 0.3, 0.2])

        def rewards(clients: IntArray, units: FloatArray, means: Any = means, generator: Any = generator) -> FloatArray:
            arms = np.minimum((units[:, 0] * 4).astype(int), 3)
            return np.asarray((generator.random(len(clients)) < means[arms]).astype(float))

        problem = pb.Problem(space={"arm": pb.Int(0, 3)}, batch_objective=rewards, n_clients=N)
        algorithm = BestArm(horizon=4000, delta_b=0.2)
        record = pb.run(problem, algorithm, privacy=pb.NoPrivacy(), rounds=60, seed=seed)
        assert record.clients.values.shape[1] < 400
        wrong += record.best(client=0).params["arm"] != int(means.argmax())
    assert wrong <= 20
    assert wrong <= 4  # the union bound is loose


@pytest.mark.parametrize("pulls", [1, 7, 100])
def test_one_reward_moves_a_mean_by_its_part(pulls: int) -> None:
    """Against rewards outside, failures, and one reward exchanged for any other."""
    space = pb.Space({"x": pb.Real(0, 1)})
    form, generator = Scores(low=-1.0, high=3.0), np.random.default_rng(0)
    request = form.request(4, 4, pulls, Setting(space=space, n_clients=N, rounds=3, public_seed=0, unit="reward"))
    values = generator.normal(1, 3, (200, pulls, 4))
    values[generator.random(values.shape) < 0.2] = np.nan
    moved = values.copy()
    where = np.arange(200), generator.integers(0, pulls, 200), generator.integers(0, 4, 200)
    moved[where] = generator.choice([np.nan, -9.0, 9.0], 200)
    apart = np.linalg.norm(form.vectors(moved, "reward") - form.vectors(values, "reward"), axis=1)
    assert request.unit_bound is not None
    assert 0.5 * request.unit_bound < apart.max() <= request.unit_bound == pytest.approx(4.0 / pulls)
