"""The ledger's rules: once per id, all or nothing, never over budget, never rewritten."""

import csv
import io
import json
import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from accountant import gaussian_dp
from accountant.dp_event import dp_event_expression
from accountant.envelope import envelope
from accountant.errors import AccountingError, BudgetExceeded, EventError, LedgerError
from accountant.events import Adjacency, BestOfRandomRuns, Event, NonPrivate, Unit, compose, from_dict, repeat
from accountant.filters import fixed_order_filter
from accountant.ledger import Budget, Ledger, LedgerPolicy
from accountant.ledger.export import export
from accountant.ledger.policy import canonical
from accountant.ledger.pricing import filter_under
from accountant.tight import numerical
from accountant.wording import upper_text
from tests.accountant.builders import EVENT, charge, declared, fixed, gaussian, laplace, poisson, policy
from tests.accountant.lives import BOUND, PAYLOAD, altered, life


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite"


def test_what_is_charged_and_stored_is_there_after_reopening(path) -> None:
    with Ledger.create(path, BOUND) as ledger:
        life(ledger)
        charge(ledger, "other/0")
        entries = ledger.entries()
    with Ledger.open(path) as ledger:
        assert (ledger.policy, ledger.entries(), ledger.head) == (BOUND, entries, entries[-1].digest)
        assert (ledger.event("r"), ledger.event()) == (repeat(EVENT, 3), repeat(EVENT, 4))
        assert [e.run for e in ledger.entries("other")] == ["other"]
        assert ledger.stored_release("r/0") == PAYLOAD
        assert ledger.verify([(e.sequence, e.digest) for e in entries]).ok


@pytest.mark.parametrize(("rule", "accepted"), [("planned", 25), ("gaussian", 25), ("renyi", 21)])
def test_the_budget_is_never_passed_and_a_refusal_changes_nothing(path, rule: str, accepted: int) -> None:
    """Epsilon(1e-5) of Gaussian DP passes 2 between n = 25 and 26 releases, of mu = sqrt(n) / 10 together.

    At mu = .5 it is 1.9975 (Dong, Roth, Su 2019, corollary 2.13). Golden for "renyi": an order fixed beforehand.
    """
    event, budget = gaussian(10.0), Budget(epsilon=2.0, delta=1e-5, rule=rule)
    with Ledger.create(path, policy(budget)) as ledger:
        while ledger.check(event).allowed:
            charge(ledger, f"run/{len(ledger.entries())}", event)
        head, found = ledger.head, ledger.check(event)
        with pytest.raises(BudgetExceeded, match="nothing was charged"):
            charge(ledger, "run/more", event)
        assert found.projected > 2.0 >= found.spent > 0
        assert ledger.check(gaussian(1e4)).allowed
        assert (ledger.head, len(ledger.entries())) == (head, accepted)
        if rule == "planned":  # which holds under adaptivity for one run alone
            with pytest.raises(LedgerError, match="one planned run"):
                charge(ledger, "second/0", gaussian(1e4))
        else:
            charge(ledger, "second/0", gaussian(1e4))
    with Ledger.open(path) as ledger:
        assert ledger.policy.budget == budget


def test_the_gaussian_rule_charges_a_sample_as_everybody_and_admits_nothing_else(path) -> None:
    with Ledger.create(path, policy(Budget(epsilon=2.0, delta=1e-5, rule="gaussian"))) as ledger:
        with pytest.raises(BudgetExceeded, match=r"Gaussian releases only, not: Laplace.* rule 'renyi'; nothing was"):
            charge(ledger, "r/0", laplace(1e9))
        assert ledger.entries() == []
        charge(ledger, "r/0", poisson(0.1, 4.0))
        everybody = gaussian_dp.epsilon(gaussian(4.0), 1e-5, adjacency=ledger.policy.adjacency)
        assert ledger.check(gaussian(4.0)).spent == everybody


