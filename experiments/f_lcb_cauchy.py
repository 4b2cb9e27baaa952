"""Figure 5: ten arms under Cauchy noise; SGD-UCB-SMoM, its functional form, robust UCB with medians."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from experiments.arms import standard_error
from experiments.baselines.heavy_bandits import Policy, RobustUCBMedian, SGDUCBSMoM, play
from privbo.protocol.files import write_atomically, write_json

MEANS = np.arange(10) / 10.0
WIDTH = 4.0


def policies(n_trials: int, horizon: int, rng: np.random.Generator) -> dict[str, Callable[[], Policy]]:
    """The three algorithms of the figure, and the functional index as printed."""
    common = {"n_trials": n_trials, "rng": rng, "scale": WIDTH}
    return {
        "SGD-UCB-SMoM": lambda: SGDUCBSMoM(len(MEANS), **common),
        "SGD-UCB-SMoM-F": lambda: SGDUCBSMoM(len(MEANS), **common, index="averaged"),
        "SGD-UCB-SMoM-F, printed index": lambda: SGDUCBSMoM(len(MEANS), **common, index="printed"),
        "RUCB-Median": lambda: RobustUCBMedian(len(MEANS), n_trials=n_trials, horizon=horizon),
    }


def main(out: Path, *, scale: str, seeds: int | None, jobs: int) -> None:  # noqa: ARG001  # a minute on one core
    """Run and write."""
    out.mkdir(parents=True, exist_ok=True)
    horizon = 25000 if scale == "paper" else 2500
    n_trials = seeds or (30 if scale == "paper" else 5)
    rng = np.random.default_rng(5)
    curves = {}
    for name, make in policies(n_trials, horizon, rng).items():
        curves[name] = play(make(), MEANS, horizon=horizon, noise=rng.standard_cauchy, n_trials=n_trials)
    uniform = float((MEANS.max() - MEANS).mean() * horizon)
    rows = {
        name: {
            "regret": float(c[:, -1].mean()),
            "standard_error": standard_error(c[:, -1]),
            "curve": c.mean(0).tolist(),
        }
        for name, c in curves.items()
    }
    write_json(out / "summary.json", {"trials": n_trials, "horizon": horizon, "uniform": uniform, "policies": rows})
    lines = [f"{n_trials} trials, T = {horizon}; uniform play has regret {uniform:.0f}.", ""]
    lines += ["| policy | cumulative regret |", "|---|---|"]
    lines += [f"| {name} | {row['regret']:.0f} ± {row['standard_error']:.0f} |" for name, row in rows.items()]
    write_atomically(out / "table.md", ("\n".join(lines) + "\n").encode())
    draw(curves, horizon, out / "figure.png")


def draw(curves: dict[str, np.ndarray], horizon: int, path: Path) -> None:
    """Cumulative and mean regret, standard deviations over trials shaded."""
    import io

    from matplotlib.figure import Figure

    picture = Figure(figsize=(11, 4), layout="constrained")
    total, mean = picture.subplots(1, 2)
    for name, curve in curves.items():
        t = np.linspace(0, horizon, curve.shape[1] + 1)[1:]
        for axes, values in ((total, curve), (mean, curve / t)):
            (line,) = axes.plot(t, values.mean(axis=0), label=name)
            low, high = values.mean(axis=0) - values.std(axis=0), values.mean(axis=0) + values.std(axis=0)
            axes.fill_between(t, low, high, color=line.get_color(), alpha=0.2, lw=0)
    total.set(xlabel="pull", ylabel="cumulative regret", title="Cauchy noise, K = 10")
    mean.set(xlabel="pull", ylabel="regret per pull")
    total.legend(frameon=False)
    buffer = io.BytesIO()
    picture.savefig(buffer, format="png", dpi=120)
    write_atomically(path, buffer.getvalue())
