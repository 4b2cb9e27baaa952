"""Tables of a study for other programs: one CSV with a row per arm."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from experiments.study import Panel
from experiments.summary import Row, Rows, zeroed


def comma_separated(panels: Sequence[tuple[Panel, Rows]]) -> str:
    """Give a row per arm: every measure with its standard error, prices, and differences to the controls."""
    lines = [
        (panel, row, _numbers(row, zeroed(label, rows, panel))) for panel, rows in panels for label, row in rows.items()
    ]
    heads = list(dict.fromkeys(head for _, _, numbers in lines for head in numbers))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["panel", "arm", "runs", *heads])
    for panel, row, numbers in lines:
        writer.writerow([panel.title, row.label, len(row.seeds), *(numbers.get(head, "") for head in heads)])
    return text.getvalue()


def _numbers(row: Row, own: str | None) -> dict[str, str]:
    found: dict[str, float | None] = {}
    for name, measure in row.measures.items():
        found |= {name: measure.mean, f"{name}, standard error": measure.error}
    if row.releases:
        found |= {"noise multiplier": row.z, "epsilon, printed": row.printed}
        found |= dict(zip(("epsilon, N^-1.1", "epsilon, default delta"), row.epsilon, strict=False))
    for other, by in row.minus.items():
        for name, difference in by.items():
            head = f"{name} minus " + ("sum zeroed" if other == own else other)
            found |= {head: difference.mean, f"{head}, standard error": difference.error}
    return {head: f"{value:.5g}" for head, value in found.items() if value is not None and not math.isnan(value)}
