"""Budget that is left on a ledger, against the filter that admits further charges."""

import math
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import accountant
from accountant import Adjacency, Budget, Gaussian, Ledger, PoissonSampledGaussian, repeat
from accountant.errors import BudgetExceeded, LedgerError
from accountant.events import Composed, Event, NonPrivate, Unit, compose
from accountant.gaussian_dp import epsilon_from_mu
from accountant.ledger import pricing
from accountant.ledger.book import read_row
from accountant.ledger.chain import Row
from accountant.ledger.ledger import holds
from accountant.ledger.policy import canonical, require_names, require_population, sampler_of
from accountant.ledger.pricing import DISJOINT, FILTER, NOTHING, ODOMETER, TOGETHER, odometer, odometer_delta, total
from accountant.tight.numerical import epsilon_table
from tests.accountant.builders import EVENT, best, charge, declared, fixed, gaussian, new_ledger, poisson, policy
from tests.accountant.lives import entry


def ledger(path: Path | None = None, *, n_clients: int | None = 40, **budget) -> Ledger:
    bound = Budget(**{"epsilon": 2.0, "delta": 1e-6} | budget) if budget else None
    return Ledger.create(path, policy(bound, n_clients=n_clients))


@pytest.mark.parametrize("event", [EVENT, poisson(0.2, 8.0)], ids=repr)
@pytest.mark.parametrize("rule", ["gaussian", "renyi"])
def test_so_many_more_releases_fit_and_not_one_more(rule: str, event: Event) -> None:
    with ledger(rule=rule) as kept:
        for number in range(3):
            charge(kept, f"a/{number}", event)
        more = kept.left(event=event).releases
        for number in range(more):
            charge(kept, f"b/{number}", event)
        assert more > 0
        assert kept.left(event=event).releases == 0
        with pytest.raises(BudgetExceeded):
            charge(kept, "one/more", event)


@pytest.mark.parametrize("rule", ["gaussian", "renyi"])
def test_the_loudest_release_that_fits_is_admitted_and_a_louder_one_is_not(rule: str) -> None:
    with ledger(rule=rule) as kept:
        charge(kept, "a/0")
        z = kept.left().noise_multiplier
        with pytest.raises(BudgetExceeded):
            charge(kept, "louder/0", gaussian(z * (1.0 - 1e-5)))
        charge(kept, "fits/0", gaussian(z))
        left = kept.left()
        assert left.spent <= left.bound
        assert left.epsilon < 1e-3
        assert left.noise_multiplier is None or left.noise_multiplier > 100


def test_spent_and_bound_hold_at_other_deltas() -> None:
    with ledger(rule="gaussian") as kept:
        charge(kept, "a/0")
        for delta in (1e-9, 1e-6, 1e-3):
            left = kept.left(delta)
            exact = tight(EVENT, 1, delta)
            assert exact <= left.spent <= exact * (1 + 1e-6) + 1e-9
        assert kept.left(1e-9).bound > 2.0 > kept.left(1e-3).bound
        assert kept.left(1e-9).noise_multiplier == kept.left(1e-3).noise_multiplier
        assert kept.left(event=accountant.Laplace(scale_multiplier=100.0)).releases == 0  # the rule does not admit it


def test_a_plans_bound_says_nothing_below_its_delta() -> None:
    with ledger(rule="planned") as kept:
        charge(kept, "a/0")
        assert kept.left(1e-5).bound == 2.0
        with pytest.raises(LedgerError, match="holds at delta=1e-06 and above"):
            kept.left(1e-7)


def test_an_envelope_names_its_free_slots() -> None:
    slot = poisson(0.1, 2.0)
    with ledger(rule="envelope", slots=repeat(slot, 9).parts) as kept:
        assert kept.left().spent == 0.0
        charge(kept, "a/0", slot)
        left = kept.left(event=slot)
        assert left.releases == 8
        assert 0.0 < left.spent < left.bound == 2.0
        assert "8" in left.slots
        assert "free slots: " in left.words


