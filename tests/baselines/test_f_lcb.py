"""F-LCB: the bandit, identification, and everything that goes wrong with arms."""

import dataclasses
import math
import warnings

import numpy as np
import pytest

import privbo as pb
from experiments.baselines.f_lcb import RateViolated, WatchedBounds, f_lcb
from experiments.baselines.first_order import AcceleratedGradient
from experiments.baselines.function_arms import FunctionArm
from experiments.baselines.functions import Noisy, Quadratic
from tests.functional.instances import DETERMINISTIC, minimum


def quadratic_arm(offset, *, n_dims=3, distance=2.0, seed=0, name="quadratic"):
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=n_dims)
    start = centre + distance / math.sqrt(n_dims)
    f = Quadratic(centre=centre, scales=np.linspace(0.2, 1.0, n_dims), offset=offset)
    return FunctionArm(
        name=name, optimiser=AcceleratedGradient(smoothness=1.0, distance=distance), oracle=f, start=start
    )


@pytest.mark.parametrize("draw", DETERMINISTIC, ids=lambda f: f.__name__)
def test_identification_returns_an_arm_within_epsilon(draw) -> None:
    """100 instances; the selected arm's minimum is even within epsilon / 2 of the best."""
    stopped = 0
    for seed in range(100):
        arms = [draw(np.random.default_rng([1000 + seed, index])) for index in range(3)]
        found = f_lcb(arms, budget=1000, epsilon=1.0)
        if found.reason == "rate":
            stopped += 1
            assert minimum(arms[found.chosen]) - min(map(minimum, arms)) < 1.0 / 2
    assert stopped >= 10


class Table:
    """An arm that reads its values and rates from a table, exactly; a step may raise. Counts how often it began."""

    name, value_stddev, started = "table", 0.0, 0

    def __init__(self, values, rates, raises_at=None, error=None):
        self._values, self._rates, self._raises_at, self._error = values, rates, raises_at, error

    def init(self):
        self.started += 1
        return 0

    def step(self, state):
        if state + 1 == self._raises_at:
            raise self._error
        return state + 1

    def value(self, state):
        return self._values[min(state, len(self._values)) - 1]

    def rate(self, state, k, delta):
        return self._rates[min(k, len(self._rates)) - 1]


def test_an_arm_whose_rate_drops_steeply_is_not_taken_for_the_best() -> None:
    """Arm 0: value 5, its rate drops from 10 to 0.01 at once; arm 1's minimum is 0, five below it."""
    steep = Table([5.0, 5.0], [10.0, 0.01])
    better = Table([1.0, 0.0], [1.0, 0.0])
    found = f_lcb([steep, better], budget=50, epsilon=1.0)
    assert (found.chosen, found.reason) == (1, "rate")


def test_fewer_pulls_than_arms() -> None:
    found = f_lcb([quadratic_arm(float(i), seed=i) for i in range(5)], budget=2)
    np.testing.assert_array_equal(found.pulls, [1, 1, 0, 0, 0])
    assert found.chosen == 0
    assert np.isnan(found.values[2:]).all()


def failing(how, after):
    """Raises, or returns what is not finite, after some steps."""
    if isinstance(how, Exception):
        return Table([0.5], [1.0], raises_at=after + 1, error=how)
    return Table([0.5] * after + [how], [1.0])


@pytest.mark.parametrize(
    ("how", "reason", "after"),
    [
        (math.nan, "not finite", 0),
        (-math.inf, "not finite", 3),
        (1e30, "diverges", 3),
        (FloatingPointError("underflow of the loss"), "FloatingPointError: underflow", 0),
        (ZeroDivisionError("x"), "ZeroDivisionError", 3),
    ],
)
def test_failing_arms_are_retired_with_the_reason(how, reason, after) -> None:
    found = f_lcb([failing(how, after), quadratic_arm(2.0)], budget=50)
    assert found.chosen == 1
    assert found.pulls.sum() == 50
    assert found.pulls[0] == after + 1
    assert reason in found.retired[0]


def test_every_arm_retired() -> None:
    found = f_lcb([failing(math.nan, 0), failing(math.nan, 2)], budget=50)
    assert (found.chosen, found.reason) == (None, "retired")
    assert set(found.retired) == {0, 1}
    assert found.pulls.sum() == 4


def test_other_errors_are_not_swallowed() -> None:
    with pytest.raises(KeyError):
        f_lcb([failing(KeyError("bug"), 1)], budget=5)


def test_noisy_values_widen_the_bounds_and_never_win_by_luck() -> None:
    """Arm 0 is better by 0.5; values carry noise of 0.3. The best-so-far of arm 1's noisy values would
    often undercut arm 0; over 40 seeds the choice by current value and width must be right far more often
    than not (a fair coin passes 35 of 40 with probability below 1e-6)."""
    right = 0
    for seed in range(40):
        rng = np.random.default_rng([7, seed])
        arms = [
            dataclasses.replace(arm, value_stddev=0.05, oracle=Noisy(oracle=arm.oracle, rng=rng, value_stddev=0.05))
            for arm in map(quadratic_arm, (0.0, 0.5))
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # no rate is violated: the widths cover the noise
            found = f_lcb(arms, budget=60)
        right += found.chosen == 0
    assert right >= 35


def test_bounds_ignore_rounding_but_not_faults() -> None:
    bounds = WatchedBounds(1)
    bounds.observe(0, 1.0, 0.0)
    bounds.observe(0, 1.0 - 1e-15, 0.0)
    assert not bounds.violations
    with pytest.warns(RateViolated):
        bounds.observe(0, 0.9, 0.0)
    bounds.observe(0, 0.8, 0.0)  # told once, recorded twice
    assert len(bounds.violations) == 2


@pytest.mark.parametrize("settings", [{"budget": 0}, {"epsilon": 0.0}, {"delta": 0.0}, {"delta": 2.0}])
def test_impossible_settings_are_refused(settings) -> None:
    with pytest.raises(pb.ConfigurationError, match="="):
        f_lcb([quadratic_arm(0.0)], **({"budget": 5} | settings))
