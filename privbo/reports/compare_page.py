"""The comparison as a page: frontier, convergence, table, paired differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from accountant.wording import upper_text
from privbo.comparisons.comparison import Comparison
from privbo.comparisons.setting import Kind, Measure, Setting, curve_of, standard_error
from privbo.comparisons.verdict import best_alone
from privbo.protocol.files import write_atomically
from privbo.protocol.messages import FloatArray
from privbo.reports import document as doc
from privbo.reports.colours import COLOURS
from privbo.reports.figures import figure, line
from privbo.reports.tables import cells, csv_text, latex, markdown, older_lines

if TYPE_CHECKING:
    import plotly.graph_objects as go

_LINES: dict[Kind, tuple[int, str]] = {"local": (1, "dash"), "non-private": (2, "dot"), "zeroed": (3, "dashdot")}
_NAMES = {
    "local": "nothing shared",
    "non-private": "shared without privacy",
    "zeroed": "the same noise without clients",
}
_HOVER = "%{text}<br>epsilon %{x:.3g}: %{y:.4f}<extra></extra>"
_CURVES = {
    "score": "Mean best score over clients",
    "regret": "Mean simple regret over clients",
    "loss": "Mean smallest loss over clients",
}


@dataclass(frozen=True, kw_only=True)
class _Panel:
    """Words and rows of one comparison for the template; ``small`` names its small figures with their settings."""

    comparison: Comparison
    suffix: str
    words: str
    curve: str
    warnings: Sequence[str]
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    differences: Sequence[Sequence[object]]
    verdicts: Sequence[Sequence[object]]
    small: Mapping[str, str]


def write_comparison(*comparisons: Comparison, folder: Path, name: str = "", interactive: bool = False) -> Path:
    """Write compare.html, and every comparison's table as Markdown, CSV and LaTeX; returns the page's path.

    Several comparisons share a page, and their tables lie in folders of their names.
    """
    made = document(*comparisons, name=name)
    page = doc.write_document(made, folder / "compare.html", interactive=interactive)
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
        return {"frontier": frontier(comparison)} | convergence(comparison)
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
        words=f"Settings: {len(comparison.private)}; seeds of each: {seeds}; data: {comparison.data}.",
        curve=_CURVES[curve_of(comparison.measure)],
        warnings=_warnings(comparison),
        head=head,
        rows=rows,
        differences=[
            (d.first, d.second, d.mean, d.standard_error, d.p_value, d.n_seeds) for d in comparison.differences()
        ],
        verdicts=[
            (v.setting, v.answer, v.gain, v.standard_error, v.p_hurt if v.answer == "hurt" else v.p_helped, v.pairs)
            for v in comparison.verdicts()
        ],
        small={f"convergence-{k + 1}{suffix}": s.label for k, s in enumerate(comparison.settings)},
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
            f"The population has paid epsilon {upper_text(paid.epsilon)} at delta {upper_text(paid.delta)} in total "
            f"({paid.rule}); whoever was in one cell was in all."
        )
    return notes


def frontier(comparison: Comparison) -> doc.Figure:
    """Draw utility against epsilon with standard errors; controls are level lines, of what shares nothing the best one.

    One algorithm at several levels of privacy is one line; other settings are told apart by their colours.
    """
    shown = sorted((s for s in comparison.private if s.epsilon), key=lambda s: float(s.epsilon or 0.0))
    epsilons = [float(s.epsilon or 0.0) for s in shown]
    groups = [shown] if _is_one_curve(shown) or len(shown) > len(COLOURS) else [[s] for s in shown]
    data = []
    for index, group in enumerate(groups):
        values = [s.utilities(comparison.measure) for s in group]
        bars = {"type": "data", "array": [standard_error(v) or 0.0 for v in values], "visible": True}
        hover = {"text": [s.label for s in group], "hovertemplate": _HOVER}
        name = group[0].label if len(groups) > 1 else "private"
        mode = "lines+markers" if _is_one_curve(group) and len(group) > 1 else "markers"
        x = [float(s.epsilon or 0.0) for s in group]
        means = [float(v.mean()) for v in values]
        data.append(line(name, x, means, index, error_y=bars, mode=mode, marker={"size": 8}, **hover))
    reach = [min(epsilons, default=1.0), max(epsilons, default=1.0)]
    data += [_level(kind, settings, reach, comparison.measure) for kind, settings in _controls(comparison).items()]
    return figure(data, "epsilon", _unit(comparison), xaxis=_scale(epsilons))


def _level(kind: Kind, settings: Sequence[Setting], reach: Sequence[float], measure: Measure) -> dict[str, object]:
    """A control's line: level, or over the epsilons at which its noise was drawn."""
    index, dash = _LINES[kind]
    means = {s.epsilon: float(s.utilities(measure).mean()) for s in settings}
    x = list(reach) if len(means) == 1 else sorted(e for e in means if e)
    y = [means.get(e, next(iter(means.values()))) for e in x]
    name = settings[0].label if len(settings) == 1 else _NAMES[kind]
    return line(name, x, y, index, mode="lines", line={"dash": dash})


