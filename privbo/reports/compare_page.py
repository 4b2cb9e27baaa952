"""The comparison as a page: frontier, convergence, table, paired differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from accountant.wording import upper_text
from privbo.comparisons.comparison import Comparison
from privbo.comparisons.setting import Kind, Measure, Setting, curve_of, standard_error
from privbo.comparisons.verdict import best_alone
from privbo.protocol.files import write_atomically
from privbo.protocol.messages import FloatArray
from privbo.reports import document as doc
from privbo.reports.figure import COLOURS, Axis, Figure, Series
from privbo.reports.tables import cells, csv_text, latex, markdown, older_lines

_LINES: dict[Kind, int] = {"local": 1, "non-private": 2, "zeroed": 3}  # places among colours and dashes
_NAMES = {
    "local": "nothing shared",
    "non-private": "shared without privacy",
    "zeroed": "the same noise without clients",
}
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


def write_comparison(*comparisons: Comparison, folder: Path, name: str = "") -> Path:
    """Write compare.html, and every comparison's table as Markdown, CSV and LaTeX; returns the page's path.

    Several comparisons share a page, and their tables lie in folders of their names.
    """
    made = document(*comparisons, name=name)
    page = doc.write_document(made, folder / "compare.html")
    for comparison in comparisons:
        apart = folder if len(comparisons) == 1 else folder / comparison.name.replace("/", "-")
        apart.mkdir(parents=True, exist_ok=True)
        for file, writer in (("table.md", markdown), ("table.csv", csv_text), ("table.tex", latex)):
            write_atomically(apart / file, writer(comparison).encode())
    return page


def document(*comparisons: Comparison, name: str = "") -> doc.Document:
    """Lay out one comparison, or several as panels of one page."""
    shapes: dict[str, Figure] = {}
    panels = []
    for index, comparison in enumerate(comparisons):
        suffix = f"-{index + 1}" if index else ""
        shapes |= {f"{key}{suffix}": shape for key, shape in figures(comparison).items()}
        panels.append(_panel(comparison, suffix))
    return doc.Document(
        title=f"Comparison: {name or comparisons[0].name}",
        template="compare.html.j2",
        content={"panels": panels, "statement": comparisons[0].statement},
        figures=shapes,
    )


def figures(comparison: Comparison) -> dict[str, Figure]:
    """Give a comparison's figures by name: frontier and convergence; none without utilities."""
    return {"frontier": frontier(comparison)} | convergence(comparison) if comparison.shows_utility else {}


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
            "No setting is recommended, for the same reason."
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


def frontier(comparison: Comparison) -> Figure:
    """Draw utility against epsilon with standard errors; controls are level lines, of what shares nothing the best one.

    One algorithm at several levels of privacy is one line; other settings are told apart by their colours.
    """
    shown = sorted((s for s in comparison.private if s.epsilon), key=lambda s: float(s.epsilon or 0.0))
    epsilons = [float(s.epsilon or 0.0) for s in shown]
    groups = [shown] if _is_one_curve(shown) or len(shown) > len(COLOURS) else [[s] for s in shown]
    series: list[Series] = []
    for index, group in enumerate(groups):
        values = [s.utilities(comparison.measure) for s in group]
        series.append(
            Series(
                label=group[0].label if len(groups) > 1 else "private",
                x=[float(s.epsilon or 0.0) for s in group],
                y=[float(v.mean()) for v in values],
                errors=[standard_error(v) or 0.0 for v in values],
                kind="line and points" if _is_one_curve(group) and len(group) > 1 else "points",
                colour=index,
            )
        )
    series += [_level(kind, settings, comparison.measure) for kind, settings in _controls(comparison).items()]
    ticks = sorted(set(epsilons))[:: max(1, len(set(epsilons)) // 8)]
    return Figure(series=series, x=Axis(label="epsilon", log=True, ticks=ticks), y=Axis(label=_unit(comparison)))


def _level(kind: Kind, settings: Sequence[Setting], measure: Measure) -> Series:
    """A control's line: level, or over the epsilons at which its noise was drawn."""
    means = {s.epsilon: float(s.utilities(measure).mean()) for s in settings}
    x = [1.0] if len(means) == 1 else sorted(e for e in means if e)
    y = list(means.values()) if len(means) == 1 else [means[e] for e in x]
    label = settings[0].label if len(settings) == 1 else _NAMES[kind]
    return Series(label=label, x=x, y=y, kind="line", colour=_LINES[kind])


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


def convergence(comparison: Comparison) -> dict[str, Figure]:
    """Draw what is measured against rounds, a small figure per setting beside the best that shares nothing.

    All of them have one scale; bands are one standard error.
    """
    alone = best_alone(comparison.settings, comparison.measure)
    reach = [level for s in comparison.settings if s.curves is not None for level in _edges(s.curves)]
    low, high = min(reach), max(reach)
    margin = 0.04 * (high - low) or 0.1
    axis = Axis(label=_CURVES[curve_of(comparison.measure)], limits=(low - margin, high + margin))
    found: dict[str, Figure] = {}
    for index, setting in enumerate(comparison.settings):
        if setting.curves is None or setting is alone:
            continue
        series = _banded("this setting", setting.curves)
        if alone is not None and alone.curves is not None:
            mean = alone.curves.mean(axis=0).tolist()
            series.append(Series(label=alone.label, x=range(len(mean)), y=mean, kind="line", colour=1))
        found[f"convergence-{index + 1}"] = Figure(series=series, x=Axis(label="round", integers=True), y=axis)
    return found


def _edges(curves: FloatArray) -> list[float]:
    mean, spread = curves.mean(axis=0), _spread(curves)
    return [float((mean - spread).min()), float((mean + spread).max())]


def _spread(curves: FloatArray) -> FloatArray:
    return np.asarray(curves.std(axis=0, ddof=1) / np.sqrt(len(curves)) if len(curves) > 1 else 0 * curves[0])


def _banded(label: str, curves: FloatArray) -> list[Series]:
    """A mean curve, and a band of one standard error behind it."""
    mean, spread = curves.mean(axis=0), _spread(curves)
    x = range(len(mean))
    lower, upper = (mean - spread).tolist(), (mean + spread).tolist()
    band = Series(label="", x=x, y=upper, lower=lower, kind="band", opacity=0.15)
    return [band, Series(label=label, x=x, y=mean.tolist(), kind="line")]
