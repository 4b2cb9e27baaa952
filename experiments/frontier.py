"""The privacy-utility frontier as one picture, from what ``privbo compare`` found.

privbo compare experiments/levels.toml --out results/levels
python -m experiments.frontier results/levels docs/frontier.png
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accountant import Adjacency, calibrate, epsilon_table
from privbo.protocol.files import read_json, write_atomically

STRICT = 1e-5
BLUE = "#2b87c8"
CONTROLS = (
    ("non-private", "#009e73", "shared without privacy"),
    ("local", "#d55e00", "nothing shared"),
    ("zeroed", "#7f7f7f", "clients' sum set to zero"),
)


def strict_epsilon(setting: Mapping[str, Any]) -> float:
    """Epsilon of the same plan at delta = 1e-5; everybody takes part in every release."""
    event = calibrate.poisson(1.0, setting["noise_multiplier"], setting["releases"])
    return min(epsilon_table(event, STRICT, adjacency=Adjacency.ZERO_OUT).values())


def draw(found: Mapping[str, Any]) -> bytes:
    """The picture as PNG."""
    from matplotlib.figure import Figure

    private = sorted((s for s in found["settings"] if s["kind"] == "private"), key=lambda s: s["epsilon"])
    delta = private[0]["delta"]
    figure = Figure(figsize=(7.2, 3.8), dpi=110, layout="constrained")
    axes = figure.subplots()
    for kind, colour, label in CONTROLS:
        # Only the direction of noise matters to who maximises it, so zeroed runs agree at every epsilon.
        for setting in [s for s in found["settings"] if s["kind"] == kind][:1]:
            middle, half = setting["utility"], setting["standard_error"]
            axes.axhline(middle, color=colour, linestyle="--", label=label)
            axes.axhspan(middle - half, middle + half, color=colour, alpha=0.12, linewidth=0)
    x = [s["epsilon"] for s in private]
    bars = [s["standard_error"] for s in private]
    axes.errorbar(x, [s["utility"] for s in private], bars, marker="o", capsize=3, color=BLUE, label="privbo")
    axes.set_xscale("log")
    axes.set_xticks(x, [f"{s['epsilon']:.3g}\n({strict_epsilon(s):.2g})" for s in private])
    axes.minorticks_off()
    axes.set_xlabel(f"epsilon of the whole run at delta = {delta:.3g} (and at delta = {STRICT:g})")
    axes.set_ylabel("mean best accuracy\nover clients and rounds")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False, fontsize=9)
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()


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
