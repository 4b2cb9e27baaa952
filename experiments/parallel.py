"""The parallel X-armed bandit, figure 2: loss against steps and players, averaged over random shifts.

On one fixed function the loss is not monotone in the number of players (where cell centres
fall decides), so every seed moves the function by its own uniform shift of at most 0.1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

import privbo as pb
from experiments.elimination_cells import Cell, run_cells
from experiments.environments import Environment, Shifted
from experiments.objectives import FUNCTIONS
from privbo.algorithms.elimination.parallel_server import ParallelServer
from privbo.algorithms.elimination.partition import Partition
from privbo.protocol.files import write_atomically, write_json
from privbo.protocol.messages import FloatArray, IntArray, Release, Setting

SETTINGS = {"garland": (10_000, 1.37, 2**-0.5), "two-sines": (1600, 5.0, 0.5)}
PLAYERS = (1, 4, 16)


def play(
    function: str,
    n_players: int,
    seed: int,
    privacy: pb.Privacy | pb.NoPrivacy | None = None,
    control: Literal["zeroed"] | None = None,
) -> dict[str, Any]:
    """One run: loss of the returned point, depth, exchanges, and the loss bound; loss after every exchange.

    Raises:
        ConfigurationError: If the function has no settings here.
    """
    if function not in SETTINGS:
        raise pb.ConfigurationError(f"function={function!r} has no settings here; choose one of {', '.join(SETTINGS)}")
    horizon, nu1, rho = SETTINGS[function]
    named = FUNCTIONS[function]
    model = Shifted(named, n_players, seed=seed)
    model.shifts[:] = np.random.default_rng([seed, 31]).uniform(-0.1, 0.1)
    environment = Environment(model, seed=seed, noise="normal-inside", width=1.0, horizon=horizon)
    algorithm = pb.ParallelXArmed(horizon=horizon, nu1=nu1, rho=rho)
    chosen = privacy or pb.NoPrivacy()
    result = pb.run(environment.problem(), algorithm, privacy=chosen, rounds=60, seed=seed, control=control)
    found = result.clients.recommended[:1]
    loss = named.maximum - float(model.values(np.zeros(1, dtype=np.int64), found)[0])
    depth = len(result.releases) - 1
    return {
        "loss": loss,
        "depth": depth,
        "exchanges": len(result.releases),
        "floats_up": sum(r.values.shape[1] for r in result.releases),
        "bound": 6 * nu1 * rho**depth,
        "steps": int(environment.pulls[0]),
        "curve": _losses_by_step(algorithm, environment, result.releases, named.maximum),
    }


def _losses_by_step(
    algorithm: pb.ParallelXArmed, environment: Environment, releases: tuple[Release, ...], maximum: float
) -> list[list[float]]:
    """Pulls of one player and the loss of the best point after every exchange, from the releases alone."""
    space = environment.problem().search_space
    setting = Setting(space=space, n_clients=environment.n_clients, rounds=60, public_seed=0)
    server, partition, steps, curve = ParallelServer(algorithm, setting), Partition(n_dims=1), 0.0, []
    for release in releases:
        ask = server.ask()
        if ask is None:
            break
        steps += float(np.sum(ask.broadcast.arrays["pulls"]))
        server.tell(release)
        if server.best is not None:
            depth, node = server.best
            point = partition.centres(depth, np.array([node]))
            value = environment.model.values(np.zeros(1, dtype=np.int64), point)
            curve.append([steps, maximum - float(value[0])])
    return curve


def main(out: Path, *, scale: str, seeds: int | None, jobs: int) -> None:
    """Run both functions."""
    chosen = range(seeds if seeds is not None else (100 if scale == "paper" else 30))
    players = (*PLAYERS, 64) if scale == "paper" else PLAYERS
    rows: dict[str, dict[str, Any]] = {}
    curves: dict[str, dict[str, list[list[list[float]]]]] = {}
    for function in SETTINGS:
        cells = [Cell(str(m), play, {"function": function, "n_players": m, "seed": s}) for m in players for s in chosen]
        for label, found in run_cells(cells, out, jobs, function).items():
            loss = np.array([cell["loss"] for cell in found])
            curves.setdefault(function, {})[label] = [cell["curve"] for cell in found]
            rows[f"{function}, {label} players"] = {
                "loss": float(loss.mean()),
                "standard_error": float(loss.std(ddof=1) / np.sqrt(len(loss))),
                "depth": float(np.mean([cell["depth"] for cell in found])),
                "exchanges": [min(c["exchanges"] for c in found), max(c["exchanges"] for c in found)],
                "floats_up": float(np.mean([cell["floats_up"] for cell in found])),
                "above_bound": sum(cell["loss"] > cell["bound"] for cell in found),
            }
    ratio = rows["garland, 16 players"]["loss"] / rows["garland, 1 players"]["loss"]
    write_json(out / "summary.json", {"seeds": len(chosen), "rows": rows, "garland_16_over_1": ratio})
    lines = ["| function, players | loss | depth | exchanges | floats up | runs above the bound |", "|---" * 6 + "|"]
    lines += [
        f"| {name} | {r['loss']:.4f} ± {r['standard_error']:.4f} | {r['depth']:.1f} | "
        f"{r['exchanges'][0]} to {r['exchanges'][1]} | {r['floats_up']:.0f} | {r['above_bound']} |"
        for name, r in rows.items()
    ]
    lines += ["", f"Garland, 16 players over 1: {ratio:.2f} (mean over {len(chosen)} shifts, ± one standard error)"]
    write_atomically(out / "table.md", ("\n".join(lines) + "\n").encode())
    _draw(rows, curves, out / "figure.png")


def _draw(rows: dict[str, dict[str, Any]], curves: dict[str, dict[str, list[list[list[float]]]]], path: Path) -> None:
    import io

    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    *left, right = figure.subplots(1, len(curves) + 1)
    for axes, (function, by_players) in zip(left, curves.items(), strict=True):
        time = np.arange(SETTINGS[function][0] + 1)
        for players, found in by_players.items():
            axes.plot(time, np.mean([_stairs(curve, time) for curve in found], axis=0), label=f"{players} players")
        axes.set(title=function, xlabel="pulls of one player", ylabel="loss of the best point, mean over shifts")
        axes.legend(frameon=False)
    for function in curves:
        mine = {int(n.split(", ")[1].split()[0]): r for n, r in rows.items() if n.startswith(function)}
        losses, errors = [r["loss"] for r in mine.values()], [r["standard_error"] for r in mine.values()]
        right.errorbar(list(mine), losses, yerr=errors, marker="o", label=function)
    right.set(title="at the end", xscale="log", xlabel="players")
    right.legend(frameon=False)
    for axes in (*left, right):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=90)
    write_atomically(path, picture.getvalue())


def _stairs(curve: list[list[float]], time: IntArray) -> FloatArray:
    """Loss at every step; before the first exchange that of the centre, which the first one names."""
    steps, losses = np.array(curve).T
    return np.asarray(losses[np.maximum(np.searchsorted(steps, time, side="right") - 1, 0)])
