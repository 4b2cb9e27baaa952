"""A comparison as a page and as tables: frontier, convergence, settings side by side, paired differences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from accountant.wording import multipliers_text, upper_text
from privbo.comparisons.comparison import OF_CLIENTS, Comparison, Row
from privbo.comparisons.verdict import Kind, best_alone, curve_of, standard_error
from privbo.protocol.files import write_atomically
from privbo.protocol.messages import FloatArray
from privbo.protocol.table import Table, text_of
from privbo.reports.document import Document
from privbo.reports.figure import COLOURS, ROUNDS, Axis, Figure, Series

_LINES: dict[Kind, int] = {"local": 1, "non-private": 2, "zeroed": 3}  # places among colours and dashes
_NAMES = {"local": "nothing shared", "non-private": "shared without privacy", "zeroed": "noise-only control"}
_CURVES = {
    "score": "Mean best score over clients",
    "regret": "Mean simple regret over clients",
    "loss": "Mean smallest loss over clients",
}


def write_comparison(*comparisons: Comparison, folder: Path, name: str = "") -> Path:
    """Write compare.html, and every comparison's table as Markdown, CSV and LaTeX; returns the page's path.

    Several comparisons share a page, and their tables lie in folders of their names.
    """
    page = document(*comparisons, name=name).write(folder / "compare.html")
    for comparison in comparisons:
        apart = folder if len(comparisons) == 1 else folder / comparison.name.replace("/", "-")
        apart.mkdir(parents=True, exist_ok=True)
        tables = {
            "table.md": markdown(comparison),
            "table.csv": numbers(comparison).csv(),
            "table.tex": table(comparison).latex(),
        }
        for file, text in tables.items():
            write_atomically(apart / file, text.encode())
    return page


def table(comparison: Comparison) -> Table:
    """Tabulate settings for people: prices, and utilities where they may be shown."""
    judged = list(dict.fromkeys((comparison.measure, "final"))) if comparison.shows_utility else []
    rows = comparison.rows()
    field, words = _quoted(comparison)
    at = [words] * (field == "strict_epsilon")  # where some setting asks for a larger delta
    counted = ["evaluations"] * comparison.shows_utility
    head = ("setting", "epsilon", "delta", *at, "noise multipliers", "releases", *judged, *counted, "seeds")
    return Table(
        headings=head,
        rows=[
            (
                row.setting,
                _epsilon(row.epsilon, row.releases),
                "-" if row.releases == 0 or row.epsilon is None else upper_text(row.delta),
                *(_epsilon(row.strict_epsilon, row.releases) for _ in at),
                multipliers_text(row.noise_multipliers) if row.noise_multipliers else "-",
                row.releases,
                *_judged(row)[: len(judged)],
                *("-" if row.evaluations is None else f"{row.evaluations:.6g}" for _ in counted),
                row.seeds,
            )
            for row in rows
        ],
        right=range(1, len(head)),
    )


def numbers(comparison: Comparison) -> Table:
    """Tabulate settings for programs, all digits; utilities that may not be shown have no column."""
    hidden = () if comparison.shows_utility else OF_CLIENTS
    rows = [
        {"setting": row.setting, "kind": row.kind}
        | {name: value for name, value in asdict(row).items() if name not in hidden}
        | {name: math.inf for name in ("epsilon", "strict_epsilon") if getattr(row, name) is None}
        | {"noise_multipliers": ", ".join(map(str, row.noise_multipliers)) or "none"}
        for row in comparison.rows()
    ]
    return Table(headings=list(rows[0]), rows=[list(row.values()) for row in rows])


def markdown(comparison: Comparison) -> str:
    """Write the table as Markdown, with the versions that made older rows and the contrasts that were asked for."""
    notes = [f"- {words}\n" for words in (*contrast_lines(comparison), *note_lines(comparison))]
    return table(comparison).markdown() + "".join(["\n", *notes] if notes else [])


def _quoted(comparison: Comparison) -> tuple[str, str]:
    """Name the epsilon that settings are told apart by, the safe one where any asks for a larger delta; and its delta.

    Both are the name of the field and the heading of a column or an axis.
    """
    private = [s for s in comparison.settings if s.releases and s.epsilon is not None]
    strict = any(s.delta > s.strict_delta for s in private)
    deltas = {s.strict_delta if strict else s.delta for s in private}
    at = upper_text(deltas.pop()) if len(deltas) == 1 else "min(1e-5, 1/(10 N))" if strict else "asked for"
    return "strict_epsilon" if strict else "epsilon", f"epsilon at delta {at}"


def _judged(row: Row) -> list[str]:
    """A mean to two digits of its error, so that no difference that matters is rounded away."""
    if row.utility is None or row.final is None or not row.standard_error or math.isnan(row.standard_error):
        return [text_of(row.utility), text_of(row.final)]
    digits = min(9, max(0, 1 - math.floor(math.log10(row.standard_error))))
    return [f"{row.utility:.{digits}f} ± {row.standard_error:.{digits}f}", f"{row.final:.{digits}f}"]


def _epsilon(value: float | None, releases: int) -> str:
    return "nothing released" if releases == 0 else "infinite" if value is None else upper_text(value)


def contrast_lines(comparison: Comparison) -> Sequence[str]:
    """State every contrast that was asked for in a line: the mean difference, its standard error, p, seeds."""
    lines = []
    for found in comparison.differences() if comparison.contrasts else ():
        lines.append(f"{found.first} minus {found.second}: {found.mean:+.4f}")
        if found.standard_error is not None:
            lines[-1] += f" ± {found.standard_error:.4f} (p = {found.p_value:.2g}, two-sided, not adjusted)"
        lines[-1] += f", {found.n_seeds} seeds"
    return lines


def note_lines(comparison: Comparison) -> Sequence[str]:
    """Name the versions that made rows which the code here and now did not make, and whom rows of records hide."""
    older = [f"{s.label}: made by older code ({'; '.join(s.older)})" for s in comparison.settings if s.older]
    return older + [f"{s.label} hides {s.hidden}" for s in comparison.settings if s.hidden]


def document(*comparisons: Comparison, name: str = "") -> Document:
    """Lay out one comparison, or several as panels of one page."""
    shapes: dict[str, Figure] = {}
    panels = []
    for index, comparison in enumerate(comparisons):
        suffix = f"-{index + 1}" if index else ""
        shapes |= {f"{key}{suffix}": shape for key, shape in figures(comparison).items()}
        panel = {
            "comparison": comparison,
            "suffix": suffix,
            "curve": _CURVES[curve_of(comparison.measure)],
            "notes": note_lines(comparison),
            "table": table(comparison),
            "small": {f"convergence-{k + 1}{suffix}": s.label for k, s in enumerate(comparison.settings)},
        }
        panels.append(panel)
    return Document(
        title=f"Comparison: {name or comparisons[0].name}",
        template="compare.html.j2",
        content={"panels": panels, "statement": comparisons[0].statement},
        figures=shapes,
    )


def figures(comparison: Comparison) -> dict[str, Figure]:
    """Give a comparison's figures by name: frontier and convergence; none without utilities."""
    return {"frontier": _frontier(comparison)} | _convergence(comparison) if comparison.shows_utility else {}


