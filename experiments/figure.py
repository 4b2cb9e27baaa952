"""Pictures of a study: curves, trade-offs against epsilon, bars; one panel per axes, as PNG or PDF."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from experiments.statistics import Measure
from experiments.study import Panel, Picture
from experiments.summary import Row, Rows
from experiments.table import fields_of, shown, text_of
from privbo.runs.sources import load_function

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Draw: TypeAlias = Callable[["Axes", Panel, Rows, Picture], None]
CONTROLS = {"local TS": "black", "DE start, uniform steps": "dimgray", "DP-FTS-DE, sum zeroed": "darkgray"}
_CROWDED = 10  # lines beyond which no corner of the axes is free
_CLOSE = 1.5  # curves that end within this ratio
_APART = 0.012  # of the axis: series with the same places stand beside each other


def draw(
    panels: Sequence[tuple[Panel, Rows]], picture: Picture, title: str, form: Literal["png", "pdf"] = "png"
) -> bytes:
    """Draw all panels of a picture; without a date, so that the same numbers give the same file."""
    from matplotlib.figure import Figure

    kinds: dict[str, Draw] = {"curves": _curves, "trade-off": _trade_off, "bars": _bars}
    drawing = kinds[picture.kind] if picture.kind in kinds else load_function(picture.kind, "picture.kind")
    columns = min(2, len(panels))  # a page is 800 pixels wide, and the text of a wider picture too small on it
    lines = math.ceil(len(panels) / columns)
    bars = 1.5 + 0.26 * max(len(rows) for _, rows in panels)
    figure = Figure(layout="constrained")
    grid = np.ravel(figure.subplots(lines, columns, squeeze=False))
    for axes, (panel, rows) in zip(grid, panels, strict=False):
        shown = {label: row for label, row in rows.items() if label not in picture.omit}
        axes.set(title=panel.title, xlabel=picture.x, ylabel=picture.y)
        axes.grid(alpha=0.3)
        drawing(axes, panel, shown, picture)
    most = max(len(axes.get_legend_handles_labels()[0]) for axes in grid)
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "ncols": 2} if most > _CROWDED else {}
    for axes in grid[: len(panels)] if most else ():
        axes.legend(frameon=False, fontsize="x-small", **below)
    tall = bars if picture.kind == "bars" else 4.6 + (0.12 * most if below else 0.0)
    figure.set_size_inches(7.0 if columns == 1 else 10.0, tall * lines + 0.4)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    figure.suptitle(title, wrap=True)
    if form == "png":
        return png_of(figure, dpi=80)
    content = io.BytesIO()
    figure.savefig(content, format=form, metadata={"CreationDate": None})
    return content.getvalue()


def png_of(figure: Figure, dpi: float) -> bytes:
    """Give a figure as a PNG of 256 colours, which curves and bars do not exceed by eye: a third of the bytes."""
    from PIL import Image

    content, small = io.BytesIO(), io.BytesIO()
    figure.savefig(content, format="png", dpi=dpi)
    with Image.open(content) as picture:
        reduced = picture.convert("RGB").quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    reduced.save(small, format="PNG", optimize=True)
    return small.getvalue()


def _legend(row: Row, picture: Picture) -> str:
    return shown(text_of(picture.legend, fields_of(row, picture.measure)))


def scales(axes: Axes, picture: Picture) -> None:
    """Set the axes that a picture asks for, with readable ticks."""
    from matplotlib.ticker import LogLocator, NullFormatter

    if "x" in picture.log:
        axes.set_xscale("log")
    if "y" in picture.log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())


def _curves(axes: Axes, panel: Panel, rows: Rows, picture: Picture) -> None:
    """Mean curves with what is shaded; controls dashed."""
    from matplotlib.ticker import MaxNLocator

    for label, row in rows.items():
        if picture.measure not in row.curves:
            continue
        mean, error, deviation = row.curves[picture.measure]
        spread = error if picture.spread == "error" else deviation
        x = np.linspace(0, panel.horizon, len(mean)) if panel.horizon else np.arange(len(mean))
        style = "--" if "zeroed" in label or label in CONTROLS else "-"
        (line,) = axes.plot(x, mean, style, label=_legend(row, picture), color=CONTROLS.get(label))
        axes.fill_between(x, mean - spread, mean + spread, color=line.get_color(), alpha=0.15, lw=0)
    ends = [row.curves[picture.measure][0, -1] for row in rows.values() if picture.measure in row.curves]
    close = max(ends) < _CLOSE * min(ends)  # on a logarithmic axis such curves would be one line
    scales(axes, replace(picture, log="x" if "x" in picture.log else "") if close else picture)
    if not panel.horizon:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(bottom=1 if "y" in picture.log and not close and min(ends) > 1 else None)


def _trade_off(axes: Axes, _panel: Panel, rows: Rows, picture: Picture) -> None:
    """Points with error bars against ``x`` or epsilon, a line per series; dashed lines where nothing is paid.

    A thin dotted line goes on to the epsilon that the paper prints.
    """
    import matplotlib as mpl

    free = itertools.cycle(colour for name in ("tab10", "Dark2", "Set2") for colour in mpl.color_sequences[name])
    series: dict[str, list[Row]] = {}
    for row in rows.values():
        if picture.measure not in row.measures:
            continue
        if place(row) is None:
            found, half = row.measures[picture.measure].mean, _spread(row.measures[picture.measure], picture)
            colour = CONTROLS.get(row.label) or next(free)
            axes.axhline(found, ls="--", lw=1, label=_legend(row, picture), color=colour)
            axes.axhspan(found - half, found + half, color=colour, alpha=0.08, lw=0)
        else:
            series.setdefault(row.series or row.label, []).append(row)
    log = "x" in picture.log
    apart = _apart(series, log=log)
    for name, points in series.items():
        colour = CONTROLS.get(name) or next(free)
        at = np.array([place(row) or 0.0 for row in points])
        x = list(at * np.exp(apart[name]) if log else at + apart[name])
        y = [row.measures[picture.measure].mean for row in points]
        errors = [_spread(row.measures[picture.measure], picture) for row in points]
        text = shown(name) if points[0].series else _legend(points[0], picture)
        marker = "x" if "zeroed" in name else "o"
        axes.errorbar(x, y, errors, marker=marker, ms=4, lw=1.2, capsize=2, label=text, color=colour)
        for row, paid, found in zip(points, x, y, strict=True):
            if row.printed is not None:
                axes.plot([paid, row.printed], [found, found], ":", color=colour, lw=1)
    for name, level in picture.levels.items():
        axes.axhline(level, ls=":", color="grey", label=name)
    scales(axes, picture)
    if ticks := sorted({row.x for row in rows.values() if row.x is not None}):
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()


def _apart(series: Mapping[str, list[Row]], *, log: bool) -> dict[str, float]:
    """Give every series its own shift where several stand at the same places, so that none hides another."""
    places = [sorted({row.x for row in rows if row.x is not None}) for rows in series.values() if len(rows) > 1]
    if len(places) < 2 or not places[0] or any(places[0] != other for other in places):
        return dict.fromkeys(series, 0.0)
    first, last = np.log(places[0])[[0, -1]] if log else (places[0][0], places[0][-1])
    return {name: _APART * (last - first) * (index - (len(series) - 1) / 2) for index, name in enumerate(series)}


def place(row: Row) -> float | None:
    """Give where a row stands: its ``x``, or its tight epsilon at N^-1.1; None where nothing is paid."""
    if row.x is not None:
        return row.x
    return row.epsilon[0] if row.epsilon and row.releases and math.isfinite(row.epsilon[0]) else None


def _spread(measure: Measure, picture: Picture) -> float:
    return measure.error if picture.spread == "error" else measure.deviation


def _bars(axes: Axes, _panel: Panel, rows: Rows, picture: Picture) -> None:
    """Mean of every arm on its own line."""
    for index, (label, row) in enumerate(rows.items()):
        found = row.measures[picture.measure]
        colour = "tab:blue" if label.startswith("ours") else "tab:orange" if label.startswith("DP-FTS") else "dimgray"
        marker = "x" if "zeroed" in label else "o"
        axes.errorbar(found.mean, index, xerr=_spread(found, picture), fmt=marker, color=colour, capsize=2)
    axes.set_yticks(range(len(rows)), list(map(shown, rows)), fontsize="small")
    axes.invert_yaxis()
    axes.set_xlim(left=0)
