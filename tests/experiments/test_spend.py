"""The table of what every algorithm plans and charges."""

from __future__ import annotations

import pytest

from experiments import spend


def test_a_row_says_what_is_planned_what_it_costs_and_how_often_it_differs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spend, "CLIENTS", (12, 200))
    monkeypatch.setattr(spend, "SEEDS", 2)
    monkeypatch.setattr(spend, "EVALUATIONS", (22, 500, 5_000))
    monkeypatch.setattr(spend, "ALGORITHMS", {"pf-pne": spend.ALGORITHMS["pf-pne"]})
    spend.main()
    assert capsys.readouterr().out.splitlines() == [
        "| algorithm | clients | 22 evaluations | 500 evaluations | 5,000 evaluations |",
        "|---|---|---|---|---|",
        "| pf-pne | 12 | 0/6, 0; 0/2 | 0/7, 0; 0/2 | 0/7, 0 |",
        "| pf-pne | 200 | 7/7, 2; 2/2 | 7/7, 2; 2/2 | 7/7, 2 |",
    ]
