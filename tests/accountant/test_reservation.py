"""Reservations, what they pay for, and totals that hold however later plans were chosen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from accountant.errors import BudgetExceeded, LedgerError
from accountant.events import Adjacency, Gaussian, NonPrivate, PoissonSampledGaussian, Unit, repeat
from accountant.gaussian_dp import epsilon_from_mu
from accountant.ledger import Budget, Ledger
from accountant.ledger.book import Declaration
from accountant.ledger.pricing import DISJOINT, FILTER, NOTHING, ODOMETER, TOGETHER, odometer, odometer_delta, total
from accountant.tight.numerical import epsilon_table
from tests.accountant.builders import policy

EVENT = Gaussian(noise_multiplier=8.0)
OTHER = PoissonSampledGaussian(sample_rate=0.2, noise_multiplier=2.0)
ZERO = Adjacency.ZERO_OUT


def ledger(path: Path | None = None, **settings) -> Ledger:
    return Ledger.create(path, policy(**settings))


def declared(run: str, count: int = 4, event=EVENT, **settings) -> Declaration:
    asked = {"settings": "s", "plan": "p", "delta": 1e-5, "noise_source": "secure"} | settings
    return Declaration(run=run, events=((event, count),), **asked)


def release(made: Ledger, run: str, count: int, event=EVENT) -> None:
    first = len(made.entries(run))
    for number in range(first, first + count):
        made.charge(f"{run}/{number}", event, run=run, noise_source="secure")


def tight(event, count: int, delta: float = 1e-5) -> float:
    return min(epsilon_table(repeat(event, count), delta, adjacency=ZERO).values())


def test_unspent_slots_are_not_given_back_and_stay_spendable(tmp_path: Path) -> None:
    budget = Budget(epsilon=tight(EVENT, 8) * (1 + 1e-6), delta=1e-5, rule="gaussian")
    made = ledger(tmp_path / "l.sqlite", budget=budget)
    made.reserve(declared("a"))
    release(made, "a", 1)
    made.reserve(declared("b"))
    release(made, "b", 1)
    with pytest.raises(BudgetExceeded):
        made.reserve(declared("c", 1))
    with pytest.raises(BudgetExceeded):
        made.charge("c/0", EVENT, run="c", noise_source="secure")
    release(made, "a", 3)
    release(made, "b", 3)
    with pytest.raises(LedgerError, match="or all of its kind are spent"):
        release(made, "a", 1)
    assert made.verify().ok


def test_what_is_considered_leaves_the_book_as_it_is() -> None:
    made = ledger(None)
    made.reserve(declared("a"))
    book = made.book()
    before = book.left("a")
    assert book.projected([declared("b")], {"a": EVENT}).left("a") != before
    assert (book.left("a"), book.left("b")) == (before, None)
    assert {run: len(rows) for run, rows in book.runs.items()} == {"a": 1}


def test_a_plan_is_reserved_once_before_its_first_release_and_as_it_was(tmp_path: Path) -> None:
    made = ledger(tmp_path / "l.sqlite")
    first = made.reserve(declared("a"))
    assert made.reserve(declared("a")) == first
    assert len(made.book().rows) == 1
    for other in (declared("a", 5), declared("a", settings="t"), declared("a", delta=1e-6), declared("a", event=OTHER)):
        with pytest.raises(LedgerError, match="declared with another plan"):
            made.reserve(other)
    release(made, "late", 1)
    with pytest.raises(LedgerError, match="released before it declared"):
        made.reserve(declared("late"))
    for event, source in ((OTHER, "secure"), (Gaussian(noise_multiplier=7.9), "secure"), (EVENT, "exact")):
        with pytest.raises(LedgerError, match="not in the plan"):
            made.charge("a/9", event, run="a", noise_source=source)
    made.close()
    with Ledger.open(tmp_path / "l.sqlite") as again:
        assert again.book().plans["a"] == first
        assert again.committed("a") == repeat(EVENT, 4)


@pytest.mark.parametrize("change", [{"delta": 0.0}, {"delta": 1.0}, {"noise_source": "seeded"}, {"settings": ""}])
def test_impossible_declarations_are_refused(change) -> None:
    made = ledger()
    with pytest.raises(LedgerError):
        made.reserve(declared("a", **change))
    with pytest.raises(LedgerError):
        made.reserve(declared("a", 0))
    assert made.book().rows == []


def test_totals_are_tight_only_where_all_plans_were_declared_before_the_first_release() -> None:
    made = ledger()
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
    assert total(made.book(), 1e-5, run="c").epsilon == tight(EVENT, 4)


def test_a_charge_outside_of_plans_makes_the_total_an_odometers() -> None:
    made = ledger()
    made.reserve(declared("a"))
    made.charge("norms/0", EVENT, run="norms", noise_source="secure")
    found = total(made.book(), 1e-5)
    assert (found.rule, found.runs, found.releases) == (ODOMETER, 2, 5)


def test_a_ledger_with_a_filter_quotes_its_bound_and_what_the_filter_guarantees_at_other_deltas() -> None:
    made = ledger(budget=Budget(epsilon=3.0, delta=1e-5, rule="renyi"))
    made.reserve(declared("a"))
    release(made, "a", 1)
    made.reserve(declared("b"))
    at_its_delta, below = total(made.book(), 1e-5), total(made.book(), 1e-6)
    assert at_its_delta.epsilon == pytest.approx(3.0)
    assert at_its_delta.rule.startswith(FILTER)
    assert below.rule == at_its_delta.rule
    assert tight(EVENT, 8, delta=1e-6) < 3.0 < below.epsilon


def test_rewards_that_enter_one_release_each_cost_the_dearest() -> None:
    made = ledger(unit=Unit.REWARD, adjacency=Adjacency.REPLACE_ONE, disjoint=True)
    made.reserve(Declaration(run="a", events=((EVENT, 3), (Gaussian(noise_multiplier=5.0), 1)), settings="s", plan="p",
                             delta=1e-5, noise_source="secure"))  # fmt: skip
    release(made, "a", 2)
    made.reserve(declared("b"))
    found = total(made.book(), 1e-5)
    assert found.rule == DISJOINT
    assert found.epsilon == pytest.approx(epsilon_from_mu(1 / 5.0, 1e-5), rel=1e-3)


def test_a_release_without_privacy_makes_every_total_infinite() -> None:
    made = ledger()
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
    paid = [repeat(Gaussian(noise_multiplier=z), n) for z, n in zip(noises, (i, j), strict=True) if n]
    return odometer(paid, delta, adjacency=ZERO)


def of_realised(i: int, j: int, noises: tuple[float, float], delta: float) -> float:
    """The planted fault: the tight epsilon of whatever was made."""
    mu = sum(n / z**2 for z, n in zip(noises, (i, j), strict=True)) ** 0.5
    return epsilon_from_mu(mu, delta) if mu else 0.0


def test_no_adaptive_adversary_overtakes_the_odometer_and_realised_prices_are_overtaken() -> None:
    """20,000 games of 12 rounds at delta .05; a sound reading fails with a share above .0585 at a rate below 1e-7."""
    assert overtaken(of_odometer, 20_000, 12, 0.05, seed=3) < 0.05
    assert overtaken(of_realised, 20_000, 12, 0.05, seed=3) > 0.0585
