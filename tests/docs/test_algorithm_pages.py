"""Every algorithm has a page with its formula, its guarantee, its settings and a picture."""

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
