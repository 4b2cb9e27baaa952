"""Every event and mechanism has a proof, and every proof names tests that are there."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from accountant import filters
from accountant.envelope import Envelope
from accountant.events import Basic, Composed, of_noises, of_seen_samples
from accountant.ledger.book import Reservation
from accountant.ledger.pricing import odometer
from privbo.door import adaptive, mechanism, opacus, selection, sums
from privbo.door.door import Door
from privbo.door.shares import GuardianDoor
from tests.docs.test_blocks import ROOT
from tests.sources import sources

FOLDER = ROOT / "docs" / "proofs"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "index.md")
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
LINK = re.compile(r"Proof: (docs/proofs/[\w-]+\.md)")
HEADINGS = ["## Statement", "## Assumptions", "## Proof", "## The tests that would notice"]


def missing(text: str) -> list[str]:
    """Tests that a text names and that are not there."""
    return [f"{path}::{name}" for path, name in NAMED.findall(text) if name not in names_in(ROOT / path)]


def names_in(path: Path) -> set[str]:
    if not path.exists():
        return set()
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def subjects() -> Iterator[object]:
    """Every event, everything in the door that has an event or a release of its own, and every filter."""
    yield from (*Basic.kinds.values(), Composed)
    for name in ("mechanism", "adaptive"):
        module = importlib.import_module(f"privbo.door.{name}")
        yield from (
            kind
            for _, kind in inspect.getmembers(module, inspect.isclass)
            if kind.__module__ == module.__name__ and callable(getattr(kind, "event", None))
        )
    yield from (selection.SelectionDoor, opacus.LedgerAccountant, sums.noisy_gradient_sum, Door)
    yield from (GuardianDoor, of_noises, of_seen_samples)
    yield from (filters.GaussianFilter, filters.FixedOrderFilter, Envelope, odometer, Reservation)


def unproven(subject: object) -> str | None:
    """Why a subject has no proof: its docstring links no page, or one that does not name it."""
    linked = LINK.findall(subject.__doc__ or "")
    if not linked:
        return f"{subject}: its docstring has no line 'Proof: docs/proofs/NAME.md.'"
    where = [ROOT / link for link in linked]
    name = typing.cast("type", subject).__name__
    named = any(path.exists() and re.search(rf"\b{name}\b|{name.lower()}", path.read_text()) for path in where)
    return None if named else f"{subject}: {linked} does not name it, or is not there"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_proof_has_its_parts_and_names_tests_that_are_there(page: Path) -> None:
    text = page.read_text()
    assert [line for line in text.splitlines() if line in HEADINGS] == HEADINGS
    assert missing(text) == []
    assert NAMED.search(text)


@pytest.mark.parametrize("subject", list(subjects()), ids=lambda subject: subject.__name__)
def test_every_event_mechanism_and_filter_links_its_proof(subject: object) -> None:
    assert unproven(subject) is None


def test_every_page_stands_in_the_table() -> None:
    index = (FOLDER / "index.md").read_text()
    assert [page.name for page in PAGES if f"({page.name})" not in index] == []


def test_a_missing_test_and_a_missing_proof_are_noticed() -> None:
    text = (
        "`tests/docs/test_proofs.py::test_nothing`, `tests/nowhere.py::test_a`, `tests/docs/test_proofs.py::names_in`"
    )
    assert missing(text) == ["tests/docs/test_proofs.py::test_nothing", "tests/nowhere.py::test_a"]

    class Unproven:
        """Proof: docs/proofs/plans.md."""

    assert "does not name it" in str(unproven(Unproven))
    assert "has no line" in str(unproven(ROOT))


def test_the_door_has_no_other_mechanism() -> None:
    """Whatever has an event of its own stands in a module that ``subjects`` looks through."""
    found = {
        path.stem
        for path in sources("privbo/door")
        if re.search(r"^    def event\(self\)", path.read_text(), re.MULTILINE)
    }
    assert found == {mechanism.__name__.rpartition(".")[2], adaptive.__name__.rpartition(".")[2], "opacus"}
