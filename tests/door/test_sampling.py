"""Who is drawn: cohorts that never exceed their bound, allocations of exactly k, at the rates that are charged."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, chi2

from accountant.errors import BudgetExceeded, LedgerError
from accountant.events import (
    Adjacency,
    Gaussian,
    PoissonSampledGaussian,
    RandomAllocationGaussian,
    TruncatedPoissonSampledGaussian,
)
from accountant.ledger import Budget, Ledger
from accountant.ledger.book import Declaration
from privbo.door.door import Door
from privbo.door.noise import NoiseSource, SecureNoise, SimulatedNoise
from privbo.door.sampling import Allocation, Keeper, Sample
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import BoolArray, Request
from tests.builders import ledger as new_ledger, mechanism_for

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
    tables = [ALLOTTED.allocate(noise).table for _ in range(1500)]
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
    table, _ = Sample(n_clients=30_000, sampling="random-allocation", participations=3, n_releases=300).allocate(
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


# ---- one allocation for all of a run's releases, however often the run is begun again; and one price for them

CLIENTS, T, K, Z = 6, 5, 2, 1e-4
ALLOTTED_TO_SIX = Sample(n_clients=CLIENTS, sampling="random-allocation", participations=K, n_releases=T)
EVENT = RandomAllocationGaussian(n_rounds=T, participations=K, noise_multiplier=Z)
REQUEST = Request(dim=CLIENTS, clipping_norm=1.0, weights=np.ones((1, CLIENTS)))


def declared(event: RandomAllocationGaussian = EVENT, run: str = "run") -> Declaration:
    return Declaration(run=run, events=((event, 1),), settings="s", plan="p", delta=1e-5, noise_source="secure")


def ledger(budget: Budget | None = None) -> Ledger:
    return new_ledger(CLIENTS, budget=budget)


def door(book: Ledger, keeper: Keeper, *, run: str = "run", n_releases: int = T) -> Door:
    return Door(
        book,
        run=run,
        noise=SecureNoise(),
        mechanism=lambda wanted: mechanism_for(
            wanted,
            noise_multiplier=Z,
            sampling="random-allocation",
            participations=K,
            n_releases=n_releases,
        ),
        keeper=keeper,
    )


def seen(here: Door, position: int) -> BoolArray:
    """Who was in a release: with hardly any noise and every client in a column of its own the values say so."""
    ticket = here.open(position, REQUEST, plan_position=position)
    release = ticket.release or here.close(ticket, 0.5 * np.eye(CLIENTS))[0]
    return release.values[0] * K / T > 0.25


def play(book: Ledger, keepers: Iterator[Keeper]) -> BoolArray:
    """A run that is begun again before every release, each time with the next keeper."""
    return np.array([seen(door(book, keeper), position) for position, keeper in zip(range(T), keepers, strict=False)]).T


@pytest.fixture
def book() -> Ledger:
    made = ledger()
    made.reserve(declared())
    return made


def test_every_client_is_in_exactly_k_of_all_releases_however_often_the_run_is_begun_again(book: Ledger) -> None:
    kept = Keeper()
    table = play(book, iter([kept] * T))
    assert np.array_equal(table.sum(axis=1), np.full(CLIENTS, K))
    assert np.array_equal(table, kept.kept().table)
    again = play(book, iter([kept] * T))  # what was released is sent again
    assert np.array_equal(again, table)


class Redrawn(Keeper):
    """An allocation of the right form at every beginning, and another one each time."""

    def __init__(self) -> None:
        self._allocation = ALLOTTED_TO_SIX.allocate(SecureNoise())

    def kept(self) -> Allocation:
        return self._allocation

    def keep(self, allocation: Allocation) -> None:
        raise AssertionError("it is there already")


def test_an_allocation_drawn_again_or_replaced_is_refused(book: Ledger) -> None:
    seen(door(book, Redrawn()), 0)
    with pytest.raises(LedgerError, match="is not the one that was drawn"):
        seen(door(book, Redrawn()), 1)
    assert len(book.entries()) == 1


def test_two_processes_that_begin_at_once_share_what_the_first_kept(book: Ledger) -> None:
    kept = Keeper()
    one, other = door(book, kept), door(book, kept)
    first = seen(one, 0)
    rest = [seen(other, position) for position in range(1, T)]
    assert np.array_equal(np.array([first, *rest]).T.sum(axis=1), np.full(CLIENTS, K))


def test_every_place_serves_one_round(book: Ledger) -> None:
    here = door(book, Keeper())
    here.open(0, REQUEST, plan_position=0)
    for round_, position in ((1, 0), (0, 1), (1, None), (1, T), (1, -1)):
        with pytest.raises(LedgerError, match="place"):
            here.open(round_, REQUEST, plan_position=position)
    assert len(book.entries()) == 1


@pytest.mark.parametrize("wrong", [np.ones((CLIENTS, T - 1), bool), np.eye(CLIENTS, T, dtype=bool)])
def test_an_allocation_that_is_not_the_runs_is_refused(book: Ledger, wrong: BoolArray) -> None:
    keeper = Keeper()
    keeper.keep(Allocation(wrong, b""))
    with pytest.raises(LedgerError, match="is not the one that was drawn"):
        door(book, keeper).open(0, REQUEST, plan_position=0)
    assert book.entries() == []


def test_releases_that_no_plan_has_paid_for_are_refused() -> None:
    book = ledger()
    with pytest.raises(LedgerError, match="covers several releases; reserve the plan"):
        seen(door(book, Keeper()), 0)
    assert book.entries() == []


SMALL = RandomAllocationGaussian(n_rounds=20, participations=4, noise_multiplier=4.0)


def test_a_budget_that_does_not_hold_the_whole_refuses_before_anything_is_drawn() -> None:
    book = ledger(Budget(epsilon=0.2, delta=1e-5))
    with pytest.raises(BudgetExceeded):
        book.reserve(declared(SMALL))
    assert book.book().rows == []
