"""Utility against epsilon: one panel per setting, a line per private form, a level per control."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from privbo.protocol.files import write_atomically
from privbo.protocol.messages import FloatArray


@dataclass(frozen=True, kw_only=True)
class Panel:
    """What one panel shows.

    Attributes:
        title: Above the panel.
        series: By private form, then by epsilon, the figures of all runs.
        flat: By what has no epsilon, the figures of all runs.
    """

    title: str
    series: Mapping[str, Mapping[float, FloatArray]]
    flat: Mapping[str, FloatArray]


def draw_prices(panels: Sequence[Panel], what: str, path: Path, *, columns: int) -> None:
    """Mean and one standard deviation against epsilon, logarithmic both ways; ``columns`` panels side by side."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(4.2 * columns, 3.1 * rows + 0.9), layout="constrained")
    grid = np.ravel(figure.subplots(rows, columns, squeeze=False))
    for axes, panel in zip(grid, panels, strict=False):
        for form, points in panel.series.items():
            means, spreads = [v.mean() for v in points.values()], [v.std() for v in points.values()]
            axes.errorbar(list(points), means, yerr=spreads, marker="o", ms=3, lw=1.2, capsize=2, label=form)
        for style, (name, values) in zip(("--", ":", "-."), panel.flat.items(), strict=False):
            axes.axhline(float(values.mean()), color="black", ls=style, lw=1, label=name)
        axes.set(title=panel.title, xscale="log", yscale="log", xlabel="epsilon of the whole plan")
        ticks = sorted({epsilon for points in panel.series.values() for epsilon in points})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.grid(alpha=0.3)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    figure.supylabel(what)
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=90)
    write_atomically(path, picture.getvalue())
