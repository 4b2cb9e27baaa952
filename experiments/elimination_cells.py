"""The elimination experiments' cells, which are never run twice, and their curves."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.progress import Progress

import privbo as pb
from experiments.describe import describe
from privbo.comparisons import cells as kept_cells
from privbo.protocol.files import write_atomically
from privbo.protocol.messages import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 100  # of every curve


@dataclass(frozen=True)
class Cell:
    """One task: a function of an experiment, and what it is called with; its result is kept by ``run_cells``."""

    label: str
    task: Callable[..., dict[str, Any]]
    arguments: Mapping[str, Any]

    @property
    def name(self) -> str:
        """File name, a hash of what is run."""
        settings = {key: describe(value) for key, value in self.arguments.items()}
        text = json.dumps([self.label, self.task.__qualname__, settings, pb.__version__], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20] + ".json"


def run_cells(cells: Sequence[Cell], out: Path, jobs: int, title: str) -> dict[str, list[dict[str, Any]]]:
    """Results by label, in order; finished cells are read back, so an interrupted experiment goes on."""
    kept = [
        kept_cells.Cell(
            label=cell.label,
            seed=int(cell.arguments.get("seed", 0)),
            path=out / "cells" / cell.name,
            work=partial(cell.task, **cell.arguments),
        )
        for cell in cells
    ]
    with Progress() as bar:
        task = bar.add_task(title, total=len(kept))
        results = kept_cells.complete(kept, jobs=jobs, on_cell=lambda *_: bar.advance(task))
    found: dict[str, list[dict[str, Any]]] = {}
    for cell, result in zip(cells, results, strict=True):
        found.setdefault(cell.label, []).append(result)
    return found


def totals(cells: Sequence[Mapping[str, Any]], measure: str) -> FloatArray:
    """Final regret of every cell, ``(n,)``."""
    return np.array([cell[measure][-1] for cell in cells])


def mean_and_deviation(values: FloatArray) -> str:
    """``mean ± one standard deviation``."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return f"{np.mean(values):.1f} ± {deviation:.1f}"


def draw(
    panels: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]],
    measure: str,
    horizon: int,
    path: Path,
    *,
    log: bool = False,
) -> None:
    """Cumulative regret against pulls, one panel per objective, mean and one standard deviation."""
    figure, grid = start_figure(len(panels), f"cumulative {measure} regret per client")
    time = np.linspace(0, horizon, POINTS + 1)
    colours = {label: f"C{i}" for i, label in enumerate(dict.fromkeys(a for arms in panels.values() for a in arms))}
    for axes, (title, arms) in zip(grid, panels.items(), strict=True):
        for label, cells in arms.items():
            curves = np.array([cell[measure] for cell in cells if measure in cell])
            if not len(curves):
                continue
            mean, spread = curves.mean(axis=0), curves.std(axis=0)
            axes.plot(time, mean, label=label, color=colours[label])
            axes.fill_between(time, mean - spread, mean + spread, color=colours[label], alpha=0.2, lw=0)
        axes.set_title(title)
        axes.set_yscale("log" if log else "linear")
        axes.set_ylim(bottom=1 if log else 0)
    finish_figure(figure, grid, path)


def start_figure(n_panels: int, what: str) -> tuple[Figure, list[Axes]]:
    """Panels in rows of at most three, all against the pulls of one client."""
    from matplotlib.figure import Figure

    columns = 2 if n_panels in (2, 4) else min(3, n_panels)
    rows = -(-n_panels // columns)
    figure = Figure(figsize=(4.4 * columns, 3.2 * rows + 0.9), layout="constrained")
    grid = [axes for row in figure.subplots(rows, columns, squeeze=False) for axes in row]
    for axes in grid[n_panels:]:
        axes.set_visible(False)
    figure.supylabel(what)
    return figure, grid[:n_panels]


def finish_figure(figure: Figure, grid: Sequence[Axes], path: Path) -> None:
    """One legend below all panels, and the file."""
    lines = {}
    for axes in grid:
        axes.set_xlabel("pulls of one client")
        axes.grid(alpha=0.3)
        lines |= {label: line for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(lines.values(), list(lines), loc="outside lower center", ncols=4, frameon=False, fontsize="small")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=80)
    write_atomically(path, picture.getvalue())
