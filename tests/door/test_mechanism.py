"""What a mechanism says of itself: sensitivity, noise, event; and one reward as the unit of privacy."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st

from accountant.events import Adjacency, NonPrivate
from privbo.door import sums
from privbo.door.clipping import LARGEST_BOUND, SMALLEST_BOUND
from privbo.door.mechanism import PlainSum, PrivateSum, UnitMove, WeightGeometry, everybody
from privbo.protocol.errors import ConfigurationError
from tests.accountant.builders import fixed, gaussian, poisson
from tests.builders import mechanism_for, request

WEIGHTS = np.array([[0.3, 0.0, 0.1], [0.4, 0.2, 0.1]])


def private(weights=WEIGHTS, **settings) -> PrivateSum:
    of_request = {name: settings.pop(name) for name in settings.keys() & vars(request()).keys()}
    wanted = request(**{"dim": 5, "weights": np.asarray(weights)} | of_request)
    return mechanism_for(wanted, **{"noise_multiplier": 1.5} | settings)


def rewarded(bound: float, unit: str = "reward", **settings) -> PrivateSum:
    """A small unit that is replaced."""
    plain = {"weights": request().weights, "dim": 3, "noise_multiplier": 2.0, "adjacency": Adjacency.REPLACE_ONE}
    return private(unit=unit, unit_bound=bound, **plain | settings)


def test_tight_noise_is_z_times_the_true_sensitivity() -> None:
    mechanism = private(sample_rate=0.25)
    # S/sqrt(P) * max_n ||w_n|| / q
    assert mechanism.sensitivity() == pytest.approx(2 / math.sqrt(2) * 0.5 / 0.25)
    assert mechanism.noise_stddev() == pytest.approx(1.5 * mechanism.sensitivity())
    assert mechanism.event() == poisson(0.25, 1.5)


def test_paper_noise_carries_its_true_multiplier() -> None:
    mechanism = private(sample_rate=0.25, calibration="paper")
    # Algorithm 1, line 11: z phi_max S / q
    assert mechanism.noise_stddev() == pytest.approx(1.5 * 0.4 * 2 / 0.25)
    event = mechanism.event()
    assert event.noise_multiplier == pytest.approx(mechanism.noise_stddev() / mechanism.sensitivity())
    assert event.noise_multiplier > 1.5


def test_fixed_size_sampling_has_the_sensitivity_of_two_clients() -> None:
    weights = np.array([[0.5, 0.25, 0.125, 0.125]])
    mechanism = private(weights, sample_rate=0.5, sampling="fixed-size")
    assert mechanism.sensitivity() == pytest.approx(2.0 * (0.5 + 0.25) / 0.5)
    assert mechanism.event() == fixed(4, 2, 1.5)
    paper = private(weights, sample_rate=0.5, sampling="fixed-size", calibration="paper")
    assert paper.event().noise_multiplier == pytest.approx(1.5 * 0.5 / 0.75)
    # Under replace-one the same client may also sit in the same slot with another vector.
    replaced = private(weights, sample_rate=0.5, sampling="fixed-size", adjacency=Adjacency.REPLACE_ONE)
    assert replaced.sensitivity() == pytest.approx(2.0 * 2 * 0.5 / 0.5)


def test_replacing_moves_twice_as_far_as_leaving() -> None:
    replaced = private(adjacency=Adjacency.REPLACE_ONE)
    assert replaced.sensitivity() == pytest.approx(2 * private().sensitivity())
    paper = private(adjacency=Adjacency.REPLACE_ONE, calibration="paper")
    assert paper.event().noise_multiplier == pytest.approx(paper.noise_stddev() / replaced.sensitivity(), rel=1e-12)


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size"])
def test_full_participation_is_a_plain_gaussian(sampling: str) -> None:
    mechanism = private(sample_rate=1.0, sampling=sampling)
    assert mechanism.event() == gaussian(1.5)
    assert mechanism.sensitivity() == pytest.approx(2 / math.sqrt(2) * 0.5)


def test_a_poisson_sample_is_never_everybody_however_near_its_rate_is_to_one() -> None:
    mechanism = private(sample_rate=0.9)  # 2.7 of three clients, which would round to all of them
    assert not mechanism.sample.everyone
    assert mechanism.event() == poisson(0.9, 1.5)
    assert private(sample_rate=0.9, sampling="fixed-size").sample.everyone
    assert private(sample_rate=1e-9).sample.rate == 1e-9  # and seldom anybody is a sample too


def test_settings_at_the_ends_of_their_ranges_are_taken() -> None:
    one_of_ten = private(np.full((1, 10), 0.1), sample_rate=0.1, sampling="fixed-size")
    assert (one_of_ten.sample.size, one_of_ten.sample.rate) == (1, 0.1)
    more = private(np.full((1, 10), 0.1), sample_rate=0.26, sampling="fixed-size")
    assert (more.sample.size, more.sample.rate) == (3, 0.3)  # the rate is what the sample really has
    for noise_multiplier in (1e-6, 1e9):
        assert private(noise_multiplier=noise_multiplier).noise_multiplier == noise_multiplier
    for clipping_norm in (SMALLEST_BOUND, LARGEST_BOUND):
        assert private(clipping_norm=clipping_norm).clipping_norm == clipping_norm


def test_the_plain_sum_has_no_finite_price() -> None:
    mechanism = private(noise_multiplier=None)
    assert isinstance(mechanism, PlainSum)
    assert mechanism.event() == NonPrivate()
    assert (mechanism.noise_stddev(), mechanism.sensitivity()) == (0.0, math.inf)


@given(st.floats(1e-90, 1e90), st.floats(1e-3, 1e6), st.floats(1e-90, 1e90))
def test_the_grid_is_a_power_of_two_far_below_the_noise(norm, multiplier, weight) -> None:
    mechanism = private(np.full((2, 7), weight), clipping_norm=norm, noise_multiplier=multiplier)
    step = mechanism.grid_step()
    assert math.frexp(step)[0] == 0.5
    assert 2**16 <= mechanism.grid_scale() < 2**17


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (np.array([[np.nan, 1.0]]), "must be finite and lie in"),
        (np.array([[-1e-9, 1.0]]), "must be finite and lie in"),
        (np.array([[0.0, 1.01e100]]), "must be finite and lie in"),
        (np.array([[0.0, 0.99e-100]]), "^all weights are zero"),
        (np.zeros((2, 0)), "must be a float64 matrix"),
        (np.ones(3), "must be a float64 matrix"),
        (np.ones((1, 3), dtype=np.float32), r"weights of type float32 and shape \(1, 3\) must be"),
        ([[1.0, 2.0]], "weights of type list and shape None must be a float64 matrix"),
    ],
    ids=str,
)
def test_impossible_weights_are_refused(weights, words: str) -> None:
    for end in (LARGEST_BOUND, SMALLEST_BOUND):
        assert WeightGeometry.of(np.array([[0.0, end]])).largest_weight == end
    with pytest.raises(ConfigurationError, match=words):
        WeightGeometry.of(weights)


OF_REWARD = {"unit": "reward", "unit_bound": 0.1, "adjacency": Adjacency.REPLACE_ONE}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"noise_multiplier": 0.0}, "^noise_multiplier="),
        ({"noise_multiplier": 0.999e-6}, "^noise_multiplier="),
        ({"noise_multiplier": 1.001e9}, "^noise_multiplier="),
        ({"sample_rate": 0.0}, "sample_rate"),
        ({"sample_rate": math.nan}, "sample_rate"),
        ({"sample_rate": 0.1, "sampling": "fixed-size"}, "sample_rate"),
        ({"calibration": "loose"}, "calibration"),
        ({"adjacency": Adjacency.ADD_OR_REMOVE_ONE}, "adjacency"),
        ({"clipping_norm": math.nan}, "clipping_norm"),
        (OF_REWARD | {"sample_rate": 0.5}, "sample_rate"),  # a setting that says nothing about a reward
        (OF_REWARD | {"sampling": "fixed-size"}, "sampling"),
        (OF_REWARD | {"calibration": "paper"}, "calibration"),
        (OF_REWARD | {"adjacency": Adjacency.ZERO_OUT}, "replace-one"),
        (OF_REWARD | {"unit_bound": 0.0}, "unit_bound"),
        (OF_REWARD | {"unit_bound": math.nan}, "unit_bound"),
        (OF_REWARD | {"unit_bound": True}, "unit_bound"),
        (OF_REWARD | {"unit": "record", "group_size": 0}, "group_size=0 must be an integer >= 1"),
    ],
    ids=str,
)
def test_impossible_settings_are_refused(setting: dict, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        private(**setting)


def test_a_sample_of_other_clients_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a sample of 4 clients, and weights of 3"):
        PrivateSum(clipping_norm=1.0, geometry=WeightGeometry.of(WEIGHTS), noise_multiplier=1.0, sample=everybody(4))


# ---- the door's arithmetic: sums on a grid against exact fractions, in chunks of any size; who takes part

N, STEP = 7, 2.0**-6
RNG = np.random.default_rng(0)
RANDOM_WEIGHTS = RNG.integers(-64, 64, size=(2, N)) / 64.0
VECTORS = RNG.integers(-512, 512, size=(N, 3)) / 256.0
PARTICIPATION = RNG.random((4, N)) < 0.6


def exact_sum(trial: int, block: int, entry: int) -> int:
    products = (
        Fraction(RANDOM_WEIGHTS[block, n]) * Fraction(VECTORS[n, entry]) for n in np.flatnonzero(PARTICIPATION[trial])
    )
    return sum(math.trunc(product / Fraction(STEP)) for product in products)


@pytest.mark.parametrize("entries_at_once", [1, 6, 12, 18, 24, 42, 10**6])
def test_sums_are_those_of_exact_fractions_in_chunks_of_any_size(entries_at_once) -> None:
    found = sums.lattice_sums(RANDOM_WEIGHTS, VECTORS, PARTICIPATION, STEP, entries_at_once=entries_at_once)
    assert found.dtype == np.int64
    assert found.tolist() == [[[exact_sum(t, b, d) for d in range(3)] for b in range(2)] for t in range(4)]


# ---- one reward as the unit: what it moves and what it costs


def test_one_reward_moves_a_release_by_its_bound_and_no_more_than_clipping_allows() -> None:
    small = rewarded(0.01)
    assert small.sensitivity() == pytest.approx(0.5 * 0.01, rel=1e-3)
    assert small.sensitivity() > 0.5 * 0.01  # rounding is paid for
    assert small.noise_stddev() == pytest.approx(2.0 * small.sensitivity())
    assert small.event() == gaussian(2.0)
    large = rewarded(100.0)
    vector_bound = 2.0 / math.sqrt(2)
    assert large.sensitivity() == pytest.approx(0.5 * 2 * vector_bound, rel=1e-3)
    assert large.sensitivity() >= rewarded(None, unit="client").sensitivity()


@pytest.mark.parametrize("bound", [0.01, 100.0])
def test_units_of_several_clients_that_are_replaced_together_move_a_release_by_all_of_theirs(bound: float) -> None:
    single, three = (rewarded(bound, unit="record", group_size=size) for size in (1, 3))
    # clipping bounds what one client's vector moves: records at three clients move three of them
    assert three.sensitivity() == pytest.approx(3 * single.sensitivity(), rel=1e-3)
    assert three.sensitivity() >= 3 * single.sensitivity()


def test_rounding_is_added_and_counts_every_entry_and_the_vectors_size() -> None:
    move, vector_bound = UnitMove(bound=1e-9, n_entries=100), 1e6
    rounding = 4 * (100 + 64) * 2.0**-53 * vector_bound
    coarse = math.sqrt(100) * 2.0**-16
    assert move.after_clipping(vector_bound, 1.0) == pytest.approx((1e-9 + rounding) / (1 - coarse), rel=1e-9)
    assert rewarded(0.01).move == UnitMove(bound=0.01, n_entries=3 * 2)


def test_truncation_is_paid_for_by_more_entries_and_more_noise() -> None:
    few, many = UnitMove(bound=0.1, n_entries=4), UnitMove(bound=0.1, n_entries=4000)
    assert few.after_clipping(1.0, 10.0) < many.after_clipping(1.0, 10.0) < many.after_clipping(1.0, 100.0)
    # z sqrt(entries) 2^-16 of the distance itself
    coarse = 100.0 * math.sqrt(4000) * 2.0**-16
    assert many.after_clipping(1.0, 100.0) == pytest.approx(0.1 / (1 - coarse), rel=1e-9)
    with pytest.raises(ConfigurationError, match=r"too large for 4000 entries .* keep it below 518\.1"):
        many.after_clipping(1.0, 519.0)
    assert many.after_clipping(1.0, 518.0) < 0.1 / 0.5


def test_noise_for_a_reward_that_the_grid_would_swallow_is_refused() -> None:
    """Sums this large need a coarser grid than the noise's own, which truncation was not paid for."""
    fine = rewarded(0.3, weights=np.full((1, 1000), 1.0), dim=1, clipping_norm=1e9, noise_multiplier=1.0)
    assert 2**16 <= fine.noise_stddev() / fine.grid_step() < 2**17
    with pytest.raises(ConfigurationError, match="one unit is too small"):
        replace(fine, move=UnitMove(bound=0.01, n_entries=1)).grid_step()
    coarse = replace(fine.geometry, largest_total=2.0**40)
    assert replace(fine, move=None, geometry=coarse).grid_step() > 0  # one client as the unit has no such limit


def test_noise_is_refused_exactly_where_its_grid_has_fewer_than_1024_units() -> None:
    geometry = replace(WeightGeometry.of(np.ones((1, 1))), largest_total=2.0**31)
    step = 2.0 ** (32 - 61)  # the exponent of the largest sum, less 61 bits
    last = PrivateSum(clipping_norm=1.0, geometry=geometry, noise_multiplier=2.0**10 * step, sample=everybody(1))
    assert last.grid_step() == step
    below = replace(last, noise_multiplier=math.nextafter(2.0**10 * step, 0.0))
    with pytest.raises(ConfigurationError, match="raise noise_multiplier"):
        below.grid_step()
