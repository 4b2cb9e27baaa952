"""The table of what is charged: a cell that is charged differs from its noise, one that does not costs nothing."""

from __future__ import annotations

import pytest

from experiments import spend


def test_a_row_says_what_is_planned_what_it_costs_and_how_often_it_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spend, "CLIENTS", (12, 200))
    monkeypatch.setattr(spend, "EVALUATIONS", (22, 500))
    monkeypatch.setattr(spend, "ALGORITHMS", {"pf-pne": spend.ALGORITHMS["pf-pne"]})
    found = [(n, t, releases, epsilon, differs) for _, n, t, releases, epsilon, differs in spend.rows()]
    assert found == [
        (12, 22, "0 of 6", "0.00", "0 of 8"),
        (12, 500, "0 of 7", "0.00", "0 of 8"),
        (200, 22, "7 of 7", "2.00", "8 of 8"),
        (200, 500, "7 of 7", "2.00", "8 of 8"),
    ]


def test_the_table_is_printed_row_by_row(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(spend, "rows", lambda: iter([["pf-pne", 12, 22, "0 of 6", "0.00", "0 of 8"]]))
    spend.main()
    assert capsys.readouterr().out.splitlines()[-1] == "| pf-pne | 12 | 22 | 0 of 6 | 0.00 | 0 of 8 |"
