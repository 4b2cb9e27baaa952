"""Hockey-stick curves against closed forms and brute force: confidence bounds, measured and accounted."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from accountant.events import Adjacency, PoissonSampledGaussian
from accountant.tight import numerical
from privbo.audits import empirical
from privbo.audits.empirical import (
    N_BOUNDS,
    THRESHOLDS,
    Point,
    closest_point,
    curve_of,
    lower_confidence,
    measured_curve,
    upper_confidence,
)

EPSILONS = np.array(empirical.EPSILONS)


def test_bounds_are_clopper_and_pearsons() -> None:
    counts, level = np.array([0.0, 1.0, 40.0, 99.0, 100.0]), 1e-6
    low, high = lower_confidence(counts, 100, level), upper_confidence(counts, 100, level)
    # What the bound says: at its probability, a count this far out has a chance of exactly ``level``.
    np.testing.assert_allclose(stats.binom.sf(counts[1:] - 1, 100, low[1:]), level, rtol=1e-6)
    np.testing.assert_allclose(stats.binom.cdf(counts[:-1], 100, high[:-1]), level, rtol=1e-6)
    assert (low[0], high[-1]) == (0.0, 1.0)
    assert low[-1] == pytest.approx(level ** (1 / 100))
    assert high[0] == pytest.approx(1 - level ** (1 / 100))


def test_a_curve_is_the_best_of_all_thresholds() -> None:
    rng, level = np.random.default_rng(0), 1e-4
    plus, minus = rng.normal(1.0, 1.0, 300), rng.normal(0.0, 1.2, 300)
    plus[: len(THRESHOLDS)] = THRESHOLDS  # a score at a threshold is not above it
    best = np.zeros(len(EPSILONS))
    counted = list(itertools.product(((plus, minus), (minus, plus)), (1, -1), THRESHOLDS))
    assert 2 * len(counted) == N_BOUNDS
    for (one, other), tail, threshold in counted:
        k, m = int((tail * one > threshold).sum()), int((tail * other > threshold).sum())
        low = stats.beta.ppf(level, k, 301 - k) if k else 0.0
        high = stats.beta.isf(level, m + 1, 300 - m) if m < 300 else 1.0
        best = np.maximum(best, low - np.exp(EPSILONS) * high)
    np.testing.assert_allclose(measured_curve(plus, minus, level), best, rtol=1e-6)


def test_a_point_above_the_accountants_comes_before_any_below_and_shares_decide_among_equals() -> None:
    claimed = np.array([1e-2, 1e-3, 1e-6, 0.0, *np.full(len(EPSILONS) - 4, 0.5)])

    def points(*lower: float) -> np.ndarray:
        return np.array([*lower, *np.zeros(len(EPSILONS) - len(lower))])

    below, nearer, above = points(1e-3), points(0.0, 5e-4), points(0.0, 0.0, 2e-6)
    found = closest_point(np.array([below, nearer, above]), claimed)
    assert (found, found.passed) == (Point(epsilon=0.5, delta_lower=2e-6, delta_claimed=1e-6), False)
    found = closest_point(np.array([nearer, below]), claimed)
    assert (found, found.passed) == (Point(epsilon=0.25, delta_lower=5e-4, delta_claimed=1e-3), True)
    nothing_claimed = points(9e-3, 0.0, 0.0, 1e-9)
    found = closest_point(np.array([nothing_claimed]), claimed)
    assert (found, found.passed) == (Point(epsilon=1.0, delta_lower=1e-9, delta_claimed=0.0), False)
    assert closest_point(np.array([points()]), np.zeros(len(EPSILONS))).passed


@pytest.mark.parametrize("rate", [1.0, 0.25])
@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE])
def test_the_curve_to_stay_below_is_the_accountants(rate: float, adjacency: Adjacency) -> None:
    event = PoissonSampledGaussian(sample_rate=rate, noise_multiplier=1.0)
    found = curve_of(event.pairs(adjacency))
    for epsilon, delta in zip(empirical.EPSILONS, found, strict=True):
        interval = numerical.delta_interval(event, epsilon, adjacency=adjacency)
        assert interval.lower * (1 - 1e-9) <= delta <= interval.upper * (1 + 1e-3) + 1e-12
    if rate == 1.0:  # Balle and Wang (2018), theorem 8, at mu = 1
        phi = stats.norm.cdf
        exact = phi(0.5 - EPSILONS) - np.exp(EPSILONS) * phi(-0.5 - EPSILONS)
        np.testing.assert_allclose(found, exact, rtol=1e-5)
        assert np.all(found >= exact * (1 - 1e-9))


def test_what_the_curve_may_be_off_by_is_added_and_the_dearest_pair_counts() -> None:
    def pair(p_above: float):
        tails = SimpleNamespace(p_above=p_above, q_above=0.01, relative_error=0.1)
        return SimpleNamespace(tails=lambda _: tails)

    kept = 0.01 * np.exp(EPSILONS)
    expected = np.maximum(0.5 - kept + 0.1 * (0.5 + kept), 0.0)
    np.testing.assert_allclose(curve_of([pair(0.2), pair(0.5), pair(0.3)]), expected, rtol=1e-12)
