"""The tight accountant: its interval holds the truth, and is narrow.

Oracles: mpmath where a closed form or a one-dimensional integral exists, and dp-accounting's privacy-loss distributions
elsewhere; ``test_tight_grid.py`` holds it against two thousand stored settings.
"""

import json
import math
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.special import ndtr

import accountant
from accountant import gaussian_dp, moments, renyi
from accountant.events import Adjacency, BestOfRandomRuns, compose, repeat
from accountant.mechanisms.pair import normal_error
from accountant.tight import bounds, lattice, numerical, refine
from tests.accountant.builders import fixed, gaussian, laplace, poisson, sampled_laplace
from tests.accountant.oracles import added, hockey_stick, opposed, removed
from tests.golden.loss_quadrature import SHARES, solve

SAMPLED = poisson(0.25, 2.0)

ADD, ZERO, REPLACE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
RELATIVE, ABSOLUTE = 0.005, 1e-4


@pytest.mark.parametrize("z", [0.3, 1.0, 6.0])
@pytest.mark.parametrize(("q", "share"), [(1e-4, 0.9), (0.03, 0.1), (0.6, 0.5), (0.97, 0.1)])
def test_one_release_is_exact(q, z, share):
    """Every bound against the closed form of a single release, both adjacencies."""
    epsilon = share * math.log1p(q * math.expm1(2.0 / z))
    for adjacency, directions in ((ADD, (removed, added)), (REPLACE, (opposed,))):
        truth = float(max(hockey_stick(one, q, z, epsilon) for one in directions))
        if truth < 1e-200:
            continue
        found = numerical.delta_interval(poisson(q, z), epsilon, adjacency=adjacency)
        assert found.lower <= truth * (1 + 1e-12)
        assert found.upper >= truth * (1 - 1e-12)
        back = numerical.epsilon_interval(poisson(q, z), truth, adjacency=adjacency)
        assert back.lower <= epsilon * (1 + 1e-9)
        assert back.upper >= epsilon * (1 - 1e-9)
        assert back.upper - back.lower <= max(RELATIVE * back.upper, ABSOLUTE)


@pytest.mark.parametrize("z", [0.3, 2.0, 40.0])
def test_where_a_closed_form_exists_the_interval_is_around_it(z):
    mp.mp.dps = 40
    mu, epsilon = 1 / mp.mpf(z), 0.5 / z
    truth = mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(mp.mpf(epsilon)) * mp.ncdf(-mu / 2 - epsilon / mu)
    found = numerical.delta_interval(gaussian(z), epsilon, adjacency=ZERO)
    assert found.method == "closed-form"
    assert found.upper * (1 - 1e-10) <= found.lower <= truth <= found.upper


@pytest.mark.parametrize("rate", [0.07, 20.0, 800.0])
def test_discounted_tails_are_the_direct_sums(rate):
    values = np.random.default_rng(2).random(137)
    direct = [math.fsum(values[m:] * np.exp(-rate * np.arange(len(values) - m))) for m in range(len(values))]
    np.testing.assert_allclose(bounds._discounted_tail(values, rate), direct, rtol=1e-13)


@pytest.mark.parametrize("count", [1, 7, 300, 100_000])
@pytest.mark.parametrize("total_mu", [0.05, 1.0, 6.0])
@pytest.mark.parametrize("delta", [0.05, 1e-6, 1e-40])
def test_compositions_of_known_truth(count, total_mu, delta):
    """Gaussian releases sent through lattice and FFT although a closed form exists: the interval holds it."""
    truth = gaussian_dp.epsilon_from_mu(total_mu, delta)
    if truth == 0.0:
        return
    (pair,) = gaussian(math.sqrt(count) / total_mu).pairs(ADD)
    lower, upper = refine.epsilon_ends(((pair, count),), delta)
    assert lower <= truth <= upper
    assert upper - lower <= max(RELATIVE * upper, ABSOLUTE)


def test_normal_tails_are_as_accurate_as_the_lattice_assumes():
    mp.mp.dps = 40
    for t in np.linspace(-39.9, 8.0, 400):
        truth = mp.ncdf(mp.mpf(float(t)))
        bound = float(normal_error(np.array([t]))[0])
        assert abs(mp.mpf(float(ndtr(t))) / truth - 1) <= bound or truth < 1e-300


