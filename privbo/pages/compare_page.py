"""The comparison as a page: frontier, convergence, table, paired differences."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from privbo.pages import document as doc
from privbo.pages.compare import Comparison, Setting, standard_error
from privbo.pages.figures import COLOURS, layout, line
from privbo.pages.prices import smallest
from privbo.pages.tables import csv_text, epsilon_text, latex, markdown
from privbo.record import write_atomically

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
    body = "\n".join(
        (
            _headline(comparison),
            doc.warnings(_warnings(comparison)),
            doc.section(
                "Utility against epsilon",
                doc.figure(
                    "frontier", f"Mean best score over clients, {comparison.utility}; bars are standard errors.", 420
                ),
            ),
            doc.section(
                "Convergence", doc.figure("convergence", "Mean best score over clients, mean over seeds.", 420)
            ),
            doc.section("Table", _table(comparison)),
            doc.section("Differences on the same seeds", _differences(comparison)),
        )
    )
    figures = {"frontier": frontier(comparison), "convergence": convergence(comparison)}
    return doc.Document(title=f"Comparison: {comparison.name}", body=body, figures=figures)


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
    if comparison.data == "private":
        notes.append(
            "Private diagnostics, not covered by epsilon: the utilities on this page come from clients' own scores. "
            "Choosing by them, or publishing them, is not paid for."
        )
    else:
        notes.append("Noise was seeded: these runs are simulations and protect nobody.")
    if comparison.composed is not None:
        best = smallest(comparison.composed)
        notes.append(
            f"All cells together cost their population epsilon {doc.bound(best)} at delta "
            f"{comparison.composed_delta:.3g}; whoever was in one of them was in all."
        )
    return notes


def _table(comparison: Comparison) -> str:
    head = ("setting", "epsilon", "delta", "multiplier", comparison.utility, "standard error", "final", "seeds")
    rows = [
        (
            row["setting"],
            epsilon_text(row),
            row["delta"],
            row["noise_multiplier"],
            row["utility"],
            row["standard_error"],
            row["final"],
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
    ticks = sorted(set(epsilons))[:: max(1, len(set(epsilons)) // 8)]
    scale = {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:.3g}" for tick in ticks]}
    return {"data": data, "layout": layout("epsilon", comparison.utility, xaxis=scale)}


def convergence(comparison: Comparison) -> doc.Figure:
    """Mean best score against rounds, one line per setting, bands of one standard error."""
    data = []
    for index, setting in enumerate(comparison.settings):
        data += _band(setting, index)
    return {"data": data, "layout": layout("round", "mean best score over clients")}


def _band(setting: Setting, index: int) -> list[dict[str, object]]:
    mean = setting.curves.mean(axis=0)
    rounds = list(range(len(mean)))
    spread = setting.curves.std(axis=0, ddof=1) / np.sqrt(len(setting.seeds)) if len(setting.seeds) > 1 else 0 * mean
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
    return [fill, line(setting.label, rounds, mean.tolist(), index, mode="lines")]
