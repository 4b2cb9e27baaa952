"""Who is drawn: cohorts that never exceed their bound, allocations of exactly k, at the rates that are charged."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, chi2

from accountant.events import (
    Adjacency,
    Gaussian,
    PoissonSampledGaussian,
    RandomAllocationGaussian,
    TruncatedPoissonSampledGaussian,
)
from privbo.door.noise import NoiseSource, SecureNoise, SimulatedNoise
from privbo.door.sampling import Sample
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import BoolArray, Request
from tests.builders import mechanism_for

SOURCES: list[NoiseSource] = [SecureNoise(), SimulatedNoise(3)]
N = 9
CUT = Sample(n_clients=N, sampling="truncated-poisson", sample_rate=0.5, max_cohort=4)
ALLOTTED = Sample(n_clients=N, sampling="random-allocation", participations=2, n_releases=5)


def far_from(counts: np.ndarray, expected: np.ndarray) -> bool:
    """Pearson's test at a false-alarm rate of 1e-7."""
    statistic = float(np.sum((counts - expected) ** 2 / expected))
    return bool(chi2.sf(statistic, len(counts) - 1) < 1e-7)


def cohort_sizes(drawn: BoolArray) -> np.ndarray:
    return np.bincount(drawn.sum(axis=1), minlength=N + 1)


def law_of_sizes(trials: int) -> np.ndarray:
    masses = binom.pmf(np.arange(N + 1), N, CUT.sample_rate)
    return trials * np.append(masses[:4], masses[4:].sum())


@pytest.mark.parametrize("noise", SOURCES, ids=["secure", "simulation"])
def test_a_cohort_is_a_poisson_sample_cut_to_its_bound(noise: NoiseSource) -> None:
    trials = 20_000
    drawn = CUT.draw(trials, noise)
    assert drawn.shape == (trials, N)
    sizes = cohort_sizes(drawn)
    assert sizes[5:].sum() == 0
    assert not far_from(sizes[:5], law_of_sizes(trials))
    each = drawn.sum(axis=0)  # five standard deviations, nine clients: false alarms below 6e-6 would be; so 6.5
    spread = math.sqrt(trials * CUT.rate * (1 - CUT.rate))
    assert np.all(np.abs(each - trials * CUT.rate) < 6.5 * spread)
    pairs = np.array([np.sum(drawn[:, i] & drawn[:, j]) for i in range(N) for j in range(i)])
    assert np.all(np.abs(pairs - pairs.mean()) < 6.5 * math.sqrt(pairs.mean()))


def test_a_cohort_beyond_its_bound_is_caught() -> None:
    """Planted faults: nobody is cut; always the same are cut."""
    uncut = Sample(n_clients=N, sample_rate=0.5).draw(20_000, SimulatedNoise(4))
    assert cohort_sizes(uncut)[5:].sum() > 0
    first = uncut & (np.cumsum(uncut, axis=1) <= 4)
    assert cohort_sizes(first)[5:].sum() == 0
    each = first.sum(axis=0)
    assert np.any(np.abs(each - 20_000 * CUT.rate) > 6.5 * math.sqrt(20_000 * CUT.rate * (1 - CUT.rate)))


def subsets_of(tables: list[BoolArray]) -> np.ndarray:
    rows = np.concatenate(tables)
    return np.unique(rows @ (1 << np.arange(rows.shape[1])), return_counts=True)[1]


@pytest.mark.parametrize("noise", SOURCES, ids=["secure", "simulation"])
def test_everybody_is_allotted_exactly_k_releases_uniformly(noise: NoiseSource) -> None:
    tables = [ALLOTTED.allocate(noise) for _ in range(1500)]
    assert all(table.shape == (N, 5) and np.all(table.sum(axis=1) == 2) for table in tables)
    counts = subsets_of(tables)
    assert len(counts) == math.comb(5, 2)
    assert not far_from(counts, np.full(10, counts.sum() / 10))
    together = np.array([np.sum(np.all(table[0] == table[1])) for table in tables]).sum()  # two clients, one subset
    assert abs(together - 150) < 6.5 * math.sqrt(150)


def test_an_allocation_by_coins_or_alike_for_all_is_caught() -> None:
    """Planted faults: coins of the same rate; one subset for everybody."""
    coins = SimulatedNoise(5).coins((N, 5), 0.4)
    assert np.any(coins.sum(axis=1) != 2)
    same = [np.tile(SimulatedNoise(seed).subsets((1, 5), 2), (N, 1)) for seed in range(300)]
    assert sum(bool(np.all(table[0] == table[1])) for table in same) > 30 + 6.5 * math.sqrt(30)


