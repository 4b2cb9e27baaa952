"""``privbo scout``: priced before it is paid, charged as any run, and what it prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import privbo as pb
from experiments.played import Played, read
from experiments.worth import MEASURES
from privbo.plans.gains import GAINS, Gain
from tests.cli.test_cli import CONFIG, privbo

STORED = Path(__file__).parents[2] / "docs/results/worth/worth.json"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    shared = f'[ledger]\npath = "{tmp_path}/people.sqlite"\npopulation = "ward"\nepsilon = 5.0\ndelta = 1e-5\n'
    path.write_text(CONFIG + shared)
    return path


def test_a_scout_names_its_price_and_charges_nobody_unasked(config: Path, tmp_path: Path) -> None:
    done = privbo("scout", str(config), "--epsilon", "0.5", "--out", str(tmp_path / "scout"))
    assert done.returncode == 2
    (price,) = (float(found) for found in re.findall(r"charges epsilon ([0-9.]+) at delta 1e-05", done.stderr))
    bound = r"comes to epsilon ([0-9.]+) at delta 1e-05, of its bound 5"
    (total,) = (float(found) for found in re.findall(bound, done.stderr))
    assert 0.499 < price <= 0.5
    assert 0.0 < total <= 5.0
    assert "--yes" in done.stderr
    assert not (tmp_path / "scout").exists()
    assert not (tmp_path / "people.sqlite").exists()


def test_a_scout_is_charged_to_the_peoples_ledger_as_any_run(config: Path, tmp_path: Path) -> None:
    home = tmp_path / "scout"
    done = privbo("scout", str(config), "--epsilon", "0.5", "--points", "6", "--out", str(home), "--yes", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["standard_error"] > 0
    assert (found["n_points"], found["delta"]) == (6, 1e-5)
    assert 0.499 < min(found["epsilon"].values()) <= 0.5
    assert found["total"]["runs"] == 1
    with pb.load(home).ledger as ledger:
        assert len(ledger.entries()) == 1
    assert privbo("run", str(config), "--out", str(tmp_path / "run")).returncode == 0
    after = json.loads(privbo("report", str(tmp_path / "run"), "--json").stdout)
    assert after["total"]["runs"] == 2
    assert 2.0 < after["total"]["epsilon"] <= 5.0  # the run was planned after the scout had told something
    assert json.loads(privbo("report", str(home), "--json").stdout)["releases"] == 1


def test_a_run_that_will_end_with_a_vote_is_scouted_without_one(config: Path, tmp_path: Path) -> None:
    home = tmp_path / "scout"
    done = privbo("scout", str(config), "--set", "final=common", "--epsilon", "1", "--out", str(home), "--yes")
    assert done.returncode == 0, done.stderr
    with pb.load(home).ledger as ledger:
        assert len(ledger.entries()) == 1


def test_a_scout_in_the_terminal(config: Path, tmp_path: Path) -> None:
    done = privbo("scout", str(config), "--epsilon", "2", "--out", str(tmp_path / "scout"), "--yes")
    assert "correlation between two clients' surfaces: " in done.stdout
    assert 1.99 < float(re.search(r"charged: epsilon ([0-9.]+) at delta 1e-05", done.stdout)[1]) <= 2.0
    assert all(gain.family in done.stdout for gain in GAINS)


def test_what_cannot_be_scouted_is_refused(config: Path) -> None:
    config.write_text(CONFIG.replace("epsilon = 2.0", "none = true"))
    done = privbo("scout", str(config), "--epsilon", "1", "--yes")
    assert (done.returncode, "a scout is" in done.stderr) == (2, True)
    config.write_text(CONFIG)
    assert privbo("scout", str(config), "--epsilon", "-1", "--yes").returncode == 2


def stored() -> list[Played]:
    return [one for one in read(json.loads(STORED.read_text())["overall"]) if one.purpose in ("reporting", "own")]


@pytest.mark.parametrize("gain", GAINS, ids=lambda gain: f"{gain.family}, {gain.epsilon:g}")
def test_the_gains_are_those_of_the_stored_table(gain: Gain) -> None:
    family = next(one for one in stored() if one.title == gain.family)
    mean, end = (family.ratio(f"default, epsilon {gain.epsilon:g}", measure) for measure in MEASURES)
    told = (gain.n_clients, gain.correlation, gain.mean, gain.mean_error, gain.end, gain.end_error)
    found = (family.n_clients, family.correlation, mean.value, mean.error, end.value, end.error)
    assert told == pytest.approx(found, abs=0.0051)


def test_no_stored_family_without_a_choice_is_left_out() -> None:
    assert {gain.family for gain in GAINS} == {one.title for one in stored()}
