"""Figures as plain Plotly descriptions; colours that read on light and on dark paper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

from accountant.wording import upper_text
from privbo.plans.prices import Caught, CumulativePrice, CurvePoint, finite
from privbo.reports.colours import COLOURS, DASHES
from privbo.reports.document import Figure
from privbo.reports.parts import Released
from privbo.runs.replay import ActiveNodes

_BLOCKS = 250


def layout(x: str, y: str, **more: Mapping[str, object]) -> dict[str, object]:
    """Lay out axes with titles, a legend above and narrow margins, so that it fits a telephone."""
    axes = {"showline": True, "ticks": "outside", "automargin": True}
    return {
        "xaxis": {"title": {"text": x}, **axes, **more.get("xaxis", {})},
        "yaxis": {"title": {"text": y}, **axes, **more.get("yaxis", {})},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "margin": {"l": 50, "r": 12, "t": 30, "b": 45},
        "hovermode": "closest",
    }


def figure(data: Sequence[Mapping[str, object]], x: str, y: str, **axes: Mapping[str, object]) -> Figure:
    """Put lines and bars on titled axes."""
    return {"data": list(data), "layout": layout(x, y, **axes)}


def line(name: str, x: Sequence[float], y: Sequence[float | None], index: int = 0, **more: object) -> dict[str, object]:
    """Draw a line with marks in the colour and dash of its index; further settings are Plotly's."""
    colour = COLOURS[index % len(COLOURS)]
    style = {"color": colour, "dash": DASHES[index % len(DASHES)], "width": 2}
    base = {"type": "scatter", "mode": "lines+markers", "name": name, "x": list(x), "y": list(y)}
    own = {
        "line": _over(style, more.pop("line", {})),
        "marker": _over({"color": colour, "size": 5}, more.pop("marker", {})),
    }
    return base | own | more


def _over(base: Mapping[str, object], change: object) -> dict[str, object]:
    return {**base, **cast("Mapping[str, object]", change)}


def bars(x: Sequence[float], y: Sequence[float], **more: object) -> dict[str, object]:
    """Draw bars; further settings are Plotly's."""
    return {"type": "bar", "x": list(x), "y": list(y), "marker": {"color": COLOURS[0]}, **more}


def epsilon_by_release(
    points: Sequence[CumulativePrice], delta: float, accountants: Sequence[str] | None = None
) -> Figure:
    """Draw epsilon against the number of releases, one line per accountant: all of them unless some are named."""
    names = [name for name in (points[0].epsilon if points else {}) if accountants is None or name in accountants]
    lines = [
        line(name, [p.releases for p in points], [None if e == math.inf else e for e in found], index)
        for index, (name, found) in enumerate((name, [p.epsilon[name] for p in points]) for name in names)
        if min(found) < math.inf
    ]
    return figure(lines, "releases", f"epsilon at delta = {upper_text(delta)}", yaxis={"rangemode": "tozero"})


def delta_epsilon(curve: Sequence[CurvePoint], epsilon: float, delta: float) -> Figure:
    """Draw the whole privacy curve, certified upper and lower delta at every epsilon, and the quoted point."""
    seen = [p for p in curve if p.delta_upper > 0]
    x = [p.epsilon for p in seen]
    data = [
        line("upper bound", x, [p.delta_upper for p in seen], 0),
        line("lower bound", x, [p.delta_lower or None for p in seen], 4, mode="lines"),
        line("quoted", [epsilon], [delta], 1, mode="markers", marker={"size": 11, "symbol": "x"}),
    ]
    return figure(data, "epsilon", "delta", yaxis={"type": "log", "exponentformat": "power"})


def trade_off(points: Sequence[Caught]) -> Figure:
    """Draw what an attacker can catch at most against what it falsely accuses."""
    x = [p.false_alarms for p in points]
    data = [
        line("upper bound", x, [p.caught for p in points], 0),
        line("guessing blindly", x, x, 6, mode="lines"),
    ]
    axes = {"xaxis": {"type": "log", "tickformat": "~%"}, "yaxis": {"tickformat": ".0%"}}
    return figure(data, "false accusations", "caught at most", **axes)


def release_norms(releases: Sequence[Released]) -> Figure:
    """Draw the norm of what was released beside the noise it holds."""
    releases = _extremes(releases)
    x = [row.round for row in releases]
    data = [
        line("released, noise included", x, [row.norm for row in releases], 0),
        line("noise alone, expected", x, [row.noise_norm for row in releases], 1, mode="lines"),
    ]
    return figure(data, "round", "norm of the release", yaxis={"rangemode": "tozero"})


def _extremes(releases: Sequence[Released]) -> Sequence[Released]:
    """The releases of largest and of smallest norm of every block, of as many blocks as a screen can tell apart."""
    size = math.ceil(len(releases) / _BLOCKS)
    if size <= 2:
        return releases
    blocks = [releases[begin : begin + size] for begin in range(0, len(releases), size)]
    ends = [{row.round: row for row in (f(block, key=lambda row: row.norm) for f in (min, max))} for block in blocks]
    return [few[at] for few in ends for at in sorted(few)]


def active_nodes(rows: Sequence[ActiveNodes]) -> Figure:
    """Draw the nodes still active at every depth that was announced."""
    drawn = bars([r.depth for r in rows], [r.nodes for r in rows], name="active nodes")
    return figure([drawn], "depth", "active nodes", xaxis={"dtick": 1})


def best_scores(curves: Mapping[str, Sequence[float]]) -> Figure:
    """PRIVATE: draw the mean best score over clients against rounds, one line per arm."""
    data = [
        line(name, range(len(curve)), list(map(finite, curve)), index, mode="lines")
        for index, (name, curve) in enumerate(curves.items())
    ]
    return figure(data, "round", "mean best score over clients")
