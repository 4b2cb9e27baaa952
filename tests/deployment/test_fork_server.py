"""Flower's programs as forks, and a site's run that is kept while its files stay the same; kills: ``test_crashes``."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import privbo as pb
from privbo.flower import launch
from privbo.flower.fork_server import start
from privbo.flower.party import approved_run, read_site
from privbo.protocol.errors import RefusedError
from tests.deployment.federations import make
from tests.deployment.processes import ROOT, wait_until
from tests.system_tools import require_tool

WORDS = """
import sys
from privbo.flower.fork_server import start
start("flower-supernode", sys.argv[1:], lambda: None)
"""


def test_a_program_ends_as_flowers_own_does_and_leaves_nothing(tmp_path: Path) -> None:
    before = set(Path(tempfile.gettempdir()).glob("privbo-*/ask.py"))
    done = subprocess.run(
        [sys.executable, "-c", WORDS, "--version"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert "Flower version" in done.stdout
    assert set(Path(tempfile.gettempdir()).glob("privbo-*/ask.py")) <= before
    deep = tmp_path / ("deep" * 30)  # too long for a socket: Flower's own program takes over
    deep.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", WORDS, "--no-such-option"],
        cwd=ROOT, env=os.environ | {"TMPDIR": str(deep)}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "set TMPDIR" in done.stderr
    assert list(deep.iterdir()) == []
    with pytest.raises(pb.ConfigurationError, match="none of"):
        start("flwr", [], lambda: None)


def test_what_a_supernode_starts_finds_modules_in_the_folder_that_it_is_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ward_model.py").write_text("BEDS = 12\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    started = list[str]()

    def started_instead(program: str, arguments: list[str], answer: object) -> None:
        assert (arguments, sys.path[0]) == (["--port", "9"], str(tmp_path))  # of forks
        assert os.environ["PYTHONPATH"].split(os.pathsep) == [str(tmp_path), str(ROOT)]
        words = [sys.executable, "-c", "import ward_model; print(ward_model.BEDS)"]
        done = subprocess.run(words, cwd="/", capture_output=True, text=True, timeout=120, check=True)
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
    state = subprocess.run(["ps", "-o", "state=", "-p", str(process)], capture_output=True, text=True, check=False)
    return state.stdout.strip()[:1] not in {"", "Z"}


def test_what_a_deployment_starts_ends_with_it_even_by_kill_9(tmp_path: Path) -> None:
    require_tool("ps")
    parent = subprocess.Popen(
        [sys.executable, "-c", STARTED, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    started = int(parent.stdout.readline())
    wait_until(lambda: (tmp_path / "idle.log").read_text().strip().isdecimal(), "it has started its own")
    both = [started, int((tmp_path / "idle.log").read_text())]
    assert all(map(is_alive, both))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not any(map(is_alive, both)), "both are gone", timeout=60)
