"""The privacy-utility frontier as one picture, from what ``privbo compare`` found.

privbo compare experiments/levels.toml --out results/levels
python -m experiments.frontier results/levels docs/frontier.png
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from experiments.figure import png_of
from privbo.comparisons.verdict import standard_error
from privbo.protocol.files import read_json, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Found: TypeAlias = Mapping[str, Any]  # a setting of ``summary.json``
Group: TypeAlias = tuple[Sequence[Found], str, str, str]  # of one line, with its colour, label and style
OTHER = "DP-FTS-DE"
LOCAL, PUBLIC, OURS, THEIRS = "#d55e00", "#009e73", "#2b87c8", "#cc79a7"


def best_alone(settings: Sequence[Found]) -> Found:
    """Give the local engine that ended best, chosen after the fact."""
    return max((s for s in settings if s["kind"] == "local"), key=lambda s: float(s["utility"]))


def gain(setting: Found, alone: Found) -> tuple[float, float]:
    """Give a setting's mean gain over clients alone on the same seeds, and its standard error."""
    gaps = np.array([value - alone["by_seed"][seed] for seed, value in setting["by_seed"].items()])
    return float(gaps.mean()), standard_error(gaps) or 0.0


def draw(found: Found) -> bytes:
    """Draw the picture as PNG: the best score by round, and the gain at the end by epsilon at the safe delta."""
    from matplotlib.figure import Figure

    settings = found["settings"]
    groups = [
        (_priced(settings, kind, theirs=theirs), colour, label, style)
        for theirs, colour, name in ((False, OURS, "SharedPrior"), (True, THEIRS, f"{OTHER} as in the paper"))
        for kind, label, style in (("private", name, "-"), ("zeroed", f"{name}, noise only", ":"))
    ]
    figure = Figure(figsize=(9.6, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    _curves(left, settings, groups)
    _gains(right, settings, groups)
    lines = {line.get_label(): line for line in left.get_lines()}
    figure.legend(lines.values(), list(lines), loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return png_of(figure, dpi=110)


def _priced(settings: Sequence[Found], kind: str, *, theirs: bool) -> list[Found]:
    """Settings of a kind, of DP-FTS-DE or of ours, by epsilon."""
    found = [s for s in settings if s["kind"] == kind and (OTHER in s["setting"]) == theirs]
    return sorted(found, key=lambda s: float(s["strict_epsilon"]))


def _curves(axes: Axes, settings: Sequence[Found], groups: Sequence[Group]) -> None:
    """Mean best score by round; of the priced settings those at the epsilon nearest 2."""
    public = next(s for s in settings if s["kind"] == "non-private")
    axes.plot(best_alone(settings)["curve"], "--", color=LOCAL, label="alone, the best local engine")
    axes.plot(public["curve"], "--", color=PUBLIC, label="shared without privacy")
    near = [min(found, key=lambda s: abs(s["strict_epsilon"] - 2.0)) for found, *_ in groups]
    for setting, (_, colour, label, style) in zip(near, groups, strict=True):
        axes.plot(setting["curve"], style, color=colour, label=label)
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel(f"round (epsilon {near[0]['strict_epsilon']:.2g} where it is finite)")
    axes.set_ylabel("best score so far, mean over clients")


def _gains(axes: Axes, settings: Sequence[Found], groups: Sequence[Group]) -> None:
    """Gain over clients alone at the end of the run, on the same seeds, by epsilon."""
    alone = best_alone(settings)
    axes.axhline(0.0, color=LOCAL, linestyle="--")
    for setting in (s for s in settings if s["kind"] == "non-private"):
        middle, half = gain(setting, alone)
        axes.axhline(middle, color=PUBLIC, linestyle="--")
        axes.axhspan(middle - half, middle + half, color=PUBLIC, alpha=0.12, linewidth=0)
    for found, colour, _, style in groups:
        gains = [gain(s, alone) for s in found]
        x = [s["strict_epsilon"] for s in found]
        axes.errorbar(x, [g for g, _ in gains], [e for _, e in gains], fmt=f"o{style}", capsize=3, color=colour)
    axes.set_xscale("log")
    ticks = sorted({round(s["strict_epsilon"], 3) for found, *_ in groups for s in found})
    axes.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(f"epsilon of the whole run at delta = {groups[0][0][0]['strict_delta']:.3g}")
    axes.set_ylabel("gain over clients alone\nat the end of the run")


def main() -> None:
    """Read a comparison's folder and write the picture."""
    parser = argparse.ArgumentParser(prog="python -m experiments.frontier", description=__doc__)
    parser.add_argument("comparison", type=Path, help="folder that privbo compare wrote")
    parser.add_argument("picture", type=Path, help="PNG to write")
    arguments = parser.parse_args()
    write_atomically(arguments.picture, draw(read_json(arguments.comparison / "summary.json")))
    sys.stdout.write(f"written: {arguments.picture}\n")


if __name__ == "__main__":
    main()
