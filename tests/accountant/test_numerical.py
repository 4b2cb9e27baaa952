"""The tight accountant: its interval holds the truth, and is narrow.

Oracles: mpmath where a closed form or a one-dimensional integral exists, and dp-accounting's privacy-loss distributions
elsewhere; ``test_tight_grid.py`` holds it against two thousand stored settings.
"""

import math
import warnings

import mpmath as mp
import numpy as np
import pytest
from scipy.special import ndtr

from accountant import gaussian_dp, renyi
from accountant.events import Adjacency, FixedSizeSampledGaussian, Gaussian, Laplace, PoissonSampledGaussian, compose
from accountant.mechanisms.pair import normal_error
from accountant.tight import bounds, lattice, numerical, refine
from tests.accountant.builders import plan as poisson
from tests.accountant.oracles import exact_delta, fixed_size_profile

SAMPLED = PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=2.0)
ZERO = Adjacency.ZERO_OUT

ADD = Adjacency.ADD_OR_REMOVE_ONE
MAKERS = {
    "poisson": lambda q, z: PoissonSampledGaussian(sample_rate=q, noise_multiplier=z),
    "gaussian": lambda q, z: Gaussian(noise_multiplier=z),
    "laplace": lambda q, z: Laplace(scale_multiplier=z),
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
    event = FixedSizeSampledGaussian(n_clients=29, sample_size=10, noise_multiplier=0.8)
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
    (pair,) = Gaussian(noise_multiplier=math.sqrt(count) / total_mu).pairs(ADD)
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
            event = FixedSizeSampledGaussian(n_clients=n, sample_size=m, noise_multiplier=z)
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
        (Laplace(scale_multiplier=0.001), 1e-5),
        (poisson(1 - 1e-15, 1.0, 10), 1e-5),
        (poisson(1 - 1e-14, 5.0, 1000), 1e-5),  # edges that may lie many cells off
    ],
)
def test_extremes_neither_crash_nor_hang(event, delta):
    found = numerical.epsilon_interval(event, delta, adjacency=ADD)
    assert 0.0 <= found.lower <= found.upper < math.inf
    assert found.method == "renyi" or found.upper - found.lower <= max(RELATIVE * found.upper, ABSOLUTE)


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


def test_caches_can_be_forgotten_without_changing_an_answer():
    before = (numerical.epsilon(SAMPLED, 1e-5, adjacency=ZERO), renyi.epsilon(SAMPLED, 1e-5, adjacency=ZERO))
    numerical.clear_caches()
    renyi.clear_caches()
    assert (numerical.epsilon(SAMPLED, 1e-5, adjacency=ZERO), renyi.epsilon(SAMPLED, 1e-5, adjacency=ZERO)) == before
