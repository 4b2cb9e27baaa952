"""Statistics of experiments: Student's numbers, intervals that hold what they say, and Holm's count."""

import math

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from experiments.statistics import Estimate, Measure, geometric, losing, mean, paired, ratio

VALUES = np.array([0.3, 0.9, -0.2, 0.6, 0.5])


def test_a_mean_is_tested_and_bounded_as_student_does():
    one, student = mean(VALUES), ttest_1samp(VALUES, 0.1, alternative="less")
    assert (one.below(0.1), one.above(0.1)) == pytest.approx((student.pvalue, 1 - student.pvalue))
    both = ttest_1samp(VALUES, 0.0).confidence_interval(0.95)
    assert one.interval == pytest.approx((both.low, both.high))
    assert Measure(tuple(VALUES)).over(3) == Measure((), (one.value, one.error)).over(5)


def test_a_geometric_mean_is_tested_by_its_logarithm():
    ratios = np.exp(VALUES)
    one = geometric(Estimate(float(r), 0.1, 3) for r in ratios)
    student = ttest_1samp(VALUES, math.log(1.2), alternative="greater")
    assert one.above(1.2) == pytest.approx(student.pvalue)
    assert one.interval == pytest.approx(np.exp(ttest_1samp(VALUES, 0.0).confidence_interval(0.95)))
    assert geometric([Estimate(2.0, 0.1, 3), Estimate(0.02, 0.1, 3)]).interval[0] > 0.0


def test_one_value_says_nothing_and_equal_ones_no_more_than_their_signs():
    single = mean([0.3])
    assert (single.below(1.0), single.above(0.0), single.interval) == (1.0, 1.0, (-math.inf, math.inf))
    assert (Estimate(0.5, 0.0, 4).below(1.0), Estimate(0.5, 0.0, 4).above(1.0)) == (0.5**4, 1.0)
    assert Estimate(1.0, 0.0, 4).below(1.0) == 1.0


def test_pairs_are_of_seeds_that_both_have():
    assert paired({2: 5.0, 1: 3.0, 7: 9.0}, {1: 1.0, 2: 2.0, 0: 4.0}).tolist() == [[3.0, 5.0], [1.0, 2.0]]
    assert paired({1: 3.0}, {2: 1.0}).shape == (2, 0)


def test_intervals_hold_and_those_of_a_normal_law_would_not():
    """2,000 ratios of eight pairs: 95 % hold the true one within 5 standard errors; planted: 1.96 errors do not."""
    rng, inside, normal = np.random.default_rng(11), 0, 0
    for _ in range(2000):
        theirs = 1.0 + 0.1 * rng.normal(size=8)
        one = ratio(0.8 * theirs + 0.05 * rng.normal(size=8), theirs)
        inside += one.interval[0] < 0.8 < one.interval[1]
        normal += abs(one.value - 0.8) < 1.96 * one.error
    assert abs(inside - 1900) < 49 < 1900 - normal


def test_losers_are_counted_together():
    likely = Estimate(1.2, 0.08, 8)  # p = .02
    assert (losing([likely]), losing([likely] * 5), losing([])) == (1, 0, 0)
