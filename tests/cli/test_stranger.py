"""Commands on a stranger's files: nothing of theirs is run, followed or obeyed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import privbo as pb
from experiments.examples.zoom import Zoom
from privbo.audits.empirical import audit_run
from tests.cli.test_cli import CONFIG, privbo
from tests.cli.test_reading import READING
from tests.conformance.small import problem

STATED = CONFIG.replace(
    "[algorithm]", 'n_clients = 6\n[problem.space]\nx = { type = "real", low = 0.0, high = 1.0 }\n[algorithm]'
)
TRAP = """
from pathlib import Path
Path({path!r}).write_text("run")
from tests.crash_problem import problem
"""


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that stands once a stranger's module ``trap`` was imported."""
    sprung = tmp_path / "sprung"
    (tmp_path / "trap.py").write_text(TRAP.format(path=str(sprung)))
    monkeypatch.chdir(tmp_path)
    return sprung


def planted(home: Path, change: Callable[[dict], None]) -> None:
    """A directory whose manifest was changed, as by a stranger."""
    content = json.loads((home / "config.json").read_text())
    change(content)
    (home / "config.json").write_text(json.dumps(content))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stranger")
    (folder / "tiny.toml").write_text(STATED)
    done = privbo("run", str(folder / "tiny.toml"), "--out", str(folder / "run"))
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.fixture
def foreign(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(made, tmp_path / "foreign"))


def names_the_trap(content: dict) -> None:
    content["spec"]["problem"]["factory"] = "trap:problem"


def hides_the_facts(content: dict) -> None:
    names_the_trap(content)
    del content["spec"]["problem"]["n_clients"]


LINES = [line for lines in READING.values() for line in lines if not re.search("home|theirs|sweep|bundle.json", line)]


@pytest.mark.parametrize("change", [names_the_trap, hides_the_facts])
@pytest.mark.parametrize("command", LINES)
def test_reading_a_strangers_directory_imports_none_of_its_code(
    command: str, change: Callable[[dict], None], foreign: Path, trap: Path
) -> None:
    planted(foreign, change)
    done = privbo(*command.format(run=foreign, out=foreign.parent).split())
    assert not trap.exists()
    assert "Traceback" not in done.stderr
    if command == "run --resume {run}":
        assert (done.returncode, "--trust" in done.stderr) == (2, True)


def test_a_strangers_run_is_resumed_where_it_is_trusted_and_ones_own_always(
    foreign: Path, trap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(foreign, names_the_trap)
    assert privbo("run", "--resume", str(foreign), "--trust").returncode == 0
    assert trap.exists()
    own = foreign.parent / "own"
    (foreign.parent / "tiny.toml").write_text(STATED)
    assert privbo("run", "tiny.toml", "--out", str(own)).returncode == 0
    assert privbo("run", "--resume", str(own)).returncode == 0
    monkeypatch.setenv("XDG_STATE_HOME", str(foreign.parent / "another user"))
    assert privbo("run", "--resume", str(own)).returncode == 2


@pytest.mark.parametrize("stated", [False, True])
def test_the_price_of_a_configuration_needs_none_of_its_code(stated: bool, tmp_path: Path, trap: Path) -> None:
    text = (STATED if stated else CONFIG).replace("tests.crash_problem:", "trap:")
    (tmp_path / "theirs.toml").write_text(text)
    done = privbo("run", "theirs.toml", "--dry-run")
    assert done.returncode == (0 if stated else 2), done.stderr
    assert not trap.exists()
    if not stated:
        assert "--trust" in done.stderr
        assert privbo("run", "theirs.toml", "--dry-run", "--trust").returncode == 0


LINKS = {
    "a page's temporary file": ("report.html.new", ["report", "{}"]),
    "a private page's": ("private/report.html.new", ["report", "{}", "--private"]),
    "an audit's": ("private/audit.html.new", ["audit", "{}"]),
    "a page": ("report.html", ["report", "{}"]),
    "the history": ("history.jsonl", ["run", "--resume", "{}", "--trust"]),
    "the manifest's": ("config.json.new", ["run", "--resume", "{}", "--trust"]),
    "the clients' state": ("private/clients-0.states.new", ["run", "--resume", "{}", "--trust"]),
}


@pytest.mark.parametrize("link", LINKS)
def test_no_planted_link_leads_to_a_file_of_the_readers(link: str, foreign: Path, tmp_path: Path) -> None:
    name, command = LINKS[link]
    mine = tmp_path / "mine"
    mine.write_text("precious")
    (foreign / name).unlink(missing_ok=True)
    (foreign / name).symlink_to(mine)
    done = privbo(*(part.format(foreign) for part in command))
    assert mine.read_text() == "precious"
    assert "Traceback" not in done.stderr


WRITING = [["report", "{}", "--private"], ["audit", "{}"], ["run", "--resume", "{}", "--trust"]]


@pytest.mark.parametrize("command", WRITING)
def test_a_private_folder_that_leads_elsewhere_is_refused(command: list[str], foreign: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    (foreign / "private").rename(mine)
    (foreign / "private").symlink_to(mine)
    before = {path: path.read_bytes() for path in mine.iterdir()}
    done = privbo(*(part.format(foreign) for part in command))
    assert done.returncode == 2
    assert "symbolic link" in done.stderr
    assert {path: path.read_bytes() for path in mine.iterdir()} == before


def test_an_algorithm_of_ones_own_is_attacked_where_its_code_is_trusted(tmp_path: Path) -> None:
    home = tmp_path / "zoom"
    privacy = pb.Privacy(noise_multiplier=4.0, noise="simulation")
    pb.run(problem(), Zoom(n_candidates=2), privacy=privacy, rounds=2, directory=home)
    attack = ("audit", str(home), "--empirical", "--trials", "1000", "--json")
    refused = privbo(*attack)
    assert refused.returncode == 2
    assert "Not importing experiments.examples.zoom:Zoom without --trust" in refused.stderr
    found = privbo(*attack, "--trust")
    assert found.returncode == 0, found.stderr
    with pytest.raises(pb.RunError, match=r"trust=True"):
        audit_run(pb.load(home), trials=1000)
    assert audit_run(pb.load(home), trials=1000, trust=True)
    assert {row["passed"] for row in json.loads(found.stdout)["empirical"]} == {True}
