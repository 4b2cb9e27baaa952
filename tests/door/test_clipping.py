"""Clipping holds exactly, leaves short vectors alone, and drops what has no norm."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.stats import norm

from accountant.events import Adjacency, compose
from privbo.door.adaptive import (
    AdaptiveClipping,
    AdaptiveSum,
    QuantileClipper,
    clip_bits,
    histogram_quantile,
    norm_histogram_request,
    one_hot_norms,
)
from privbo.door.clipping import BOUND_FACTORS, NORM_LEVELS, clip_rows, measure_clipping
from privbo.door.noise import SimulatedNoise
from privbo.door.sums import answer
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Request
from tests.accountant.builders import poisson
from tests.builders import WEIGHTS, door, ledger, mechanism_for, request
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


def statistics(rows: np.ndarray, **settings):
    plain = {"participants": np.ones(len(rows), dtype=bool), "weights": WEIGHTS, "bound": 1.0, "rate": 0.5}
    return measure_clipping(rows, clip_rows(rows, 1.0), **plain | settings).statistics()


def test_statistics_count_participants_only() -> None:
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [np.nan, 0.0], [30.0, 40.0]])
    participants = np.array([True, True, True, False])
    found = statistics(rows, participants=participants, weights=np.full((2, 4), 0.5))
    assert (found["n_clients"], found["n_participants"], found["n_absent"], found["clipped_share"]) == (4, 3, 1, 0.5)
    np.testing.assert_allclose(found["norm_quantiles"][::6], [0.5, 5.0])
    # One vector of norm 5 lost 4, with weight 1/2 in each of two blocks, over the rate 1/2.
    assert abs(found["bias"] - 4 * np.sqrt(0.5) / 0.5) < 1e-9


def test_statistics_say_what_clipping_took_at_this_bound_and_at_others() -> None:
    rows = np.array([[3.0, 4.0, 0.0], [0.0, 0.0, 0.5]])
    found = statistics(rows)
    assert found["bound"] == 1.0
    # block 0: (0.5 (3, 4, 0) + 0.25 (0, 0, .5)) / 0.5; block 1: 0.25 (0, 0, .5) / 0.5
    np.testing.assert_allclose(found["signal_by_block"], [math.hypot(3.0, 4.0, 0.25), 0.25])
    np.testing.assert_allclose(found["bias_by_block"], [4.0, 0.0], atol=1e-9)
    taken = [max(0.0, 5.0 - factor) + 0.5 * 0.0 for factor in BOUND_FACTORS]
    short = [max(0.0, 0.5 - factor) * 0.5 for factor in BOUND_FACTORS]  # the second client, in each of two blocks
    expected = [math.hypot(a, b, b) for a, b in zip(taken, short, strict=True)]
    np.testing.assert_allclose(found["bias_at"], expected, atol=1e-9)
    assert found["norm_levels"] == list(NORM_LEVELS)
    assert found["bound_factors"] == list(BOUND_FACTORS)


def test_statistics_of_nobody_and_of_no_bound() -> None:
    rows = np.full((2, 3), np.nan)
    found = statistics(rows, bound=math.inf, rate=1.0)
    assert (found["n_absent"], found["clipped_share"], found["norm_quantiles"], found["bias"]) == (2, 0.0, [], 0.0)
    assert found["bias_at"] == []
    assert found["bound"] is None


def test_a_plain_sum_takes_everybody_draws_nothing_and_notes_what_came() -> None:
    mechanism = mechanism_for(request(), noise_multiplier=None)
    silent, everyone = ScriptedNoise(participants=np.zeros(2, dtype=bool)), np.ones(2, dtype=bool)
    rows = np.array([[3.0, 4.0, 0.0], [np.nan, 0.0, 0.0]])
    made = answer(mechanism, request(), rows, everyone, silent)
    assert silent.drawn == []
    assert made.values.tolist() == [[1.5, 2.0, 0.0], [0.0, 0.0, 0.0]]
    assert made.clipping is None
    found = made.statistics
    assert (found["n_clients"], found["n_participants"], found["n_absent"], found["bound"]) == (2, 2, 1, None)
    assert (found["signal_by_block"], found["bias"]) == ([2.5, 0.0], 0.0)


# ---- adaptive clipping: the bound finds its quantile and costs nothing beyond the plan

N, DIM = 400, 4


def base(n_clients: int = N, **settings):
    request = Request(dim=DIM, clipping_norm=1.0, weights=np.full((2, n_clients), 1 / n_clients))
    return mechanism_for(request, **{"noise_multiplier": 1.0, "sample_rate": 0.5} | settings)


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size"])
@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE])
@pytest.mark.parametrize("calibration", ["tight", "paper"])
def test_vectors_and_bits_together_are_worth_the_event(sampling, adjacency, calibration) -> None:
    plan = base(sampling=sampling, adjacency=adjacency, calibration=calibration)
    mechanism = AdaptiveSum(base=plan, clipping_norm=0.3, count_stddev=20.0)
    assert mechanism.event() == plan.event()
    # Both parts in units of their noise; one client moves both at once.
    vectors = mechanism.vectors.sensitivity() / mechanism.vectors.noise_stddev()
    bits = mechanism.bits.sensitivity() / mechanism.bits.noise_stddev()
    assert math.hypot(vectors, bits) == pytest.approx(1 / plan.event().noise_multiplier, rel=1e-11)
    assert math.hypot(vectors, bits) < 1 / plan.event().noise_multiplier
    # The bits' sensitivity: 1/2 where a client may only leave, 1 where another takes its place.
    moved = 0.5 if (sampling, adjacency) == ("poisson", Adjacency.ZERO_OUT) else 1.0
    assert bits == pytest.approx(moved / 20.0)


def test_noise_follows_the_bound_that_clipped() -> None:
    small, large = (AdaptiveSum(base=base(), clipping_norm=c, count_stddev=20.0) for c in (0.1, 1.0))
    assert large.noise_stddev() == pytest.approx(10 * small.noise_stddev())


def test_bits_that_cost_more_than_the_release_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="raise count_stddev"):
        AdaptiveSum(base=base(noise_multiplier=3.0), clipping_norm=1.0, count_stddev=1.5)


@pytest.mark.parametrize(
    "setting",
    [
        {"target_quantile": 0.0},
        {"target_quantile": 1.0},
        {"learning_rate": 0.0},
        {"count_stddev": 0.0},
    ],
)
def test_impossible_settings_are_refused(setting) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(setting))):
        AdaptiveClipping(**{"count_stddev": 1.0} | setting)


def test_a_released_fraction_moves_the_bound_by_no_more_than_its_range_and_once_a_round() -> None:
    clipper = QuantileClipper(settings=AdaptiveClipping(count_stddev=1.0, target_quantile=0.25, learning_rate=0.5))
    clipper.absorb(0, 7.0)  # noise carried it out of [0, 1]
    assert clipper.clipping_norm(2.0) == pytest.approx(2.0 * math.exp(-0.5 * 0.75))
    clipper.absorb(0, 0.0)
    clipper.absorb(1, -7.0)
    assert clipper.clipping_norm(2.0) == pytest.approx(2.0 * math.exp(-0.5 * (0.75 - 0.25)))


def test_the_bound_stops_far_from_any_sensible_scale() -> None:
    for fraction, end in ((0.0, 100.0), (1.0, -100.0)):
        clipper = QuantileClipper(settings=AdaptiveClipping(count_stddev=1.0, learning_rate=1e6))
        clipper.absorb(0, fraction)
        assert clipper.clipping_norm(2.0) == 2.0 * math.exp(end)


def test_bits_of_absent_clients_are_nothing() -> None:
    rows = np.array([[3.0, 4.0], [0.0, 0.5], [np.nan, 0.0], [1e300, 0.0], [0.0, 0.0], [0.0, 1.0]])
    np.testing.assert_array_equal(clip_bits(rows, 1.0)[:, 0], [-0.5, 0.5, np.nan, np.nan, 0.5, 0.5])


def test_the_fraction_within_the_bound_is_that_of_the_participants_bits() -> None:
    mechanism = AdaptiveSum(base=base(n_clients=5, sample_rate=0.8), clipping_norm=0.7, count_stddev=20.0)
    request = Request(dim=DIM, clipping_norm=1.0, weights=np.full((2, 5), 1 / 5))
    rows = np.zeros((5, DIM))
    rows[:, 0] = [0.1, 5.0, 5.0, 0.2, np.nan]  # the bound on one vector is 0.7 / sqrt(2)
    participants = np.array([True, True, False, True, True])
    made = answer(mechanism, request, rows, participants, ScriptedNoise(participants=participants))
    assert made.clipping is not None
    assert made.clipping.norm == 0.7
    # bits 1/2, -1/2, 1/2 and an absence, over the rate and all five clients
    assert made.clipping.fraction == pytest.approx(0.5 + 0.5 / 0.8 / 5, abs=2e-4)  # truncated to the grid


def vectors(index: int) -> np.ndarray:
    rng = np.random.default_rng([index, 9])
    rows = rng.normal(size=(N, DIM))
    norms = np.exp(rng.normal(0.0, 0.5, (N, 1)))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True) * norms


@pytest.mark.parametrize(("start", "quantile"), [(0.1, 0.5), (5.0, 0.8)])
def test_the_bound_finds_its_quantile_in_sixty_rounds(start: float, quantile: float) -> None:
    """Norms have median 1, and their logarithms a standard deviation of 1/2."""
    clipper = QuantileClipper(settings=AdaptiveClipping(count_stddev=10.0, target_quantile=quantile))
    request = Request(dim=DIM, clipping_norm=start, weights=np.full((1, N), 1 / N))
    here = door(ledger(N), noise=SimulatedNoise(4), sample_rate=0.5, clipper=clipper)
    for index in range(60):
        here.close(here.open(index, request, index), vectors(index))
        assert index or abs(np.log(clipper.clipping_norm(start) / start)) < 0.2
    # The price is the plan's, bits included: sixty events of multiplier one.
    assert here.ledger.event() == compose([(poisson(0.5, 1.0), 60)])
    assert clipper.clipping_norm(start) == pytest.approx(math.exp(0.5 * norm.ppf(quantile)), rel=0.1)


@pytest.mark.parametrize("adapted_first", [False, True])
def test_a_stored_release_is_read_whether_or_not_the_bound_adapts_now(adapted_first: bool) -> None:
    request, book = Request(dim=DIM, clipping_norm=1.0, weights=np.full((1, N), 1 / N)), ledger(N)
    adapting = QuantileClipper(settings=AdaptiveClipping(count_stddev=10.0))
    before, after = (adapting, None) if adapted_first else (None, adapting)
    made = door(book, clipper=before)
    first, _ = made.close(made.open(0, request), vectors(0))
    again = door(book, clipper=after).open(0, request).release
    np.testing.assert_array_equal(again.values, first.values)
    # nothing was learnt from a release without bits
    assert (adapting.clipping_norm(1.0) == 1.0) == (not adapted_first)


def test_a_histogram_asks_for_one_bin_of_every_client() -> None:
    edges = np.array([0.5, 1.0, 2.0])
    request = norm_histogram_request(edges, 7)
    assert (request.dim, request.clipping_norm, request.weights.tolist()) == (4, 1.0, [[1.0] * 7])
    rows = np.array([[0.1, 0.0], [0.0, 0.7], [3.0, 0.0], [np.nan, 0.0]])
    expected = [[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [np.nan] * 4]
    np.testing.assert_array_equal(one_hot_norms(rows, edges), expected)
    assert histogram_quantile(np.array([[0.0, 1.0, 8.0, 1.0]]), edges, 0.9) == 2.0
    assert histogram_quantile(np.array([[3.0, 1.0, 8.0, 1.0]]), edges, 0.2) == 0.5
