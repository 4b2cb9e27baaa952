"""Figures as plain Plotly descriptions; colours that read on light and on dark paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from privbo.reports.document import Figure

# After Okabe and Ito, whom colour-blind readers can tell apart; the blue is lighter, for dark paper.
COLOURS = ("#2b87c8", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f7f7f")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


def layout(x: str, y: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401  # Plotly's own settings
    """Axes with titles, a legend above, narrow margins: fits a telephone."""
    axes = {"showline": True, "ticks": "outside", "automargin": True}
    return {
        "xaxis": {"title": {"text": x}, **axes, **more.pop("xaxis", {})},
        "yaxis": {"title": {"text": y}, **axes, **more.pop("yaxis", {})},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "margin": {"l": 50, "r": 12, "t": 30, "b": 45},
        "hovermode": "closest",
    } | more


def line(name: str, x: Sequence[Any], y: Sequence[Any], index: int = 0, **more: Any) -> dict[str, Any]:  # noqa: ANN401 (Plotly's fields)
    """A line with marks."""
    style = {"color": COLOURS[index % len(COLOURS)], "dash": DASHES[index % len(DASHES)], "width": 2}
    marks = {"color": style["color"], "size": 5}
    base = {"type": "scatter", "mode": "lines+markers", "name": name, "x": list(x), "y": list(y)}
    return base | {"line": style | more.pop("line", {}), "marker": marks | more.pop("marker", {})} | more


def epsilon_by_release(points: Sequence[Mapping[str, float | None]], delta: float) -> Figure:
    """Epsilon against the number of releases, one line per accountant."""
    names = [name for name in (points[0] if points else {}) if name not in ("releases", "round")]
    lines = [
        line(name, [p["releases"] for p in points], [p[name] for p in points], index)
        for index, name in enumerate(names)
        if any(p[name] is not None for p in points)
    ]
    return {
        "data": lines,
        "layout": layout("releases", f"epsilon at delta = {delta:.3g}", yaxis={"rangemode": "tozero"}),
    }


def delta_epsilon(curve: Sequence[Mapping[str, float]], epsilon: float | None, delta: float) -> Figure:
    """The whole privacy curve: certified upper and lower delta at every epsilon, and the quoted point."""
    seen = [p for p in curve if p["delta_upper"] > 0]
    x = [p["epsilon"] for p in seen]
    data = [
        line("upper bound", x, [p["delta_upper"] for p in seen], 0),
        line("lower bound", x, [p["delta_lower"] or None for p in seen], 4, mode="lines"),
    ]
    if epsilon is not None:
        data.append(line("quoted", [epsilon], [delta], 1, mode="markers", marker={"size": 11, "symbol": "x"}))
    return {
        "data": data,
        "layout": layout("epsilon", "delta", yaxis={"type": "log", "exponentformat": "power"}),
    }


def trade_off(points: Sequence[Mapping[str, float]]) -> Figure:
    """What an attacker can catch at most against what it falsely accuses."""
    x = [p["false_alarms"] for p in points]
    return {
        "data": [
            line("upper bound", x, [p["caught"] for p in points], 0),
            line("guessing blindly", x, x, 6, mode="lines"),
        ],
        "layout": layout(
            "false accusations",
            "caught at most",
            xaxis={"type": "log", "tickformat": "~%"},
            yaxis={"tickformat": ".0%"},
        ),
    }


def release_norms(rounds: Sequence[Mapping[str, Any]]) -> Figure:
    """Norm of what was released beside the noise it holds."""
    x = [row["round"] for row in rounds]
    return {
        "data": [
            line("released, noise included", x, [row["norm"] for row in rounds], 0),
            line("noise alone, expected", x, [row["noise_norm"] for row in rounds], 1, mode="lines"),
        ],
        "layout": layout("round", "norm of the release", yaxis={"rangemode": "tozero"}),
    }


def active_nodes(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Nodes still active at every depth that was announced."""
    bar = {"type": "bar", "name": "active nodes", "marker": {"color": COLOURS[0]}}
    return {
        "data": [bar | {"x": [r["depth"] for r in rows], "y": [r["nodes"] for r in rows]}],
        "layout": layout("depth", "active nodes", xaxis={"dtick": 1}),
    }


def best_scores(curves: Mapping[str, Sequence[float | None]]) -> Figure:
    """PRIVATE: mean best score over clients against rounds, one line per arm."""
    return {
        "data": [
            line(name, list(range(len(curve))), curve, index, mode="lines")
            for index, (name, curve) in enumerate(curves.items())
        ],
        "layout": layout("round", "mean best score over clients"),
    }
