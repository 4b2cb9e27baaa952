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
OTHER = "DP-FTS-DE"
LOCAL, NOISE, PUBLIC, OURS, THEIRS = "#d55e00", "#7f7f7f", "#009e73", "#2b87c8", "#cc79a7"
CONTROLS = (("non-private", PUBLIC, "shared without privacy"), ("zeroed", NOISE, "clients' sum set to zero"))


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
    priced = sorted((s for s in settings if s["kind"] == "private"), key=lambda s: float(s["strict_epsilon"]))
    ours = [s for s in priced if not s["setting"].startswith(OTHER)]
    theirs = [s for s in priced if s["setting"].startswith(OTHER)]
    figure = Figure(figsize=(9.6, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    _curves(left, settings, ours, theirs)
    _gains(right, settings, ours, theirs)
    lines = {line.get_label(): line for line in left.get_lines()}
    figure.legend(lines.values(), list(lines), loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return png_of(figure, dpi=110)


def _curves(axes: Axes, settings: Sequence[Found], ours: Sequence[Found], theirs: Sequence[Found]) -> None:
    """Mean best score by round; of the priced settings those at the epsilon nearest 2."""
    drawn = [(best_alone(settings), LOCAL, "alone, the best local engine", "--")]
    drawn += [(s, colour, label, "--") for kind, colour, label in CONTROLS for s in settings if s["kind"] == kind]
    for group, colour, name in ((ours, OURS, "SharedPrior"), (theirs, THEIRS, f"{OTHER} as in the paper")):
        if group:
            drawn.append((min(group, key=lambda s: abs(s["strict_epsilon"] - 2.0)), colour, name, "-"))
    for setting, colour, label, style in drawn:
        axes.plot(setting["curve"], style, color=colour, label=label)
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel(f"round (epsilon {drawn[-1][0]['strict_epsilon']:.2g} where it is finite)")
    axes.set_ylabel("best score so far, mean over clients")


def _gains(axes: Axes, settings: Sequence[Found], ours: Sequence[Found], theirs: Sequence[Found]) -> None:
    """Gain over clients alone at the end of the run, on the same seeds, by epsilon."""
    alone = best_alone(settings)
    axes.axhline(0.0, color=LOCAL, linestyle="--")
    for kind, colour, _ in CONTROLS:
        for setting in (s for s in settings if s["kind"] == kind):
            middle, half = gain(setting, alone)
            axes.axhline(middle, color=colour, linestyle="--")
            axes.axhspan(middle - half, middle + half, color=colour, alpha=0.12, linewidth=0)
    for group, colour in ((ours, OURS), (theirs, THEIRS)):
        gains = [gain(s, alone) for s in group]
        x = [s["strict_epsilon"] for s in group]
        axes.errorbar(x, [g for g, _ in gains], [e for _, e in gains], marker="o", capsize=3, color=colour)
    axes.set_xscale("log")
    ticks = sorted({round(s["strict_epsilon"], 3) for s in (*ours, *theirs)})
    axes.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(f"epsilon of the whole run at delta = {(*ours, *theirs)[0]['strict_delta']:.3g}")
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