def log_uniform(low, high):
    return st.floats(math.log(low), math.log(high)).map(math.exp)


NOISE, RATE = log_uniform(0.3, 50), log_uniform(1e-5, 1)
FIXED = st.builds(lambda n, share, z: fixed(n, max(1, int(share * n)), z), st.integers(1, 10_000), RATE, NOISE)
ANY = st.one_of(st.builds(poisson, RATE, NOISE), st.builds(gaussian, NOISE), st.builds(laplace, NOISE), FIXED)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    parts=st.lists(st.tuples(ANY, log_uniform(1, 1e5).map(round)), min_size=1, max_size=4),
    delta=log_uniform(1e-12, 0.3),
    adjacency=st.sampled_from([ADD, ZERO, REPLACE]),
)
def test_in_any_setting_the_interval_is_sound_and_narrow(parts, delta, adjacency):
    """Beyond the golden grid's variety; near the largest possible loss Rényi's bound may lie inside the interval."""
    event = compose([part for part in parts if adjacency is not ADD or "fixed" not in part[0].kind])
    found, bound = (one(event, delta, adjacency=adjacency) for one in (numerical.epsilon_interval, renyi.epsilon))
    assert 0.0 <= found.lower <= found.upper < math.inf
    assert found.lower <= bound * (1 + 1e-9)
    assert found.upper <= bound * (1 + RELATIVE)
    assert found.method == "renyi" or found.upper - found.lower <= 2 * max(RELATIVE * found.upper, ABSOLUTE)


EXTREME = [
    (poisson(0.5, 0.3, 100_000), 1e-10),  # epsilon in the hundred thousands
    (poisson(0.01, 1.0, 1000), 1e-250),
    (poisson(1e-9, 50.0, 1), 1e-3),
    (poisson(0.3, 0.01, 3), 1e-5),  # losses out of the lattice's range
    (laplace(0.001), 1e-5),
    (poisson(1 - 1e-15, 1.0, 10), 1e-5),
    (poisson(1 - 1e-14, 5.0, 1000), 1e-5),  # edges that may lie many cells off
]
ENDS = [(q, z, count) for q in (1e-300, 0.5, 1.0) for z in (1.01e-50, 1e-2, 1e50) for count in (1, 2**53)]
EXTREME += [(repeat(of(q, z), count), 1e-5) for of in (poisson, sampled_laplace) for q, z, count in ENDS]


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize(("event", "delta"), EXTREME)
def test_extremes_neither_crash_nor_hang(event, delta, adjacency):
    found = numerical.epsilon_interval(event, delta, adjacency=adjacency)
    assert 0.0 <= found.lower <= found.upper < math.inf
    assert found.method == "renyi" or found.upper - found.lower <= max(RELATIVE * found.upper, ABSOLUTE)


@pytest.mark.parametrize("times", [1, 2**53])
def test_losses_that_round_to_nothing_still_cost(times):
    mu = 0.7 * math.sqrt(times) / 1e18
    event = repeat(poisson(0.7, 1e18), times)
    truth = 0.3989 * mu  # delta at epsilon 0, nearly a Gaussian's
    assert numerical.epsilon(event, 0.1 * truth, adjacency=REPLACE) > 0.0
    assert numerical.delta(event, 0.0, adjacency=REPLACE) > truth


def test_rounding_losses_down_is_caught(monkeypatch):
    """Planted fault: an upper lattice whose mass is shifted one cell down is no upper bound."""
    truth = float(hockey_stick(removed, 0.5, 1.0, 1.0))
    original = lattice.upper_cells

    def shifted(pair, count, *, spacing, extent):
        found = original(pair, count, spacing=spacing, extent=extent)
        cells = lattice.Cells(start=found.cells.start - 1, masses=found.cells.masses, count=count)
        return lattice.UpperCells(cells=cells, infinite=found.infinite)

    monkeypatch.setattr(bounds, "upper_cells", shifted)
    assert numerical.delta_interval(poisson(0.5, 1.0), 1.0, adjacency=ADD).upper < truth


