"""Figures as static SVG: the same descriptions that Plotly reads, drawn without a script.

Lines, marks, bars, error bars and bands on linear or logarithmic axes. Colours are classes of the page's style, so that
a figure follows the screen's light or dark scheme and prints on paper; its legend is a list of the page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from markupsafe import Markup

from privbo.reports.colours import COLOURS

Trace: TypeAlias = Mapping[str, Any]  # as Plotly reads it
WIDTH, TOP, BOTTOM, RIGHT, PLOT = 480, 26, 42, 12, 190
_MARKED = 60  # longer lines have no marks
_DASHES = {"dash": "7 4", "dot": "2 3", "dashdot": "8 3 2 3", "longdash": "12 4"}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """An axis: values in [low, high] on pixels from start to end."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Give the pixel of a value."""
        ends = self.low, self.high, value
        low, high, v = map(math.log10, ends) if self.is_log else ends
        return self.start + (v - low) / (high - low) * (self.end - self.start)


def svg_of(figure: Mapping[str, Any], label: str) -> Markup:
    """Draw a figure as SVG with its legend; ``label`` says what it shows, and the numbers' ends are added in words."""
    data: Sequence[Trace] = figure["data"]
    layout: Mapping[str, Any] = figure["layout"]
    y_axis = _axis(layout["yaxis"], [v for trace in data for v in _reach(trace)])
    y_ticks = _ticks(layout["yaxis"], y_axis)
    left = 14 + 6.6 * max((len(text) for _, text in y_ticks), default=1)
    xs = [v for trace in data for v in _finite(trace["x"])]
    x_axis = _axis(layout["xaxis"], [*xs, *_bar_ends(data)])
    x_ticks = _thinned(_ticks(layout["xaxis"], x_axis), WIDTH - left - RIGHT)
    across = Scale(low=x_axis.low, high=x_axis.high, is_log=x_axis.is_log, start=left, end=WIDTH - RIGHT)
    up = Scale(low=y_axis.low, high=y_axis.high, is_log=y_axis.is_log, start=TOP + PLOT, end=TOP)
    body = Markup("").join(
        [
            *(_grid_line(up.at(v), text, left) for v, text in y_ticks),
            *(_tick(across.at(v), text) for v, text in x_ticks),
            Markup('<path class="axis" d="M{0} {1}V{2}H{3}"/>').format(pixel(left), TOP, TOP + PLOT, WIDTH - RIGHT),
            *(_drawn(trace, across, up) for trace in data),
            Markup('<text class="name" x="{}" y="14">{}</text>').format(0, layout["yaxis"]["title"]["text"]),
            Markup('<text class="name" x="{}" y="{}" text-anchor="end">{}</text>').format(
                WIDTH - RIGHT, TOP + PLOT + BOTTOM - 6, layout["xaxis"]["title"]["text"]
            ),
        ]
    )
    drawn = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, TOP + PLOT + BOTTOM, f"{label} {in_words(figure)}".strip(), body
    )
    return drawn + _legend(data)