def _controls(comparison: Comparison) -> dict[Kind, list[Setting]]:
    """Controls by kind; of those that share nothing the best one."""
    alone = best_alone(comparison.settings, comparison.measure)
    found: dict[Kind, list[Setting]] = {}
    for setting in comparison.settings:
        if setting.kind in _LINES and (setting.kind != "local" or setting is alone):
            found.setdefault(setting.kind, []).append(setting)
    return found


def _unit(comparison: Comparison) -> str:
    """Name what is measured, in the objective's own unit."""
    if comparison.measure in ("mean over rounds", "final"):
        return f"mean best score over clients, {comparison.measure} (the objective's unit)"
    return f"{comparison.measure} (the objective's unit)"


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
    hover = {"text": [s.label for s in shown], "hovertemplate": _HOVER}
    points = line("released", epsilons, [scores[s.label] for s in shown], 0, mode="markers", error_y=bars, **hover)
    return figure([points], "epsilon", "mean best score, released", xaxis=_scale(epsilons))


def _scale(epsilons: Sequence[float]) -> dict[str, object]:
    ticks = sorted(set(epsilons))[:: max(1, len(set(epsilons)) // 8)]
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:.3g}" for tick in ticks]}


def convergence(comparison: Comparison) -> dict[str, doc.Figure]:
    """Draw what is measured against rounds, a small figure per setting beside the best that shares nothing.

    All of them have one scale; bands are one standard error.
    """
    alone = best_alone(comparison.settings, comparison.measure)
    reach = [level for s in comparison.settings if s.curves is not None for level in _edges(s.curves)]
    low, high = min(reach), max(reach)
    margin = 0.04 * (high - low) or 0.1
    axis = {"range": [low - margin, high + margin]}
    found = {}
    for index, setting in enumerate(comparison.settings):
        if setting.curves is None or setting is alone:
            continue
        data = _band("this setting", setting.curves, 0)
        if alone is not None and alone.curves is not None:
            mean = alone.curves.mean(axis=0).tolist()
            data.append(line(alone.label, range(len(mean)), mean, 1, mode="lines"))
        found[f"convergence-{index + 1}"] = figure(data, "round", _CURVES[curve_of(comparison.measure)], yaxis=axis)
    return found


def _edges(curves: FloatArray) -> list[float]:
    mean, spread = curves.mean(axis=0), _spread(curves)
    return [float((mean - spread).min()), float((mean + spread).max())]


def _spread(curves: FloatArray) -> FloatArray:
    return np.asarray(curves.std(axis=0, ddof=1) / np.sqrt(len(curves)) if len(curves) > 1 else 0 * curves[0])


def _band(label: str, curves: FloatArray, index: int) -> list[dict[str, object]]:
    mean = curves.mean(axis=0)
    rounds = list(range(len(mean)))
    spread = _spread(curves)
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
