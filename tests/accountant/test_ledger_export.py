"""Exports say what the ledger says, in words other programs read."""

from __future__ import annotations

import csv
import io
import json

import pytest

from accountant.dp_event import to_dp_event
from accountant.errors import LedgerError
from accountant.events import Adjacency, FixedSizeSampledGaussian, Gaussian, PoissonSampledGaussian, compose, from_dict
from accountant.ledger import Ledger
from accountant.ledger.export import export
from tests.accountant.builders import policy

EVENTS = [
    Gaussian(noise_multiplier=2.0),
    PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=1.1),
    PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=1.1),
    FixedSizeSampledGaussian(n_clients=40, sample_size=10, noise_multiplier=0.7),
]


@pytest.fixture
def ledger() -> Ledger:
    book = Ledger.create(None, policy())
    for index, event in enumerate(EVENTS):
        book.charge(f"r/{index}", event, run="r" if index else "first", noise_source="secure", plan_position=index)
    return book


def test_json_lines_hold_every_entry(ledger: Ledger) -> None:
    rows = [json.loads(line) for line in export(ledger, "jsonl").splitlines()]
    assert [from_dict(row["event"]) for row in rows] == EVENTS
    assert [row["digest"] for row in rows] == [entry.digest for entry in ledger.entries()]
    assert len(export(ledger, "jsonl", run="r").splitlines()) == 3


def test_csv_holds_every_entry(ledger: Ledger) -> None:
    rows = list(csv.DictReader(io.StringIO(export(ledger, "csv"))))
    assert [from_dict(json.loads(row["event"])) for row in rows] == EVENTS
    assert [row["release_id"] for row in rows] == ["r/0", "r/1", "r/2", "r/3"]
    assert rows[0]["event"] == '{"noise_multiplier": 2.0, "type": "gaussian"}'
    assert "\r" not in export(ledger, "csv")


def test_every_format_leaves_out_what_other_runs_charged(ledger: Ledger) -> None:
    text = export(ledger, "csv", run="r")
    assert [row["release_id"] for row in csv.DictReader(io.StringIO(text))] == ["r/1", "r/2", "r/3"]
    assert export(ledger, "dpevent", run="first") == (
        "ComposedDpEvent(events=[SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=1)])\n"
    )
    assert export(ledger, "dpevent", run="nobody") == "NoOpDpEvent()\n"


def test_dp_accounting_reads_the_same_events(ledger: Ledger) -> None:
    dp = pytest.importorskip("dp_accounting")
    text = export(ledger, "dpevent").strip()
    event = to_dp_event(ledger.event(), adjacency=Adjacency.ZERO_OUT)
    assert repr(event) == text
    assert "count=2" in text
    poisson = compose([EVENTS[1], EVENTS[2]])
    accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL)
    theirs = accountant.compose(to_dp_event(poisson, adjacency=Adjacency.ZERO_OUT)).get_epsilon(1e-5)
    from accountant import renyi

    # Our orders are dense, theirs a grid, so ours is at most theirs and near it.
    ours = renyi.epsilon(poisson, 1e-5, adjacency=Adjacency.ZERO_OUT)
    assert ours <= theirs * (1 + 1e-9)
    assert ours == pytest.approx(theirs, rel=0.02)


def test_unknown_formats_are_refused(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="none of jsonl, csv, dpevent"):
        export(ledger, "xml")
