"""What is published beside a run stands in its headline, and is paid only by who agreed to the price."""

from __future__ import annotations

import json
import re
from pathlib import Path
from unittest import mock

import pytest

import privbo as pb
from accountant import Adjacency
from accountant.ledger.total import odometer
from privbo.runs.record import Record
from tests.cli.test_cli import CONFIG, privbo


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "tiny.toml").write_text(CONFIG.replace("epsilon = 2.0", "noise_multiplier = 4.0"))
    done = privbo("run", str(tmp_path / "tiny.toml"), "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    return tmp_path / "run"


def reported(home: Path) -> dict:
    return json.loads(privbo("report", str(home), "--json").stdout)


def test_a_command_that_spends_names_price_and_total_and_charges_nobody_unasked(run: Path) -> None:
    before = len(pb.load(run).ledger.entries())
    done = privbo("audit", str(run), "--publish-norms", "0.05")
    assert done.returncode == 2
    assert "--yes" in done.stderr
    price, total = (float(found) for found in re.findall(r"epsilon ([0-9.]+) at delta 1e-05", done.stderr))
    assert total > price > 200
    assert len(pb.load(run).ledger.entries()) == before
    assert not (run / "published_norms.json").exists()


def test_every_headline_of_a_run_holds_what_was_published_beside_it(run: Path) -> None:
    before = reported(run)
    assert privbo("audit", str(run), "--publish-norms", "0.05", "--yes").returncode == 0
    after, record = reported(run), pb.load(run)
    paid = record.ledger.committed()
    bound = odometer([paid], record.delta, adjacency=record.plan.adjacency)
    assert bound > 200
    assert before["guaranteed"] < 3.0
    assert after["guaranteed"] == pytest.approx(bound)
    assert min(after["epsilon"].values()) == record.epsilon() == pytest.approx(bound)
    assert after["total"]["epsilon"] == pytest.approx(bound)
    page = (run / "report.html").read_text() if privbo("report", str(run)).returncode == 0 else ""
    assert float(re.search(r'<b id="epsilon">([0-9.]+)</b>', page)[1]) >= bound * (1 - 1e-4)
    for line in privbo("report", str(run)).stdout.splitlines():
        if "guaranteed" in line:
            assert float(re.search(r"guaranteed\s+([0-9.]+)", line)[1]) > 200


def test_a_headline_that_leaves_a_publication_out_is_betrayed(run: Path) -> None:
    assert privbo("audit", str(run), "--publish-norms", "0.05", "--yes").returncode == 0

    def covers_everything() -> bool:
        paid = pb.load(run).ledger.committed()
        return reported(run)["guaranteed"] >= odometer([paid], 1e-5, adjacency=Adjacency.ZERO_OUT) * (1 - 1e-9)

    assert covers_everything()
    with mock.patch.object(Record, "publications", ()):
        assert not covers_everything()