def test_infinite_cost_is_refused_by_a_budget_and_noted_by_an_odometer(tmp_path) -> None:
    with Ledger.create(tmp_path / "a", policy(Budget(epsilon=1e6, delta=0.5))) as ledger:
        with pytest.raises(BudgetExceeded):
            charge(ledger, "r/0", NonPrivate())
        assert ledger.entries() == []
    with Ledger.create(tmp_path / "b", policy()) as ledger:
        charge(ledger, "r/0", NonPrivate())
        assert ledger.event() == compose([NonPrivate()])


def test_an_event_that_does_not_fit_the_adjacency_is_refused() -> None:
    with Ledger.create(None, policy(adjacency=Adjacency.ADD_OR_REMOVE_ONE)) as ledger:
        with pytest.raises(EventError, match="no meaning under add-or-remove-one"):
            charge(ledger, "r/0", fixed(40, 3, 1.0))
        assert ledger.entries() == []
        assert ledger.verify().ok


def test_a_sample_of_the_ledgers_own_clients_is_charged_and_an_empty_budget_is_sound(path) -> None:
    event = fixed(40, 3, 5.0)
    with Ledger.create(path, policy(Budget(epsilon=2.0, delta=1e-5))) as ledger:
        assert ledger.verify().ok
        assert ledger.check(event).head == ledger.head
        charge(ledger, "r/0", event)
        (entry,) = ledger.entries()
        assert (entry.event, entry.sampler) == (event, "fixed-size")
        assert entry.time == f"{datetime.now(UTC):%Y-%m-%d}"
        refused = ledger.check(gaussian(0.5)).reason
        assert refused is not None
        assert refused.startswith("Gaussian, multiplier 0.5, on top of epsilon ")


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"SQLite format 3\x00" + bytes(84), None], ids=["empty", "text", "header", "foreign"]
)
def test_a_foreign_file_is_refused_and_not_changed(path, content: bytes | None) -> None:
    if content is None:
        altered(path, "CREATE TABLE charges (sequence INTEGER)")
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="is not a privbo ledger; it was not changed; name a ledger's file"):
        Ledger.open(path)
    with pytest.raises(LedgerError, match="exists already"):
        Ledger.create(path, policy())
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_ledger_that_vanished_is_not_started_anew(path) -> None:
    Ledger.create(path, policy()).close()
    path.unlink()
    with pytest.raises(LedgerError, match="remembers"):
        Ledger.create(path, policy())


def test_in_memory_needs_no_file_and_guarantees_nothing() -> None:
    with Ledger.create(None, BOUND) as ledger:
        life(ledger)
        assert ledger.path is None
        assert not ledger.guarantees


def test_whatever_is_asked_of_a_ledger_counts_what_others_charged_meanwhile(tmp_path):
    budget, event = Budget(epsilon=2.0, delta=1e-5, rule="gaussian"), gaussian(5.0)
    asked = (
        lambda ledger: ledger.event() == compose([event]),
        lambda ledger: ledger.event("r") == compose([event]),
        lambda ledger: ledger.check(event).spent > 0.7,  # epsilon 0.79 at 1e-5
        lambda ledger: ledger.guarantees is False,
        lambda ledger: [entry.release_id for entry in ledger.entries()] == ["r/0"],
        lambda ledger: ledger.verify().n_entries == 1,
        lambda ledger: charge(ledger, "r/0", event, noise_source="simulation").known,
    )
    for index, ask in enumerate(asked):
        path = tmp_path / str(index)
        with Ledger.create(path, policy(budget=budget)) as one, Ledger.open(path) as other:
            assert one.guarantees
            charge(other, "r/0", event, noise_source="simulation")
            assert ask(one)


