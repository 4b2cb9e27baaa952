"""Clipping holds exactly, leaves short vectors alone, and drops what has no norm."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import given, strategies as st

from privbo.door.clipping import BOUND_FACTORS, NORM_LEVELS, clip_rows, measure_clipping
from privbo.door.sums import answer
from tests.builders import WEIGHTS, mechanism_for, request
from tests.door.replayed_runs import ScriptedNoise

FINITE = st.floats(-1e150, 1e150, allow_subnormal=True)


def exact_square(row: np.ndarray) -> Fraction:
    return sum((Fraction(float(x)) ** 2 for x in row), Fraction(0))


def naive_clip(rows: np.ndarray, bound: float) -> np.ndarray:
    return rows / np.maximum(1.0, np.linalg.norm(rows, axis=1) / bound)[:, None]


@given(st.lists(FINITE, min_size=1, max_size=40), st.floats(1e-50, 1e50))
def test_no_norm_passes_the_bound_in_exact_arithmetic(row, bound) -> None:
    (clipped,) = clip_rows(np.array([row]), bound)
    assert exact_square(clipped) <= Fraction(bound) ** 2


def test_random_vectors_hold_the_bound_where_the_naive_rule_fails() -> None:
    rows = np.random.default_rng(0).normal(size=(2000, 30))
    bounds = {rule: rule(rows, 1.7) for rule in (clip_rows, naive_clip)}
    over = {rule: sum(exact_square(row) > Fraction(1.7) ** 2 for row in kept) for rule, kept in bounds.items()}
    assert over[clip_rows] == 0
    assert np.all(np.linalg.norm(bounds[clip_rows], axis=1) <= 1.7)
    assert over[naive_clip] > 20  # the planted fault: about 2 % and more of the vectors
    np.testing.assert_allclose(bounds[clip_rows], bounds[naive_clip], rtol=1e-13)


@given(st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=20))
def test_short_vectors_are_unchanged(row) -> None:
    rows = np.array([row])
    np.testing.assert_array_equal(clip_rows(rows, 10.0), rows)


def test_rows_without_a_finite_norm_become_zero_and_others_do_not_change() -> None:
    rows = np.ones((7, 3))
    rows[0, 1], rows[1, 0], rows[2, 2], rows[3, 0], rows[4, 0] = np.nan, np.inf, -np.inf, 1e200, 1e308
    clipped = clip_rows(rows, 1e6)
    np.testing.assert_array_equal(clipped, np.array([[0.0] * 3] * 5 + [[1.0] * 3] * 2))
    assert np.isnan(rows[0, 1])  # the caller's array is left alone


def test_statistics_count_participants_only() -> None:
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [np.nan, 0.0], [30.0, 40.0]])
    participants = np.array([True, True, True, False])
    weights = np.full((2, 4), 0.5)
    found = measure_clipping(
        rows, clip_rows(rows, 1.0), participants=participants, weights=weights, bound=1.0, rate=0.5
    ).statistics()
    assert (found.n_clients, found.n_participants, found.n_absent, found.clipped_share) == (4, 3, 1, 0.5)
    np.testing.assert_allclose(found.norm_quantiles[::6], [0.5, 5.0])
    # One vector of norm 5 lost 4, with weight 1/2 in each of two blocks, over the rate 1/2.
    assert abs(found.bias - 4 * np.sqrt(0.5) / 0.5) < 1e-9


def test_statistics_say_what_clipping_took_at_this_bound_and_at_others() -> None:
    rows = np.array([[3.0, 4.0, 0.0], [0.0, 0.0, 0.5]])
    everyone = np.ones(2, dtype=bool)
    settings = {"participants": everyone, "weights": WEIGHTS, "bound": 1.0, "rate": 0.5}
    found = measure_clipping(rows, clip_rows(rows, 1.0), **settings).statistics()
    assert found.bound == 1.0
    # block 0: (0.5 (3, 4, 0) + 0.25 (0, 0, .5)) / 0.5; block 1: 0.25 (0, 0, .5) / 0.5
    np.testing.assert_allclose(found.signal_by_block, [math.hypot(3.0, 4.0, 0.25), 0.25])
    np.testing.assert_allclose(found.bias_by_block, [4.0, 0.0], atol=1e-9)
    taken = [max(0.0, 5.0 - factor) + 0.5 * 0.0 for factor in BOUND_FACTORS]
    short = [max(0.0, 0.5 - factor) * 0.5 for factor in BOUND_FACTORS]  # the second client, in each of two blocks
    expected = [math.hypot(a, b, b) for a, b in zip(taken, short, strict=True)]
    np.testing.assert_allclose(found.bias_at, expected, atol=1e-9)
    plain = found.to_dict()
    assert plain["bound"] == 1.0
    assert plain["norm_levels"] == list(NORM_LEVELS)
    assert plain["bound_factors"] == list(BOUND_FACTORS)
    assert isinstance(plain["bias_at"], list)


def test_statistics_of_nobody_and_of_no_bound() -> None:
    rows = np.full((2, 3), np.nan)
    settings = {"participants": np.ones(2, dtype=bool), "weights": WEIGHTS, "bound": math.inf, "rate": 1.0}
    found = measure_clipping(rows, clip_rows(rows, 1.0), **settings).statistics()
    assert (found.n_absent, found.clipped_share, found.norm_quantiles, found.bias) == (2, 0.0, (), 0.0)
    assert found.bias_at == ()
    assert found.to_dict()["bound"] is None


def test_a_plain_sum_takes_everybody_draws_nothing_and_notes_what_came() -> None:
    mechanism = mechanism_for(request(), noise_multiplier=None)
    silent, everyone = ScriptedNoise(participants=np.zeros(2, dtype=bool)), np.ones(2, dtype=bool)
    rows = np.array([[3.0, 4.0, 0.0], [np.nan, 0.0, 0.0]])
    made = answer(mechanism, request(), rows, everyone, silent)
    assert silent.drawn == []
    assert made.values.tolist() == [[1.5, 2.0, 0.0], [0.0, 0.0, 0.0]]
    assert made.clipping is None
    found = made.statistics
    assert (found.n_clients, found.n_participants, found.n_absent, found.bound) == (2, 2, 1, math.inf)
    assert (found.signal_by_block, found.bias) == ((2.5, 0.0), 0.0)
