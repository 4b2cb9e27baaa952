"""Every event and mechanism has a proof, and every proof names tests that are there."""

import ast
import inspect
import re
import runpy
import typing
from pkgutil import resolve_name

import pytest

from accountant import filters
from accountant.envelope import Envelope
from accountant.events import Basic, Composed, of_noises, of_seen_samples
from accountant.ledger.book import Reservation
from accountant.ledger.pricing import odometer
from privbo.door import adaptive, mechanism, opacus, selection, sums
from privbo.door.door import Door
from privbo.door.shares import GuardianDoor
from privbo.runs.sources import algorithms
from tests.docs.test_blocks import PAGES
from tests.sources import ROOT, sources

FOLDER = ROOT / "docs" / "proofs"
PROOFS = sorted(path for path in FOLDER.glob("*.md") if path.name != "index.md")
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
LINK = re.compile(r"Proof: (docs/proofs/[\w-]+\.md)")
HEADINGS = ["## Statement", "## Assumptions", "## Proof", "## The tests that would notice"]


def missing(text: str) -> list[str]:
    """Tests that a text names and that are not there."""
    return [f"{path}::{name}" for path, name in NAMED.findall(text) if name not in names_in(ROOT / path)]


def names_in(path) -> set[str]:
    if not path.exists():
        return set()
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def subjects():
    """Every event, everything in the door that has an event or a release of its own, and every filter."""
    yield from (*Basic.kinds.values(), Composed)
    for module in (mechanism, adaptive):
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


@pytest.mark.parametrize("page", PROOFS, ids=lambda page: page.stem)
def test_a_proof_has_its_parts_and_names_tests_that_are_there(page) -> None:
    text = page.read_text()
    assert [line for line in text.splitlines() if line in HEADINGS] == HEADINGS
    assert missing(text) == []
    assert NAMED.search(text)


@pytest.mark.parametrize("subject", list(subjects()), ids=lambda subject: subject.__name__)
def test_every_event_mechanism_and_filter_links_its_proof(subject: object) -> None:
    assert unproven(subject) is None


def test_every_page_stands_in_the_table() -> None:
    assert [page.name for page in PROOFS if f"({page.name})" not in (FOLDER / "index.md").read_text()] == []


def test_a_missing_test_and_a_missing_proof_are_noticed() -> None:
    gone = ["tests/docs/test_proofs.py::test_nothing", "tests/no.py::test_a"]
    assert missing(" ".join(f"`{name}`" for name in [*gone, "tests/docs/test_proofs.py::names_in"])) == gone

    class Unproven:
        """Proof: docs/proofs/plans.md."""

    assert "does not name it" in str(unproven(Unproven))
    assert "has no line" in str(unproven(ROOT))


def test_the_door_has_no_other_mechanism() -> None:
    """Whatever has an event of its own stands in a module that ``subjects`` looks through."""
    own = re.compile(r"^    def event\(self\)", re.MULTILINE)
    found = {path.stem for path in sources("privbo/door") if own.search(path.read_text())}
    assert found == {"mechanism", "adaptive", "opacus"}


# ---- cells of the attack model's table: each names tests that try it, or concedes; every test that is named is there

PAGE = (ROOT / "docs" / "attack-model.md").read_text()
CONCEDED = re.compile(r"\[\d+\]|lost|nothing to say|the same|the rows above|as that site|bundle|reading it")


def cells(page: str) -> dict[str, list[str]]:
    rows = page.partition("| party | honest | curious | hostile |\n")[2].partition("\n\n")[0].splitlines()[1:]
    table = ([cell.strip() for cell in row.strip("|").split("|")] for row in rows)
    return {party: does for party, *does in table}


def listed(page: str) -> dict[int, list[str]]:
    text = page.partition("<!-- the tests:")[2].partition("**What a hostile trusted server")[0]
    return {
        int(number): re.findall(r"`([^`]+)`", body)
        for number, body in re.findall(r"^(\d+)\. (.*?)(?=^\d+\. |\Z)", text, re.MULTILINE | re.DOTALL)
    }


