"""What Figures 1 to 3 share: run F-LCB on a suite, count regret and pulls, draw three panels."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.arms import standard_error
from experiments.baselines.function_arms import FunctionArm
from experiments.f_lcb_suites import minima
from privbo.algorithms.functional.bounds import RateViolated
from privbo.algorithms.functional.f_lcb import f_lcb
from privbo.algorithms.functional.stochastic import Rates
from privbo.protocol.files import write_atomically, write_json
from privbo.protocol.messages import FloatArray

Suite = Callable[[int, Rates], list[FunctionArm]]


def run_seed(suite: Suite, seed: int, *, budget: int, rates: Rates, delta: float | None) -> dict[str, Any]:
    """One run: regret of every pull, pulls per arm, choice, the theory's bound."""
    arms = suite(seed, rates)
    lowest = minima(arms)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RateViolated)  # counted below, in the open
        found = f_lcb(arms, budget=budget, delta=delta)
    used = delta if delta is not None else 1.0 / (len(arms) * budget**2)
    bound = sum(
        arm.rate(None, k, used)  # these rates do not look at the state
        for arm, n in zip(arms, found.pulls, strict=True)
        for k in range(1, int(n) + 1)
    )
    return {
        "regret": (found.after - lowest.min())[len(arms) :],
        "regret_at_selection": float(np.nansum(found.before - lowest.min())),
        "bound": bound,
        "played": found.played,
        "after": found.after,
        "pulls": found.pulls.tolist(),
        "chosen": found.chosen,
        "best": int(lowest.argmin()),
        "violations": len(found.violations),
    }


def summarise_runs(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over seeds; the regret counts the pulls after the first one of each arm."""
    regret = np.array([run["regret"] for run in runs])
    total = regret.sum(axis=1)
    late = regret[:, 100:].sum(axis=1) if regret.shape[1] > 100 else np.zeros(len(runs))
    return {
        "regret": float(total.mean()),
        "standard_error": standard_error(total),
        "regret_after_round_100": float(late.mean()),
        "regret_at_selection": float(np.mean([run["regret_at_selection"] for run in runs])),
        "bound": float(np.mean([run["bound"] for run in runs])),
        "runs_below_bound": int(sum(run["regret_at_selection"] <= run["bound"] for run in runs)),
        "best_chosen": int(sum(run["chosen"] == run["best"] for run in runs)),
        "best_most_pulled": int(sum(int(np.argmax(run["pulls"])) == run["best"] for run in runs)),
        "violations": int(sum(run["violations"] for run in runs)),
        "pulls": np.mean([run["pulls"] for run in runs], axis=0).tolist(),
        "runs": len(runs),
    }


def table(summary: Mapping[str, Mapping[str, Any]]) -> str:
    """One row per kind of rate."""
    lines = [
        "| rate | regret | after round 100 | at selection | bound | best returned | most pulled | pulls | violations |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in summary.items():
        pulls = " / ".join(f"{n:.0f}" for n in row["pulls"])
        lines.append(
            f"| {name} | {row['regret']:.1f} ± {row['standard_error']:.1f} | {row['regret_after_round_100']:.2f} | "
            f"{row['regret_at_selection']:.1f} | {row['bound']:.0f} | {row['best_chosen']}/{row['runs']} | "
            f"{row['best_most_pulled']}/{row['runs']} | {pulls} | {row['violations']} |"
        )
    return "\n".join(lines) + "\n"


def figure(
    suite: Suite, *, budget: int, cases: Mapping[str, tuple[Rates, float | None]], seeds: int, out: Path, title: str
) -> dict[str, Any]:
    """Run all cases, write summary, table and the three panels of the paper's figure.

    Args:
        suite: Draws the arms of a seed.
        budget: Pulls, the first one of each arm included.
        cases: Rate and confidence by name; a confidence of 1 is the rate in expectation.
        seeds: Number of runs.
        out: Folder.
        title: Of the figure.
    """
    out.mkdir(parents=True, exist_ok=True)
    runs = {
        name: [run_seed(suite, seed, budget=budget, rates=rates, delta=delta) for seed in range(seeds)]
        for name, (rates, delta) in cases.items()
    }
    summary = {name: summarise_runs(found) for name, found in runs.items()}
    write_json(out / "summary.json", {"seeds": seeds, "budget": budget, "rates": summary})
    write_atomically(out / "table.md", f"{seeds} runs, {budget} pulls.\n\n{table(summary)}".encode())
    curves = {name: np.mean([run["regret"].cumsum() for run in found], axis=0) for name, found in runs.items()}
    first = next(iter(runs.values()))[0]
    draw(curves, first["played"], first["after"], title, out / "figure.png")
    return summary


def draw(curves: Mapping[str, FloatArray], played: FloatArray, after: FloatArray, title: str, path: Path) -> None:
    """Cumulative regret by rate; value of the arm played and of every arm in the first run."""
    import io

    from matplotlib.figure import Figure

    picture = Figure(figsize=(13, 4), layout="constrained")
    regret, gap, values = picture.subplots(1, 3)
    for name, curve in curves.items():
        regret.plot(curve, label=f"{name}: {curve[-1]:.0f}")
    regret.set(xlabel="round", ylabel="cumulative regret", title=title)
    gap.plot(after, lw=0.8)
    gap.set(xlabel="pull", ylabel="value of the arm played", yscale="log")
    for arm in np.unique(played):
        at = np.flatnonzero(played == arm)
        values.step(at, after[at], where="post", label=f"f{arm + 1}: {len(at)} pulls")
    values.set(xlabel="pull", ylabel="values (first run)", yscale="log")
    for axes in (regret, values):
        axes.legend(frameon=False)
    buffer = io.BytesIO()
    picture.savefig(buffer, format="png", dpi=120)
    write_atomically(path, buffer.getvalue())
