"""Every algorithm has a page with its formula, its guarantee, its settings and a picture."""

import re
import runpy
from collections.abc import Iterator

import pytest

from privbo.runs.sources import algorithms
from tests.docs.test_blocks import PAGES, ROOT

WANTED = {
    "a formula": ("\n$$\n", "\n   $$\n"),
    "what is guaranteed": ("\n## Guarantee\n",),
    "a picture": ("\n![", "\nfigure, "),
}
PICTURELESS = {"scout", "multi-task"}  # the one finds one number, the other's study is not on a page yet


def lacking(text: str) -> Iterator[str]:
    yield from (what for what, marks in WANTED.items() if not any(mark in text for mark in marks))


@pytest.mark.parametrize("kind", sorted(algorithms().keys() - {"pe"}))  # pe is the control of the eliminations
def test_the_page_of_an_algorithm_has_all_that_readers_look_for(kind: str) -> None:
    pages = [text for text in ((ROOT / page).read_text() for page in PAGES) if f"<!-- defaults: {kind} -->" in text]
    assert len(pages) == 1
    assert set(lacking(pages[0])) <= ({"a picture"} if kind in PICTURELESS else set())


def test_a_page_that_lacks_something_is_told() -> None:
    assert list(lacking("# A page\n\n## Guarantee\n\nNone.\n")) == ["a formula", "a picture"]


def test_a_table_inside_an_algorithm_shows_the_algorithms_own_defaults() -> None:
    reference = runpy.run_path(str(ROOT / "docs" / "site_parts.py"))["settings_reference"]
    rows = [row for row in reference() if re.match(r"\| `(exploration|weighting|own)` \|", row)]
    *shown, wide = [row.split(" | ")[2] for row in rows]
    assert shown == ['`{"power": 1.0}`', "that table's", '`{"kernel": "se"}`']
    assert wide.startswith('`{"outputscale": {"median": 1.0, "spread": 1.0')
