"""The tight accountant: its interval holds the truth, and is narrow.

Oracles: mpmath where a closed form or a one-dimensional integral exists, and dp-accounting's privacy-loss distributions
elsewhere; ``test_tight_grid.py`` holds it against two thousand stored settings.
"""

import math
import warnings
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest
from scipy.special import ndtr

import accountant
from accountant import gaussian_dp, moments, renyi
from accountant.events import Adjacency, BestOfRandomRuns, compose, repeat
from accountant.mechanisms.pair import normal_error
from accountant.tight import bounds, lattice, numerical, refine
from tests.accountant.builders import fixed, gaussian, laplace, poisson
from tests.accountant.oracles import exact_delta, fixed_size_profile

SAMPLED = poisson(0.25, 2.0)

ADD, ZERO, REPLACE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
MAKERS = {
    "poisson": poisson,
    "gaussian": lambda q, z: gaussian(z),
    "laplace": lambda q, z: laplace(z),
}
RELATIVE, ABSOLUTE = 0.005, 1e-4


@pytest.mark.parametrize("z", [0.3, 1.0, 6.0])
@pytest.mark.parametrize(("q", "share"), [(1e-4, 0.9), (0.03, 0.1), (0.6, 0.5), (0.97, 0.1)])
def test_one_release_is_exact(q, z, share):
    """Every bound against the closed form of a single release, both adjacencies."""
    half = mp.mpf(1) / 2
    for adjacency, pairs in [
        (ADD, [(mp.mpf(1), None), (None, mp.mpf(1))]),
        (Adjacency.REPLACE_ONE, [(half, -half)]),
    ]:
        epsilon = share * float(math.log1p(q * math.expm1(2.0 / z)))
        truth = float(max(exact_delta(q, z, epsilon, *pair) for pair in pairs))
        if truth < 1e-200:
            continue
        found = numerical.delta_interval(poisson(q, z), epsilon, adjacency=adjacency)
        assert found.lower <= truth * (1 + 1e-12)
        assert found.upper >= truth * (1 - 1e-12)
        back = numerical.epsilon_interval(poisson(q, z), truth, adjacency=adjacency)
        assert back.lower <= epsilon * (1 + 1e-9)
        assert back.upper >= epsilon * (1 - 1e-9)
        assert back.upper - back.lower <= max(RELATIVE * back.upper, ABSOLUTE)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_one_fixed_size_release_is_its_profile(epsilon):
    event = fixed(29, 10, 0.8)
    truth = fixed_size_profile(10 / 29, 0.8, math.exp(epsilon))
    found = numerical.delta_interval(event, epsilon, adjacency=Adjacency.ZERO_OUT)
    assert found.lower <= truth <= found.upper <= 1.05 * truth


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


def random_event(rng):
    """A composition of up to four kinds of release, far beyond the golden grid's variety."""

    def log_uniform(low, high):
        return float(np.exp(rng.uniform(math.log(low), math.log(high))))

    adjacency = list(Adjacency)[rng.integers(3)]
    kinds = ["poisson", "gaussian", "laplace"] + (["fixed"] if adjacency != ADD else [])
    parts = []
    for _ in range(int(rng.integers(1, 5))):
        kind = kinds[rng.integers(len(kinds))]
        q, z, count = log_uniform(1e-5, 1), log_uniform(0.3, 50), round(log_uniform(1, 1e5))
        if kind == "fixed":
            n = int(rng.integers(1, 10_000))
            m = int(rng.integers(1, n + 1))
            event = fixed(n, m, z)
        else:
            event = MAKERS[kind](q, z)
        parts.append((event, count))
    return compose(parts), log_uniform(1e-12, 0.3), adjacency


def check_random(seed, count):
    rng = np.random.default_rng(seed)
    wide = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for index in range(count):
            event, delta, adjacency = random_event(rng)
            found = numerical.epsilon_interval(event, delta, adjacency=adjacency)
            label = (event, delta, adjacency, found)
            assert 0.0 <= found.lower <= found.upper < math.inf, label
            if index % 5 == 0:
                # Near the largest loss that is possible Rényi's bound may be tight, and lie inside the interval.
                assert found.lower <= renyi.epsilon(event, delta, adjacency=adjacency) * (1 + 1e-9), label
                assert found.upper <= renyi.epsilon(event, delta, adjacency=adjacency) * (1 + RELATIVE), label
            if found.upper - found.lower > max(RELATIVE * found.upper, ABSOLUTE):
                wide.append(label)
    assert len(wide) <= 0.005 * count, wide