def test_a_large_federation_is_drawn_in_parts() -> None:
    table = Sample(n_clients=30_000, sampling="random-allocation", participations=3, n_releases=300).allocate(
        SecureNoise()
    )
    assert table.shape == (30_000, 300)
    assert np.all(table.sum(axis=1) == 3)


def test_rates_are_those_of_the_draw_and_events_those_of_the_rule() -> None:
    assert ALLOTTED.rate == 0.4
    assert ALLOTTED.event(2.0) == RandomAllocationGaussian(n_rounds=5, participations=2, noise_multiplier=2.0)
    sizes = np.minimum(np.arange(N + 1), 4)
    assert CUT.rate == pytest.approx(float(binom.pmf(np.arange(N + 1), N, 0.5) @ sizes) / N, rel=1e-7)
    assert CUT.event(2.0) == TruncatedPoissonSampledGaussian(
        n_clients=N, sample_rate=0.5, batch_size=4, noise_multiplier=2.0
    )
    whole = Sample(n_clients=N, sampling="truncated-poisson", max_cohort=N)
    assert whole.everyone
    assert whole.event(2.0) == Gaussian(noise_multiplier=2.0)
    assert not Sample(n_clients=N, sampling="truncated-poisson", max_cohort=N - 1).everyone
    assert Sample(n_clients=N, sample_rate=0.5).event(1.0) == PoissonSampledGaussian(
        sample_rate=0.5, noise_multiplier=1.0
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"sampling": "truncated-poisson", "sample_rate": 0.5, "max_cohort": 2},
        {"sampling": "random-allocation", "participations": 2, "n_releases": 8},
    ],
)
def test_sensitivity_is_that_of_one_contribution(settings: dict[str, Any]) -> None:
    """Whether a cut moves somebody else is in the event; the noise is scaled to one contribution."""
    request = Request(dim=3, clipping_norm=2.0, weights=np.full((1, 4), 0.25))
    made, plain = (mechanism_for(request, noise_multiplier=1.5, **more) for more in (settings, {"sample_rate": 0.5}))
    assert made.sensitivity() * made.sample.rate == pytest.approx(plain.sensitivity() * 0.5, rel=1e-12)
    assert made.noise_stddev() == pytest.approx(1.5 * made.sensitivity(), rel=1e-12)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sampling": "by-name"}, "must be one of 'poisson', 'fixed-size', 'truncated-poisson', 'random-allocation'"),
        ({"sampling": "truncated-poisson"}, "max_cohort=None must be an integer >= 1"),
        ({"sampling": "truncated-poisson", "max_cohort": 2.5}, r"max_cohort=2\.5"),
        ({"max_cohort": 3}, "max_cohort=3 belongs to sampling='truncated-poisson', not 'poisson'; leave it out"),
        ({"sampling": "fixed-size", "participations": 3}, "belongs to sampling='random-allocation'"),
        ({"sampling": "random-allocation", "participations": 2, "sample_rate": 0.5}, "leave sample_rate out"),
        ({"sampling": "random-allocation", "participations": 6, "n_releases": 5}, "the plan has 5 releases; lower it"),
    ],
)
def test_numbers_that_do_not_fit_the_rule_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Sample(**{"n_clients": N} | settings)


def test_a_single_release_of_an_allocation_has_no_price_and_no_draw() -> None:
    alone = Sample(n_clients=N, sampling="random-allocation", participations=2)
    for asked in (lambda: alone.rate, lambda: alone.event(1.0), lambda: alone.allocate(SecureNoise())):
        with pytest.raises(ConfigurationError, match="is a whole run's"):
            asked()
    with pytest.raises(ConfigurationError, match="drawn once for a whole run"):
        ALLOTTED.draw(1, SecureNoise())
    request = Request(dim=3, clipping_norm=2.0, weights=np.full((1, 4), 0.25))
    with pytest.raises(ConfigurationError, match="no proven price under replace-one"):
        mechanism_for(
            request, noise_multiplier=1.0, adjacency=Adjacency.REPLACE_ONE,
            sampling="random-allocation", participations=1, n_releases=2,
        )  # fmt: skip
