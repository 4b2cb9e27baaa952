"""Table 4's protocol on digits: rank of the model that Hyperband, halving and F-LCB select.

Ten small networks; their true order is the mean test accuracy over all seeds where the
validation loss of a long training (250 pulls of 40 Adam steps) is smallest. A budget
counts pulls; every search sees validation losses only.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import digits_arms
from experiments.baselines.halving import early_stopping, hyperband, successive_halving, uniform
from experiments.baselines.neural import NeuralArm
from experiments.curves import RecordedArm, record
from privbo.algorithms.functional.bounds import RateViolated
from privbo.algorithms.functional.f_lcb import Selection, f_lcb
from privbo.protocol.files import write_atomically, write_json

BUDGETS = (50, 100, 200, 350, 500)
N_PULLS = 250

Search = Callable[[Sequence[RecordedArm], int, int], Selection]


def make_arm(seed: int, name: str) -> tuple[NeuralArm, Any, Any]:
    """The live arm of a curve, and the test records."""
    digits = digits_arms.load_digits(seed)
    arm = next(arm for arm in digits_arms.arms(digits, seed) if arm.name == name)
    return arm, digits.test_x, digits.test_y


def _printed(arms: Sequence[RecordedArm], budget: int, seed: int) -> Selection:  # noqa: ARG001  # no randomness
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RateViolated)  # counted in the table
        return f_lcb(arms, budget=budget)


def _common(arms: Sequence[RecordedArm], budget: int, seed: int) -> Selection:
    """F-LCB with g(k) = 2 log(10)/sqrt(k) for every arm."""
    same = [dataclasses.replace(arm, reference=math.log(10)) for arm in arms]
    return _printed(same, budget, seed)


SEARCHES: dict[str, Search] = {
    "Hyperband": lambda arms, budget, seed: hyperband(arms, budget=budget, seed=seed),
    "SuccessiveHalving": lambda arms, budget, _: successive_halving(arms, budget=budget),
    "F-LCB, own f(x_1) in g (paper)": _printed,
    "F-LCB, common g": _common,
    "uniform": lambda arms, budget, _: uniform(arms, budget=budget),
    "early stopping": lambda arms, budget, _: early_stopping(arms, budget=budget, patience=5, min_gain=0.01),
}


def true_order(curves: dict[int, list[RecordedArm]]) -> dict[str, dict[str, float]]:
    """Rank from 1, mean test accuracy and its standard error per model."""
    names = [arm.name for arm in next(iter(curves.values()))]
    table = np.array([[arm.best_test for arm in arms] for arms in curves.values()])
    mean = table.mean(axis=0)
    error = table.std(axis=0, ddof=1) / np.sqrt(len(table)) if len(table) > 1 else np.zeros(len(names))
    rank = np.empty(len(names))
    rank[np.argsort(-mean, kind="stable")] = np.arange(1, len(names) + 1)
    return {
        name: {"rank": float(rank[i]), "accuracy": float(mean[i]), "standard_error": float(error[i])}
        for i, name in enumerate(names)
    }


def main(out: Path, *, scale: str, seeds: int | None, jobs: int) -> None:
    """Record the curves, search them, write summary, table and figure."""
    out.mkdir(parents=True, exist_ok=True)
    count = seeds or (10 if scale == "paper" else 3)
    budgets, n_pulls = (BUDGETS, N_PULLS) if scale == "paper" else ((20, 50), 40)
    curves = record(make_arm, list(digits_arms.MODELS), range(count), n_pulls=n_pulls, out=out / "curves", jobs=jobs)
    order = true_order(curves)
    ranks, violations = search_all(curves, order, budgets)
    write_json(out / "summary.json", {"order": order, "ranks": ranks, "violations": violations, "runs": count})
    write_atomically(out / "table.md", table(order, ranks, violations, budgets, count).encode())
    draw(ranks, budgets, out / "figure.png")


def search_all(
    curves: dict[int, list[RecordedArm]], order: dict[str, dict[str, float]], budgets: Sequence[int]
) -> tuple[dict[str, dict[str, list[float]]], int]:
    """Rank of the selected model per search, budget and seed; arms whose rate was seen to fail."""
    ranks: dict[str, dict[str, list[float]]] = {name: {} for name in SEARCHES}
    violations = 0
    for name, search in SEARCHES.items():
        for budget in budgets:
            found = [search(arms, budget, seed) for seed, arms in curves.items()]
            pairs = zip(found, curves.values(), strict=True)
            ranks[name][str(budget)] = [order[arms[f.chosen or 0].name]["rank"] for f, arms in pairs]
            violations += sum(len({v.arm for v in f.violations}) for f in found)
    return ranks, violations


def table(
    order: dict[str, dict[str, float]],
    ranks: dict[str, dict[str, list[float]]],
    violations: int,
    budgets: Sequence[int],
    count: int,
) -> str:
    """The true order, then mean rank and standard deviation per budget."""
    lines = ["| rank | model | test accuracy |", "|---|---|---|"]
    for name, row in sorted(order.items(), key=lambda item: item[1]["rank"]):
        lines.append(f"| {row['rank']:.0f} | {name} | {row['accuracy']:.4f} ± {row['standard_error']:.4f} |")
    lines += ["", f"Rank of the selected model, mean and standard deviation over {count} runs.", ""]
    lines += ["| budget | " + " | ".join(ranks) + " |", "|---|" + "---|" * len(ranks)]
    for budget in budgets:
        cells = [np.array(by_budget[str(budget)]) for by_budget in ranks.values()]
        lines.append(f"| {budget} | " + " | ".join(f"{c.mean():.1f} ± {c.std():.1f}" for c in cells) + " |")
    lines += ["", f"Arms whose heuristic rate was seen to fail, over all F-LCB runs: {violations}."]
    return "\n".join(lines) + "\n"


def draw(ranks: dict[str, dict[str, list[float]]], budgets: Sequence[int], path: Path) -> None:
    """Mean rank against budget."""
    import io

    from matplotlib.figure import Figure

    picture = Figure(figsize=(7, 4), layout="constrained")
    axes = picture.subplots()
    for name, by_budget in ranks.items():
        values = np.array([by_budget[str(budget)] for budget in budgets])
        axes.errorbar(budgets, values.mean(axis=1), values.std(axis=1), marker="o", capsize=3, label=name)
    axes.set(xlabel="budget (pulls of 40 steps)", ylabel="true rank of the selected model")
    axes.legend(frameon=False)
    buffer = io.BytesIO()
    picture.savefig(buffer, format="png", dpi=120)
    write_atomically(path, buffer.getvalue())
