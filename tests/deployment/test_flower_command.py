"""``privbo flower``: what it writes, what it refuses, and a federation that it starts and stops."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

import privbo as pb
from privbo.cli.main import app
from privbo.flower import launch
from privbo.flower.fork_server import start
from privbo.flower.launch import QUIET, QUIET_NOTE, Deployment, play_locally
from privbo.flower.party import approve_files, approved_run, read_party, read_site
from privbo.protocol.errors import RefusedError
from privbo.protocol.files import read_lines
from privbo.runs.manifest import RunDirectory
from tests.deployment.federations import make
from tests.deployment.processes import ROOT, wait_until
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
    command("flower", "init", tmp_path / "F ü 2", *BOUND)
    assert tomllib.loads((tmp_path / "F ü 2" / "run.toml").read_text())["name"] == "f-2"


def test_keys_are_made_once_and_are_nobody_elses(tmp_path: Path) -> None:
    command("flower", "keys", tmp_path / "keys", "--sites", "north, south", "--hosts", "127.0.0.1,server.example")
    private = [tmp_path / "keys" / name for name in ("server.key", "north.key", "south.key")]
    assert all(path.stat().st_mode & 0o077 == 0 for path in [*private, tmp_path / "keys"])
    assert not (tmp_path / "keys" / "ca.key").exists()
    with pytest.raises(pb.ConfigurationError, match="already holds keys"):
        command("flower", "keys", tmp_path / "keys", "--sites", "north")
    bad = [(name, "localhost") for name in ("", "../x", "a b", "é", "n" * 65, "north,north", "server")]
    for sites, hosts in [*bad, ("north", ""), ("north", "localhost,münchen.example")]:
        with pytest.raises(pb.ConfigurationError, match=r"names=|hosts="):
            command("flower", "keys", tmp_path / "bad", "--sites", sites, "--hosts", hosts)
        assert not (tmp_path / "bad").exists()
    command("flower", "keys", tmp_path / "long", "--sites", "north", "--hosts", f"{'x' * 60}.example")


def test_a_guardians_lines_are_those_of_its_own_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        command("flower", "guardian", tmp_path / "one", "--name", "ministry", *BOUND)
        assert list(tomllib.loads(capsys.readouterr().out)["guardians"]) == ["ministry"]
    for name, epsilon in (("other", 8.0), ("ministry", 1.0)):
        with pytest.raises(pb.ConfigurationError, match="another name, epsilon or delta"):
            command("flower", "guardian", tmp_path / "one", "--name", name, "--epsilon", epsilon, "--delta", 1e-6)
    with pytest.raises(pb.ConfigurationError, match="names='a b'"):
        command("flower", "guardian", tmp_path / "two", "--name", "a b", *BOUND)
    assert not (tmp_path / "two").exists()


def test_a_federation_that_does_not_fit_is_not_started(tmp_path: Path) -> None:
    home = tmp_path / "trial"
    command("flower", "init", home, *BOUND)
    text = (home / "federation.toml").read_text()
    (home / "federation.toml").write_text(text.replace('"0-9"', '"0-8"'))
    with pytest.raises(pb.ConfigurationError, match="exactly one site"):
        play_locally(home)
    assert not (home / "flower").exists()


IN_NAMESPACE = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c"]


def ran(*words: str, **settings) -> subprocess.CompletedProcess[str]:
    """A process that ends, and what it says."""
    plain = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 1200}
    return subprocess.run(words, check=False, **plain | settings)


def test_a_process_whose_watcher_cannot_start_is_stopped_with_the_others(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(launch, "_watched", mock.Mock(side_effect=BlockingIOError(11, "Resource unavailable")))
    with Deployment(root=tmp_path) as deployment:
        with pytest.raises(BlockingIOError):
            deployment.start("family", ["sh", "-c", "sleep 600 & echo $!; exec sleep 601"])
        (process,) = deployment.processes.values()
    assert process.returncode == -15


@pytest.mark.deployment
def test_up_plays_the_run_stops_everything_and_sends_nothing_anywhere_but_loopback(tmp_path: Path) -> None:
    require_tool("unshare")
    require_tool("ip")
    home, loopback = tmp_path / "trial", "ip link set lo up"
    command("flower", "init", home, *BOUND)
    run = (home / "run.toml").read_text()
    (home / "run.toml").write_text(run.replace("rounds = 10", "rounds = 2"))
    alone = not ran(*IN_NAMESPACE, loopback).returncode
    words = [sys.executable, "-m", "tests.deployment.offline", str(home)]
    played = [*IN_NAMESPACE, f"{loopback} && {shlex.join(words)}"] if alone else words
    done = ran(*played)
    assert done.returncode == 0, done.stdout + done.stderr
    assert QUIET_NOTE in done.stderr
    assert {"FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK"} <= set(QUIET)
    rows = read_lines(RunDirectory(home / "run").private / "transport.jsonl")
    assert [row["answered"] for row in rows] == [["site0", "site1", "site2"]] * len(rows)
    record = pb.load(home / "run")
    assert record.epsilon() <= 4.0
    assert len(record.ledger.entries()) == 1  # the first round's: thirty clients stand above the noise
    if not alone:
        pytest.skip("network namespaces are forbidden here, so no packet was counted")
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["control"] > 0  # a packet that wants out is counted
    assert found["wanted"] == 0


# ---- flower's programs as forks, and a site's run that is kept while its files stay the same

WORDS = """
import sys
from privbo.flower.fork_server import start
start("flower-supernode", sys.argv[1:], lambda: None)
"""


def test_a_program_ends_as_flowers_own_does_and_leaves_nothing(tmp_path: Path) -> None:
    before = set(Path(tempfile.gettempdir()).glob("privbo-*/ask.py"))
    done = ran(sys.executable, "-c", WORDS, "--version")
    assert (done.returncode, "Flower version" in done.stdout) == (0, True)
    assert set(Path(tempfile.gettempdir()).glob("privbo-*/ask.py")) <= before
    deep = tmp_path / ("deep" * 30)  # too long for a socket: Flower's own program takes over
    deep.mkdir()
    done = ran(sys.executable, "-c", WORDS, "--no-such-option", env=os.environ | {"TMPDIR": str(deep)})
    assert done.returncode == 2
    assert "set TMPDIR" in done.stderr
    assert list(deep.iterdir()) == []
    with pytest.raises(pb.ConfigurationError, match="none of"):
        start("flwr", [], lambda: None)


def test_what_a_supernode_starts_finds_modules_in_the_folder_that_it_is_started_in(tmp_path, monkeypatch) -> None:
    (tmp_path / "ward_model.py").write_text("BEDS = 12\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    started = list[str]()

    def started_instead(program: str, arguments: list[str], answer: object) -> None:
        assert (arguments, sys.path[0]) == (["--port", "9"], str(tmp_path))  # of forks
        assert os.environ["PYTHONPATH"].split(os.pathsep) == [str(tmp_path), str(ROOT)]
        done = ran(sys.executable, "-c", "import ward_model; print(ward_model.BEDS)", cwd="/")
        started.extend([program, done.stdout.strip()])

    monkeypatch.setattr(launch, "start", started_instead)
    launch.become("flower-supernode", ["--port", "9"])
    assert started == ["flower-supernode", "12"]


def test_a_run_is_loaded_again_only_where_its_files_or_the_sites_changed(tmp_path: Path) -> None:
    federation = make(tmp_path, held=True)
    federation.approve()
    load, site = approved_run, read_site(federation.site_file("north"))
    first = load(federation.home, site)
    for _ in range(2):
        same = load(federation.home, read_site(federation.site_file("north")))
        assert same is first
        assert same.own_spec.problem.n_clients == 7
    assert len(set(federation.hold("north").with_suffix(".loaded").read_text().split())) == 1
    path = federation.home / "federation.toml"
    path.write_text(path.read_text().replace("120.0", "60.0"))
    with pytest.raises(RefusedError, match=r"federation\.toml: found"):
        load(federation.home, site)
    federation.approve()
    second = load(federation.home, read_site(federation.site_file("north")))
    assert second.federation.round_timeout == 60.0
    assert load(federation.home, read_site(federation.site_file("south"))) is not second


def test_a_full_disk_leaves_a_partys_settings_as_they_are(tmp_path: Path) -> None:
    path, files = make(tmp_path).site_file("north"), SimpleNamespace(digests=SimpleNamespace(run="a", federation="b"))
    path.chmod(0o600)
    before, party = path.read_bytes(), read_party(path)
    with mock.patch("os.fsync", side_effect=OSError("disk full")), pytest.raises(OSError, match="disk full"):
        approve_files(path, party, files)
    assert path.read_bytes() == before
    assert approve_files(path, party, files)
    assert (path.read_bytes()[: len(before)], path.stat().st_mode & 0o777) == (before, 0o600)
    path.write_bytes(b"approved = []\n" + before)  # takes no table [[approved]]
    with pytest.raises(pb.ConfigurationError, match="is not TOML"):
        approve_files(path, party, files)
    assert path.read_bytes() == b"approved = []\n" + before


STARTED = """
import sys, time
from pathlib import Path
from privbo.flower.launch import Deployment

with Deployment(root=Path(sys.argv[1])) as deployment:
    process = deployment.start("idle", ["sh", "-c", "sleep 1000 & echo $!; wait"])
    print(process.pid, flush=True)
    time.sleep(1000)
"""


def is_alive(process: int) -> bool:
    """Whether it runs; who was killed stays in the table until it is reaped, which is no business of ours."""
    return ran("ps", "-o", "state=", "-p", str(process)).stdout.strip()[:1] not in {"", "Z"}


def test_what_a_deployment_starts_ends_with_it_even_by_kill_9(tmp_path: Path) -> None:
    require_tool("ps")
    words = [sys.executable, "-c", STARTED, str(tmp_path)]
    parent = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    started = int(parent.stdout.readline())
    wait_until(lambda: (tmp_path / "idle.log").read_text().strip().isdecimal(), "it has started its own")
    both = [started, int((tmp_path / "idle.log").read_text())]
    assert all(map(is_alive, both))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not any(map(is_alive, both)), "both are gone", timeout=60)
