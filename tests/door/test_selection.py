"""Private selection at the door: what is drawn, what is charged, what is tied to the charge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

from accountant.errors import BudgetExceeded, LedgerError
from accountant.events import Adjacency, BestOfRandomRuns, Gaussian
from accountant.ledger import Ledger
from accountant.ledger.policy import Budget, LedgerPolicy
from accountant.mechanisms.selection import TruncatedNegativeBinomial
from privbo.door.selection import SelectionDoor, draw_runs
from privbo.protocol.errors import ConfigurationError

RUNS = TruncatedNegativeBinomial(eta=1.0, gamma=0.3)
TOP = 2**53
EVENT = BestOfRandomRuns(run=Gaussian(noise_multiplier=4.0), eta=1.0, gamma=0.3)


@dataclass
class ScriptedWords:
    """A source whose fair coins are the bits of given words, the lowest bit first."""

    words: Iterator[int]
    name: str = "simulation"

    def coins(self, shape: tuple[int, ...], rate: float) -> np.ndarray:
        assert (shape, rate) == ((53,), 0.5)
        word = next(self.words)
        return np.array([bool(word >> bit & 1) for bit in range(53)])


def drawn(words: list[int], n_candidates: int) -> list[int]:
    source = iter(words)
    found = draw_runs(RUNS, n_candidates, ScriptedWords(source))
    assert list(source) == [], "every word was used"
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


def ledger(epsilon: float = 9.0) -> Ledger:
    return Ledger.create(
        None,
        LedgerPolicy(
            unit="record",
            adjacency=Adjacency.ADD_OR_REMOVE_ONE,
            population="p",
            n_clients=100,
            budget=Budget(epsilon=epsilon, delta=1e-5),
        ),
    )


def door(*ledgers: Ledger, event: BestOfRandomRuns = EVENT) -> SelectionDoor:
    return SelectionDoor(prices=tuple((one, event) for one in ledgers), run="s", noise_source="simulation")


def test_a_selection_is_charged_once_as_a_whole() -> None:
    paid = ledger()
    assert door(paid).open() is None
    assert door(paid).open() is None
    (entry,) = paid.entries()
    assert (entry.release_id, entry.run, entry.event, entry.plan_position) == ("s/selection", "s", EVENT, 0)
    with pytest.raises(LedgerError, match="charged as"):
        door(paid, event=BestOfRandomRuns(run=EVENT.run, eta=1.0, gamma=0.2)).open()
    with pytest.raises(BudgetExceeded):
        door(ledger(epsilon=0.1)).open()


def test_what_was_stored_is_handed_out_once_and_in_every_ledger() -> None:
    first, second = ledger(), ledger()
    with pytest.raises(LedgerError, match="never charged"):
        door(first, second).close(b"model")
    door(first, second).open()
    assert door(first, second).close(b"model") == b"model"
    assert door(first, second).close(b"model") == b"model"
    with pytest.raises(LedgerError, match="other bytes"):
        door(first, second).close(b"other")
    assert door(first, second).open() == b"model"
    assert [one.stored_release("s/selection") for one in (first, second)] == [b"model"] * 2


@pytest.mark.parametrize("which", [0, 1])
def test_a_result_that_only_one_ledger_stored_is_given_to_the_other(which: int) -> None:
    ledgers = ledger(), ledger()
    door(*ledgers).open()
    ledgers[which].store_release("s/selection", b"model")
    assert door(*ledgers).open() == b"model"
    assert [one.stored_release("s/selection") for one in ledgers] == [b"model"] * 2