def _frontier(comparison: Comparison) -> Figure:
    """Draw utility against epsilon with standard errors; controls are level lines, of what shares nothing the best one.

    One algorithm at several levels of privacy is one line; other settings are told apart by their colours. Epsilon is
    the table's.
    """
    field, words = _quoted(comparison)
    places = {s.label: e for s in comparison.settings if (e := getattr(s, field))}
    shown = sorted((s for s in comparison.private if s.label in places), key=lambda s: places[s.label])
    epsilons = sorted({places[s.label] for s in shown})
    by_privacy = all(s.overrides and all(key.startswith("privacy.") for key in s.overrides) for s in shown)
    one_curve = by_privacy and len(epsilons) == len(shown)  # arms, or two settings at one epsilon, are none
    groups = [shown] if one_curve or len(shown) > len(COLOURS) else [[s] for s in shown]
    series: list[Series] = []
    for index, group in enumerate(groups):
        values = [s.utilities(comparison.measure) for s in group]
        series.append(
            Series(
                label=group[0].label if len(groups) > 1 else "private",
                x=[places[s.label] for s in group],
                y=[float(v.mean()) for v in values],
                errors=[standard_error(v) or 0.0 for v in values],
                kind="line and points" if one_curve and len(group) > 1 else "points",
                colour=index,
            )
        )
    series += _controls(comparison, places)
    ticks = epsilons[:: max(1, len(epsilons) // 8)]
    scores = "mean best score over clients, " if curve_of(comparison.measure) == "score" else ""
    y = Axis(label=f"{scores}{comparison.measure} (the objective's unit)")
    return Figure(series=series, x=Axis(label=words, log=True, ticks=ticks), y=y)


def _controls(comparison: Comparison, places: Mapping[str, float]) -> Iterator[Series]:
    """Lines of the controls: level, or over the epsilons at which noise was drawn; of what shares nothing the best."""
    alone = best_alone(comparison.settings, comparison.measure)
    chosen = [s for s in comparison.settings if s.kind in _LINES and (s.kind != "local" or s is alone)]
    best = np.fmax if curve_of(comparison.measure) == "score" else np.fmin
    for kind in dict.fromkeys(s.kind for s in chosen):
        settings, means = [s for s in chosen if s.kind == kind], dict[float | None, float]()
        for setting in settings:  # of several at one epsilon the best one
            mean, at = float(setting.utilities(comparison.measure).mean()), places.get(setting.label)
            means[at] = float(best(mean, means.get(at, mean)))
        x = [1.0] if len(means) == 1 else sorted(e for e in means if e is not None)
        y = list(means.values()) if len(means) == 1 else [means[e] for e in x]
        label = settings[0].label if len(settings) == 1 else _NAMES[kind]
        yield Series(label=label, x=x, y=y, kind="line", colour=_LINES[kind])


def _convergence(comparison: Comparison) -> dict[str, Figure]:
    """Draw what is measured against rounds, a small figure per setting versus the best that shares nothing.

    All of them have one scale; bands are one standard error.
    """
    alone = best_alone(comparison.settings, comparison.measure)
    drawn = {s.label: _banded("this setting", s.curves) for s in comparison.settings if s.curves is not None}
    edges = [v for band, _ in drawn.values() for v in (*band.lower, *band.y) if v is not None and math.isfinite(v)]
    low, high = min(edges, default=0.0), max(edges, default=0.0)
    margin = 0.04 * (high - low) or 0.1
    axis = Axis(label=_CURVES[curve_of(comparison.measure)], limits=(low - margin, high + margin))
    found: dict[str, Figure] = {}
    for index, setting in enumerate(comparison.settings):
        if setting is alone or setting.label not in drawn:
            continue
        series = [*drawn[setting.label]]
        if alone is not None and alone.label in drawn:
            series.append(replace(drawn[alone.label][1], label=alone.label, colour=1))
        found[f"convergence-{index + 1}"] = Figure(series=series, x=ROUNDS, y=axis)
    return found


def _banded(label: str, curves: FloatArray) -> tuple[Series, Series]:
    """A mean curve, and a band of one standard error behind it."""
    mean = curves.mean(axis=0)
    spread = curves.std(axis=0, ddof=1) / np.sqrt(len(curves)) if len(curves) > 1 else 0 * mean
    x, lower, upper = range(len(mean)), (mean - spread).tolist(), (mean + spread).tolist()
    band = Series(label="", x=x, y=upper, lower=lower, kind="band", opacity=0.15)
    return band, Series(label=label, x=x, y=mean.tolist(), kind="line")
