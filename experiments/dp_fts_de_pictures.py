"""Pictures of the DP-FTS-DE figures: loss against rounds, or final loss against epsilon."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from privbo.record import write_atomically

Rows = Mapping[str, Mapping[str, Any]]
CONTROLS = {"local TS": "black", "DE start, uniform steps": "dimgray", "DP-FTS-DE, sum zeroed": "darkgray"}


def draw(panels: Mapping[str, Rows], measures: Mapping[str, str], kind: str, title: str, path: Path) -> None:
    """One panel per benchmark, as PNG."""
    figure = Figure(figsize=(7.5 * len(panels), 5), layout="constrained")
    for axes, (name, rows) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        (_curves if kind == "curves" else _trade_off)(axes, rows)
        axes.set_ylabel(f"{measures[name]} of the best point so far, mean over clients")
        axes.set_title(name)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize="x-small")
    figure.suptitle(title)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=90)
    write_atomically(path, picture.getvalue())


def _curves(axes: Axes, rows: Rows) -> None:
    for label, row in rows.items():
        mean, error = np.array(row["curve"]), np.array(row["curve_standard_error"])
        style = "--" if "zeroed" in label or label in CONTROLS else "-"
        (line,) = axes.plot(mean, style, label=f"{label}: {row['cumulative']:.2f}", color=CONTROLS.get(label))
        axes.fill_between(range(len(mean)), mean - error, mean + error, color=line.get_color(), alpha=0.15, lw=0)
    axes.set_xlabel("iteration")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(top=max(float(np.max(row["curve"])) for row in rows.values()))


def _trade_off(axes: Axes, rows: Rows) -> None:
    """Dots at the tight epsilon, thin lines to what the paper prints; dashed lines where nothing is paid."""
    for label, row in rows.items():
        last, error, epsilon = row["last"], row["last_standard_error"], next(iter(row["epsilon"].values()))
        if row["releases"] == 0 or epsilon is None:
            line = axes.axhline(last, ls="--", lw=1, label=f"{label}: {last:.4f}", color=CONTROLS.get(label))
            axes.axhspan(last - error, last + error, color=line.get_color(), alpha=0.08, lw=0)
            continue
        marker = "x" if "zeroed" in label else "o"
        dots = axes.errorbar(
            epsilon, last, yerr=error, fmt=marker, label=f"{label}: {last:.4f}", color=CONTROLS.get(label)
        )
        if row["printed_epsilon"] is not None:
            axes.plot([epsilon, row["printed_epsilon"]], [last, last], ":", color=dots[0].get_color(), lw=1)
    axes.set_xscale("log")
    axes.set_xlabel("tight epsilon at delta = N^-1.1 (dotted: to the printed one)")
