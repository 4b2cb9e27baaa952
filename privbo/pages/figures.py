"""Figures for pages, as SVG text without scripts."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence


def epsilon_by_release(points: Sequence[Mapping[str, float | None]], delta: float) -> str:
    """Epsilon against the number of releases, one line per accountant, as inline SVG."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots()
    names = [name for name in (points[0] if points else {}) if name != "releases"]
    for name in names:
        kept = [(p["releases"], p[name]) for p in points if p[name] is not None]
        if kept:
            axes.plot(*zip(*kept, strict=True), marker="o", markersize=3, label=name)
    axes.set_xlabel("releases")
    axes.set_ylabel(f"epsilon at delta = {delta:.3g}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
    else:
        axes.text(0.5, 0.5, "no finite epsilon", ha="center", transform=axes.transAxes)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]
