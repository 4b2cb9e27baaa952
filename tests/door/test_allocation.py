"""One allocation for all of a run's releases, however often the run is begun again; and one price for them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from accountant.errors import BudgetExceeded, LedgerError
from accountant.events import RandomAllocationGaussian
from accountant.ledger import Budget, Ledger
from accountant.ledger.book import Declaration
from privbo.door.door import Door
from privbo.door.noise import SecureNoise
from privbo.door.sampling import Keeper
from privbo.protocol.messages import BoolArray, Request
from tests.builders import ledger as new_ledger, mechanism_for

N, T, K, Z = 6, 5, 2, 1e-4
EVENT = RandomAllocationGaussian(n_rounds=T, participations=K, noise_multiplier=Z)
REQUEST = Request(dim=N, clipping_norm=1.0, weights=np.ones((1, N)))


class InMemory:
    """Keeps an allocation as long as the process lives."""

    def __init__(self) -> None:
        self.table: BoolArray | None = None

    def kept(self) -> BoolArray | None:
        return self.table

    def keep(self, table: BoolArray) -> None:
        self.table = table if self.table is None else self.table


def declared(event: RandomAllocationGaussian = EVENT, run: str = "run") -> Declaration:
    return Declaration(run=run, events=((event, 1),), settings="s", plan="p", delta=1e-5, noise_source="secure")


def ledger(budget: Budget | None = None) -> Ledger:
    return new_ledger(N, budget=budget)


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
        n_clients=N,
        keeper=keeper,
    )


def seen(here: Door, position: int) -> BoolArray:
    """Who was in a release: with hardly any noise and every client in a column of its own the values say so."""
    ticket = here.open(position, REQUEST, plan_position=position)
    release = ticket.release or here.close(ticket, 0.5 * np.eye(N))[0]
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
    kept = InMemory()
    table = play(book, iter([kept] * T))
    assert np.array_equal(table.sum(axis=1), np.full(N, K))
    assert np.array_equal(table, kept.kept())
    again = play(book, iter([kept] * T))  # what was released is sent again
    assert np.array_equal(again, table)


class Redrawn:
    """Planted fault: an allocation of the right form at every beginning, and another one each time."""

    def __init__(self) -> None:
        self._table = SecureNoise().subsets((N, T), K)

    def kept(self) -> BoolArray:
        return self._table

    def keep(self, table: BoolArray) -> None:
        raise AssertionError("it is there already")


def test_an_allocation_drawn_again_at_every_beginning_is_caught() -> None:
    """It passes for one run with a chance of .346^6; for four runs of 1e-11."""
    tables = []
    for _ in range(4):
        book = ledger()
        book.reserve(declared())
        tables.append(play(book, (Redrawn() for _ in range(T))))
    assert np.any(np.array(tables).sum(axis=2) != K)


def test_two_processes_that_begin_at_once_share_what_the_first_kept(book: Ledger) -> None:
    kept = InMemory()
    one, other = door(book, kept), door(book, kept)
    first = seen(one, 0)
    rest = [seen(other, position) for position in range(1, T)]
    assert np.array_equal(np.array([first, *rest]).T.sum(axis=1), np.full(N, K))


def test_every_place_serves_one_round(book: Ledger) -> None:
    here = door(book, InMemory())
    here.open(0, REQUEST, plan_position=0)
    for round_, position in ((1, 0), (0, 1), (1, None), (1, T), (1, -1)):
        with pytest.raises(LedgerError, match="place"):
            here.open(round_, REQUEST, plan_position=position)
    assert len(book.entries()) == 1


@pytest.mark.parametrize("wrong", [np.ones((N, T - 1), bool), np.eye(N, T, dtype=bool)])
def test_an_allocation_that_is_not_the_runs_is_refused(book: Ledger, wrong: BoolArray) -> None:
    keeper = InMemory()
    keeper.keep(wrong)
    with pytest.raises(LedgerError, match="is not the one that was drawn"):
        door(book, keeper).open(0, REQUEST, plan_position=0)
    assert book.entries() == []


def test_releases_that_no_plan_has_paid_for_are_refused() -> None:
    book = ledger()
    with pytest.raises(LedgerError, match="covers several releases; reserve the plan"):
        seen(door(book, InMemory()), 0)
    assert book.entries() == []


SMALL = RandomAllocationGaussian(n_rounds=20, participations=4, noise_multiplier=4.0)


def test_a_budget_that_does_not_hold_the_whole_refuses_before_anything_is_drawn() -> None:
    book = ledger(Budget(epsilon=0.2, delta=1e-5))
    with pytest.raises(BudgetExceeded):
        book.reserve(declared(SMALL))
    assert book.book().rows == []
