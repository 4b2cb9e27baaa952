"""Releases that share no unit: the dearest counts, in the arithmetic and in a ledger on disk."""

from pathlib import Path

import pytest

from accountant.errors import BudgetExceeded, EventError, LedgerError
from accountant.events import (
    Adjacency,
    Composed,
    Gaussian,
    NonPrivate,
    PoissonSampledGaussian,
    Unit,
    compose,
    most_expensive,
    repeat,
)
from accountant.ledger import Budget, Ledger, LedgerPolicy

LOUD, QUIET = Gaussian(noise_multiplier=4.0), Gaussian(noise_multiplier=2.0)


def policy(**settings: object) -> LedgerPolicy:
    return LedgerPolicy(
        **{"unit": Unit.REWARD, "adjacency": Adjacency.REPLACE_ONE, "population": "p", "n_clients": 3, "disjoint": True}
        | settings
    )


def test_the_least_noisy_release_is_the_price() -> None:
    assert most_expensive([LOUD, QUIET, LOUD]) == compose([QUIET])
    assert most_expensive([compose([LOUD]), QUIET]) == compose([QUIET])
    assert most_expensive([LOUD, NonPrivate(), QUIET]) == compose([NonPrivate()])
    assert most_expensive([]) == Composed()


@pytest.mark.parametrize("event", [PoissonSampledGaussian(sample_rate=0.5, noise_multiplier=1.0), repeat(LOUD, 2)])
def test_what_cannot_be_compared_is_refused(event: object) -> None:
    with pytest.raises(EventError, match="share no unit"):
        most_expensive([event])


def test_only_rewards_are_disjoint() -> None:
    for unit in (Unit.CLIENT, Unit.RECORD):
        with pytest.raises(LedgerError, match=f"one {unit.value}"):
            policy(unit=unit)


def test_a_ledger_of_rewards_counts_its_dearest_charge(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    budget = Budget(epsilon=2.0, delta=1e-5)  # one release of multiplier 2 costs 1.99, two cost 3.0
    with Ledger.create(path, policy(budget=budget)) as ledger:
        for index in range(5):
            ledger.charge(f"r{index}", QUIET, run="a", noise_source="secure")
        with pytest.raises(BudgetExceeded):
            ledger.charge("dear", Gaussian(noise_multiplier=1.9), run="a", noise_source="secure")
        with pytest.raises(EventError):
            ledger.charge(
                "x", PoissonSampledGaussian(sample_rate=0.5, noise_multiplier=9.0), run="a", noise_source="secure"
            )
    with Ledger.open(path) as again:
        assert again.policy == policy(budget=budget)
        assert again.event() == again.event("a") == compose([QUIET])
        assert len(again.entries()) == 5
        assert {entry.unit for entry in again.entries()} == {Unit.REWARD}
        assert again.verify().ok
    with Ledger.create(None, policy(disjoint=False)) as summed:
        for index in range(2):
            summed.charge(f"r{index}", QUIET, run="a", noise_source="simulation")
        assert summed.event() == repeat(QUIET, 2)