def test_seeded_noise_never_stands_beside_real_noise_nor_hides_behind_a_plain_sum(tmp_path):
    with Ledger.create(tmp_path / "ledger", policy()) as ledger:
        charge(ledger, "r/0")
        with pytest.raises(LedgerError, match="secure"):
            charge(ledger, "r/1", noise_source="simulation")
        charge(ledger, "r/1", NonPrivate(), noise_source="none")
        with pytest.raises(LedgerError, match="simulation"):
            charge(ledger, "r/2", noise_source="simulation")
        with pytest.raises(LedgerError, match="run"):
            charge(ledger, "r/0", run="")
        assert [e.release_id for e in ledger.entries()] == ["r/0", "r/1"]


@pytest.mark.parametrize(
    "sources", [("secure", "exact", "none", "secure"), ("none", "simulation", "none", "simulation")], ids=str
)
def test_kinds_of_noise_that_say_the_same_of_a_guarantee_share_a_ledger_and_plain_sums_share_any(sources):
    with Ledger.create(None, policy()) as ledger:
        for index, source in enumerate(sources):
            charge(ledger, f"r/{index}", noise_source=source)
        assert [e.noise_source for e in ledger.entries()] == list(sources)
        for index, source in enumerate(sources):
            other = next(s for s in ("secure", "exact", "simulation", "none") if s != source)
            with pytest.raises(LedgerError, match="was charged as"):
                charge(ledger, f"r/{index}", noise_source=other)


def test_a_writer_that_fell_behind_still_charges_in_order_and_once(path) -> None:
    with Ledger.create(path, policy()) as one, Ledger.open(path) as other:
        one.lost_races = other.lost_races = 0  # every race was lost
        first, again, second = charge(one, "r/0"), charge(other, "r/0"), charge(other, "r/1")
        assert (first.known, again.known, second.known) == (False, True, False)
        assert (again.head, second.sequence) == (first.head, 2)
        assert one.verify([(second.sequence, second.head)]).ok


def test_inside_the_lock_the_same_rules_hold(path) -> None:
    event = gaussian(5.0)  # epsilon 0.79 at 1e-5; two cost 1.16
    with Ledger.create(path, policy(Budget(epsilon=1.0, delta=1e-5))) as ledger:
        ledger.lost_races = 0
        charge(ledger, "r/0", event, plan_position=4)
        for release, source, error in (
            ("r/1", "secure", BudgetExceeded),
            ("r/2", "simulation", LedgerError),
            ("s/0", "secure", LedgerError),
        ):
            with pytest.raises(error):
                charge(ledger, release, event, noise_source=source)
        assert [(e.run, e.plan_position) for e in ledger.entries()] == [("r", 4)]
        found = ledger.verify()
        assert (found.ok, found.head, found.n_entries) == (True, ledger.head, 1)


# ---- the rules of a ledger's budget: slots of an envelope, an order fixed with the ledger, and what a refusal says

ZERO, DELTA = Adjacency.ZERO_OUT, 1e-5


LOUD, QUIET = poisson(0.5, 1.0), poisson(0.1, 2.0)
SLOTS = compose([(LOUD, 2), (QUIET, 3)])
WHOLE = numerical.epsilon(SLOTS, DELTA, adjacency=ZERO)


def reserved(epsilon: float = WHOLE, slots: Event = SLOTS) -> Budget:
    return Budget(epsilon=epsilon, delta=DELTA, rule="envelope", slots=envelope(slots, adjacency=ZERO).slots)


def test_releases_of_any_run_take_the_slots_that_are_left_until_none_covers_them(tmp_path) -> None:
    path = tmp_path / "ledger"
    with Ledger.create(path, policy(reserved())) as ledger:
        assert ledger.check(LOUD).spent == 0.0
        charge(ledger, "first/0", poisson(0.1, 4.0))  # takes a quiet slot
        found = ledger.check(LOUD)
        assert (found.spent, found.projected, found.allowed) == (WHOLE, WHOLE, True)
        charge(ledger, "first/1", LOUD)
    with Ledger.open(path) as mine, Ledger.open(path) as other:  # the slots are taken in the order of the chain
        charge(mine, "second/0", repeat(QUIET, 2))
        charge(other, "third/0", QUIET)  # the quiet slots are taken, so it takes the last loud one
        with pytest.raises(BudgetExceeded, match=r"no free slots .* dominate .* rate 0\.1, .* \(free: none\)"):
            charge(mine, "second/1", QUIET)
        assert mine.entries() == other.entries()
        assert len(mine.entries()) == 4
        assert mine.verify().ok
        assert not mine.check(poisson(1e-3, 50.0)).allowed


