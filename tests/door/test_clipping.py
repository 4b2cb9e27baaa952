"""Clipping holds exactly, leaves short vectors alone, and drops what has no norm."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from privbo.door.clipping import clip_rows, clip_statistics

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
    found = clip_statistics(rows, clip_rows(rows, 1.0), participants=participants, weights=weights, bound=1.0, rate=0.5)
    assert (found.n_clients, found.n_participants, found.n_absent, found.clipped_share) == (4, 3, 1, 0.5)
    np.testing.assert_allclose(found.norm_quantiles[::6], [0.5, 5.0])
    # One vector of norm 5 lost 4, with weight 1/2 in each of two blocks, over the rate 1/2.
    assert abs(found.bias - 4 * np.sqrt(0.5) / 0.5) < 1e-9
