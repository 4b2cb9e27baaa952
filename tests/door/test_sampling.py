"""Who is drawn: cohorts that never exceed their bound, allocations of exactly k, at the rates that are charged."""

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.stats import binom, chi2

from accountant.errors import BudgetExceeded, LedgerError
from accountant.events import Adjacency, BestOfRandomRuns, Unit
from accountant.ledger import Budget, Ledger
from accountant.mechanisms.selection import TruncatedNegativeBinomial
from privbo.door.noise import (
    LARGEST_SCALE,
    SMALLEST_SCALE,
    ExactNoise,
    NoiseSource,
    SecureNoise,
    SimulatedNoise,
    below,
    keystream,
    smallest,
    uniform_subsets,
)
from privbo.door.sampling import Allocation, Keeper, Sample
from privbo.door.selection import SelectionDoor, draw_runs
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import BoolArray, Request
from tests.accountant.builders import allocated, declared, gaussian, poisson, truncated
from tests.builders import Changed, door as new_door, ledger as new_ledger, mechanism_for

SOURCES: list[NoiseSource] = [SecureNoise(), SimulatedNoise(3)]
every_source = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
N = 9
CUT = Sample(n_clients=N, sampling="truncated-poisson", sample_rate=0.5, max_cohort=4)
ALLOTTED = Sample(n_clients=N, sampling="random-allocation", participations=2, n_releases=5)


def far_from(counts: np.ndarray, expected: np.ndarray) -> bool:
    """Pearson's test at a false-alarm rate of 1e-7."""
    statistic = float(np.sum((counts - expected) ** 2 / expected))
    return bool(chi2.sf(statistic, len(counts) - 1) < 1e-7)


def cohort_sizes(drawn: BoolArray) -> np.ndarray:
    return np.bincount(drawn.sum(axis=1), minlength=N + 1)


@every_source
def test_a_cohort_is_a_poisson_sample_cut_to_its_bound(source: NoiseSource) -> None:
    trials = 20_000
    drawn = CUT.draw(trials, source)
    assert drawn.shape == (trials, N)
    sizes = cohort_sizes(drawn)
    assert sizes[5:].sum() == 0
    masses = binom.pmf(np.arange(N + 1), N, CUT.sample_rate)
    assert not far_from(sizes[:5], trials * np.append(masses[:4], masses[4:].sum()))
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


@every_source
def test_everybody_is_allotted_exactly_k_releases_uniformly(source: NoiseSource) -> None:
    tables = [ALLOTTED.allocate(source).table for _ in range(1500)]
    assert all(table.shape == (N, 5) and np.all(table.sum(axis=1) == 2) for table in tables)
    counts = np.unique(np.concatenate(tables) @ (1 << np.arange(5)), return_counts=True)[1]
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
    table, _ = replace(ALLOTTED, n_clients=30_000, participations=3, n_releases=300).allocate(SecureNoise())
    assert table.shape == (30_000, 300)
    assert np.all(table.sum(axis=1) == 3)


def test_rates_are_those_of_the_draw_and_events_those_of_the_rule() -> None:
    assert ALLOTTED.rate == 0.4
    assert ALLOTTED.event(2.0) == allocated(5, 2, 2.0)
    sizes = np.minimum(np.arange(N + 1), 4)
    assert CUT.rate == pytest.approx(float(binom.pmf(np.arange(N + 1), N, 0.5) @ sizes) / N, rel=1e-7)
    assert CUT.event(2.0) == truncated(N, 0.5, 4, 2.0)
    whole = replace(CUT, sample_rate=1.0, max_cohort=N)
    assert whole.everyone
    assert whole.event(2.0) == gaussian(2.0)
    assert not replace(whole, max_cohort=N - 1).everyone
    assert Sample(n_clients=N, sample_rate=0.5).event(1.0) == poisson(0.5, 1.0)


