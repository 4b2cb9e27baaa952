"""The Markdown table of a panel.

A study's ``columns`` maps heads to texts with fields in braces. A field is a measure's name, or
``label``, ``runs``, ``releases``, ``z``, ``printed`` (what the paper prints), ``paper`` and ``strict`` (tight epsilon
at N^-1.1 and at min(1e-5, 1/(10 N))), ``minus[LABEL]`` (paired difference), ``over[LABEL]`` (ratio of means).
``{cumulative:.3f±}`` adds the standard error, ``{cumulative:.1f~}`` the standard deviation, both over seeds;
``.least``, ``.most`` and ``.total`` are the others. What a row does not have is ``-``.
"""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Mapping

import numpy as np

from experiments.study import Panel
from experiments.summary import Row, Rows, deltas, zeroed


def shown(label: str) -> str:
    """Give an arm's label as tables print it: studies call the noise-only control "sum zeroed"."""
    return re.sub(r"((clients|players)' )?sum zeroed", "noise only", label).replace("price of z", "cost of z")


def table(panel: Panel, rows: Rows) -> str:
    """Give the panel as Markdown: what it is, one row per arm, then differences, ratios and slope."""
    lines = [*textwrap.wrap(f"**{panel.title}** ({_facts(panel, rows)})", 119), ""]
    lines += ["| arm | " + " | ".join(panel.columns) + " |", "|---" * (len(panel.columns) + 1) + "|"]
    for label, row in rows.items():
        lines.append(f"| {shown(label)} | " + " | ".join(columns_of(panel, row, zeroed(label, rows, panel))) + " |")
    said = [line for pair in panel.contrasts if (line := _contrast(pair[0], pair[1], rows, panel.measure))]
    said += [
        f"- {shown(label)} / {shown(other)} = {r:.2f[}" for label, row in rows.items() for other, r in row.over.items()
    ]
    said += _slope(panel, rows)
    return "\n".join([*lines, "", *said, ""] if said else [*lines, ""])


def brief(panel: Panel, rows: Rows) -> str:
    """Give the panel as a table of three columns: the measure that the paper shows, and its controls."""
    measure = panel.measure
    digits = 4 if measure == "last" else 3
    columns = {
        "last loss" if measure == "last" else "cumulative loss": f"{{{measure}:.{digits}f±}}",
        "minus local TS": f"{{minus[local TS]:+.{digits}f±}}",
        "minus noise only": f"{{minus[zeroed]:+.{digits}f±}}",
    }
    narrow = dataclasses.replace(panel, columns=columns)
    lines = [f"| {panel.title} | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for label, row in rows.items():
        lines.append(f"| {shown(label)} | " + " | ".join(columns_of(narrow, row, zeroed(label, rows, panel))) + " |")
    return "\n".join(lines)


def _facts(panel: Panel, rows: Rows) -> str:
    facts = [f"seeds {panel.first_seed} and on", panel.note]
    n_clients = max(row.n_clients for row in rows.values())
    if n_clients:
        facts.insert(0, f"N={n_clients}")
    if panel.prices and n_clients:
        small, default = deltas(n_clients)
        facts.append(
            "simulated, seeded noise; epsilon as the paper prints it, and the tight epsilon of the noise drawn at "
            f"delta = N^-1.1 = {small:.3g} and at {default:.3g}; differences are paired by seed"
        )
    return "; ".join(fact for fact in facts if fact)


def columns_of(panel: Panel, row: Row, own: str | None) -> list[str]:
    """Give a row's texts in the panel's columns; ``own`` is the label of its noise-only control."""
    fields = fields_of(row, panel.measure, own)
    return [text_of(column, fields) for column in panel.columns.values()]


def fields_of(row: Row, measure: str, own: str | None = None) -> dict[str, object]:
    """Give what a column's text may name."""
    minus = {other: by[measure] for other, by in row.minus.items() if measure in by}
    if own in minus:
        minus["zeroed"] = minus[own]
    prices = dict(zip(("paper", "strict"), row.epsilon, strict=False)) if row.releases else {}
    fields = {"z": row.z, "printed": row.printed, **prices}
    kept = {name: value for name, value in fields.items() if value is not None}
    counts = {"label": row.label, "runs": len(row.seeds), "releases": row.releases}
    return {**counts, **kept, "minus": minus, "over": {other: r.value for other, r in row.over.items()}, **row.measures}


def text_of(column: str, fields: Mapping[str, object]) -> str:
    """Fill a column's text; ``-`` where the row has no such field."""
    try:
        return column.format_map(fields).replace("inf", "infinite")
    except KeyError:
        return "-"


def _contrast(one: str, other: str, rows: Rows, measure: str) -> str:
    if one not in rows or other not in rows[one].minus:
        return ""
    found = rows[one].minus[other][measure]
    return f"- {shown(one)} minus {shown(other)}: {found:+.3f±} ({len(found.by_seed)} runs)"


def _slope(panel: Panel, rows: Rows) -> list[str]:
    """Slope of the measure's logarithm over that of ``x``."""
    if not panel.slope:
        return []
    low, high = panel.slope
    inside = [(row.x, row.measures[panel.measure].mean) for row in rows.values() if row.x and low <= row.x <= high]
    x, y = np.log(np.array(inside)).T
    return [f"- slope of log {panel.measure} over log x, {low:g} to {high:g}: {np.polyfit(x, y, 1)[0]:.2f}"]
