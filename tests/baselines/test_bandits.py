"""Heavy-tailed bandits and the reductions of bandits to functional ones."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.baselines.f_lcb import f_lcb
from experiments.baselines.heavy_bandits import SGDUCBSMoM, bandit_arm, play

MEANS = np.array([0.1, 0.9, 0.3, 0.5])


def cauchy(seed):
    return np.random.default_rng(seed).standard_cauchy


@pytest.mark.parametrize("index", ["mean", "averaged"])
def test_median_oracles_survive_cauchy_noise(index) -> None:
    """20 trials: regret per step in the last half is below 40 % of uniform play's, which is 0.45."""
    policy = SGDUCBSMoM(4, n_trials=20, rng=np.random.default_rng(0), scale=4.0, index=index)
    curve = play(policy, MEANS, horizon=5000, noise=cauchy(1), n_trials=20, n_points=2)
    assert (curve[:, 1] - curve[:, 0]).mean() / 2500 < 0.4 * (MEANS.max() - MEANS).mean()


def test_the_printed_functional_index_never_settles() -> None:
    """Its value comes from one batch, so an unlucky batch of the best arm is never corrected."""
    policies = [
        SGDUCBSMoM(4, n_trials=20, rng=np.random.default_rng(0), scale=4.0, index=index)
        for index in ("printed", "averaged")
    ]
    ends = [play(p, MEANS, horizon=5000, noise=cauchy(1), n_trials=20, n_points=2)[:, 1].mean() for p in policies]
    assert ends[0] > 3 * ends[1]


@pytest.mark.parametrize("objective", ["zero-order", "first-order"])
def test_both_reductions_find_the_best_arm(objective) -> None:
    rng = np.random.default_rng(4)
    arms = [
        bandit_arm(str(mean), lambda mean=mean: mean + 0.3 * rng.standard_normal(), stddev=0.3, objective=objective)
        for mean in MEANS
    ]
    found = f_lcb(arms, budget=3000)
    assert found.chosen == 1
    assert found.pulls[1] > 2000
    assert found.states[1].point[0] == pytest.approx(0.9, abs=0.05)
