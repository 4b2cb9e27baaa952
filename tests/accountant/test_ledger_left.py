"""Budget that is left on a ledger, against the filter that admits further charges."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from accountant import (
    Adjacency,
    Budget,
    FixedSizeSampledGaussian,
    Gaussian,
    Laplace,
    Ledger,
    PoissonSampledGaussian,
    numerical,
    repeat,
)
from accountant.errors import BudgetExceeded, LedgerError
from accountant.events import Event
from accountant.ledger.book import Declaration
from tests.accountant.builders import policy

RELEASE = Gaussian(noise_multiplier=8.0)


def ledger(path: Path | None = None, *, n_clients: int | None = 40, **budget) -> Ledger:
    bound = Budget(**{"epsilon": 2.0, "delta": 1e-6} | budget) if budget else None
    return Ledger.create(path, policy(bound, n_clients=n_clients))


def charge(kept: Ledger, name: str, event: Event) -> None:
    kept.charge(name, event, run=name.split("/", maxsplit=1)[0], noise_source="simulation")


@pytest.mark.parametrize("event", [RELEASE, PoissonSampledGaussian(sample_rate=0.2, noise_multiplier=8.0)], ids=repr)
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
        charge(kept, "a/0", RELEASE)
        z = kept.left().noise_multiplier
        with pytest.raises(BudgetExceeded):
            charge(kept, "louder/0", Gaussian(noise_multiplier=z * (1.0 - 1e-5)))
        charge(kept, "fits/0", Gaussian(noise_multiplier=z))
        left = kept.left()
        assert left.spent <= left.bound
        assert left.epsilon < 1e-3
        assert left.noise_multiplier is None or left.noise_multiplier > 100


def test_spent_and_bound_hold_at_other_deltas() -> None:
    with ledger(rule="gaussian") as kept:
        charge(kept, "a/0", RELEASE)
        for delta in (1e-9, 1e-6, 1e-3):
            left = kept.left(delta)
            exact = numerical.epsilon(RELEASE, delta, adjacency=Adjacency.ZERO_OUT)
            assert exact <= left.spent <= exact * (1 + 1e-6) + 1e-9
        assert kept.left(1e-9).bound > 2.0 > kept.left(1e-3).bound
        assert kept.left(1e-9).noise_multiplier == kept.left(1e-3).noise_multiplier


def test_a_plans_bound_says_nothing_below_its_delta() -> None:
    with ledger(rule="planned") as kept:
        charge(kept, "a/0", RELEASE)
        assert kept.left(1e-5).bound == 2.0
        with pytest.raises(LedgerError, match="holds at delta=1e-06 and above"):
            kept.left(1e-7)


def test_an_envelope_names_its_free_slots() -> None:
    slot = PoissonSampledGaussian(sample_rate=0.1, noise_multiplier=2.0)
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
        charge(kept, "a/0", RELEASE)
        left = kept.left(1e-5)
        assert (left.bound, left.epsilon, left.noise_multiplier) == (None, None, None)
        assert math.isfinite(left.spent)
        assert left.words.endswith("this ledger has no bound")
        with pytest.raises(LedgerError, match="name one"):
            kept.left()


def test_what_the_rule_does_not_admit_never_fits() -> None:
    with ledger(rule="gaussian") as kept:
        assert kept.left(event=Laplace(scale_multiplier=100.0)).releases == 0


def test_a_ledger_for_any_number_of_clients_takes_events_of_every_number(tmp_path: Path) -> None:
    """A hospital joins: the ledger of one of its clients goes on."""
    path = tmp_path / "ledger.sqlite"
    with ledger(path, n_clients=None, rule="gaussian") as kept:
        for n in (12, 13):
            event = FixedSizeSampledGaussian(n_clients=n, sample_size=4, noise_multiplier=8.0)
            declared = Declaration(
                run=f"of {n}", events=((event, 3),), settings="s", plan="p", delta=1e-6, noise_source="secure"
            )
            kept.reserve(declared)
    with Ledger.open(path) as again:
        assert again.verify().ok
        assert again.policy.n_clients is None
        assert again.left().spent == pytest.approx(
            numerical.epsilon(repeat(RELEASE, 6), 1e-6, adjacency=Adjacency.ZERO_OUT), rel=1e-6
        )
    with ledger(n_clients=12, rule="gaussian") as fixed, pytest.raises(LedgerError, match="samples from 13 clients"):
        charge(fixed, "r/0", FixedSizeSampledGaussian(n_clients=13, sample_size=4, noise_multiplier=8.0))
