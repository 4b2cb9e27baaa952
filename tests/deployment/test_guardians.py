"""Guardians as real SuperNodes on loopback, killed on the way to the end of a run."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import pytest

from accountant.ledger import Ledger
from accountant.verify.auditor import verify_bundle
from privbo.protocol.errors import RunError
from privbo.reports.bundle import write_bundle
from privbo.runs.record import load
from tests.deployment.processes import deployed, start_parties
from tests.guardians.test_flower import NAMES, guarded, guardian_ledger

pytestmark = [pytest.mark.deployment, pytest.mark.slow]


def test_killed_guardians_start_again_and_no_round_gets_two_noises(tmp_path: Path) -> None:
    """A guardian's SuperNode is killed (SIGKILL) while the run waits for it; its ledger and bytes go on."""
    federation = guarded(tmp_path, seed=None, start_timeout=120.0, round_timeout=40.0)
    with deployed(federation) as deployment:
        start_parties(deployment, federation)

        def kill_one(name: str) -> None:
            deadline = time.monotonic() + 200
            while not list((tmp_path / name / "kept").glob("*/rounds/000000.json")) and time.monotonic() < deadline:
                time.sleep(0.05)
            deployment.kill(name)
            deployment.start_supernode(name, tmp_path / name / "guardian.toml")

        threading.Thread(target=kill_one, args=(NAMES[1],), daemon=True).start()
        for _ in range(6):
            with contextlib.suppress(RunError):  # it stopped with a word; the same command goes on
                deployment.play(federation.home, timeout=500)
                break
    assert verify_bundle(write_bundle(federation.run.path).path).verified
    record = load(federation.run.path)
    assert len(record.ledger.entries()) == record.plan.releases > 0
    for name in NAMES:
        with guardian_ledger(federation, name) as book:
            stored = book.release_rows()
            assert len(stored) == len(book.entries()) == len(record.ledger.entries())
    with Ledger.open(federation.run.ledger_path) as book:
        assert len(book.release_rows()) == len(book.entries())
