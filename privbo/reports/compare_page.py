"""The comparison as a page: frontier, convergence, table, paired differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privbo.comparisons.comparison import Comparison, standard_error
from privbo.plans.prices import smallest
from privbo.protocol.files import write_atomically
from privbo.protocol.messages import FloatArray
from privbo.reports import document as doc
from privbo.reports.figures import COLOURS, layout, line
from privbo.reports.tables import csv_text, delta_text, epsilon_text, latex, markdown, strict_head, strict_text

_LINES = {"local": (4, "dash"), "non-private": (2, "dot"), "zeroed": (3, "dashdot")}


def write_comparison(comparison: Comparison, folder: Path, *, shared_assets: bool = False) -> Path:
    """Write compare.html and the table as Markdown, CSV and LaTeX; returns the page's path."""
    page = doc.write_document(document(comparison), folder / "compare.html", shared_assets=shared_assets)
    for name, content in (
        ("table.md", markdown(comparison)),
        ("table.csv", csv_text(comparison)),
        ("table.tex", latex(comparison)),
    ):
        write_atomically(folder / name, content.encode())
    return page


def document(comparison: Comparison) -> doc.Document:
    """The page's parts."""
    figures: dict[str, doc.Figure] = {}
    parts = [_headline(comparison), doc.warnings(_warnings(comparison))]
    if comparison.shows_utility:
        figures |= {"frontier": frontier(comparison), "convergence": convergence(comparison)}
        caption = f"Mean best score over clients, {comparison.utility}; bars are standard errors."
        parts += [
            doc.section("Utility against epsilon", doc.figure("frontier", caption, 420)),
            doc.section(
                "Convergence", doc.figure("convergence", "Mean best score over clients, mean over seeds.", 420)
            ),
        ]
    elif (chosen := comparison.recommendation) is not None and chosen.released is not None:
        figures["released"] = released(comparison, chosen.released, chosen.released_stddev)
        caption = "Mean best score over clients as released and paid for; bars are the standard deviation of its noise."
        parts.append(doc.section("Released utility against epsilon", doc.figure("released", caption, 420)))
    parts += [
        doc.section("Table", _table(comparison)),
        doc.section("Differences on the same seeds", _differences(comparison)),
    ]
    return doc.Document(title=f"Comparison: {comparison.name}", body="\n".join(parts), figures=figures)


def _headline(comparison: Comparison) -> str:
    found = comparison.recommendation
    seeds = max(len(s.seeds) for s in comparison.settings)
    words = f"{len(comparison.private)} settings, {seeds} seeds each, on {comparison.data} data."
    if found is None:
        return doc.paragraph(words, "big")
    chosen = f"Within epsilon {found.budget:g}: {found.label} (epsilon {doc.bound(found.epsilon)})"
    return doc.paragraph(f"{chosen}; {found.because}.", "big") + doc.paragraph(words, "soft")


def _warnings(comparison: Comparison) -> list[str]:
    notes = []
    if comparison.data == "private" and comparison.shows_utility:
        notes.append(
            "Private diagnostics, not covered by epsilon: the utilities on this page come from clients' own scores. "
            "Choosing by them, or publishing them, is not paid for. Keep this page where the clients' data are."
        )
    elif comparison.data == "private":
        notes.append(
            "Utilities are left out: they come from clients' own scores, and no epsilon covers them. "
            "A choice among the settings is shown only if it was paid for."
        )
    if comparison.seeded:
        notes.append("Noise was seeded: these runs are simulations and protect nobody.")
    if comparison.composed is not None:
        best = smallest(comparison.composed)
        notes.append(
            f"All cells together cost their population epsilon {doc.bound(best)} at delta "
            f"{comparison.composed_delta:.3g}; whoever was in one of them was in all."
        )
    return notes


def _table(comparison: Comparison) -> str:
    judged = {"utility": comparison.utility, "standard_error": "standard error", "final": "final"}
    shown = judged if comparison.shows_utility else {}
    strict = strict_head(comparison)
    head = ("setting", "epsilon", "delta", *strict, "multiplier", "releases", *shown.values(), "seeds")
    rows = [
        (
            row["setting"],
            epsilon_text(row),
            delta_text(row),
            *(strict_text(row) for _ in strict),
            row["noise_multiplier"],
            row["releases"],
            *(row[name] for name in shown),
            row["seeds"],
        )
        for row in comparison.rows()
    ]
    return doc.table(head, rows)