def test_a_delta_too_small_for_the_lattice_is_answered_by_renyi():
    found = numerical.epsilon_interval(SAMPLED, 1e-305, adjacency=ZERO)
    assert found.method == "renyi"
    assert 0.0 < found.lower <= found.upper  # a test shows it
    assert found.upper == renyi.epsilon(SAMPLED, 1e-305, adjacency=ZERO)
    assert numerical.quick_epsilon(SAMPLED, 1e-305, adjacency=ZERO) >= found.upper
    assert numerical.delta_interval(SAMPLED, 300.0, adjacency=ZERO).upper <= renyi.delta(SAMPLED, 300.0, adjacency=ZERO)


# ---- bounds put together, on compositions of Gaussians sent through lattice and transform


FOUR = poisson(0.25, 2.0, 4)


def test_losses_too_large_to_be_exponentiated_are_noticed_where_a_cap_leaves_them():
    """Noise of a thousandth: a loss of half a million. Sampled at a rate of 1e-9 its cap is low, and it is priced."""
    (pair,) = gaussian(1e-3).pairs(ADD)
    with pytest.raises(refine.OutOfRangeError):
        refine.epsilon_ends(((pair, 1),), 1e-5)
    with pytest.raises(refine.OutOfRangeError):
        refine.delta_ends(((pair, 1),), 4e5, 1.0)
    rare = poisson(1e-9, 1e-3)
    found = numerical.epsilon_interval(repeat(rare, 20), 1e-8, adjacency=ADD)
    # the unit is drawn with probability 2e-8, and then known: more than delta, so only what the noise hides is left
    assert found.method == "renyi"
    found = numerical.epsilon_interval(repeat(rare, 20), 3e-8, adjacency=ADD)
    assert (found.lower, found.upper, found.method) == (0.0, 0.0, "numerical")


def test_what_has_no_pair_is_answered_by_renyi_and_a_test():
    run = BestOfRandomRuns(run=FOUR, eta=1.0, gamma=0.5)
    found = numerical.epsilon_interval(run, 1e-5, adjacency=ZERO)
    assert (found.upper, found.method) == (renyi.epsilon(run, 1e-5, adjacency=ZERO), "renyi")
    assert 0.5 * found.upper < found.lower <= found.upper  # a test shows it
    assert numerical.quick_epsilon(run, 1e-5, adjacency=ZERO) == found.upper
    found = numerical.delta_interval(run, 2.0, adjacency=ZERO)
    assert (found.lower, found.upper, found.method) == (0.0, renyi.delta(run, 2.0, adjacency=ZERO), "renyi")


# ---- the table of all accountants, and the best one


@pytest.mark.parametrize("adjacency", [ZERO, REPLACE])
def test_every_accountant_stands_in_the_table_with_its_own_answer(adjacency):
    sampled = compose([FOUR, fixed(9, 3, 2.0)])
    wanted = {
        "moments": moments.epsilon(sampled, 1e-5, adjacency=adjacency),
        "renyi": renyi.epsilon(sampled, 1e-5, adjacency=adjacency),
        "tight": numerical.epsilon(sampled, 1e-5, adjacency=adjacency),
    }
    assert numerical.epsilon_table(sampled, 1e-5, adjacency=adjacency) == wanted
    assert list(wanted.values()) == sorted(wanted.values(), reverse=True)
    plain = gaussian(2.0)
    table = numerical.epsilon_table(plain, 1e-5, adjacency=adjacency)
    assert list(table) == ["moments", "renyi", "tight", "gaussian_dp"]
    assert table["gaussian_dp"] == gaussian_dp.epsilon(plain, 1e-5, adjacency=adjacency) == table["tight"]


def test_no_name_of_the_package_becomes_a_module_once_its_home_was_loaded():
    """Python puts every loaded module into its package, where it would hide a function of the same name."""
    modules = {path.stem for path in Path(accountant.__file__).parent.iterdir()}
    known = "calibrate dp_event envelope filters gaussian_dp moments renyi"
    assert modules & set(accountant.__all__) == set(known.split())


# ---- the tight accountant where rounds are many, samples rare and noise is small, against three oracles

