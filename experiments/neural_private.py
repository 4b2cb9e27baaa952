"""Private model selection on digits: which model is chosen, against epsilon, at record level.

Eight small networks, three of them good and five more than five points worse in long
non-private training, so that a random choice is within two points of the best in fewer
than 4 of 10 runs. Training records (1,000) and validation records (400) are a public,
disjoint split; epsilon is the target of either part. Private F-LCB, halving and Hyperband
share one plan of pulls; private selection (Papernot and Steinke 2022) trains a secret
random number of randomly chosen models and is priced by its own theorem. Noise is
simulated.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import Progress

import privbo as pb
from accountant.selection import TruncatedNegativeBinomial
from experiments.baselines.halving import hyperband, successive_halving
from experiments.baselines.neural import NeuralArm, accuracy, adam
from experiments.curves import record
from experiments.digits_arms import convolutional, load_digits, perceptron, pooled
from privbo.algorithms.functional.bounds import RateViolated
from privbo.algorithms.functional.f_lcb import Selection, f_lcb
from privbo.comparisons.cells import Cell, complete, digest
from privbo.protocol.files import write_atomically, write_json
from privbo.training.central import central_run
from privbo.training.plan import RecordPrivacy
from privbo.training.private_neural import PrivateNeuralArm
from privbo.training.selection import private_selection

MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "conv-4": partial(convolutional, 4),
    "mlp-64": partial(perceptron, 64),
    "mlp-32": partial(perceptron, 32),
    "mlp-5": partial(perceptron, 5),
    "mlp-4": partial(perceptron, 4),
    "mlp-3": partial(perceptron, 3),
    "mlp-2": partial(perceptron, 2),
    "pooled": pooled,
}
DELTA = 1e-5
PULLS = 16
LEARNING_RATE = 0.5
N_TRAINING, N_VALIDATION = 1000, 400
LONG_RUN = 250
RUNS = TruncatedNegativeBinomial(eta=1.0, gamma=0.1)  # ten runs on average
RUN_STEPS = 80

Search = Callable[[Sequence[PrivateNeuralArm], int], Selection]


def sgd(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The optimiser under the noise; its rate was set for the private regime."""
    return torch.optim.SGD(parameters, lr=LEARNING_RATE)


def _f_lcb(arms: Sequence[PrivateNeuralArm], seed: int) -> Selection:  # noqa: ARG001  # no randomness of its own
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RateViolated)  # counted in the table
        return f_lcb(arms, budget=PULLS)


SEARCHES: dict[str, Search] = {
    "F-LCB": _f_lcb,
    "SuccessiveHalving": lambda arms, _: successive_halving(arms, budget=PULLS),
    "Hyperband": lambda arms, seed: hyperband(arms, budget=PULLS, seed=seed),
}


def long_run_arm(seed: int, name: str) -> tuple[NeuralArm, Any, Any]:
    """Long non-private training of a model: Adam at 1e-3, as in ``neural_arms``."""
    digits = load_digits(seed)
    index = list(MODELS).index(name)
    arm = NeuralArm(name=name, model=MODELS[name], data=digits.split, optimiser=adam(1e-3), seed=1000 * seed + index)
    return arm, digits.test_x, digits.test_y


def run_search(search: str, epsilon: float, seed: int) -> dict[str, Any]:
    """One private search: the chosen model, its private accuracy, what the ledgers say."""
    torch.set_num_threads(1)
    digits = load_digits(seed, n_train=N_TRAINING, n_validation=N_VALIDATION)
    privacy = RecordPrivacy(epsilon=epsilon, delta=DELTA, pulls=PULLS, noise="simulation")
    run = central_run(privacy, n_training=N_TRAINING, n_validation=N_VALIDATION, seed=seed)
    arms = [
        PrivateNeuralArm(
            name=name,
            model=make,
            data=digits.split,
            optimiser=sgd,
            trainer=run.trainer,
            judge=run.judge,
            seed=1000 * seed + index,
            reference=math.log(10),
        )
        for index, (name, make) in enumerate(MODELS.items())
    ]
    found = SEARCHES[search](arms, seed)
    chosen = found.chosen
    state = None if chosen is None else found.states.get(chosen)
    return {
        "chosen": None if chosen is None else arms[chosen].name,
        "private_accuracy": None if state is None else accuracy(state.model, digits.test_x, digits.test_y),
        "pulls": found.pulls.tolist(),
        "violations": len(found.violations),
        "epsilon": run.epsilon(),
    }


