"""``privbo flower``: what it writes, what it refuses, and a federation that it starts and stops."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import privbo as pb
from privbo.cli.main import app
from privbo.flower import launch
from privbo.flower.launch import QUIET, QUIET_NOTE, Deployment, play_locally
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


def lives(status: Path) -> bool:
    try:
        return "State:\tZ" not in status.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


FAMILY = ["sh", "-c", "sleep 600 & echo $!; exec sleep 601"]


def test_a_process_whose_watcher_cannot_start_is_stopped_with_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(_: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(launch, "_watched", none_left)
    with Deployment(root=tmp_path) as deployment:
        with pytest.raises(BlockingIOError):
            deployment.start("family", FAMILY)
        (process,) = deployment.processes.values()
    assert process.returncode == -15


def test_a_watcher_kills_all_children_once_nobody_holds_its_pipe(tmp_path: Path) -> None:
    with Deployment(root=tmp_path) as deployment:
        process = deployment.start("family", FAMILY)
        watcher, deadline = deployment.watchers["family"], time.monotonic() + 30.0
        assert watcher.stdin is not None
        while not (child := deployment.log("family").read_text().strip()) and time.monotonic() < deadline:
            time.sleep(0.01)
        status = Path("/proc") / child / "status"
        assert status.exists()
        watcher.stdin.close()  # as when this process ends
        assert watcher.wait(timeout=30) == 0
        assert process.wait(timeout=30) == -9
        while lives(status) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not lives(status)
        watcher.stdin = None


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
