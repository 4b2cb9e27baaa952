"""What a ledger says and stores: canonical bytes, samplers, names, the words of a refusal, the price of nothing."""

from __future__ import annotations

import math

import pytest

from accountant.errors import LedgerError
from accountant.events import (
    Adjacency,
    BestOfRandomRuns,
    Composed,
    FixedSizeSampledGaussian,
    Gaussian,
    NonPrivate,
    Unit,
    compose,
    repeat,
    to_dict,
)
from accountant.ledger import Budget
from accountant.ledger.book import read_row
from accountant.ledger.chain import Row
from accountant.ledger.ledger import holds
from accountant.ledger.policy import canonical, require_names, require_population, sampler_of
from tests.accountant.builders import poisson, policy

POISSON = poisson(0.25, 2.0)
GAUSSIAN = Gaussian(noise_multiplier=2.0)
FIXED = FixedSizeSampledGaussian(n_clients=40, sample_size=3, noise_multiplier=2.0)


def test_canonical_bytes_are_sorted_without_spaces_and_hold_numbers_only() -> None:
    content = {"b": [1, 2.5], "a": {"d": None, "c": "é"}}
    assert canonical(content) == b'{"a":{"c":"\\u00e9","d":null},"b":[1,2.5]}'
    for number in (math.nan, math.inf):
        with pytest.raises(ValueError, match="not JSON compliant"):
            canonical({"epsilon": number})


@pytest.mark.parametrize(
    ("event", "word"),
    [
        (GAUSSIAN, "everyone"),
        (NonPrivate(), "everyone"),
        (Composed(), "everyone"),
        (POISSON, "poisson"),
        (FIXED, "fixed-size"),
        (compose([POISSON, GAUSSIAN, FIXED, POISSON]), "everyone+fixed-size+poisson"),
        (BestOfRandomRuns(run=POISSON, eta=1.0, gamma=0.1), "poisson"),
        (BestOfRandomRuns(run=compose([FIXED, POISSON]), eta=1.0, gamma=0.1), "fixed-size+poisson"),
    ],
)
def test_the_sampler_of_an_event_in_a_word(event, word: str) -> None:
    assert sampler_of(event) == word


@pytest.mark.parametrize("wrap", [lambda e: e, lambda e: BestOfRandomRuns(run=repeat(e, 2), eta=1.0, gamma=0.1)])
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


ENTRY = {
    "release_id": "r/0", "run": "r", "event": to_dict(POISSON), "unit": "client", "adjacency": "zero-out",
    "population": "p", "n_clients": 40, "sampler": "poisson", "noise_source": "secure", "plan_position": 0,
    "time": "2026-01-01T00:00:00",
}  # fmt: skip


def link(**changes) -> Row:
    return Row(sequence=3, release_id="r/0", body=canonical(ENTRY | changes), previous="before", digest="own")


def test_an_entry_is_what_its_row_says_and_where_it_stands() -> None:
    entry = read_row(link(), policy())
    assert (entry.sequence, entry.previous, entry.digest) == (3, "before", "own")
    assert (entry.event, entry.unit, entry.adjacency) == (POISSON, Unit.CLIENT, Adjacency.ZERO_OUT)
    assert entry.to_dict() == ENTRY | {"sequence": 3, "previous": "before", "digest": "own", "nonce": ""}


@pytest.mark.parametrize(
    "change",
    [
        {"release_id": "r/1"}, {"unit": "record"}, {"population": "q"}, {"n_clients": 41}, {"adjacency": "replace-one"},
    ],
    ids=lambda c: next(iter(c)),
)  # fmt: skip
def test_a_charge_that_speaks_of_others_than_the_ledger_is_refused(change: dict) -> None:
    with pytest.raises(LedgerError, match="row 3 contradicts the ledger's policy"):
        read_row(link(**change), policy())


@pytest.mark.parametrize(
    "change", [*({"n_clients": wrong} for wrong in (0, -1, True, 1.0, "12")), {"population": ""}, {"population": 3}]
)
def test_a_policy_out_of_range_is_refused(change):
    with pytest.raises(LedgerError, match=next(iter(change))):
        policy(**change)


@pytest.mark.parametrize("change", [{"epsilon": 0.0}, {"epsilon": math.inf}, {"delta": 0.0}, {"delta": 1.0}])
def test_a_budget_out_of_range_is_refused(change):
    with pytest.raises(LedgerError, match=next(iter(change))):
        Budget(**({"epsilon": 1.0, "delta": 1e-5} | change))


@pytest.mark.parametrize(
    ("spent", "projected", "allowed"),
    [
        (0.0, 1.0, True), (0.5, 0.4, True), (1.0, 1.0, True), (0.5, 1.1, False), (1.1, 0.9, False),
        (-0.1, 0.5, False), (0.5, -0.1, False), (math.nan, 0.5, False), (0.5, math.nan, False),
    ],
)  # fmt: skip
def test_both_what_was_spent_and_what_would_be_lie_within_the_budget(spent, projected, allowed):
    assert holds(1.0, spent, projected) is allowed