def run_selection(epsilon: float, seed: int) -> dict[str, Any]:
    """One private selection: the chosen model and the price of either part."""
    torch.set_num_threads(1)
    digits = load_digits(seed, n_train=N_TRAINING, n_validation=N_VALIDATION)
    privacy = RecordPrivacy(epsilon=epsilon, delta=DELTA, pulls=1, steps=RUN_STEPS, noise="simulation")
    selection = private_selection(privacy, RUNS, n_training=N_TRAINING, n_validation=N_VALIDATION, seed=seed)
    names, made = list(MODELS), []

    def run_one(index: int) -> tuple[float, dict[str, Any]]:
        arm = PrivateNeuralArm(
            name=names[index],
            model=MODELS[names[index]],
            data=digits.split,
            optimiser=sgd,
            trainer=selection.trainer,
            judge=selection.judge,
            steps=RUN_STEPS,
            seed=len(made) + 1000 * seed,
        )
        made.append(index)
        state = arm.step(arm.init())
        return arm.value(state), state.model.state_dict()

    found = selection.select(len(names), run_one)
    return {
        "chosen": names[found.chosen],
        "private_accuracy": None,
        "pulls": [len(made)],
        "violations": 0,
        "epsilon": selection.epsilon(),
    }


def run_one(search: str, epsilon: float, seed: int) -> dict[str, Any]:
    """One cell of the experiment."""
    return run_selection(epsilon, seed) if search == "private selection" else run_search(search, epsilon, seed)


def main(out: Path, *, scale: str, seeds: int | None, jobs: int) -> None:
    """Long-run accuracies, then all searches at every epsilon; write summary, table and figure."""
    out.mkdir(parents=True, exist_ok=True)
    count = seeds or (10 if scale == "paper" else 3)
    epsilons = (0.5, 1.0, 3.0, 8.0) if scale == "paper" else (3.0,)
    long_seeds, n_pulls = (3, LONG_RUN) if scale == "paper" else (1, 60)
    curves = record(long_run_arm, list(MODELS), range(long_seeds), n_pulls=n_pulls, out=out / "curves", jobs=jobs)
    truth = {name: float(np.mean([arms[i].best_test for arms in curves.values()])) for i, name in enumerate(MODELS)}
    cells = [(s, e, seed) for e in epsilons for s in (*SEARCHES, "private selection") for seed in range(count)]
    results = run_cells(cells, out, jobs)
    rows = summarise(cells, results, truth)
    write_json(out / "summary.json", {"long_run_accuracy": truth, "rows": rows, "runs": count})
    write_atomically(out / "table.md", table(truth, rows, count).encode())
    draw(rows, truth, out / "figure.png")


def run_cells(cells: Sequence[tuple[str, float, int]], out: Path, jobs: int) -> list[dict[str, Any]]:
    """All cells' results, in order; finished ones are read back."""
    settings = [DELTA, PULLS, LEARNING_RATE, N_TRAINING, N_VALIDATION, repr(RUNS), RUN_STEPS, list(MODELS)]
    work = [
        Cell(
            label=search,
            seed=seed,
            path=out / "cells" / f"{digest([search, epsilon, seed, settings, pb.__version__])}.json",
            work=partial(run_one, search, epsilon, seed),
        )
        for search, epsilon, seed in cells
    ]
    with Progress() as bar:
        task = bar.add_task("private searches", total=len(work))
        return complete(work, jobs=jobs, on_cell=lambda *_: bar.advance(task))


