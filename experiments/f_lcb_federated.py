"""Private federated F-LCB: 1,000 clients find the best of three smooth functions.

Every client holds its own copy of the three functions (eq. 20, scaled into [0, 1], each
client's minimisers moved a little); the best function is the one whose mean over clients
has the smallest minimum. Beside the private run: no privacy, and the clients' sum zeroed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import joblib
import numpy as np

import privbo as pb
from experiments.arms import standard_error
from privbo.protocol.files import write_atomically, write_json
from privbo.protocol.messages import FloatArray, IntArray
from privbo.protocol.space import Categorical, Real

N_CLIENTS = 1000
N_DIMS = 8
ROUNDS = 60
OFFSETS = (0.0, 0.15, 0.3)
HEIGHT = 0.25  # of the square root's part; losses stay inside [0, 1]
SPREAD = 0.05  # of clients' minimisers, per coordinate
STEEPNESS = 8.0


def problem(seed: int, n_clients: int = N_CLIENTS) -> pb.Problem:
    """The clients' functions of a seed; the arms' order is drawn too."""
    rng = np.random.default_rng([31, seed])
    order = rng.permutation(len(OFFSETS))
    offsets = np.array(OFFSETS)[order]
    centres = rng.uniform(0.2, 0.8, (len(OFFSETS), N_DIMS))
    scales = STEEPNESS * np.exp(-2.0 * rng.random((len(OFFSETS), N_DIMS)))
    moved = centres[None] + SPREAD * rng.standard_normal((n_clients, len(OFFSETS), N_DIMS))

    def objective(clients: IntArray, units: FloatArray) -> FloatArray:
        arms = np.minimum((units[:, 0] * len(OFFSETS)).astype(np.int64), len(OFFSETS) - 1)
        away = units[:, 1:] - moved[clients, arms]
        square = (scales[arms] * away * away).sum(axis=1)
        return np.asarray(1.0 - offsets[arms] - HEIGHT * (np.sqrt(1.0 + square) - 1.0))

    space = {"function": Categorical(("f1", "f2", "f3"))} | {f"x{i}": Real(0.0, 1.0) for i in range(N_DIMS)}
    return pb.Problem(
        space=space,
        batch_objective=objective,
        n_clients=n_clients,
        name="three functions",
        best_values=np.full(n_clients, float(np.flatnonzero(order == 0)[0])),
    )


def algorithm() -> pb.FederatedFLCB:
    """F-LCB with the constants of ``problem``: |f'| <= HEIGHT sqrt(max scales), L <= HEIGHT max scales."""
    return pb.FederatedFLCB(
        arm="function",
        gradient_bound=HEIGHT * STEEPNESS**0.5,
        smoothness=HEIGHT * STEEPNESS,
    )


def run_one(seed: int, epsilon: float | None, control: str | None) -> dict[str, Any]:
    """One run: was the best function recommended, and how far is the recommended point from its optimum."""
    made = problem(seed)
    privacy = pb.NoPrivacy() if epsilon is None else pb.Privacy(epsilon=epsilon, noise="simulation")
    result = pb.run(made, algorithm(), privacy=privacy, rounds=ROUNDS, seed=seed, control=control)
    best = int(np.asarray(made.best_values)[0])
    recommended = result.clients.recommended[0]
    chosen = min(int(recommended[0] * len(OFFSETS)), len(OFFSETS) - 1)
    pulls = np.bincount(
        [min(int(u[0] * len(OFFSETS)), len(OFFSETS) - 1) for u in result.clients.units[0]], minlength=len(OFFSETS)
    )
    reached = float(np.nanmean(result.clients.values[:, -1]))
    return {
        "right": chosen == best,
        "most_pulled": int(pulls.argmax()) == best,
        "loss": 1.0 - reached,
        "epsilon": result.epsilon(),
    }


def main(out: Path, *, scale: str, seeds: int | None, jobs: int) -> None:
    """Run all arms and write summary, table and figure."""
    out.mkdir(parents=True, exist_ok=True)
    count = seeds or (20 if scale == "paper" else 10)
    cases: dict[str, tuple[float | None, str | None]] = {
        "no privacy": (None, None),
        **{f"epsilon {e:g}": (e, None) for e in (8.0, 4.0, 2.0, 1.0, 0.5, 0.25)},
        "epsilon 4, clients' sum zeroed": (4.0, "zeroed"),
    }
    rows = {}
    for name, (epsilon, control) in cases.items():
        work = (joblib.delayed(run_one)(seed, epsilon, control) for seed in range(count))
        runs = joblib.Parallel(n_jobs=jobs)(work)
        losses = np.array([run["loss"] for run in runs])
        rows[name] = {
            "right": sum(run["right"] for run in runs),
            "most_pulled": sum(run["most_pulled"] for run in runs),
            "loss": float(losses.mean()),
            "standard_error": standard_error(losses),
            "runs": count,
            "planned_epsilon": epsilon,
        }
    write_json(out / "summary.json", {"rounds": ROUNDS, "n_clients": N_CLIENTS, "cases": rows})
    lines = [f"{N_CLIENTS} clients, {ROUNDS} rounds, delta = {pb.default_delta(N_CLIENTS):.3g}; simulated noise.", ""]
    lines += ["| run | best function recommended | most pulled | mean loss there (best 0) |", "|---|---|---|---|"]
    for name, row in rows.items():
        shares = f"{row['right']}/{count} | {row['most_pulled']}/{count}"
        lines.append(f"| {name} | {shares} | {row['loss']:.4f} ± {row['standard_error']:.4f} |")
    write_atomically(out / "table.md", ("\n".join(lines) + "\n").encode())
    draw(rows, out / "figure.png")


def draw(rows: dict[str, dict[str, Any]], path: Path) -> None:
    """Share of right choices against epsilon."""
    import io

    from matplotlib.figure import Figure

    private = {n: r for n, r in rows.items() if r["planned_epsilon"] is not None and "zeroed" not in n}
    picture = Figure(figsize=(6, 4), layout="constrained")
    axes = picture.subplots()
    epsilons = [row["planned_epsilon"] for row in private.values()]
    axes.plot(epsilons, [row["right"] / row["runs"] for row in private.values()], "o-", label="private F-LCB")
    axes.axhline(1.0 / len(OFFSETS), ls=":", color="grey", label="random choice")
    axes.set(xscale="log", xlabel="epsilon", ylabel="share of runs with the best function", ylim=(0, 1.05))
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes.minorticks_off()
    axes.legend(frameon=False)
    buffer = io.BytesIO()
    picture.savefig(buffer, format="png", dpi=120)
    write_atomically(path, buffer.getvalue())
