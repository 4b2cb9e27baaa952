"""One command per figure of the DP-FTS-DE paper: run its arms, write ``summary.json``, ``table.md``, ``figure.png``.

A cell is one arm at one seed on one benchmark; figures share cells (``OUT/../cells``). A loss
curve is the best loss so far, without observation noise, averaged over the clients; standard
errors are over runs. Three prices per arm: what the paper prints (moments accountant, nominal noise
multiplier), and the tight price of the noise drawn, at delta = N^-1.1 and min(1e-5, 1/(10 N)).
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

import privbo as pb
from accountant import moments, renyi
from accountant.events import Adjacency, Event, FixedSizeSampledGaussian, PoissonSampledGaussian, repeat
from experiments.arms import Arm, deltas, finite, standard_error
from experiments.describe import describe
from experiments.dp_fts_de_benchmarks import Benchmark, Scale, benchmark
from experiments.dp_fts_de_figures import FIGURES, controls
from experiments.dp_fts_de_pictures import draw
from privbo.comparisons.cells import Cell, complete, digest
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import write_atomically, write_json
from privbo.protocol.messages import ClientHistory, FloatArray

Row = dict[str, Any]


def main(out: Path, *, figure: str, scale: Scale, seeds: int | None, jobs: int, finished_only: bool = False) -> None:
    """Run one figure, or show what is finished of it: arms with two runs or more, each with the runs it has."""
    chosen = FIGURES[figure]
    panels: dict[str, dict[str, Row]] = {}
    text = (
        f"`{command(figure, scale, seeds, finished_only)}`. The paper: {chosen.statement} {chosen.note}".strip() + "\n"
    )
    for name in chosen.benchmarks:
        of = benchmark(name, scale)
        arms = unique((*controls(of), *chosen.arms(of)))
        numbers = range(of.first_seed, of.first_seed + (of.runs if seeds is None else seeds))
        cells = cells_of(of, arms, numbers, out.parent / "cells")
        found = finished(cells) if finished_only else run_cells(of.name, cells, jobs)
        arms = tuple(arm for arm in arms if arm.label in found)
        if not arms:
            continue
        panels[of.name] = summarise(of, arms, found, chosen.contrasts)
        text += "\n" + table(of, panels[of.name]) + contrasts(panels[of.name], chosen.contrasts)
    out.mkdir(parents=True, exist_ok=True)
    summary = {"figure": figure, "scale": scale, "statement": chosen.statement, "panels": panels}
    write_json(out / "summary.json", summary)
    write_atomically(out / "table.md", text.encode())
    if not panels:
        raise ConfigurationError(f"no arm of figure {figure} has two finished runs in {out.parent / 'cells'}")
    measures = {of.name: of.measure for of in (benchmark(name, scale) for name in chosen.benchmarks)}
    draw(panels, measures, chosen.kind, f"DP-FTS-DE paper, figure {figure} ({scale} scale)", out / "figure.png")


def command(figure: str, scale: Scale, seeds: int | None, finished_only: bool) -> str:
    """What to type for this figure."""
    return (
        f"python -m experiments dp-fts-de-{figure}"
        + (" --scale small" if scale == "small" else "")
        + ("" if seeds is None else f" --seeds {seeds}")
        + (" --finished" if finished_only else "")
    )


def unique(arms: Sequence[Arm]) -> tuple[Arm, ...]:
    """Arms by label, each once, in order."""
    return tuple({arm.label: arm for arm in arms}.values())


def cells_of(of: Benchmark, arms: Sequence[Arm], seeds: Sequence[int], folder: Path) -> list[Cell]:
    """Every arm at every seed."""
    return [
        Cell(
            label=arm.label,
            seed=seed,
            path=folder / f"{digest(identity(of, arm, seed))}.json",
            work=partial(play, of.clients, of.rounds, arm, seed),
        )
        for seed in seeds
        for arm in arms
    ]


def run_cells(name: str, cells: Sequence[Cell], jobs: int) -> dict[str, list[Row]]:
    """Every arm's runs, in the order of the seeds; finished ones are read back."""
    with Progress() as bar:
        task = bar.add_task(name, total=len(cells))
        results = complete(cells, jobs=jobs, on_cell=lambda *_: bar.advance(task))
    return _by_label(cells, results)


def finished(cells: Sequence[Cell]) -> dict[str, list[Row]]:
    """The runs that are there, of arms that have two or more."""
    there = [cell for cell in cells if cell.path.exists()]
    found = _by_label(there, complete(there, jobs=1))
    return {label: runs for label, runs in found.items() if len(runs) > 1}


