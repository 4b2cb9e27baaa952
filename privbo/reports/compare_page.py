"""The comparison as a page: frontier, convergence, table, paired differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privbo.comparisons.comparison import Comparison
from privbo.comparisons.setting import Setting, curve_of, standard_error
from privbo.protocol.files import write_atomically
from privbo.protocol.messages import FloatArray
from privbo.reports import document as doc
from privbo.reports.figures import COLOURS, figure, line
from privbo.reports.tables import cells, csv_text, latex, markdown, older_lines

if TYPE_CHECKING:
    import plotly.graph_objects as go

_LINES = {"local": (4, "dash"), "non-private": (2, "dot"), "zeroed": (3, "dashdot")}
_CURVES = {
    "score": "Mean best score over clients",
    "regret": "Mean simple regret over clients",
    "loss": "Mean smallest loss over clients",
}


@dataclass(frozen=True, kw_only=True)
class _Panel:
    """Words and rows of one comparison for the template."""

    comparison: Comparison
    suffix: str
    words: str
    curve: str
    warnings: Sequence[str]
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    differences: Sequence[Sequence[object]]


def write_comparison(*comparisons: Comparison, folder: Path, name: str = "", shared_assets: bool = False) -> Path:
    """Write compare.html, and every comparison's table as Markdown, CSV and LaTeX; returns the page's path.

    Several comparisons share a page, and their tables lie in folders of their names.
    """
    made = document(*comparisons, name=name)
    page = doc.write_document(made, folder / "compare.html", shared_assets=shared_assets)
    for comparison in comparisons:
        apart = folder if len(comparisons) == 1 else folder / comparison.name.replace("/", "-")
        apart.mkdir(parents=True, exist_ok=True)
        for file, writer in (("table.md", markdown), ("table.csv", csv_text), ("table.tex", latex)):
            write_atomically(apart / file, writer(comparison).encode())
    return page


def document(*comparisons: Comparison, name: str = "") -> doc.Document:
    """Lay out one comparison, or several as panels of one page."""
    shapes: dict[str, doc.Figure] = {}
    panels = []
    for index, comparison in enumerate(comparisons):
        suffix = f"-{index + 1}" if index else ""
        shapes |= {f"{key}{suffix}": shape for key, shape in _shapes(comparison).items()}
        panels.append(_panel(comparison, suffix))
    return doc.Document(
        title=f"Comparison: {name or comparisons[0].name}",
        template="compare.html.j2",
        content={"panels": panels, "statement": comparisons[0].statement},
        figures=shapes,
    )


def figures(comparison: Comparison) -> dict[str, go.Figure]:
    """Draw a comparison's figures by name, as Plotly figures: frontier and convergence, or what was released."""
    import plotly.graph_objects as go

    return {name: go.Figure(shape) for name, shape in _shapes(comparison).items()}


def _shapes(comparison: Comparison) -> dict[str, doc.Figure]:
    if comparison.shows_utility:
        return {"frontier": frontier(comparison), "convergence": convergence(comparison)}
    chosen = comparison.recommendation
    if chosen is None or chosen.released is None:
        return {}
    return {"released": released(comparison, chosen.released, chosen.released_stddev)}


def _panel(comparison: Comparison, suffix: str) -> _Panel:
    seeds = max(len(s.seeds) for s in comparison.settings)
    head, rows = cells(comparison)
    return _Panel(
        comparison=comparison,
        suffix=suffix,
        words=f"{len(comparison.private)} settings, {seeds} seeds each, on {comparison.data} data.",
        curve=_CURVES[curve_of(comparison.measure)],
        warnings=_warnings(comparison),
        head=head,
        rows=rows,
        differences=[
            (d.first, d.second, d.mean, d.standard_error, d.p_value, d.n_seeds) for d in comparison.differences()
        ],
    )


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
    notes += older_lines(comparison)
    if (paid := comparison.total) is not None:
        notes.append(
            f"The population has paid epsilon {doc.bound(paid.epsilon)} at delta {paid.delta:.3g} in total "
            f"({paid.rule}); whoever was in one cell was in all."
        )
    return notes


def frontier(comparison: Comparison) -> doc.Figure:
    """Draw utility against epsilon with standard errors; controls are level lines."""
    shown = sorted((s for s in comparison.private if s.epsilon), key=lambda s: float(s.epsilon or 0.0))
    values = [s.utilities(comparison.measure) for s in shown]
    epsilons = [float(s.epsilon or 0.0) for s in shown]
    bars = {"type": "data", "array": [standard_error(v) or 0.0 for v in values], "visible": True}
    hover = {"text": [s.label for s in shown], "hovertemplate": "%{text}<br>epsilon %{x:.3g}: %{y:.4f}<extra></extra>"}
    mode = "lines+markers" if _is_one_curve(shown) else "markers"
    data = [line("private", epsilons, [float(v.mean()) for v in values], 0, error_y=bars, mode=mode, **hover)]
    reach = [min(epsilons, default=1.0), max(epsilons, default=1.0)]
    for control in comparison.settings:
        if control.kind in _LINES:
            index, dash = _LINES[control.kind]
            level = float(control.utilities(comparison.measure).mean())
            data.append(line(control.label, reach, [level] * 2, index, mode="lines", line={"dash": dash}))
    return figure(data, "epsilon", comparison.measure, xaxis=_scale(epsilons))


def _is_one_curve(settings: Sequence[Setting]) -> bool:
    """Whether settings are one algorithm at several levels of privacy; arms, or two at one epsilon, are none."""
    levels = {s.epsilon for s in settings}
    by_privacy = all(s.overrides and all(key.startswith("privacy.") for key in s.overrides) for s in settings)
    return by_privacy and len(levels) == len(settings)


def released(comparison: Comparison, scores: Mapping[str, float], stddev: float | None) -> doc.Figure:
    """Draw what a paid choice released: noisy mean best score against epsilon."""
    shown = sorted((s for s in comparison.private if s.label in scores), key=lambda s: float(s.epsilon or 0.0))
    epsilons = [float(s.epsilon or 0.0) for s in shown]
    bars = {"type": "data", "array": [stddev or 0.0] * len(shown), "visible": True}
    hover = {"text": [s.label for s in shown], "hovertemplate": "%{text}<br>epsilon %{x:.3g}: %{y:.4f}<extra></extra>"}
    points = line("released", epsilons, [scores[s.label] for s in shown], 0, mode="markers", error_y=bars, **hover)
    return figure([points], "epsilon", "mean best score, released", xaxis=_scale(epsilons))


def _scale(epsilons: Sequence[float]) -> dict[str, object]:
    ticks = sorted(set(epsilons))[:: max(1, len(set(epsilons)) // 8)]
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:.3g}" for tick in ticks]}


def convergence(comparison: Comparison) -> doc.Figure:
    """Draw what is measured against rounds, one line per setting, bands of one standard error."""
    data = []
    for index, setting in enumerate(comparison.settings):
        if setting.curves is not None:
            data += _band(setting.label, setting.curves, index)
    name = _CURVES[curve_of(comparison.measure)]
    return figure(data, "round", name[:1].lower() + name[1:])


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