def test_a_ledger_without_a_bound_says_what_was_spent() -> None:
    with ledger() as kept:
        charge(kept, "a/0")
        left = kept.left(1e-5)
        assert (left.bound, left.epsilon, left.noise_multiplier) == (None, None, None)
        assert math.isfinite(left.spent)
        assert left.words.endswith("this ledger has no bound")
        with pytest.raises(LedgerError, match="name one"):
            kept.left()


def test_a_ledger_for_any_number_of_clients_takes_events_of_every_number(tmp_path) -> None:
    """A hospital joins: the ledger of one of its clients goes on."""
    path = tmp_path / "ledger.sqlite"
    with ledger(path, n_clients=None, rule="gaussian") as kept:
        for n in (12, 13):
            kept.reserve(declared(f"of {n}", 3, fixed(n, 4, 8.0)))
    with Ledger.open(path) as again:
        assert again.verify().ok
        assert again.policy.n_clients is None
        assert again.left().spent == pytest.approx(tight(EVENT, 6, delta=1e-6), rel=1e-6)
    with ledger(n_clients=12, rule="gaussian") as twelve, pytest.raises(LedgerError, match="samples from 13 clients"):
        charge(twelve, "r/0", fixed(13, 4, 8.0))


# ---- what a ledger says and stores: canonical bytes, samplers, names, the words of a refusal, the price of nothing

POISSON = poisson(0.25, 2.0)
GAUSSIAN = gaussian(2.0)
FIXED = fixed(40, 3, 2.0)


def test_canonical_bytes_are_sorted_without_spaces_and_hold_numbers_only() -> None:
    content = {"b": [1, 2.5], "a": {"d": None, "c": "é"}}
    assert canonical(content) == b'{"a":{"c":"\\u00e9","d":null},"b":[1,2.5]}'
    for number in (math.nan, math.inf):
        with pytest.raises(ValueError, match="not JSON compliant"):
            canonical({"epsilon": number})


@pytest.mark.parametrize(
    ("word", "events"),
    [
        ("everyone", [GAUSSIAN, NonPrivate(), Composed()]),
        ("poisson", [POISSON, best(POISSON)]),
        ("fixed-size", [FIXED]),
        ("everyone+fixed-size+poisson", [compose([POISSON, GAUSSIAN, FIXED, POISSON])]),
        ("fixed-size+poisson", [best(compose([FIXED, POISSON]))]),
    ],
)
def test_the_sampler_of_an_event_in_a_word(word: str, events: list[Event]) -> None:
    assert {sampler_of(event) for event in events} == {word}


@pytest.mark.parametrize("wrap", [lambda e: e, lambda e: best(repeat(e, 2))])
def test_a_sample_is_drawn_from_the_ledgers_own_number_of_clients(wrap) -> None:
    require_population(wrap(FIXED), 40)
    for event in (wrap(FIXED), compose([wrap(POISSON), wrap(FIXED)])):
        with pytest.raises(LedgerError, match="samples from 40 clients, the ledger speaks of 41"):
            require_population(event, 41)


def test_a_name_of_500_characters_is_the_longest_and_one_client_the_fewest() -> None:
    require_names(run="x" * 500, release_id="y")
    for bad in ("x" * 501, "", None, 3):
        with pytest.raises(LedgerError, match="run="):
            require_names(release_id="y", run=bad)
    assert policy(n_clients=1).n_clients == 1


@pytest.mark.parametrize(
    "change",
    [
        {"release_id": "r/1"}, {"unit": "record"}, {"population": "q"}, {"n_clients": 41}, {"adjacency": "replace-one"},
    ],
    ids=lambda c: next(iter(c)),
)  # fmt: skip
def test_a_charge_that_speaks_of_others_than_the_ledger_is_refused(change: dict) -> None:
    with pytest.raises(LedgerError, match="row 3 contradicts the ledger's policy"):
        read_row(Row(3, "r/0", entry(**change), "before", "own"), policy())


@pytest.mark.parametrize(("name", "wrong"), [("n_clients", (0, -1, True, 1.0, "12")), ("population", ("", 3))])
def test_a_policy_out_of_range_is_refused(name, wrong):
    for value in wrong:
        with pytest.raises(LedgerError, match=name):
            policy(**{name: value})