def _by_label(cells: Sequence[Cell], results: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for cell, result in zip(cells, results, strict=True):
        found.setdefault(cell.label, []).append(result)
    return found


def identity(of: Benchmark, arm: Arm, seed: int) -> list[Any]:
    """What makes two cells the same, whatever they are called and whoever asks for them."""
    setting = [_said(arm.algorithm), _said(arm.privacy), arm.control]
    return [of.name, of.n_clients, of.rounds, *setting, seed, pb.__version__]


def _said(value: Any) -> Any:
    """A description of what departs from the defaults: a setting that is added later changes no old cell."""
    if not dataclasses.is_dataclass(value):
        return describe(value)
    said: Row = {"type": type(value).__name__}
    for field in dataclasses.fields(value):
        inside, usual = getattr(value, field.name), field.default
        if field.default_factory is not dataclasses.MISSING:
            usual = field.default_factory()
        if inside != usual:
            said[field.name] = [_said(v) for v in inside] if isinstance(inside, tuple) else _said(inside)
    return said


def play(clients: Callable[[int], Any], rounds: int, arm: Arm, seed: int) -> Row:
    """One run of one arm."""
    world = clients(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # delta = N^-1.1 is named beside every epsilon here
        result = pb.run(
            world.problem(), arm.algorithm, privacy=arm.privacy, rounds=rounds, seed=seed, control=arm.control
        )
    curve = best_so_far(world.losses(result.clients), result.clients)
    return {"arm": arm.label, "seed": seed, "curve": [round(float(x), 8) for x in curve]}


def best_so_far(losses: FloatArray, history: ClientHistory) -> FloatArray:
    """Mean over clients of the smallest loss so far, after initialisation and each round."""
    running = np.fmin.accumulate(losses, axis=1)
    rounds = np.unique(history.rounds)
    last = np.searchsorted(history.rounds, rounds, side="right") - 1
    return np.asarray(np.nanmean(running[:, last], axis=0))


def summarise(
    of: Benchmark,
    arms: Sequence[Arm],
    found: Mapping[str, Sequence[Row]],
    contrasts: Sequence[tuple[str, str]] = (),
) -> dict[str, Row]:
    """Per arm: curve, cumulative and last loss with standard errors over runs, prices, paired differences.

    Differences are to the controls, and of every pair of labels in ``contrasts``, where both were run.
    """
    problem = of.clients(of.first_seed).problem()
    rows = {arm.label: _row(of, arm, problem, found[arm.label]) for arm in arms}
    for label, row in rows.items():
        start = "DE start, uniform steps" if as_many_regions(label, "DE start, uniform steps", rows) else None
        for control in ("local TS", start, zeroed_label(label, rows)):
            if control in rows and control != label:
                row["minus"][control] = paired(found[label], found[control])
    for one, other in contrasts:
        if one in rows and other in rows:
            rows[one]["minus"][other] = paired(found[one], found[other])
    return rows


def zeroed_label(label: str, rows: Mapping[str, Any]) -> str | None:
    """The arm with the clients' sum zeroed: a mechanism's own; for the paper's variants else one of as many regions.

    q, z and S scale a noise that stands alone, which moves no maximum; the regions do.
    """
    if "zeroed" in label or rows[label]["releases"] == 0 or rows[label]["noise_multiplier"] is None:
        return None
    own = f"{label}, sum zeroed"
    if own in rows or label.startswith("ours"):
        return own if own in rows else None
    zeroed = (other for other in rows if "sum zeroed" in other and not other.startswith("ours"))
    return next((other for other in zeroed if as_many_regions(label, other, rows)), None)


def as_many_regions(one: str, other: str, rows: Mapping[str, Any]) -> bool:
    """Whether the clients of two arms start in as many regions."""
    return other in rows and rows[one]["n_regions"] == rows[other]["n_regions"]


def paired(ours: Sequence[Row], other: Sequence[Row]) -> Row:
    """(ours - other) of the loss summed over all rounds, over the first 20, and after the last; paired by seed."""
    theirs = {run["seed"]: run["curve"] for run in other}
    both = [(run["curve"], theirs[run["seed"]]) for run in ours if run["seed"] in theirs]
    difference = np.array([np.subtract(a, b) for a, b in both])[:, 1:]
    spans = {"cumulative": slice(None), "first 20": slice(20), "last": slice(-1, None)}
    sums = {name: difference[:, part].sum(axis=1) for name, part in spans.items()}
    return {
        "runs": len(both),
        **{name: {"mean": float(d.mean()), "standard_error": standard_error(d)} for name, d in sums.items()},
    }


def _row(of: Benchmark, arm: Arm, problem: pb.Problem, runs: Sequence[Row]) -> Row:
    curves = np.array([run["curve"] for run in runs])
    cumulative = curves[:, 1:].sum(axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        terms = pb.plan(problem, arm.algorithm, privacy=arm.privacy, rounds=of.rounds)
    tight = {
        f"{delta:.6g}": finite(terms.epsilon(delta)["tight"] if terms.releases else 0.0)
        for delta in deltas(of.n_clients).values()
    }
    return {
        "cumulative": float(cumulative.mean()),
        "cumulative_standard_error": standard_error(cumulative),
        "n_regions": arm.algorithm.n_regions if isinstance(arm.algorithm, pb.DPFTSDE) else None,
        "seeds": [run["seed"] for run in runs],
        "by_seed": cumulative.tolist(),
        "last": float(curves[:, -1].mean()),
        "last_standard_error": standard_error(curves[:, -1]),
        "curve": curves.mean(axis=0).tolist(),
        "curve_standard_error": [standard_error(column) for column in curves.T],
        "releases": terms.releases,
        "noise_multiplier": terms.noise_multiplier,
        "printed_epsilon": printed(of, arm.privacy, terms.releases),
        "epsilon": tight,
        "minus": {},
    }


def printed(of: Benchmark, privacy: pb.Privacy | pb.NoPrivacy, releases: int) -> float | None:
    """What the paper would print: the nominal multiplier in every release; None where it prints nothing."""
    if not isinstance(privacy, pb.Privacy) or privacy.noise_multiplier is None or not releases:
        return None
    delta, z = pb.paper_delta(of.n_clients), privacy.noise_multiplier
    if privacy.sampling == "fixed-size":
        size = round(privacy.sample_rate * of.n_clients)
        event: Event = FixedSizeSampledGaussian(n_clients=of.n_clients, sample_size=size, noise_multiplier=z)
        return renyi.epsilon(repeat(event, releases), delta, adjacency=Adjacency.REPLACE_ONE)
    event = PoissonSampledGaussian(sample_rate=privacy.sample_rate, noise_multiplier=z)
    return moments.epsilon(repeat(event, releases), delta, adjacency=Adjacency.ADD_OR_REMOVE_ONE)


def table(of: Benchmark, rows: Mapping[str, Row]) -> str:
    """One row per arm, delta named beside every epsilon."""
    small, default = deltas(of.n_clients).values()
    head = (
        f"**{of.name}** (N={of.n_clients}, T={of.rounds}; {of.measure}, ± one standard error over runs; "
        "simulated, seeded noise). Epsilon as the paper prints it (moments accountant, nominal multiplier), and the "
        f"tight price of the noise drawn at delta = N^-1.1 = {small:.3g} and at {default:.3g}. Differences are of the "
        "cumulative loss, paired by seed."
    )
    columns = ("arm", "runs", "cumulative", "last", "epsilon, printed", "tight, N^-1.1", "tight, default")
    columns += ("minus local TS", "minus sum zeroed")
    lines = [head, "", "| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for label, row in rows.items():
        prices = [row["printed_epsilon"], row["epsilon"][f"{small:.6g}"], row["epsilon"][f"{default:.6g}"]]
        own = zeroed_label(label, rows)
        lines.append(
            f"| {label} | {len(row['seeds'])} | {row['cumulative']:.3f} ± {row['cumulative_standard_error']:.3f} | "
            f"{row['last']:.4f} ± {row['last_standard_error']:.4f} | "
            + " | ".join(_price(p, row, index) for index, p in enumerate(prices))
            + f" | {_difference(row, 'local TS')} | {_difference(row, own)} |"
        )
    return "\n".join(lines) + "\n"


def contrasts(rows: Mapping[str, Row], pairs: Sequence[tuple[str, str]]) -> str:
    """The paired differences that the figure is about, one line each."""
    lines = []
    for one, other in pairs:
        if one in rows and other in rows:
            runs = rows[one]["minus"][other]["runs"]
            lines.append(f"- {one} minus {other}: {_difference(rows[one], other)} ({runs} runs)")
    return "\n".join(["", *lines, ""]) if lines else ""


def _price(epsilon: float | None, row: Row, index: int) -> str:
    if row["releases"] == 0:
        return "-"
    if epsilon is None:
        return "-" if index == 0 else "infinite"
    return f"{epsilon:.2f}" if math.isfinite(epsilon) else "infinite"


def _difference(row: Row, control: str | None) -> str:
    if control is None or control not in row["minus"]:
        return "-"
    found = row["minus"][control]["cumulative"]
    return f"{found['mean']:+.3f} ± {found['standard_error']:.3f}"
