"""The work that a ledger does with every charge, and when it is opened, counted in steps of the interpreter.

No clock: what is counted are the bytecodes that run in the accountant, so that a loop over everything that was charged
shows as soon as one more charge is ten times as long a way. Work inside numpy, SQLite and built-in functions is no
step; the events below differ, so that whatever adds them up would walk over all of them.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import accountant
from accountant import Gaussian, Ledger, PoissonSampledGaussian
from accountant.ledger import Budget, pricing
from accountant.ledger.book import Declaration
from accountant.ledger.pricing import total
from accountant.tight import bounds
from tests.accountant.builders import gaussian, poisson, policy

FOLDER = str(Path(accountant.__file__).parent)
FEW, MANY = 30, 240


def steps(work: Callable[[], object]) -> int:
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
    if rule == "gaussian":
        return gaussian(z)
    return poisson(0.01, z)


def filled(path: Path | None, count: int, rule: str) -> Ledger:
    """A ledger of so many different releases, each of a run of its own."""
    budget = Budget(epsilon=1e4, delta=1e-5, rule=rule)
    ledger = Ledger.create(path, policy(budget))
    for number in range(count):
        charge(ledger, number, rule)
    return ledger


def charge(ledger: Ledger, number: int, rule: str) -> None:
    event, run = event_of(number, rule), "run" if rule == "planned" else f"run {number}"
    ledger.charge(f"{number}/0", event, run=run, noise_source="simulation")


@pytest.mark.parametrize("rule", ["gaussian", "renyi"])
def test_a_charge_an_entry_and_a_plan_are_no_more_work_after_many(rule):
    """The same after few and after many: the price of what is new, and the rows of its own run."""
    found = []
    for count in (FEW, MANY):
        with filled(None, count, rule) as ledger:
            charge(ledger, 1000, rule)  # what a first look computes is kept
            plan = Declaration(
                run="next", events=((event_of(1, rule), 4),), settings="s", plan="p", delta=1e-5,
                noise_source="simulation",
            )  # fmt: skip
            work = (
                partial(charge, ledger, 1001, rule),
                partial(ledger.entries, "run 3"),
                partial(ledger.reserve, plan),
            )
            found.append([steps(one) for one in work])
    assert all(100 < many <= 1.05 * few for few, many in zip(*found, strict=True))


def lattices(count: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Number of releases that are put on a lattice while so many different ones are charged outside of a plan."""
    found, made = 0, bounds.upper_cells

    def counted(*args, **kwargs):
        nonlocal found
        found += 1
        return made(*args, **kwargs)

    monkeypatch.setattr(bounds, "upper_cells", counted)
    filled(None, count, "planned").close()
    return found


def test_charges_outside_of_a_plan_are_no_more_work_after_many(monkeypatch):
    few, many = lattices(pricing.MANY + 8, monkeypatch), lattices(2 * pricing.MANY, monkeypatch)
    assert 100 < few == many
    steps_of_one = []
    for count in (pricing.MANY + 8, 2 * pricing.MANY):
        with filled(None, count, "planned") as ledger:
            charge(ledger, 1000, "planned")
            steps_of_one.append(steps(lambda kept=ledger: charge(kept, 1001, "planned")))
    assert 100 < steps_of_one[1] <= 1.05 * steps_of_one[0]


def test_many_charges_outside_of_a_plan_cost_more_than_together():
    """The sum of curves lies above the tight price of the same releases, which a reserved plan pays."""
    with filled(None, 2 * pricing.MANY, "planned") as ledger:
        spent = ledger.check(event_of(0, "planned")).spent
        tight = accountant.epsilon(ledger.committed(), 1e-5, adjacency=ledger.policy.adjacency)
    assert tight < spent < 1.5 * tight


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A ledger of few and one of many different events."""
    few, many = (tmp_path_factory.mktemp("ledgers") / str(count) for count in (FEW, MANY))
    filled(few, FEW, "renyi").close()
    filled(many, MANY, "renyi").close()
    return few, many


@pytest.mark.parametrize(
    "work",
    [
        lambda ledger: None,
        lambda ledger: ledger.check(gaussian(9.0)),
        lambda ledger: ledger.verify(),
        lambda ledger: ledger.event(),
        lambda ledger: ledger.committed(),
        lambda ledger: total(ledger.book(), 1e-6),
    ],
    ids=["open", "price", "verify", "event", "committed", "total"],
)
def test_opening_and_pricing_grow_with_the_number_of_different_events(work, files):
    def opened(path: Path) -> None:
        with Ledger.open(path) as ledger:
            work(ledger)

    found = []
    for path in files:
        opened(path)  # prices of single events are kept
        found.append(steps(lambda kept=path: opened(kept)))
    assert found[1] <= 1.2 * MANY / FEW * found[0]