@pytest.mark.parametrize(
    ("spent", "projected", "allowed"),
    [
        (0.0, 1.0, True), (0.5, 0.4, True), (1.0, 1.0, True), (0.5, 1.1, False), (1.1, 0.9, False),
        (-0.1, 0.5, False), (0.5, -0.1, False), (math.nan, 0.5, False), (0.5, math.nan, False),
    ],
)  # fmt: skip
def test_both_what_was_spent_and_what_would_be_lie_within_the_budget(spent, projected, allowed):
    assert holds(1.0, spent, projected) is allowed


# ---- reservations, what they pay for, and totals that hold however later plans were chosen

OTHER = poisson(0.2, 2.0)
ZERO = Adjacency.ZERO_OUT


def release(made: Ledger, run: str, count: int, event=EVENT) -> None:
    first = len(made.entries(run))
    for number in range(first, first + count):
        charge(made, f"{run}/{number}", event)


def tight(event, count: int, delta: float = 1e-5) -> float:
    return min(epsilon_table(repeat(event, count), delta, adjacency=ZERO).values())


def test_unspent_slots_are_not_given_back_and_stay_spendable(tmp_path) -> None:
    budget = Budget(epsilon=tight(EVENT, 8) * (1 + 1e-6), delta=1e-5, rule="gaussian")
    made = new_ledger(tmp_path / "l.sqlite", budget=budget)
    for run in ("a", "b"):
        made.reserve(declared(run))
        release(made, run, 1)
    with pytest.raises(BudgetExceeded):
        made.reserve(declared("c", 1))
    with pytest.raises(BudgetExceeded):
        charge(made, "c/0")
    for run in ("a", "b"):
        release(made, run, 3)
    with pytest.raises(LedgerError, match="or all of its kind are spent"):
        release(made, "a", 1)
    assert made.verify().ok


def test_what_is_considered_leaves_the_book_as_it_is() -> None:
    made = new_ledger()
    made.reserve(declared("a"))
    book = made.book()
    before = book.left("a")
    assert book.projected([declared("b")], {"a": EVENT}).left("a") != before
    assert (book.left("a"), book.left("b")) == (before, None)
    assert {run: len(rows) for run, rows in book.runs.items()} == {"a": 1}


def test_a_plan_is_reserved_once_before_its_first_release_and_as_it_was(tmp_path) -> None:
    made = new_ledger(tmp_path / "l.sqlite")
    first = made.reserve(declared("a"))
    assert made.reserve(declared("a")) == first
    assert len(made.book().rows) == 1
    for other in (declared("a", 5), declared("a", settings="t"), declared("a", delta=1e-6), declared("a", event=OTHER)):
        with pytest.raises(LedgerError, match="declared with another plan"):
            made.reserve(other)
    release(made, "late", 1)
    with pytest.raises(LedgerError, match="released before it declared"):
        made.reserve(declared("late"))
    for event, source in ((OTHER, "secure"), (gaussian(7.9), "secure"), (EVENT, "exact")):
        with pytest.raises(LedgerError, match="not in the plan"):
            charge(made, "a/9", event, noise_source=source)
    made.close()
    with Ledger.open(tmp_path / "l.sqlite") as again:
        assert again.book().plans["a"] == first
        assert again.committed("a") == repeat(EVENT, 4)


@pytest.mark.parametrize("change", [{"delta": 0.0}, {"delta": 1.0}, {"noise_source": "seeded"}, {"settings": ""}])
def test_impossible_declarations_are_refused(change) -> None:
    made = new_ledger()
    with pytest.raises(LedgerError):
        made.reserve(declared("a", **change))
    with pytest.raises(LedgerError):
        made.reserve(declared("a", 0))
    assert made.book().rows == []