@pytest.mark.parametrize(
    "settings",
    [
        {"sampling": "truncated-poisson", "sample_rate": 0.5, "max_cohort": 2},
        {"sampling": "random-allocation", "participations": 2, "n_releases": 8},
    ],
)
def test_sensitivity_is_that_of_one_contribution(settings) -> None:
    """Whether a cut moves somebody else is in the event; the noise is scaled to one contribution."""
    made, plain = (mechanism_for(REQUEST, noise_multiplier=1.5, **more) for more in (settings, {"sample_rate": 0.5}))
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
def test_numbers_that_do_not_fit_the_rule_are_refused(settings, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Sample(**{"n_clients": N} | settings)


def test_a_single_release_of_an_allocation_has_no_price_and_no_draw() -> None:
    alone = replace(ALLOTTED, n_releases=None)
    for asked in (lambda: alone.rate, lambda: alone.event(1.0), lambda: alone.allocate(SecureNoise())):
        with pytest.raises(ConfigurationError, match="is a whole run's"):
            asked()
    with pytest.raises(ConfigurationError, match="drawn once for a whole run"):
        ALLOTTED.draw(1, SecureNoise())
    two = {"sampling": "random-allocation", "participations": 1, "n_releases": 2}
    with pytest.raises(ConfigurationError, match="no proven price under replace-one"):
        mechanism_for(REQUEST, noise_multiplier=1.0, adjacency=Adjacency.REPLACE_ONE, **two)


# ---- one allocation for all of a run's releases, however often the run is begun again; and one price for them

CLIENTS, T, K, Z = 6, 5, 2, 1e-4
EVENT = allocated(T, K, Z)
REQUEST = Request(dim=CLIENTS, clipping_norm=1.0, weights=np.ones((1, CLIENTS)))


def door(book: Ledger, keeper: Keeper):
    allotted = {"noise_multiplier": Z, "sampling": "random-allocation", "participations": K, "n_releases": T}
    return new_door(book, noise=SecureNoise(), keeper=keeper, **allotted)


def seen(here, position: int) -> BoolArray:
    """Who was in a release: with hardly any noise and every client in a column of its own the values say so."""
    ticket = here.open(position, REQUEST, plan_position=position)
    release = ticket.release or here.close(ticket, 0.5 * np.eye(CLIENTS))[0]
    return release.values[0] * K / T > 0.25


def play(book: Ledger, keepers) -> BoolArray:
    """A run that is begun again before every release, each time with the next keeper."""
    return np.array([seen(door(book, keeper), position) for position, keeper in zip(range(T), keepers, strict=False)]).T


@pytest.fixture
def book() -> Ledger:
    made = new_ledger(CLIENTS)
    made.reserve(declared("run", 1, EVENT))
    return made


def test_every_client_is_in_exactly_k_of_all_releases_however_often_the_run_is_begun_again(book: Ledger) -> None:
    kept = Keeper()
    table = play(book, iter([kept] * T))
    assert np.array_equal(table.sum(axis=1), np.full(CLIENTS, K))
    assert np.array_equal(table, kept.kept().table)
    again = play(book, iter([kept] * T))  # what was released is sent again
    assert np.array_equal(again, table)


def keeping(allocation: Allocation) -> Keeper:
    """A keeper that has one already, and is given no other."""
    return Changed(Keeper(), kept=lambda: allocation, keep=None)


def test_an_allocation_drawn_again_or_replaced_is_refused(book: Ledger) -> None:
    first, other = (keeping(replace(ALLOTTED, n_clients=CLIENTS).allocate(SecureNoise())) for _ in range(2))
    seen(door(book, first), 0)
    with pytest.raises(LedgerError, match="is not the one that was drawn"):
        seen(door(book, other), 1)
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
    with pytest.raises(LedgerError, match="is not the one that was drawn"):
        door(book, keeping(Allocation(wrong, b""))).open(0, REQUEST, plan_position=0)
    assert book.entries() == []


def test_releases_that_no_plan_has_paid_for_are_refused() -> None:
    book = new_ledger(CLIENTS)
    with pytest.raises(LedgerError, match="covers several releases; reserve the plan"):
        seen(door(book, Keeper()), 0)
    assert book.entries() == []


def test_a_budget_that_does_not_hold_the_whole_refuses_before_anything_is_drawn() -> None:
    book = new_ledger(CLIENTS, budget=Budget(epsilon=0.2, delta=1e-5))
    with pytest.raises(BudgetExceeded):
        book.reserve(declared("run", 1, allocated(20, 4, 4.0)))
    assert book.book().rows == []


# ---- private selection at the door: what is drawn, what is charged, what is tied to the charge

TOP = 2**53
SELECTION = BestOfRandomRuns(run=gaussian(4.0), eta=1.0, gamma=0.3)


def drawn(words: list[int], n_candidates: int) -> list[int]:
    """Runs by a source whose fair coins are the bits of given words, the lowest bit first; every word is used."""
    source = iter(words)

    def coins(shape: tuple[int, ...], rate: float) -> np.ndarray:
        assert (shape, rate) == ((53,), 0.5)
        word = next(source)
        return np.array([bool(word >> bit & 1) for bit in range(53)])

    scripted = Changed(SimulatedNoise(0), coins=coins)
    found = draw_runs(TruncatedNegativeBinomial(eta=1.0, gamma=0.3), n_candidates, scripted)
    assert list(source) == []
    return found


@pytest.mark.parametrize("u", [0.0, 0.29, 0.31, 0.5, 0.9, 0.999])
def test_the_number_of_runs_is_the_geometric_quantile_of_the_first_word(u: float) -> None:
    count = max(1, int(stats.geom.ppf(u, 0.3)))
    candidates = [TOP // 3 + k for k in range(count)]
    assert drawn([int(u * TOP), *candidates], 4) == [word % 4 for word in candidates]


def test_a_word_that_would_favour_low_candidates_is_drawn_again() -> None:
    # 2^53 = 3 n + 2: the two largest words are one too many of candidates 0 and 1
    assert drawn([0, TOP - 1, TOP - 2, 5], 3) == [2]
    assert drawn([0, TOP - 3], 3) == [2]
    assert drawn([0, TOP - 1], 1) == [0]
    assert drawn([0, TOP - 1], 2) == [1]


@pytest.mark.parametrize("n_candidates", [0, -1])
def test_no_candidates_are_refused(n_candidates: int) -> None:
    with pytest.raises(ConfigurationError, match=f"n_candidates={n_candidates} must be at least 1"):
        drawn([], n_candidates)


def records_ledger(epsilon: float = 9.0) -> Ledger:
    return new_ledger(100, budget=Budget(epsilon=epsilon, delta=1e-5), unit=Unit.RECORD)


def selection_door(*ledgers: Ledger, event: BestOfRandomRuns = SELECTION) -> SelectionDoor:
    return SelectionDoor(prices=tuple((one, event) for one in ledgers), run="s", noise_source="simulation")


def test_a_selection_is_charged_once_as_a_whole() -> None:
    paid = records_ledger()
    assert selection_door(paid).open() is None
    assert selection_door(paid).open() is None
    (entry,) = paid.entries()
    assert (entry.release_id, entry.run, entry.event, entry.plan_position) == ("s/selection", "s", SELECTION, 0)
    with pytest.raises(LedgerError, match="charged as"):
        selection_door(paid, event=BestOfRandomRuns(run=SELECTION.run, eta=1.0, gamma=0.2)).open()
    with pytest.raises(BudgetExceeded):
        selection_door(records_ledger(epsilon=0.1)).open()


def test_what_was_stored_is_handed_out_once_and_in_every_ledger() -> None:
    first, second = records_ledger(), records_ledger()
    with pytest.raises(LedgerError, match="never charged"):
        selection_door(first, second).close(b"model")
    selection_door(first, second).open()
    assert selection_door(first, second).close(b"model") == b"model"
    assert selection_door(first, second).close(b"model") == b"model"
    with pytest.raises(LedgerError, match="other bytes"):
        selection_door(first, second).close(b"other")
    assert selection_door(first, second).open() == b"model"
    assert [one.stored_release("s/selection") for one in (first, second)] == [b"model"] * 2


@pytest.mark.parametrize("which", [0, 1])
def test_a_result_that_only_one_ledger_stored_is_given_to_the_other(which: int) -> None:
    ledgers = records_ledger(), records_ledger()
    selection_door(*ledgers).open()
    ledgers[which].store_release("s/selection", b"model")
    assert selection_door(*ledgers).open() == b"model"
    assert [one.stored_release("s/selection") for one in ledgers] == [b"model"] * 2


# ---- noise sources at their edges: types, ends of ranges, exact thresholds; nothing here is statistical


@every_source
def test_noise_is_whole_numbers_and_membership_is_boolean(source) -> None:
    for shape in ((3,), (2, 3), (2, 1, 5)):
        drawn = source.gaussian(shape, 2.0**16)
        assert (drawn.shape, drawn.dtype) == (shape, np.int64)
        for rate in (0.5, 1.0):
            coins = source.coins(shape, rate)
            assert (coins.shape, coins.dtype) == (shape, np.bool_)
    for size in (1, 3, 4):
        chosen = source.subsets((6, 4), size)
        assert chosen.dtype == np.bool_
        assert chosen.sum(axis=1).tolist() == [size] * 6
    for size in (0, 5):
        with pytest.raises(ConfigurationError, match=f"subset of {size} out of 4"):
            source.subsets((6, 4), size)


@every_source
def test_both_ends_of_the_scale_are_drawn_at(source) -> None:
    assert (SMALLEST_SCALE, LARGEST_SCALE) == (2.0**10, 2.0**40)
    for scale in (SMALLEST_SCALE, LARGEST_SCALE):
        drawn = np.abs(source.gaussian((64,), scale))
        # The largest of 64 lies between half and 12 standard deviations but once in 1e26.
        assert scale / 2 < drawn.max() < 12 * scale
    for scale in (np.nextafter(SMALLEST_SCALE, 0), np.nextafter(LARGEST_SCALE, np.inf)):
        with pytest.raises(ConfigurationError, match="lies outside"):
            source.gaussian((1,), scale)


@pytest.mark.parametrize("rate", [0.1, 0.25, 2.0**-60 + 2.0**-63, 1.0 - 2.0**-53])
def test_a_coin_shows_true_for_words_below_its_rate_and_never_for_the_next(rate: float) -> None:
    threshold = int(rate * 2**64)  # exact: a float of at most 53 bits, scaled by a power of two
    words = np.array([0, threshold - 1, threshold, 2**64 - 1], dtype=np.uint64)
    np.testing.assert_array_equal(below(words.reshape(2, 2), rate), [[True, True], [False, False]])


@pytest.mark.parametrize("size", [1, 2, 777, 2998, 3000])
def test_a_subset_is_exactly_the_smallest_words(size: int) -> None:
    """Rows are long, because numpy sorts short ones whole, whichever part of them was asked for."""
    rng = np.random.default_rng(size)
    words = np.array([rng.permutation(3000) for _ in range(9)], dtype=np.uint64)
    np.testing.assert_array_equal(smallest(words, size), words < size)


def test_seeded_noise_is_numpys_under_its_own_spawned_seeds() -> None:
    """What a seed means may not change between versions: numpy's generators, one for noise, one for coins."""
    for label in ("", "7"):
        seeds = np.random.SeedSequence([5, *label.encode()]).spawn(2)
        normal, coins = (np.random.default_rng(seed) for seed in seeds)
        source = SimulatedNoise(5).stream(label) if label else SimulatedNoise(5)
        expected = np.rint(normal.normal(size=(3, 4)) * 2.0**20)
        np.testing.assert_array_equal(source.gaussian((3, 4), 2.0**20), expected)
        np.testing.assert_array_equal(source.coins((9,), 0.3), coins.random(9) < 0.3)


def test_a_key_stream_is_never_drawn_past_its_counter() -> None:
    with pytest.raises(ConfigurationError, match="at most"):
        keystream(bytes(32), 2**36 + 1)


def test_a_tie_between_random_words_draws_the_subset_again() -> None:
    draws = [np.zeros(4, dtype=np.uint64), np.array([3, 1, 2, 0], dtype=np.uint64)]

    def words(n: int) -> np.ndarray:
        assert n == 4
        return draws.pop(0)

    np.testing.assert_array_equal(uniform_subsets(words, (1, 4), 2), [[False, True, False, True]])
    assert draws == []


def test_exact_noise_without_opendp_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    with pytest.raises(ConfigurationError, match=r"privbo\[exact\]"):
        ExactNoise()


def test_exact_noise_draws_participants_and_is_its_own_stream() -> None:
    pytest.importorskip("opendp")
    source = ExactNoise()
    assert source.stream("x") is source
    for scale in (1023.0, 2.0**41):
        with pytest.raises(ConfigurationError, match="lies outside"):
            source.gaussian((1,), scale)
    assert source.coins((5,), 1.0).all()
    assert source.subsets((3, 6), 2).sum(axis=1).tolist() == [2, 2, 2]