def summarise(
    cells: Sequence[tuple[str, float, int]], results: Sequence[dict[str, Any]], truth: dict[str, float]
) -> list[dict[str, Any]]:
    """Per search and epsilon: runs within two points of the best, mean rank and accuracy of the choice."""
    best = max(truth.values())
    rank = {name: 1 + sum(other > truth[name] for other in truth.values()) for name in truth}
    rows = []
    for search, epsilon in dict.fromkeys((s, e) for s, e, _ in cells):
        found = [r for (s, e, _), r in zip(cells, results, strict=True) if (s, e) == (search, epsilon)]
        chosen = [r["chosen"] for r in found]
        long_run = [truth[c] if c is not None else 0.0 for c in chosen]
        ranks = [rank[c] if c is not None else len(rank) for c in chosen]
        rows.append(
            {
                "search": search,
                "epsilon": epsilon,
                "price": found[0]["epsilon"],
                "within_two_points": sum(best - a <= 0.02 for a in long_run),
                "rank": float(np.mean(ranks)),
                "rank_stddev": float(np.std(ranks)),
                "long_run_accuracy": float(np.mean(long_run)),
                "violations": sum(r["violations"] for r in found),
                "chosen": chosen,
                "private_accuracy": [r["private_accuracy"] for r in found],
            }
        )
    return rows


def table(truth: dict[str, float], rows: Sequence[dict[str, Any]], count: int) -> str:
    """The models' long-run accuracy, then one row per search and epsilon."""
    best = max(truth.values())
    worse = sum(best - a > 0.05 for a in truth.values())
    near = sum(best - a <= 0.02 for a in truth.values())
    lines = ["| model | long-run accuracy (non-private) |", "|---|---|"]
    lines += [f"| {name} | {value:.4f} |" for name, value in sorted(truth.items(), key=lambda i: -i[1])]
    lines += ["", f"{near} of {len(truth)} models within 2 points of the best, {worse} more than 5 points worse: "]
    lines[-1] += f"a random choice passes {10 * near / len(truth):.1f} of 10."
    lines += [
        "",
        f"{count} runs, delta = {DELTA:g}, simulated noise; either part costs epsilon, one person in both the third.",
    ]
    lines += ["", "| epsilon | search | training, validation, both | within 2 points | rank | long-run accuracy |"]
    lines += ["|---|---|---|---|---|---|"]
    for row in rows:
        price = row["price"]
        both = price.get("sum", price.get("both"))
        lines.append(
            f"| {row['epsilon']:g} | {row['search']} | {price['training']:.3f}, {price['validation']:.3f}, "
            f"{both:.3f} | {row['within_two_points']}/{count} | {row['rank']:.1f} ± {row['rank_stddev']:.1f} | "
            f"{row['long_run_accuracy']:.4f} |"
        )
    return "\n".join(lines) + "\n"


def draw(rows: Sequence[dict[str, Any]], truth: dict[str, float], path: Path) -> None:
    """Long-run accuracy of the chosen model against epsilon."""
    import io

    from matplotlib.figure import Figure

    picture = Figure(figsize=(7, 4), layout="constrained")
    axes = picture.subplots()
    for search in dict.fromkeys(row["search"] for row in rows):
        own = [row for row in rows if row["search"] == search]
        axes.plot([row["epsilon"] for row in own], [row["long_run_accuracy"] for row in own], "o-", label=search)
    axes.axhline(max(truth.values()), ls=":", color="grey", label="best model")
    axes.axhline(float(np.mean(list(truth.values()))), ls="--", color="grey", label="random choice")
    axes.set(xscale="log", xlabel="epsilon of either part", ylabel="long-run accuracy of the choice")
    epsilons = sorted({row["epsilon"] for row in rows})
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes.minorticks_off()
    axes.legend(frameon=False)
    buffer = io.BytesIO()
    picture.savefig(buffer, format="png", dpi=120)
    write_atomically(path, buffer.getvalue())
