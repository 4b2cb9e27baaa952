"""``privbo flower``: what it writes, what it refuses, and a federation that it starts and stops."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import privbo as pb
from privbo.cli.main import app
from privbo.flower.launch import QUIET, QUIET_NOTE, play_locally
from privbo.protocol.files import read_lines
from privbo.runs.manifest import RunDirectory
from tests.deployment.processes import ROOT
from tests.system_tools import require_tool

BOUND = ("--epsilon", 8.0, "--delta", 1e-6)


def command(*words: object) -> None:
    app([str(word) for word in words], standalone_mode=False)


def test_an_app_is_written_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command("flower", "init", tmp_path / "trial", "--sites", 2, "--clients-per-site", 4, *BOUND)
    assert 'clients = "4-7"' in (tmp_path / "trial" / "federation.toml").read_text()
    assert "run.toml" in capsys.readouterr().out
    assert tomllib.loads((tmp_path / "trial" / "run.toml").read_text())["algorithm"] == {"type": "shared-prior"}
    with pytest.raises(pb.ConfigurationError, match="already holds an app"):
        command("flower", "init", tmp_path / "trial", *BOUND)


def test_keys_are_made_once_and_are_nobody_elses(tmp_path: Path) -> None:
    command("flower", "keys", tmp_path / "keys", "--sites", "north, south", "--hosts", "127.0.0.1,server.example")
    private = [tmp_path / "keys" / name for name in ("server.key", "north.key", "south.key")]
    assert all(path.stat().st_mode & 0o077 == 0 for path in [*private, tmp_path / "keys"])
    assert not (tmp_path / "keys" / "ca.key").exists()
    with pytest.raises(pb.ConfigurationError, match="already holds keys"):
        command("flower", "keys", tmp_path / "keys", "--sites", "north")


def test_a_federation_that_does_not_fit_is_not_started(tmp_path: Path) -> None:
    home = tmp_path / "trial"
    command("flower", "init", home, *BOUND)
    text = (home / "federation.toml").read_text()
    (home / "federation.toml").write_text(text.replace('"0-9"', '"0-8"'))
    with pytest.raises(pb.ConfigurationError, match="exactly one site"):
        play_locally(home)
    (home / "federation.toml").write_text(text.replace("min_sites", "least_sites"))
    with pytest.raises(pb.ConfigurationError, match="least_sites"):
        play_locally(home)
    assert not (home / "flower").exists()


IN_NAMESPACE = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c"]


@pytest.mark.deployment
def test_up_plays_the_run_stops_everything_and_sends_nothing_anywhere_but_loopback(tmp_path: Path) -> None:
    require_tool("unshare")
    require_tool("ip")
    home, loopback = tmp_path / "trial", "ip link set lo up"
    command("flower", "init", home, *BOUND)
    run = (home / "run.toml").read_text()
    (home / "run.toml").write_text(run.replace("rounds = 10", "rounds = 1"))
    alone = not subprocess.run([*IN_NAMESPACE, loopback], check=False, capture_output=True).returncode
    words = [sys.executable, "-m", "tests.deployment.offline", str(home)]
    played = [*IN_NAMESPACE, f"{loopback} && {shlex.join(words)}"] if alone else words
    done = subprocess.run(played, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert QUIET_NOTE in done.stderr
    assert {"FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK"} <= set(QUIET)
    rows = read_lines(RunDirectory(home / "run").private / "transport.jsonl")
    assert [row["answered"] for row in rows] == [["site0", "site1", "site2"]] * len(rows)
    record = pb.load(home / "run")
    assert record.epsilon() <= 4.0
    assert len(record.ledger.entries()) == 1  # of one round's plan: thirty clients stand above the noise
    if not alone:
        pytest.skip("network namespaces are forbidden here, so no packet was counted")
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["control"] > 0  # a packet that wants out is counted
    assert found["wanted"] == 0
