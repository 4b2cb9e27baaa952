"""Conventions of the source. Imports are import-linter's, functions' sizes ruff's (both in pyproject.toml)."""

import ast
import io
import os
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import privbo
from tests.sources import ROOT, sources

HOUSE = ("accountant", "privbo", "experiments", "benchmarks")
SILENCED = re.compile(r"# *(noqa(: *[A-Z]+[0-9]+(, *[A-Z]+[0-9]+)*)?|type: ignore(\[[a-z, -]+\])?|pragma: no [a-z]+)")


def texts(*packages: str) -> Iterator[tuple[Path, str]]:
    for path in sources(*packages):
        yield path.relative_to(ROOT), path.read_text()


def contracts() -> dict[str, dict]:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {contract["id"]: contract for contract in table["tool"]["importlinter"]["contracts"]}


def test_every_room_is_on_a_floor() -> None:
    floors = contracts()["floors"]["layers"]
    placed = {room.strip() for floor in floors for room in floor.split("|")} | {"privbo.quickstart"}
    rooms = {f"privbo.{path.parent.name}" for path in (ROOT / "privbo").glob("*/__init__.py")}
    assert rooms == {room for room in placed if room.startswith("privbo.")}


def test_no_module_of_the_accountant_is_missing_from_what_the_auditor_may_not_import() -> None:
    forbidden = {name for name in contracts()["auditor"]["forbidden_modules"] if name.startswith("accountant.")}
    folder = ROOT / "accountant"
    here = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    assert forbidden == {f"accountant.{name}" for name in here - {"__init__", "ours", "verify"}}


def test_every_public_name_has_an_example() -> None:
    assert {name for name in privbo.__all__ if ">>>" not in (getattr(privbo, name).__doc__ or "")} == set()


def test_nobody_left_both_sides_of_a_merge_standing() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("*.yml"), *ROOT.glob("*.toml"), *(ROOT / "docs").rglob("*.md")]
    marked = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)
    assert pages
    assert [path for path in pages if marked.search(path.read_text())] == []
    assert marked.search("a\n" + "<" * 7 + " HEAD\n")


def unexplained(source: str) -> list[str]:
    """Comments that silence a tool and say no word why."""
    comments = (t.string for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.COMMENT)
    return [text for text in comments if SILENCED.search(text) and not re.search("[a-z]{2}", SILENCED.sub("", text))]


def test_whoever_silences_a_tool_says_why() -> None:
    assert not {path: found for path, text in texts(*HOUSE, "tests") if (found := unexplained(text))}
    silent = "x = 1  # " + "noqa: E501\ny = x  # " + "type: ignore[misc]\n"
    assert len(unexplained(silent)) == 2
    assert unexplained("x = 1  # " + "noqa: S101 (a reason)\ny = x  # " + "type: ignore[misc]  # another\n") == []


PLANTED = {
    "kept": {"top.py": "from hut import base", "base.py": ""},
    "an arrow up": {"top.py": "", "base.py": "from hut import top"},
    "a circle inside a room": {"top.py": "", "base.py": "", "room/a.py": "from hut.room import b",
                               "room/b.py": "def late():\n    from hut.room import a"},
}  # fmt: skip
CONTRACTS = """[importlinter]
root_package = hut
[importlinter:contract:floors]
name = floors
type = layers
layers =
  hut.top
  hut.base
[importlinter:contract:circles]
name = circles
type = acyclic_siblings
ancestors = hut
"""


@pytest.mark.parametrize("planted", PLANTED)
def test_planted_arrows_are_seen(planted: str, tmp_path: Path) -> None:
    for name, text in PLANTED[planted].items():
        (tmp_path / "hut" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "hut" / name).parent.joinpath("__init__.py").touch()
        (tmp_path / "hut" / name).write_text(text)
    (tmp_path / ".importlinter").write_text(CONTRACTS)
    linter = str(Path(sys.executable).parent / "lint-imports")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([linter, "--no-cache"], cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert done.returncode == (0 if planted == "kept" else 1), done.stdout


def test_no_epsilon_is_written_with_a_format_that_may_round_it_down() -> None:
    """Bounds are written by ``accountant.wording.upper_text``; budgets that were typed in (``:g``) stay as typed."""
    price = re.compile(r"(epsilon|price|cost|paid|spent|least|quoted|whole|projected)s?\b(?!_lower)")
    found = []
    for path, text in texts("accountant", "privbo"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
                form, value = ast.unparse(node.format_spec), ast.unparse(node.value)
                if re.search(r"\.\d+[gfe]", form) and price.search(value) and "_lower" not in value:
                    found.append(f"{path}: {value}")
    assert not found