@pytest.mark.parametrize(
    "event", [gaussian(9.0), laplace(1e9), NonPrivate(), repeat(LOUD, 3),
              BestOfRandomRuns(run=gaussian(99.0), eta=1.0, gamma=0.5)]
)  # fmt: skip
def test_what_no_slot_dominates_is_refused_and_changes_nothing(event: Event) -> None:
    with Ledger.create(None, policy(reserved())) as ledger:
        with pytest.raises(BudgetExceeded, match=r"free: 3 x \(P.*\), 2 x \(P.*\)\); a slot takes .*; nothing was"):
            charge(ledger, "first/0", event)
        assert ledger.check(SLOTS).allowed  # all of them are still there


def test_slots_that_cost_more_than_their_bound_are_refused_before_there_is_a_ledger(tmp_path) -> None:
    path = tmp_path / "ledger"
    refused = rf"slots together cost epsilon {upper_text(WHOLE, 6)} at delta 1e-05, over the bound"
    with pytest.raises(LedgerError, match=refused):
        Ledger.create(path, policy(reserved(epsilon=WHOLE * (1 - 1e-9))))
    with pytest.raises(LedgerError, match="share no unit"):
        Ledger.create(path, policy(reserved(), unit=Unit.REWARD, disjoint=True))
    with pytest.raises(AccountingError, match="no Rényi order"):
        Ledger.create(path, policy(Budget(epsilon=1e-9, delta=DELTA, rule="renyi")))
    assert not path.exists()


def test_a_ledgers_order_is_the_recorded_one() -> None:
    rare = poisson(0.01, 0.8, 1000)
    best = fixed_order_filter(epsilon=3.0, delta=DELTA, plan=rare, adjacency=ZERO)
    with_plan = Budget(epsilon=3.0, delta=DELTA, rule="renyi", order=best.order)
    without = Budget(epsilon=3.0, delta=DELTA, rule="renyi")
    cheap, dear = (Ledger.create(None, policy(budget)).check(rare).projected for budget in (with_plan, without))
    assert cheap < 0.8 * dear
    assert filter_under(with_plan, ZERO) == best
    assert filter_under(without, ZERO) == fixed_order_filter(epsilon=3.0, delta=DELTA, adjacency=ZERO)


def test_a_policy_is_read_as_it_was_written_and_older_ones_keep_their_bytes() -> None:
    plain = Budget(epsilon=1.0, delta=0.1, rule="renyi")
    for budget in (None, reserved(), replace(plain, order=3.0), plain):
        content = json.loads(canonical(policy(budget).to_dict()))
        assert LedgerPolicy.from_dict(content) == policy(budget)
    assert content["budget"] == {"epsilon": 1.0, "delta": 0.1, "rule": "renyi"}
    assert content.keys() == {"unit", "adjacency", "population", "n_clients", "budget"}
    assert replace(policy(), records_per_person=2).to_dict().keys() == content.keys() | {"records_per_person"}
    with pytest.raises(EventError, match="unit='people' is unknown; use one of client, record, reward"):
        policy(unit="people")


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("epsilon", (True, "2"), "must be a number"),
        ("epsilon", (0.0, float("inf")), "must be positive and finite"),
        ("delta", (None,), "must be a number"),
        ("delta", (0.0, 1.0), r"must lie in \(0, 1\)"),
        ("rule", ("hope",), "must be one of planned, gaussian, renyi, envelope"),
        ("order", (2.0,), "must be above 1, and goes with the rule 'renyi' only"),
        ("rule", ("envelope",), "slots make the rule 'envelope'"),
        ("slots", (((LOUD, 1),),), "slots make the rule 'envelope'"),
    ],
)
def test_what_does_not_belong_to_a_rule_is_refused(name: str, values: tuple, words: str) -> None:
    for value in values:
        with pytest.raises(LedgerError, match=rf"{name}={re.escape(repr(value))}.*{words}"):
            Budget(**({"epsilon": 1.0, "delta": DELTA} | {name: value}))
    with pytest.raises(LedgerError, match=r"order=1\.0 must be above 1"):
        Budget(epsilon=1.0, delta=DELTA, rule="renyi", order=1.0)


