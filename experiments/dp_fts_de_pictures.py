"""Pictures of the DP-FTS-DE figures: loss against rounds, or final loss against epsilon."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from privbo.protocol.files import write_atomically

Rows = Mapping[str, Mapping[str, Any]]
CONTROLS = {"local TS": "black", "DE start, uniform steps": "dimgray", "DP-FTS-DE, sum zeroed": "darkgray"}
_COLOURS = [colour for name in ("tab10", "Dark2", "Set2") for colour in mpl.color_sequences[name]]


def draw(panels: Mapping[str, Rows], measures: Mapping[str, str], kind: str, title: str, path: Path) -> None:
    """One panel per benchmark, as PNG."""
    crowded = max(map(len, panels.values())) > 10
    figure = Figure(figsize=((9.5 if crowded else 7.5) * len(panels), 5), layout="constrained")
    for axes, (name, rows) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        (_curves if kind == "curves" else _trade_off)(axes, rows)
        axes.set_ylabel(f"{measures[name]} of the best point so far, mean over clients")
        axes.set_title(name)
        axes.grid(alpha=0.3)
        # Many lines leave no free corner: beside the axes they hide nothing.
        beside = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)} if crowded else {}
        axes.legend(frameon=False, fontsize="x-small", **beside)
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
    colours = CONTROLS | dict(zip((label for label in rows if label not in CONTROLS), _COLOURS, strict=False))
    for label, row in rows.items():
        last, error, epsilon = row["last"], row["last_standard_error"], next(iter(row["epsilon"].values()))
        if row["releases"] == 0 or epsilon is None:
            line = axes.axhline(last, ls="--", lw=1, label=f"{label}: {last:.4f}", color=colours[label])
            axes.axhspan(last - error, last + error, color=line.get_color(), alpha=0.08, lw=0)
            continue
        marker = "x" if "zeroed" in label else "o"
        axes.errorbar(epsilon, last, yerr=error, fmt=marker, label=f"{label}: {last:.4f}", color=colours[label])
        if row["printed_epsilon"] is not None:
            axes.plot([epsilon, row["printed_epsilon"]], [last, last], ":", color=colours[label], lw=1)
    axes.set_xscale("log")
    axes.set_xlabel("tight epsilon at delta = N^-1.1 (dotted: to the printed one)")
