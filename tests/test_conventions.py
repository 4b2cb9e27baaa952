"""Conventions of the source. Imports are import-linter's, functions' sizes ruff's (both in pyproject.toml)."""

import ast
import io
import re
import tokenize
import tomllib

import privbo
from tests.sources import ROOT, sources, trees

PACKAGES = ("accountant", "privbo", "experiments", "benchmarks")
SILENCED = re.compile(r"# *(noqa(: *[A-Z]+[0-9]+(, *[A-Z]+[0-9]+)*)?|type: ignore(\[[a-z, -]+\])?|pragma: no [a-z]+)")


def contracts() -> dict[str, dict]:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {contract["id"]: contract for contract in table["tool"]["importlinter"]["contracts"]}


def test_every_package_is_in_a_layer() -> None:
    layers = contracts()["layers"]["layers"]
    placed = {package.strip() for layer in layers for package in layer.split("|")} | {"privbo.quickstart"}
    packages = {f"privbo.{path.parent.name}" for path in (ROOT / "privbo").glob("*/__init__.py")}
    assert packages == {package for package in placed if package.startswith("privbo.")}


def test_no_module_of_the_accountant_is_missing_from_what_the_auditor_may_not_import() -> None:
    forbidden = {name for name in contracts()["auditor"]["forbidden_modules"] if name.startswith("accountant.")}
    folder = ROOT / "accountant"
    here = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    assert forbidden == {f"accountant.{name}" for name in here - {"__init__", "ours", "verify"}}


def test_every_public_name_has_an_example() -> None:
    assert {name for name in privbo.__all__ if ">>>" not in (getattr(privbo, name).__doc__ or "")} == set()


def test_no_page_has_conflict_markers() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("*.yml"), *ROOT.glob("*.toml"), *(ROOT / "docs").rglob("*.md")]
    marked = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)
    assert pages
    assert [path for path in pages if marked.search(path.read_text())] == []
    assert marked.search("a\n" + "<" * 7 + " HEAD\n")


def unexplained(source: str) -> list[str]:
    """Comments that silence a tool and give no reason."""
    comments = (t.string for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.COMMENT)
    return [text for text in comments if SILENCED.search(text) and not re.search("[a-z]{2}", SILENCED.sub("", text))]


def test_silenced_tools_come_with_a_reason() -> None:
    assert not {path: found for path in sources(*PACKAGES, "tests") if (found := unexplained(path.read_text()))}
    silent = "x = 1  # " + "noqa: E501\ny = x  # " + "type: ignore[misc]\n"
    assert len(unexplained(silent)) == 2
    assert unexplained("x = 1  # " + "noqa: S101 (a reason)\ny = x  # " + "type: ignore[misc]  # another\n") == []


def test_no_epsilon_is_written_with_a_format_that_may_round_it_down() -> None:
    """Bounds are written by ``accountant.wording.upper_text``; budgets that were typed in (``:g``) stay as typed."""
    price = re.compile(r"(epsilon|price|cost|paid|spent|least|quoted|whole|projected)s?\b(?!_lower)")
    found = []
    for path, tree in trees("accountant", "privbo").items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
                form, value = ast.unparse(node.format_spec), ast.unparse(node.value)
                if re.search(r"\.\d+[gfe]", form) and price.search(value) and "_lower" not in value:
                    found.append(f"{path}: {value}")
    assert not found
