"""The rules of a ledger's budget: slots of an envelope, an order fixed with the ledger, and what a refusal says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from accountant.envelope import envelope
from accountant.errors import AccountingError, BudgetExceeded, LedgerError
from accountant.events import Adjacency, BestOfRandomRuns, Event, Gaussian, Laplace, NonPrivate, Unit, compose, repeat
from accountant.filters import fixed_order_filter
from accountant.ledger import Budget, Ledger, LedgerPolicy, Receipt
from accountant.ledger.policy import canonical
from accountant.ledger.pricing import filter_under
from accountant.tight import numerical
from accountant.wording import upper_text
from tests.accountant.builders import poisson, policy

ZERO, DELTA = Adjacency.ZERO_OUT, 1e-5


LOUD, QUIET = poisson(0.5, 1.0), poisson(0.1, 2.0)
SLOTS = compose([(LOUD, 2), (QUIET, 3)])
WHOLE = numerical.epsilon(SLOTS, DELTA, adjacency=ZERO)


def reserved(epsilon: float = WHOLE, slots: Event = SLOTS) -> Budget:
    return Budget(epsilon=epsilon, delta=DELTA, rule="envelope", slots=envelope(slots, adjacency=ZERO).slots)


def charge(ledger: Ledger, number: int, event: Event, run: str = "first") -> Receipt:
    return ledger.charge(f"{run}/{number}", event, run=run, noise_source="simulation")


def test_releases_of_any_run_take_the_slots_that_are_left_until_none_covers_them(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with Ledger.create(path, policy(reserved())) as ledger:
        assert ledger.check(LOUD).spent == 0.0
        charge(ledger, 0, poisson(0.1, 4.0))  # takes a quiet slot
        found = ledger.check(LOUD)
        assert (found.spent, found.projected, found.allowed) == (WHOLE, WHOLE, True)
        charge(ledger, 1, LOUD)
    with Ledger.open(path) as mine, Ledger.open(path) as other:  # the slots are taken in the order of the chain
        charge(mine, 0, repeat(QUIET, 2), run="second")
        charge(other, 0, QUIET, run="third")  # the quiet slots are taken, so it takes the last loud one
        with pytest.raises(BudgetExceeded, match=r"no free slots .* dominate .* rate 0\.1, .* \(free: none\)"):
            charge(mine, 1, QUIET, run="second")
        assert mine.entries() == other.entries()
        assert len(mine.entries()) == 4
        assert mine.verify().ok
        assert not mine.check(poisson(1e-3, 50.0)).allowed


@pytest.mark.parametrize(
    "event", [Gaussian(noise_multiplier=9.0), Laplace(scale_multiplier=1e9), NonPrivate(), repeat(LOUD, 3),
              BestOfRandomRuns(run=Gaussian(noise_multiplier=99.0), eta=1.0, gamma=0.5)]
)  # fmt: skip
def test_what_no_slot_dominates_is_refused_and_changes_nothing(event: Event) -> None:
    with Ledger.create(None, policy(reserved())) as ledger:
        with pytest.raises(BudgetExceeded, match=r"free: 3 x \(P.*\), 2 x \(P.*\)\); a slot takes .*; nothing was"):
            charge(ledger, 0, event)
        assert ledger.check(SLOTS).allowed  # all of them are still there


def test_slots_that_cost_more_than_their_bound_are_refused_before_there_is_a_ledger(tmp_path: Path) -> None:
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
    rare = repeat(poisson(0.01, 0.8), 1000)
    best = fixed_order_filter(epsilon=3.0, delta=DELTA, plan=rare, adjacency=ZERO)
    with_plan = Budget(epsilon=3.0, delta=DELTA, rule="renyi", order=best.order)
    without = Budget(epsilon=3.0, delta=DELTA, rule="renyi")
    found = {}
    for budget in (with_plan, without):
        with Ledger.create(None, policy(budget)) as ledger:
            found[budget] = ledger.check(rare)
    assert found[with_plan].projected < 0.8 * found[without].projected
    assert filter_under(with_plan, ZERO) == best
    assert filter_under(without, ZERO) == fixed_order_filter(epsilon=3.0, delta=DELTA, adjacency=ZERO)


@pytest.mark.parametrize(
    "budget",
    [
        reserved(),
        Budget(epsilon=1.0, delta=0.1, rule="renyi", order=3.0),
        Budget(epsilon=1.0, delta=0.1, rule="renyi"),
        None,
    ],
    ids=["envelope", "an order", "no order", "no budget"],
)
def test_a_policy_is_read_as_it_was_written_and_older_ones_keep_their_bytes(budget: Budget | None) -> None:
    content = json.loads(canonical(policy(budget).to_dict()))
    assert LedgerPolicy.from_dict(content) == policy(budget)
    if budget == Budget(epsilon=1.0, delta=0.1, rule="renyi"):
        assert content["budget"] == {"epsilon": 1.0, "delta": 0.1, "rule": "renyi"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rule": "hope"}, "must be one of planned, gaussian, renyi, envelope"),
        ({"rule": "gaussian", "order": 2.0}, "order=2.0 must be above 1, and goes with the rule 'renyi' only"),
        ({"rule": "renyi", "order": 1.0}, "order=1.0 must be above 1"),
        ({"rule": "envelope"}, "slots make the rule 'envelope'"),
        ({"rule": "renyi", "slots": ((LOUD, 1),)}, "slots make the rule 'envelope'"),
    ],
)
def test_what_does_not_belong_to_a_rule_is_refused(change: dict, words: str) -> None:
    with pytest.raises(LedgerError, match=words):
        Budget(**({"epsilon": 1.0, "delta": DELTA} | change))