def faults(page: str) -> list[str]:
    table, tests, found = cells(page), listed(page), []
    told = [(party, cell) for party, row in table.items() for cell in row]
    cited = {int(number) for _, cell in told for number in re.findall(r"\[(\d+)\]", cell)}
    found += [f"{party}: {row}" for party, row in table.items() if len(row) != 3]
    found += [
        f"{party}: {cell!r} names no test and concedes nothing" for party, cell in told if not CONCEDED.search(cell)
    ]
    found += [f"[{number}] is cited or listed, not both" for number in cited ^ set(tests)]
    for name in (name for names in tests.values() for name in names):
        path, _, function = name.partition("::")
        if not (ROOT / path).is_file() or (function and function not in names_in(ROOT / path)):
            found.append(f"{name} is not there")
    return found


def test_every_cell_of_the_attack_model_is_tried_or_conceded() -> None:
    assert len(cells(PAGE)) >= 15
    assert len(listed(PAGE)) >= 15
    assert faults(PAGE) == []


def test_a_cell_without_a_test_and_a_test_that_is_gone_are_noticed() -> None:
    assert faults(PAGE.replace("by G - 1 noises: its shares are uniform [8]", "by G - 1 noises"))
    assert faults(PAGE.replace("test_a_bent_question_is_refused", "test_nothing_is_refused"))
    assert faults(PAGE.replace("[13]", "[99]"))


# ---- files and modules that the pages name are where the pages say

PATHS = re.compile(r"`((?:accountant|privbo|experiments|benchmarks|tests|docs)[./][\w./-]*)")


def lost(text: str) -> list[str]:
    return [name for name in PATHS.findall(text) if not ((ROOT / name).exists() if "/" in name else is_name(name))]


def is_name(name: str) -> bool:
    """A module, or something in one, such as ``accountant.filters.quote``."""
    try:
        resolve_name(name.rstrip("."))
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page: str) -> None:
    assert lost((ROOT / page).read_text()) == []


def test_a_wrong_name_is_noticed() -> None:
    text = "`privbo/release/door.py`, `accountant.numerical.magic`, `privbo.Nothing`, `accountant.filters.quote`"
    assert lost(text) == ["privbo/release/door.py", "accountant.numerical.magic", "privbo.Nothing"]


# ---- every algorithm has a page with its formula, its guarantee, its settings and a picture

WANTED = {
    "a formula": ("\n$$\n", "\n   $$\n"),
    "what is guaranteed": ("\n## Guarantee\n",),
    "a picture": ("\n![", "\nfigure, "),
}


def lacking(text: str):
    yield from (what for what, marks in WANTED.items() if not any(mark in text for mark in marks))


@pytest.mark.parametrize("kind", sorted(algorithms().keys() - {"pe"}))  # pe is the control of the eliminations
def test_the_page_of_an_algorithm_has_all_that_readers_look_for(kind: str) -> None:
    pages = [text for text in ((ROOT / page).read_text() for page in PAGES) if f"<!-- defaults: {kind} -->" in text]
    assert len(pages) == 1
    assert set(lacking(pages[0])) <= ({"a picture"} if kind in {"scout", "multi-task"} else set())


def test_a_page_that_lacks_something_is_told() -> None:
    assert list(lacking("# A page\n\n## Guarantee\n\nNone.\n")) == ["a formula", "a picture"]


def test_a_table_inside_an_algorithm_shows_the_algorithms_own_defaults() -> None:
    reference = runpy.run_path(str(ROOT / "docs" / "site_parts.py"))["settings_reference"]
    rows = [row for row in reference() if re.match(r"\| `(exploration|weighting|own)` \|", row)]
    *shown, wide = [row.split(" | ")[2] for row in rows]
    assert shown == ['`{"power": 1.0}`', "that table's", '`{"kernel": "se"}`']
    assert wide.startswith('`{"outputscale": {"median": 1.0, "spread": 1.0')