def test_100_random_settings():
    check_random(seed=1, count=100)


@pytest.mark.slow
def test_10000_random_settings():
    check_random(seed=2, count=10_000)


@pytest.mark.parametrize(
    ("event", "delta"),
    [
        (poisson(0.5, 0.3, 100_000), 1e-10),  # epsilon in the hundred thousands
        (poisson(0.01, 1.0, 1000), 1e-250),
        (poisson(1e-9, 50.0, 1), 1e-3),
        (poisson(0.3, 0.01, 3), 1e-5),  # losses out of the lattice's range
        (laplace(0.001), 1e-5),
        (poisson(1 - 1e-15, 1.0, 10), 1e-5),
        (poisson(1 - 1e-14, 5.0, 1000), 1e-5),  # edges that may lie many cells off
    ],
)
def test_extremes_neither_crash_nor_hang(event, delta):
    found = numerical.epsilon_interval(event, delta, adjacency=ADD)
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
    truth = float(exact_delta(0.5, 1.0, 1.0, mp.mpf(1), None))
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


FOUR = repeat(poisson(0.25, 2.0), 4)


def test_an_epsilon_beyond_the_reach_is_looked_at_again_with_a_longer_one():
    """At a bound of 0.1 the reach ends where a billionth of it is left; the truth there is far smaller, and found."""
    (pair,) = gaussian(1.0).pairs(ADD)
    pairs = ((pair, 1),)
    bound = 0.1
    reach = refine.reach_for(pairs, bound * 1e-3)
    ceiling = 0.5 + reach
    assert refine.ceiling(pairs, reach) == pytest.approx(ceiling)
    for epsilon in (*np.linspace(4.0, ceiling - 0.01, 20), ceiling, ceiling + 0.01, 30.0):
        lower, upper = refine.delta_ends(pairs, float(epsilon), bound)
        truth = math.exp(gaussian_dp.log_delta_from_mu(1.0, float(epsilon)))
        assert 0.98 * truth <= lower <= truth * (1 + 1e-9)
        assert truth * (1 - 1e-9) <= upper <= 1.02 * truth
    # enough is known where another direction is known to be larger
    assert refine.delta_ends(pairs, 30.0, bound, enough=1e-3) == (0.0, pytest.approx(bound * 1e-9))
    # a loss that ends at 2 cannot exceed 3
    (bounded,) = laplace(0.5).pairs(ADD)
    lower, upper = refine.delta_ends(((bounded, 1),), 3.0, bound)
    assert lower == 0.0
    assert upper <= 1e-250


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


def test_a_composition_is_priced_in_both_directions_with_what_everybody_takes_part_in_merged():
    event = compose([(gaussian(0.5), 3), (poisson(1.0, 1.0), 2), (poisson(0.3, 1.5), 6), (laplace(2.0), 4)])
    both = numerical._directions(event, ZERO)
    assert (len(both), len(numerical._directions(event, REPLACE))) == (2, 1)
    for found, wanted in zip(both, poisson(0.3, 1.5).pairs(ZERO), strict=True):
        (sampled,) = [pair for pair, count in found if count == 6]
        assert sampled.loss_range(2.0) == wanted.loss_range(2.0)
        noisy, merged = sorted((pair for pair, count in found if count == 4), key=lambda pair: pair.loss_range(0.0)[1])
        assert noisy.loss_range(1.0) == (-0.5, 0.5)
        # mu^2 = 3 * 4 + 2 in all: a Gaussian's mean loss is mu^2 / 2; four equal ones keep each at most 4
        assert 4 * sum(merged.loss_range(1.0)) == pytest.approx(14.0, rel=1e-12)


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
    assert modules & set(accountant.__all__) == {
        "calibrate",
        "dp_event",
        "envelope",
        "filters",
        "gaussian_dp",
        "moments",
        "renyi",
    }


def test_the_package_lists_its_names_and_no_others():
    assert dir(accountant) == sorted(accountant.__all__)
    assert all(getattr(accountant, name) is not None for name in accountant.__all__)
    assert accountant.numerical is numerical
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        accountant.nothing  # noqa: B018 (the access is the test)
