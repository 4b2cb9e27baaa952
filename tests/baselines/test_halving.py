"""Successive halving, Hyperband, uniform play and early stopping on resumable arms."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings, strategies as st

from experiments.baselines.halving import (
    early_stopping,
    halving_rungs,
    hyperband,
    hyperband_brackets,
    successive_halving,
    uniform,
)


class Curve:
    """A learning curve limit + reach / k; counts how often it was started."""

    value_stddev = 0.0

    def __init__(self, limit, reach=1.0, fails_at=None):
        self.name, self._limit, self._reach, self._fails_at = f"curve {limit}", limit, reach, fails_at
        self.started = 0

    def init(self):
        self.started += 1
        return 0

    def step(self, state):
        if state + 1 == self._fails_at:
            raise FloatingPointError("diverged")
        return state + 1

    def value(self, state):
        return self._limit + self._reach / state

    def rate(self, state, k, delta):
        return self._reach / k


CURVES = [0.5, 0.1, 0.9, 0.3, 0.7, 0.2, 0.8, 0.4]


@given(n_arms=st.integers(1, 40), budget=st.integers(1, 300), factor=st.integers(2, 5), seed=st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_no_rival_passes_its_budget(n_arms, budget, factor, seed) -> None:
    arms = [Curve(0.1 * i) for i in range(n_arms)]
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
    arms = [Curve(limit) for limit in CURVES]
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
    arms = [Curve(0.0, fails_at=2), Curve(0.5), Curve(0.6, reach=math.nan)]
    for found in (uniform(arms, budget=40), successive_halving(arms, budget=40)):
        assert found.chosen == 1
        assert found.retired == {0: "FloatingPointError: diverged", 2: "value nan is not finite"}
    assert uniform([Curve(0.0, fails_at=1)], budget=5).chosen is None