def _differences(comparison: Comparison) -> str:
    rows = [(d.first, d.second, d.mean, d.standard_error, d.p_value, d.n_seeds) for d in comparison.differences()]
    head = ("setting", "minus", "mean difference", "standard error", "p (paired t)", "seeds")
    return f'<div class="long">{doc.table(head, rows)}</div>' if rows else ""


def frontier(comparison: Comparison) -> doc.Figure:
    """Utility against epsilon with standard errors; controls as level lines."""
    shown = sorted((s for s in comparison.private if s.epsilon), key=lambda s: float(s.epsilon or 0.0))
    values = [s.utilities(comparison.utility) for s in shown]
    epsilons = [float(s.epsilon or 0.0) for s in shown]
    bars = {"type": "data", "array": [standard_error(v) or 0.0 for v in values], "visible": True}
    hover = {"text": [s.label for s in shown], "hovertemplate": "%{text}<br>epsilon %{x:.3g}: %{y:.4f}<extra></extra>"}
    data = [line("private", epsilons, [float(v.mean()) for v in values], 0, error_y=bars, **hover)]
    if len(set(epsilons)) < len(epsilons):
        data[0]["mode"] = "markers"  # several settings at one epsilon are no curve
    reach = [min(epsilons, default=1.0), max(epsilons, default=1.0)]
    for control in comparison.settings:
        if control.kind in _LINES:
            index, dash = _LINES[control.kind]
            level = float(control.utilities(comparison.utility).mean())
            data.append(line(control.label, reach, [level] * 2, index, mode="lines", line={"dash": dash}))
    return {"data": data, "layout": layout("epsilon", comparison.utility, xaxis=_scale(epsilons))}


def released(comparison: Comparison, scores: Mapping[str, float], stddev: float | None) -> doc.Figure:
    """What a paid choice released: noisy mean best score against epsilon."""
    shown = sorted((s for s in comparison.private if s.label in scores), key=lambda s: float(s.epsilon or 0.0))
    epsilons = [float(s.epsilon or 0.0) for s in shown]
    bars = {"type": "data", "array": [stddev or 0.0] * len(shown), "visible": True}
    hover = {"text": [s.label for s in shown], "hovertemplate": "%{text}<br>epsilon %{x:.3g}: %{y:.4f}<extra></extra>"}
    points = line("released", epsilons, [scores[s.label] for s in shown], 0, mode="markers", error_y=bars, **hover)
    return {"data": [points], "layout": layout("epsilon", "mean best score, released", xaxis=_scale(epsilons))}


def _scale(epsilons: Sequence[float]) -> dict[str, Any]:
    ticks = sorted(set(epsilons))[:: max(1, len(set(epsilons)) // 8)]
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:.3g}" for tick in ticks]}


def convergence(comparison: Comparison) -> doc.Figure:
    """Mean best score against rounds, one line per setting, bands of one standard error."""
    data = []
    for index, setting in enumerate(comparison.settings):
        if setting.curves is not None:
            data += _band(setting.label, setting.curves, index)
    return {"data": data, "layout": layout("round", "mean best score over clients")}


def _band(label: str, curves: FloatArray, index: int) -> list[dict[str, object]]:
    mean = curves.mean(axis=0)
    rounds = list(range(len(mean)))
    spread = curves.std(axis=0, ddof=1) / np.sqrt(len(curves)) if len(curves) > 1 else 0 * mean
    edge = [*(mean + spread).tolist(), *(mean - spread)[::-1].tolist()]
    colour = COLOURS[index % len(COLOURS)]
    fill = {
        "type": "scatter",
        "mode": "lines",
        "x": [*rounds, *rounds[::-1]],
        "y": edge,
        "fill": "toself",
        "fillcolor": colour,
        "opacity": 0.15,
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    return [fill, line(label, rounds, mean.tolist(), index, mode="lines")]
