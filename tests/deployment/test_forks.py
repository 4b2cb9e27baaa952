"""Processes of a SuperNode are forks, and a site's own lives as long as it is asked, and may be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import privbo as pb
from privbo.flower.approval import kept_run
from privbo.flower.forks import start
from privbo.flower.settings import read_site
from privbo.protocol.errors import RefusedError
from privbo.protocol.files import read_lines
from tests.conformance.small import ROUNDS, problem
from tests.deployment.federations import SITES, Federation, make
from tests.deployment.processes import ROOT, deployed, rounds_played, start_sites, wait_until
from tests.deployment.reading import releases, sites

WORDS = """
import sys
from privbo.flower.forks import start
start("flower-supernode", sys.argv[1:], lambda: None)
"""


def loaded(federation: Federation, site: str) -> list[int]:
    """Processes that loaded a site's problem, in order; each calls its factory for public facts and the objective."""
    lines = federation.hold(site).with_suffix(".loaded").read_text().split()
    assert lines[::2] == lines[1::2]
    return [int(line) for line in lines[::2]]


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


def test_a_run_is_loaded_again_only_where_its_files_or_the_sites_changed(tmp_path: Path) -> None:
    federation = make(tmp_path, held=True)
    federation.approve()
    load, site = kept_run(), read_site(federation.site_file("north"))
    first = load(federation.home, site)
    for _ in range(2):
        same = load(federation.home, read_site(federation.site_file("north")))
        assert same is first
        assert same.own_spec.problem.n_clients == 7
    assert len(loaded(federation, "north")) == 1
    path = federation.home / "federation.toml"
    path.write_text(path.read_text().replace("120.0", "60.0"))
    with pytest.raises(RefusedError, match=r"federation\.toml: found"):
        load(federation.home, site)
    federation.approve()
    second = load(federation.home, read_site(federation.site_file("north")))
    assert second.federation.round_timeout == 60.0
    assert load(federation.home, read_site(federation.site_file("south"))) is not second


@pytest.mark.deployment
def test_a_site_loads_its_data_once_and_its_process_may_be_killed(tmp_path: Path) -> None:
    federation = make(tmp_path, held=True, round_timeout=600.0, start_timeout=600.0)
    with deployed(federation) as deployment:
        start_sites(deployment, federation)
        assert deployment.flwr("run", str(federation.home), timeout=300).returncode == 0
        wait_until(lambda: rounds_played(federation) > 0, "a round is over")
        federation.hold("north").touch()
        wait_until(federation.hold("north").with_suffix(".reached").exists, "north is in the middle of a round")
        lost = rounds_played(federation)
        os.kill(loaded(federation, "north")[0], signal.SIGKILL)
        federation.hold("north").unlink()
        wait_until(federation.run.report_path.exists, "the run is over", timeout=900)
    rows = read_lines(federation.run.private / "transport.jsonl")
    assert len(rows) > lost + 1
    assert [row["answered"] for row in rows] == [
        sorted(set(SITES) - ({"north"} if round_ == lost else set())) for round_ in range(len(rows))
    ]
    assert len(set(loaded(federation, "north"))) == len(loaded(federation, "north")) == 2
    assert [len(loaded(federation, site)) for site in ("south", "west")] == [1, 1]
    assert lost not in sites(federation)[0]["rounds"]
    privacy = pb.Privacy(noise_multiplier=1.0, noise="simulation")
    whole = pb.run(problem(), pb.FedPNE(horizon=400, c=0.02), privacy=privacy, rounds=ROUNDS, seed=3).releases
    made = releases(federation)
    np.testing.assert_array_equal(made[0].values, whole[0].values)
    assert [r.noise_stddev for r in made][: lost + 1] == [r.noise_stddev for r in whole][: lost + 1]