def test_totals_are_tight_only_where_all_plans_were_declared_before_the_first_release() -> None:
    made = new_ledger()
    assert total(made.book(), 1e-5).rule == NOTHING
    made.reserve(declared("a"))
    made.reserve(declared("b"))
    release(made, "a", 1)
    found = total(made.book(), 1e-5)
    assert (found.rule, found.runs, found.releases) == (TOGETHER, 2, 8)
    assert found.epsilon == tight(EVENT, 8)  # whole plans, though one release was made
    made.reserve(declared("c"))  # may have been chosen after the release
    found = total(made.book(), 1e-5)
    assert found.rule == ODOMETER
    assert found.epsilon == odometer([repeat(EVENT, 12)], 1e-5, adjacency=ZERO) > tight(EVENT, 12)
    assert total(made.book().of("c"), 1e-5).epsilon == tight(EVENT, 4)


def test_a_charge_outside_of_plans_makes_the_total_an_odometers() -> None:
    made = new_ledger()
    made.reserve(declared("a"))
    charge(made, "norms/0")
    found = total(made.book(), 1e-5)
    assert (found.rule, found.runs, found.releases) == (ODOMETER, 2, 5)


def test_a_ledger_with_a_filter_quotes_its_bound_and_what_the_filter_guarantees_at_other_deltas() -> None:
    made = new_ledger(budget=Budget(epsilon=3.0, delta=1e-5, rule="renyi"))
    made.reserve(declared("a"))
    release(made, "a", 1)
    made.reserve(declared("b"))
    at_its_delta, below = total(made.book(), 1e-5), total(made.book(), 1e-6)
    assert at_its_delta.epsilon == pytest.approx(3.0)
    assert at_its_delta.rule.startswith(FILTER)
    assert below.rule == at_its_delta.rule
    assert tight(EVENT, 8, delta=1e-6) < 3.0 < below.epsilon


def test_rewards_that_enter_one_release_each_cost_the_dearest() -> None:
    made = new_ledger(unit=Unit.REWARD, adjacency=Adjacency.REPLACE_ONE, disjoint=True)
    made.reserve(declared("a", events=((EVENT, 3), (gaussian(5.0), 1))))
    release(made, "a", 2)
    made.reserve(declared("b"))
    found = total(made.book(), 1e-5)
    assert found.rule == DISJOINT
    assert found.epsilon == pytest.approx(epsilon_from_mu(1 / 5.0, 1e-5), rel=1e-3)


def test_a_release_without_privacy_makes_every_total_infinite() -> None:
    made = new_ledger()
    made.reserve(declared("a", 1, NonPrivate(), noise_source="none"))
    assert total(made.book(), 1e-5).epsilon == float("inf")


def test_an_odometer_and_its_inverse_agree() -> None:
    paid = [repeat(EVENT, 20), repeat(OTHER, 10)]
    for delta in (1e-9, 1e-5, 1e-2):
        epsilon = odometer(paid, delta, adjacency=ZERO)
        assert odometer_delta(paid, epsilon, adjacency=ZERO) == pytest.approx(delta, rel=1e-9)
    assert odometer_delta(paid, 0.0, adjacency=ZERO) == 1.0


def overtaken(reading, trials: int, steps: int, delta: float, seed: int) -> float:
    """Share of games in which an adversary's loss ever exceeds the reading; it picks the next noise from the loss."""
    generator = np.random.default_rng(seed)
    noises = (2.0, 6.0)
    table = {(i, j): reading(i, j, noises, delta) for i in range(steps + 1) for j in range(steps + 1 - i)}
    loss, counts = np.zeros(trials), np.zeros((trials, 2), dtype=int)
    lost = np.zeros(trials, dtype=bool)
    for _ in range(steps):
        loud = (loss > 0.5).astype(int)  # quiet noise while behind, much noise once ahead
        mu = 1 / np.array(noises)[loud]
        loss += mu * mu / 2 + mu * generator.standard_normal(trials)
        counts[np.arange(trials), loud] += 1
        bound = np.array([table[i, j] for i, j in counts])
        lost |= loss > bound
    return float(lost.mean())


def of_odometer(i: int, j: int, noises: tuple[float, float], delta: float) -> float:
    paid = [gaussian(z, n) for z, n in zip(noises, (i, j), strict=True) if n]
    return odometer(paid, delta, adjacency=ZERO)