# ---- exports say what the ledger says, in words other programs read

EVENTS = [gaussian(2.0), poisson(0.25, 1.1), poisson(0.25, 1.1), fixed(40, 10, 0.7)]


def test_exports_hold_every_entry_or_those_of_a_run() -> None:
    ledger = Ledger.create(None, policy())
    for index, event in enumerate(EVENTS):
        charge(ledger, f"r/{index}", event, run="r" if index else "first")
    rows = [json.loads(line) for line in export(ledger, "jsonl").splitlines()]
    assert [from_dict(row["event"]) for row in rows] == EVENTS
    assert [row["digest"] for row in rows] == [entry.digest for entry in ledger.entries()]
    rows = list(csv.DictReader(io.StringIO(export(ledger, "csv"))))
    assert [from_dict(json.loads(row["event"])) for row in rows] == EVENTS
    assert [row["release_id"] for row in rows] == ["r/0", "r/1", "r/2", "r/3"]
    assert rows[0]["event"] == '{"noise_multiplier": 2.0, "type": "gaussian"}'
    assert "\r" not in export(ledger, "csv")
    text = export(ledger, "csv", run="r")
    assert [row["release_id"] for row in csv.DictReader(io.StringIO(text))] == ["r/1", "r/2", "r/3"]
    assert export(ledger, "dpevent", run="first") == (
        "# noise: secure; delta: not declared; adjacency: zero-out\n"
        "ComposedDpEvent(events=[SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=1)])\n"
    )
    assert export(ledger, "dpevent", run="nobody").endswith("\nNoOpDpEvent()\n")
    with pytest.raises(LedgerError, match="none of jsonl, csv, dpevent"):
        export(ledger, "xml")


def test_exports_hold_what_is_committed() -> None:
    """Planted faults: a plan of which one release was made, a recovery, a publication, and seeded noise."""
    book, event = Ledger.create(None, policy()), gaussian(2.0)
    plan = declared("r", 3, event, delta=1e-6, noise_source="simulation")
    book.reserve(plan)
    charge(book, "r/0", event, noise_source="simulation")
    book.reserve(replace(plan, events=((event, 2),), kind="recovery", lost=((2, "ab"),)))
    charge(book, "r-norms/0", event, noise_source="simulation")
    for run in ("r", None):
        noise, theirs = export(book, "dpevent", run).splitlines()
        assert noise == "# noise: simulation (seeded: no guarantee); delta: 1e-06; adjacency: zero-out"
        assert theirs == dp_event_expression(repeat(event, 6), adjacency=policy().adjacency)
        rows = [json.loads(line) for line in export(book, "jsonl", run).splitlines()]
        lines = list(csv.DictReader(io.StringIO(export(book, "csv", run))))
        assert [row.get("kind", "") for row in rows] == [row["kind"] for row in lines] == ["plan", "", "recovery", ""]
        assert [from_dict(row["events"][0][0]) for row in rows[::2]] == [event, event]
        assert json.loads(lines[2]["lost"]) == [[2, "ab"]]
