"""Comparing arms on the same problem over the same seeds, with the controls every claim needs.

A cell is one arm at one seed. Cells run in parallel, are written to ``OUT/cells`` as
they finish under a hash of their settings, and are never run twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.progress import Progress

import privbo as pb
from experiments.describe import describe
from privbo.comparisons.cells import Cell, complete, digest
from privbo.protocol.files import write_atomically
from privbo.protocol.messages import Algorithm, FloatArray


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One thing that is compared: an algorithm under a privacy, or a control."""

    label: str
    algorithm: Algorithm
    privacy: pb.Privacy | pb.NoPrivacy
    control: Literal["zeroed"] | None = None


@dataclass(frozen=True, kw_only=True)
class Study:
    """A problem (one per seed), its arms and the number of rounds.

    Attributes:
        problem: Makes the problem of a seed; must be importable by worker processes.
    """

    name: str
    problem: Callable[[int], pb.Problem]
    arms: tuple[Arm, ...]
    rounds: int


def run_cells(study: Study, seeds: Sequence[int], out: Path, jobs: int) -> dict[str, list[dict[str, Any]]]:
    """All cells by arm label, in the order of ``seeds``; finished ones are read back."""
    cells = [
        Cell(
            label=arm.label,
            seed=seed,
            path=out / "cells" / f"{digest([study.name, study.rounds, describe(arm), seed, pb.__version__])}.json",
            work=partial(_run_cell, study, arm, seed),
        )
        for seed in seeds
        for arm in study.arms
    ]
    with Progress() as bar:
        task = bar.add_task(study.name, total=len(cells))
        results = complete(cells, jobs=jobs, on_cell=lambda *_: bar.advance(task))
    found: dict[str, list[dict[str, Any]]] = {arm.label: [] for arm in study.arms}
    for cell, result in zip(cells, results, strict=True):
        found[cell.label].append(result)
    return found


def _run_cell(study: Study, arm: Arm, seed: int) -> dict[str, Any]:
    problem = study.problem(seed)
    result = pb.run(problem, arm.algorithm, privacy=arm.privacy, rounds=study.rounds, seed=seed, control=arm.control)
    regret = regret_curve(problem, result)
    plan = result.plan
    return {
        "arm": arm.label,
        "seed": seed,
        "regret": regret.tolist(),
        "releases": plan.releases,
        "noise_multiplier": plan.noise_multiplier,
        "epsilon": {f"{delta:.6g}": finite(result.epsilon(delta)) for delta in deltas(problem.n_clients).values()},
    }


def deltas(n_clients: int) -> dict[str, float]:
    """The two deltas every table names: N^-1.1 and min(1e-5, 1/(10 N))."""
    return {"N^-1.1": pb.paper_delta(n_clients), "default": pb.default_delta(n_clients)}


def finite(value: float) -> float | None:
    """JSON form of an epsilon: None where it is infinite."""
    return value if math.isfinite(value) else None


def regret_curve(problem: pb.Problem, result: pb.Record) -> FloatArray:
    """Noiseless best-so-far regret averaged over clients, after initialisation and each round."""
    best = problem.best_values() if callable(problem.best_values) else problem.best_values
    if best is None:
        raise pb.ConfigurationError(f"problem {problem.name!r} has no best_values; regret is not defined")
    return np.asarray(np.mean(best) - result.best_so_far())


def summarise(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Per arm: cumulative regret (mean, standard error over seeds), curve and price."""
    summary = {}
    for label, cells in found.items():
        curves = np.array([cell["regret"] for cell in cells])
        cumulative = curves[:, 1:].sum(axis=1)
        summary[label] = {
            "cumulative_regret": float(cumulative.mean()),
            "standard_error": standard_error(cumulative),
            "by_seed": cumulative.tolist(),
            "curve": curves.mean(axis=0).tolist(),
            "curve_standard_error": [standard_error(column) for column in curves.T],
            "releases": cells[0]["releases"],
            "noise_multiplier": cells[0]["noise_multiplier"],
            "epsilon": cells[0]["epsilon"],
        }
    return summary


def standard_error(values: FloatArray) -> float:
    """Standard error of the mean over seeds; NaN-free: 0 for a single seed."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def paired_difference(ours: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, float]:
    """Mean and standard error over seeds of (ours - other), paired by seed."""
    difference = np.array(ours["by_seed"]) - np.array(other["by_seed"])
    return {"mean": float(difference.mean()), "standard_error": standard_error(difference)}


def markdown_table(summary: Mapping[str, Mapping[str, Any]], n_clients: int) -> str:
    """One row per arm, delta named beside every epsilon."""
    named = deltas(n_clients)
    heads = [f"epsilon (delta={name}={delta:.3g})" for name, delta in named.items()]
    lines = [
        "| arm | cumulative regret | last regret | noise multiplier | " + " | ".join(heads) + " |",
        "|---|---|---|---|" + "---|" * len(heads),
    ]
    for label, row in summary.items():
        price = [_cell(row["epsilon"][f"{delta:.6g}"], row["releases"]) for delta in named.values()]
        z = "-" if row["noise_multiplier"] is None or row["releases"] == 0 else f"{row['noise_multiplier']:.3g}"
        lines.append(
            f"| {label} | {row['cumulative_regret']:.3f} ± {row['standard_error']:.3f} | "
            f"{row['curve'][-1]:.4f} | {z} | " + " | ".join(price) + " |"
        )
    return "\n".join(lines) + "\n"


def _cell(epsilon: float | None, releases: int) -> str:
    if releases == 0:
        return "nothing released"
    return "infinite" if epsilon is None else f"{epsilon:.3f}"


def draw_curves(summary: Mapping[str, Mapping[str, Any]], title: str, path: Path) -> None:
    """Regret against rounds with standard errors over seeds, as PNG."""
    import io

    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for label, row in summary.items():
        mean, error = np.array(row["curve"]), np.array(row["curve_standard_error"])
        (line,) = axes.plot(mean, label=f"{label}: {row['cumulative_regret']:.2f}")
        axes.fill_between(range(len(mean)), mean - error, mean + error, color=line.get_color(), alpha=0.2, lw=0)
    axes.set_xlabel("round")
    axes.set_ylabel("regret of the best point so far, mean over clients")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(title="arm: cumulative regret", frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    write_atomically(path, picture.getvalue())
