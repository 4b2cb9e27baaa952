"""A run killed with -9 at any point resumes, and no broadcast is ever unpaid or paid twice."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from accountant.ledger import Ledger
from privbo.protocol.files import read_lines

ROOT = Path(__file__).parents[2]
ROUNDS = 12
CONFIG = f"""
name = "crash"
rounds = {ROUNDS}
[problem]
factory = "tests.crash_problem:problem"
[algorithm]
type = "dp-fts-de"
n_features = 10
[privacy]
noise_multiplier = 2.0
"""


def start(arguments: list[str]) -> subprocess.Popen:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "privbo.cli", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def kill_after_ledger_moves(process: subprocess.Popen, home: Path, pause: float) -> bool:
    """Wait until this process writes to the run, then a little, then kill; False if it finished first."""
    history = home / "history.jsonl"
    deadline = time.monotonic() + 60
    before = history.stat().st_mtime_ns if history.exists() else 0
    while process.poll() is None and time.monotonic() < deadline:
        if history.exists() and history.stat().st_mtime_ns != before:
            break
        time.sleep(0.005)
    time.sleep(pause)
    if process.poll() is not None:
        return False
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return True


@pytest.mark.long
@pytest.mark.parametrize("seed", [1])
def test_killed_runs_resume_and_every_broadcast_has_one_charge(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    config = tmp_path / "crash.toml"
    config.write_text(CONFIG)
    home = tmp_path / "run"
    kills = 0
    arguments = ["run", str(config), "--out", str(home)]
    for _ in range(40):
        process = start(arguments)
        killed = kill_after_ledger_moves(process, home, dice.uniform(0.0, 0.25)) if kills < 5 else False
        if killed:
            kills += 1
            arguments = ["run", "--resume", str(home)]
            continue
        errors = process.communicate(timeout=120)[1].decode()
        assert process.returncode == 0, errors
        break
    assert kills >= 3
    with Ledger.open(home / "ledger.sqlite") as ledger:
        assert ledger.verify().ok
        entries = ledger.entries()
        stored = [ledger.stored_release(entry.release_id) for entry in entries]
    planned = json.loads((home / "config.json").read_text())["plan"]["releases"]
    broadcasts = [row for row in read_lines(home / "history.jsonl") if row["released"]]
    assert len(entries) == len({entry.release_id for entry in entries}) == planned
    assert len(broadcasts) == planned
    assert {row["sequence"] for row in broadcasts} == {entry.sequence for entry in entries}
    assert all(stored)
    done = subprocess.run(
        [sys.executable, "-m", "privbo.cli", "report", str(home), "--json"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert report["releases"] == report["planned_releases"] == planned
    assert report["ledger"]["verified"]