def in_words(figure: Mapping[str, Any]) -> str:
    """Say in a few sentences what a figure shows, for who cannot see it.

    Example:
        >>> from privbo.reports.figures import figure, line
        >>> in_words(figure([line("tight", [1, 2], [0.5, 0.75])], "releases", "epsilon"))
        'epsilon against releases. tight: from 0.5 at 1 to 0.75 at 2.'
    """
    layout, said = figure["layout"], []
    for trace in figure["data"]:
        points = [(x, y) for x, y in zip(trace["x"], trace["y"], strict=False) if _is_number(y)]
        if not points or trace.get("fill"):
            continue
        (x0, y0), (x1, y1) = points[0], points[-1]
        name = trace.get("name", layout["yaxis"]["title"]["text"])
        first, last = (f"{_short(y)} at {_short(x)}" for x, y in ((x0, y0), (x1, y1)))
        ends = f"from {first} to {last}" if len(points) > 1 else first
        said.append(f"{name}: {ends}.")
    kept = said if len(said) <= 8 else [*said[:8], f"And {len(said) - 8} more."]
    return " ".join([f"{layout['yaxis']['title']['text']} against {layout['xaxis']['title']['text']}.", *kept])


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else str(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _finite(values: Sequence[object]) -> list[float]:
    return [float(v) for v in values if isinstance(v, int | float) and math.isfinite(v)]


def _reach(trace: Trace) -> list[float]:
    """Values that the y axis has to hold: marks, the ends of their error bars, and a bar's foot."""
    values = _finite(trace["y"])
    if trace["type"] == "bar":
        values.append(0.0)
    if "error_y" in trace:
        pairs = list(zip(trace["y"], trace["error_y"]["array"], strict=True))
        values += [y + sign * e for y, e in pairs if _is_number(y) for sign in (-1, 1)]
    return values


def _bar_ends(data: Sequence[Trace]) -> list[float]:
    return [x + side for trace in data if trace["type"] == "bar" for x in trace["x"] for side in (-0.6, 0.6)]


def _axis(axis: Mapping[str, Any], values: Sequence[float]) -> Scale:
    is_log = axis.get("type") == "log"
    usable = [v for v in values if v > 0] if is_log else list(values)
    low, high = (min(usable), max(usable)) if usable else (1.0, 10.0)
    if "range" in axis:
        low, high = axis["range"]
    elif is_log:
        room = max((high / low) ** 0.03, 1.6 if high / low < 1.5 else 1.0)
        low, high = low / room, high * room
    else:
        margin = 0.04 * (high - low) or 0.1 * abs(high) or 1.0
        zero = axis.get("rangemode") == "tozero" and low >= 0
        low, high = (0.0 if zero else low - margin), high + margin
    return Scale(low=low, high=high, start=0.0, end=1.0, is_log=is_log)


def _ticks(axis: Mapping[str, Any], scale: Scale) -> list[tuple[float, str]]:
    if "tickvals" in axis:
        pairs = zip(axis["tickvals"], axis["ticktext"], strict=True)
        return [(v, t) for v, t in pairs if scale.low <= v <= scale.high]
    values = _decades(scale) if scale.is_log else _steps(scale)
    percent = "%" in axis.get("tickformat", "")
    return [(v, f"{100 * v:.3g} %" if percent else f"{v:.3g}") for v in values]


def _decades(scale: Scale) -> list[float]:
    first, last = math.ceil(math.log10(scale.low) - 1e-9), math.floor(math.log10(scale.high) + 1e-9)
    if last - first < 2:
        fine = [m * 10.0**k for k in range(first - 1, last + 1) for m in (1, 2, 5)]
        return [v for v in fine if scale.low <= v <= scale.high]
    step = math.ceil((last - first + 1) / 6)
    return [10.0**k for k in range(first, last + 1, step)]


def _steps(scale: Scale) -> list[float]:
    rough = (scale.high - scale.low) / 5
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(m * unit for m in (1, 2, 5, 10) if m * unit >= rough * 0.999)
    first, last = math.ceil(scale.low / step - 1e-9), math.floor(scale.high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def _thinned(ticks: list[tuple[float, str]], width: float) -> list[tuple[float, str]]:
    room = max(2, int(width / (8 + 6.6 * max((len(text) for _, text in ticks), default=1))))
    return ticks[:: math.ceil(len(ticks) / room)]


def _grid_line(y: float, text: str, left: float) -> Markup:
    return Markup('<path class="grid" d="M{0} {1}H{2}"/><text x="{3}" y="{4}" text-anchor="end">{5}</text>').format(
        pixel(left), pixel(y), WIDTH - RIGHT, pixel(left - 6), pixel(y + 4), text
    )


def _tick(x: float, text: str) -> Markup:
    return Markup('<path class="axis" d="M{0} {1}v4"/><text x="{0}" y="{2}" text-anchor="middle">{3}</text>').format(
        pixel(x), TOP + PLOT, TOP + PLOT + 17, text
    )


def _drawn(trace: Trace, across: Scale, up: Scale) -> Markup:
    colour = Markup("s{}").format(_colour(trace))
    if trace["type"] == "bar":
        half = 0.4 * (across.end - across.start) / max(len(trace["x"]), 2)
        foot = up.at(max(0.0, up.low))
        bars = (
            Markup('<rect class="bar" x="{}" y="{}" width="{}" height="{}"/>').format(
                pixel(across.at(x) - half), pixel(up.at(y)), pixel(2 * half), pixel(max(0.0, foot - up.at(y)))
            )
            for x, y in zip(trace["x"], trace["y"], strict=True)
        )
        return Markup('<g class="{}">{}</g>').format(colour, Markup("").join(bars))
    points = _points(trace, across, up)
    if trace.get("fill") == "toself":
        outline = " ".join(f"{pixel(x)} {pixel(y)}" for x, y in points if y is not None)
        return Markup('<path class="band {}" style="opacity:{}" d="M{}Z"/>').format(
            colour, trace.get("opacity", 0.15), outline
        )
    return Markup('<g class="{}">{}</g>').format(colour, _errors(trace, across, up) + _line(trace, points))


def _points(trace: Trace, across: Scale, up: Scale) -> list[tuple[float, float | None]]:
    """Pixels; None where there is no value, so that a line is interrupted there."""
    found: list[tuple[float, float | None]] = []
    for x, y in zip(trace["x"], trace["y"], strict=True):
        shown = _is_number(y) and not (up.is_log and y <= 0)
        found.append((across.at(x), up.at(y) if shown else None))
    return found


def _line(trace: Trace, points: Sequence[tuple[float, float | None]]) -> Markup:
    mode, parts = trace.get("mode", "lines+markers"), []
    there = [(x, y) for x, y in points if y is not None]
    if "lines" in mode and len(there) > 1:
        path, pen = [], "M"
        for x, y in points:
            path += [] if y is None else [f"{pen}{pixel(x)} {pixel(y)}"]
            pen = "M" if y is None else "L"
        dash = _DASHES.get(trace["line"].get("dash", "solid"))
        style = Markup("") if dash is None else Markup(' stroke-dasharray="{}"').format(dash)
        parts.append(Markup('<path class="line" d="{}"{}/>').format("".join(path), style))
    if ("markers" in mode and (len(there) <= _MARKED or "lines" not in mode)) or len(there) == 1:
        radius = trace.get("marker", {}).get("size", 5) / 2
        circle = Markup('<circle class="mark" cx="{}" cy="{}" r="{}"/>')
        parts += [circle.format(pixel(x), pixel(y), radius) for x, y in there]
    return Markup("").join(parts)


def _errors(trace: Trace, across: Scale, up: Scale) -> Markup:
    if "error_y" not in trace:
        return Markup("")
    rows = zip(trace["x"], trace["y"], trace["error_y"]["array"], strict=True)
    parts = [
        Markup('<path class="error" d="M{0} {1}V{2}M{3} {1}h8M{3} {2}h8"/>').format(
            pixel(across.at(x)), pixel(up.at(y - e)), pixel(up.at(y + e)), pixel(across.at(x) - 4)
        )
        for x, y, e in rows
        if e > 0
    ]
    return Markup("").join(parts)


def _legend(data: Sequence[Trace]) -> Markup:
    named = [trace for trace in data if trace.get("name") and trace.get("showlegend", True)]
    if len(named) < 2:
        return Markup("")
    rows = Markup("").join(_entry(trace) for trace in named)
    return Markup('<ul class="legend">{}</ul>').format(rows)


def _entry(trace: Trace) -> Markup:
    mode, dash = trace.get("mode", "lines"), _DASHES.get(trace.get("line", {}).get("dash", "solid"), "none")
    if trace.get("fill"):
        mark = Markup('<rect class="band" x="1" y="1" width="26" height="8" style="opacity:{}"/>').format(
            trace.get("opacity", 0.15)
        )
    elif "lines" in mode:
        mark = Markup('<path class="line" d="M0 5H28" stroke-dasharray="{}"/>').format(dash)
    else:
        mark = Markup('<circle class="mark" cx="14" cy="5" r="4"/>')
    return Markup('<li><svg class="key s{}" viewBox="0 0 28 10" aria-hidden="true">{}</svg>{}</li>').format(
        _colour(trace), mark, trace["name"]
    )


def _colour(trace: Trace) -> int:
    """Number of the trace's colour, by which the page's style names it."""
    place = trace.get("fillcolor") or trace.get("line", {}).get("color") or trace.get("marker", {}).get("color")
    return COLOURS.index(str(place)) if place in COLOURS else 0


def pixel(value: float) -> str:
    """Write a coordinate to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")
