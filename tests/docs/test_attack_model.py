"""Cells of the attack model's table: each names tests that try it, or concedes; every test that is named is there."""

from __future__ import annotations

import re

from tests.docs.test_proofs import names_in
from tests.sources import ROOT

PAGE = (ROOT / "docs" / "attack-model.md").read_text()
CONCEDED = ("lost", "nothing to say", "the same", "the rows above", "as that site")


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
    cited = {int(number) for row in table.values() for cell in row for number in re.findall(r"\[(\d+)\]", cell)}
    found += [f"{party}: {row}" for party, row in table.items() if len(row) != 3]
    found += [
        f"{party}: {cell!r} names no test and concedes nothing"
        for party, row in table.items()
        for cell in row
        if not re.search(r"\[\d+\]", cell) and not any(word in cell for word in CONCEDED) and "bundle" not in cell
        and "reading it" not in cell
    ]  # fmt: skip
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