def of_realised(i: int, j: int, noises: tuple[float, float], delta: float) -> float:
    """The planted fault: the tight epsilon of whatever was made."""
    mu = sum(n / z**2 for z, n in zip(noises, (i, j), strict=True)) ** 0.5
    return epsilon_from_mu(mu, delta) if mu else 0.0


def test_no_adaptive_adversary_overtakes_the_odometer_and_realised_prices_are_overtaken() -> None:
    """20,000 games of 12 rounds at delta .05; a sound reading fails with a share above .0585 at a rate below 1e-7."""
    assert overtaken(of_odometer, 20_000, 12, 0.05, seed=3) < 0.05
    assert overtaken(of_realised, 20_000, 12, 0.05, seed=3) > 0.0585


# ---- the work that a ledger does with every charge, and when it is opened, counted in steps of the interpreter

FOLDER = str(Path(accountant.__file__).parent)
FEW, MANY = 30, 240


def steps(work) -> int:
    """Number of bytecodes that run in the accountant while ``work`` does."""
    found = 0

    def trace(frame, event, _argument):
        nonlocal found
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        frame.f_trace_opcodes = True
        found += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return found


def event_of(number: int, rule: str) -> Gaussian | PoissonSampledGaussian:
    z = 50.0 + 0.01 * number
    return gaussian(z) if rule == "gaussian" else poisson(0.01, z)


def charge_one(kept: Ledger, number: int, rule: str) -> None:
    run = "run" if rule == "planned" else f"run {number}"
    charge(kept, f"{number}/0", event_of(number, rule), run=run)


def filled(path: Path | None, count: int, rule: str) -> Ledger:
    """A ledger of so many different releases, each of a run of its own unless the rule is that of one plan."""
    kept = ledger(path, epsilon=1e4, delta=1e-5, rule=rule)
    for number in range(count):
        charge_one(kept, number, rule)
    return kept


@pytest.mark.parametrize("rule", ["gaussian", "renyi"])
def test_a_charge_an_entry_and_a_plan_are_no_more_work_after_many(rule):
    """The same after few and after many: the price of what is new, and the rows of its own run."""
    found = []
    for count in (FEW, MANY):
        with filled(None, count, rule) as ledger:
            charge_one(ledger, 1000, rule)  # what a first look computes is kept
            plan = declared("next", 4, event_of(1, rule))
            work = (
                partial(charge_one, ledger, 1001, rule),
                partial(ledger.entries, "run 3"),
                partial(ledger.reserve, plan),
            )
            found.append([steps(one) for one in work])
    assert all(100 < many <= 1.05 * few for few, many in zip(*found, strict=True))


def test_charges_outside_of_a_plan_are_no_more_work_after_many():
    found = []
    for count in (pricing.MANY + 8, 2 * pricing.MANY):
        with filled(None, count, "planned") as kept:
            charge_one(kept, 1000, "planned")
            found.append(steps(partial(charge_one, kept, 1001, "planned")))
    assert 100 < found[1] <= 1.05 * found[0]


def test_many_charges_outside_of_a_plan_cost_more_than_together():
    """The sum of curves lies above the tight price of the same releases, which a reserved plan pays."""
    with filled(None, 2 * pricing.MANY, "planned") as ledger:
        spent = ledger.check(event_of(0, "planned")).spent
        tight = accountant.epsilon(ledger.committed(), 1e-5, adjacency=ledger.policy.adjacency)
    assert tight < spent < 1.5 * tight


WORK = [
    lambda kept: None,
    lambda kept: kept.check(gaussian(9.0)),
    lambda kept: total(kept.book(), 1e-6),
    Ledger.verify,
    Ledger.event,
    Ledger.committed,
]


def test_opening_and_pricing_grow_with_the_number_of_different_events(tmp_path):
    def opened(path: Path, work) -> None:
        with Ledger.open(path) as kept:
            work(kept)

    for count in (FEW, MANY):
        filled(tmp_path / str(count), count, "renyi").close()
    for work in WORK:
        found = []
        for count in (FEW, MANY):
            once = partial(opened, tmp_path / str(count), work)
            once()  # prices of single events are kept
            found.append(steps(once))
        assert found[1] <= 1.2 * MANY / FEW * found[0]
