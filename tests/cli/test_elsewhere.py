"""Commands on what is there: a file instead of a directory, a directory without its private side, another version's."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.cli.test_cli import CONFIG, privbo

RUN = CONFIG.replace("epsilon = 2.0", "noise_multiplier = 3.0")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "tiny.toml").write_text(RUN)
    for name in ("north", "south"):
        done = privbo("run", str(folder / "tiny.toml"), "--out", str(folder / name))
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def published(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of both runs as they may be published: without their private sides."""
    monkeypatch.chdir(tmp_path)
    for name in ("north", "south"):
        shutil.copytree(runs / name, tmp_path / name, ignore=shutil.ignore_patterns("private"))
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        ["ledger", "show", "north/ledger.sqlite"],
        ["ledger", "verify", "north/config.json"],
        ["audit", "north/config.json", "--empirical"],
        ["report", "north/report.html"],
        ["compare", "north/config.json"],
        ["run", "--resume", "north/config.json"],
        ["run", "north"],
        ["audit", "north"],
        ["report", "north/private"],
    ],
    ids=" ".join,
)
def test_a_command_on_something_else_ends_in_one_line(command: list[str], published: Path) -> None:
    done = privbo(*command)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_a_directory_without_its_private_side_is_compared_by_price_and_attacked(published: Path) -> None:
    done = privbo("compare", "north", "south", "--out", "compared", "--json")
    assert done.returncode == 0, done.stderr
    assert not any("by_seed" in setting for setting in json.loads(done.stdout)["settings"])
    done = privbo("audit", "north", "--empirical", "--trials", "1000", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["empirical"]
    assert not (published / "north" / "private").exists()


def test_runs_of_one_configuration_are_told_apart(runs: Path, tmp_path: Path) -> None:
    one = privbo("compare", str(runs / "north"), str(runs / "south"), "--out", str(tmp_path / "compared"))
    assert "(north, south)" in one.stdout


@pytest.mark.parametrize("part", ["privbo", "privbo's code"])
def test_the_attack_refuses_a_run_of_other_code_than_it_would_attack(part: str, published: Path) -> None:
    config = published / "north" / "config.json"
    content = json.loads(config.read_text())
    content["versions"][part] = "0.0.1"
    config.write_text(json.dumps(content))
    done = privbo("audit", "north", "--empirical", "--trials", "1000")
    assert done.returncode == 2
    assert re.search(r"made by .* 0\.0\.1, installed is", done.stderr)


def test_every_line_that_names_an_epsilon_names_its_delta(runs: Path, tmp_path: Path) -> None:
    shown = [
        privbo("report", str(runs / "north")).stdout,
        privbo("run", str(runs / "tiny.toml"), "--dry-run", "--trust").stdout,
        privbo("calibrate", "--epsilon", "2", "--sample-rate", "0.5", "--rounds", "10").stdout,
        privbo("compare", str(runs / "north"), "--out", str(tmp_path / "compared"), "--data", "public",
               "--recommend", "epsilon=9").stdout,
    ]  # fmt: skip
    lines = [
        line
        for text in shown
        for line in text.splitlines()
        if re.search(r"epsilon\b.*[0-9]|guaranteed|as if non", line)
    ]
    assert len(lines) > 5
    assert not [line for line in lines if "delta" not in line]