STORED = json.loads((Path(__file__).parents[1] / "golden" / "tight_grid.json").read_text())
GRID = [dict(zip(STORED["columns"], row, strict=True)) for row in STORED["rows"]]
SOME = GRID[::61]  # for the default suite
TRUSTED = 3e-4  # of the quadrature
# Settings at which the Rényi bound is 2 to 99 times as large, and epsilon by the quadrature where it settles.
FELL_BACK = [
    {"parts": [(1e-4, 0.6, 10**4)], "delta": 1e-8, "quadrature": 1.3884254},
    {"parts": [(1e-4, 0.6, 10**5)], "delta": 1e-5, "quadrature": 0.6084920},
    {"parts": [(1e-4, 0.8, 10**5)], "delta": 1e-8, "quadrature": 0.3192463},
    {"parts": [(1e-4, 0.6, 10**3)], "delta": 1e-5, "quadrature": 0.1132262},
    {"parts": [(5e-4, 0.9, 10**4)], "delta": 1e-8, "quadrature": 0.4497032},
    {"parts": [(2e-4, 1.0, 10**4)], "delta": 1e-8, "quadrature": 0.1290264},
    {"parts": [(5e-5, 0.7, 10**4)], "delta": 1e-6, "quadrature": 0.0694665},
    {"parts": [(1e-5, 0.4, 10**4)], "delta": 1e-5, "quadrature": 0.8558456},
    {"parts": [(1e-5, 0.6, 10**4)], "delta": 1e-8, "quadrature": 0.1382502},
    {"parts": [(1e-5, 0.8, 10**4)], "delta": 1e-8, "quadrature": None},
]


def event_of(row):
    return compose([poisson(q, z, count) for q, z, count in row["parts"]])


def problems(row):
    """Everything that is wrong with a row's interval, given the oracles' values."""
    found = numerical.epsilon_interval(event_of(row), row["delta"], adjacency=ADD)
    low, high = row.get("optimistic"), row.get("pessimistic")
    if row["delta"] < 1e-9 or None in (low, high):
        low = high = None
    value = row["quadrature"]
    checks = {
        "no interval": 0.0 <= found.lower <= found.upper < math.inf,
        "wide": found.upper - found.lower <= max((RELATIVE if "curve" in row else 3e-3) * found.upper, ABSOLUTE),
        "fallback": found.method == "numerical",
        "upper below the optimistic value": low is None or found.upper >= low * (1 - 1e-9),
        "lower above the pessimistic value": high is None or found.lower <= high * (1 + 1e-9),
        "not around the quadrature": value is None
        or found.lower * (1 - TRUSTED) <= value <= found.upper * (1 + TRUSTED),
        "upper more than 1 % above an oracle": all(
            found.upper <= max(1.01 * one, one + ABSOLUTE) for one in (high, value) if one is not None
        ),
    }
    return [words for words, holds in checks.items() if not holds]


def test_some_settings_of_the_grid():
    assert {index: wrong for index, row in enumerate([*SOME, *FELL_BACK]) if (wrong := problems(row))} == {}


@pytest.mark.slow
def test_all_settings_of_the_grid():
    assert {index: wrong for index, row in enumerate(GRID) if (wrong := problems(row))} == {}


def curves(rows):
    """Points of the quadrature's curves of delta, with their events."""
    points = [(row, share, delta) for row in rows for share, delta in zip(SHARES, row["curve"], strict=True) if delta]
    return [(event_of(row), share * row["quadrature"], delta) for row, share, delta in points if 1e-14 <= delta < 0.5]


def check_curves(rows):
    for event, epsilon, truth in curves(rows):
        found = numerical.delta_interval(event, epsilon, adjacency=ADD)
        assert found.lower * (1 - 3e-3) <= truth <= found.upper * (1 + 3e-3), (event, epsilon, truth, found)
        assert found.upper <= 1.02 * truth, (event, epsilon, truth, found)


def test_delta_of_some_compositions_is_within_two_percent():
    """In the last three losses are smaller than a rounding of the masses, which once cost 2.6 to 10.7 %."""
    check_curves([*SOME[::5], GRID[248], GRID[512], GRID[1216]])


@pytest.mark.slow
def test_delta_of_compositions_is_within_two_percent():
    assert len(curves(GRID)) >= 4500
    check_curves(GRID)


@pytest.mark.parametrize("index", [7, 8, 1216])
def test_the_quadrature_gives_what_is_stored(index):
    row = GRID[index]
    epsilon, curve = solve(row["parts"], row["delta"])
    assert [epsilon, *curve] == pytest.approx([row["quadrature"], *row["curve"]], rel=1e-6)
