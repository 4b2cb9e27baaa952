"""What privacy costs the eliminations: regret against epsilon at 100, 1000 and 10,000 clients.

Private Fed-PNE in its two named forms beside the non-private one and HCT on the average
objective. *Heuristic*: at most 8 active nodes (the rest is dropped untested), 5 releases,
s = 0.15 (which biases means), w = 1. *Certified*: no cap, nothing clipped, w = 1, rewards in
[0, 1] by reward noise that stays inside. Epsilon is the whole plan's, at delta = 1e-5 and at M^-1.1.
The settings were fixed on Garland and DoubleSine; Himmelblau, Ackley and the two sines were not tuned.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import privbo as pb
from experiments.elimination_runs import (
    Cell,
    Clients,
    draw,
    mean_and_deviation,
    play_federated,
    play_single,
    run_cells,
    totals,
)
from privbo.record import write_atomically, write_json

EPSILONS = (1.0, 2.0, 5.0)
TUNED, UNSEEN = ("garland", "double-sine"), ("himmelblau", "ackley", "two-sines")
WORLDS = 10  # shifts are drawn this often; reward and privacy noise in every run


def private(epsilon: float, delta: float) -> pb.Privacy:
    """Simulated noise for the whole plan's epsilon."""
    return pb.Privacy(epsilon=epsilon, delta=delta, noise="simulation")


def arms(n_clients: int, *, certified: bool) -> dict[str, dict[str, Any]]:
    """Algorithms under privacies, by label."""
    found: dict[str, dict[str, Any]] = {"not private": {"algorithm": pb.FedPNE(), "privacy": pb.NoPrivacy()}}
    paper = pb.paper_delta(n_clients)
    for label, algorithm in (("heuristic", pb.FedPNE.heuristic()), ("PF-PNE", pb.PFPNE.heuristic())):
        found[f"{label}, epsilon 2, clients' sum zeroed"] = {
            "algorithm": algorithm,
            "privacy": private(2.0, 1e-5),
            "control": "zeroed",
        }
    for epsilon in EPSILONS:
        for name, delta in (("1e-5", 1e-5), (f"M^-1.1={paper:.2g}", paper)):
            found[f"heuristic, epsilon {epsilon:g}, delta {name}"] = {
                "algorithm": pb.FedPNE.heuristic(),
                "privacy": private(epsilon, delta),
            }
        found[f"PF-PNE, epsilon {epsilon:g}, delta 1e-5"] = {
            "algorithm": pb.PFPNE.heuristic(),
            "privacy": private(epsilon, 1e-5),
        }
        if certified:
            found[f"certified, epsilon {epsilon:g}, delta 1e-5"] = {
                "algorithm": pb.FedPNE(),
                "privacy": private(epsilon, 1e-5),
            }
    return found


def main(out: Path, *, scale: str, seeds: int | None, jobs: int) -> None:
    """Run all objectives and numbers of clients; ``paper`` draws 1,000 runs of the heuristic form at epsilon 2."""
    paper = scale == "paper"
    chosen = range(seeds if seeds is not None else (10 if paper else 2))
    numbers = (100, 1000, 10_000) if paper else (100, 1000)
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for function in TUNED + UNSEEN if paper else TUNED:
        for n_clients in numbers:
            clients = Clients(function=function, n_clients=n_clients)
            title = f"{function}, M={n_clients}"
            found[title] = run_cells(_cells(clients, chosen), out, jobs, title)
    lost = {f: _lost(f, range(1000 if paper else 20), out, jobs) for f in (TUNED + UNSEEN if paper else TUNED)}
    sure = {f: _sure(f, range(100 if paper else 5), out, jobs) for f in TUNED}
    summary = {
        t: {a: totals(c, "global").tolist() for a, c in cells.items() if "PF" not in a} for t, cells in found.items()
    }
    write_json(out / "summary.json", {"global_regret": summary, "optimum_lost": lost, "certified": sure})
    write_atomically(out / "table.md", (_table(found) + _lost_table(lost, sure)).encode())
    picture = {
        t: {a: c for a, c in cells.items() if "delta M" not in a and "PF" not in a} for t, cells in found.items()
    }
    draw({t: picture[t] for t in list(picture)[: len(numbers)]}, "global", 5000, out / "figure.png")


def _cells(clients: Clients, seeds: range) -> list[Cell]:
    cells = []
    for seed in seeds:
        at = {"clients": clients, "seed": seed, "world": seed % WORLDS}
        for label, settings in arms(clients.n_clients, certified=False).items():
            cells.append(Cell(label, play_federated, at | settings))
        cells.append(Cell("HCT on the average, not private", play_single, at | {"kind": "hct"}))
    return cells


def _lost(function: str, seeds: range, out: Path, jobs: int) -> dict[str, Any]:
    """How often the heuristic form loses the optimum's cell at M=1000, epsilon 2, delta 1e-5."""
    clients = Clients(function=function, n_clients=1000)
    cells = [
        Cell(
            "lost",
            play_federated,
            {
                "clients": clients,
                "seed": seed,
                "world": seed % WORLDS,
                "algorithm": pb.FedPNE.heuristic(),
                "privacy": private(2.0, 1e-5),
            },
        )
        for seed in seeds
    ]
    runs = run_cells(cells, out, jobs, f"{function}, lost")["lost"]
    return {"runs": len(runs), "lost": float(np.mean([run["lost"] for run in runs]))}


def _sure(function: str, seeds: range, out: Path, jobs: int) -> dict[str, Any]:
    """The certified form at epsilon 2: how often it loses the cell (bound 1/M + 0.05), and its regret."""
    rows = {}
    for n_clients in (100, 1000):
        clients = Clients(function=function, n_clients=n_clients, noise="inside")
        at = {"clients": clients, "algorithm": pb.FedPNE(), "privacy": private(2.0, 1e-5)}
        cells = [Cell("sure", play_federated, at | {"seed": s, "world": s % WORLDS}) for s in seeds]
        runs = run_cells(cells, out, jobs, f"{function}, certified")["sure"]
        rows[str(n_clients)] = {
            "runs": len(runs),
            "lost": float(np.mean([run["lost"] for run in runs])),
            "bound": 1 / n_clients + 0.05,
            "regret": mean_and_deviation(totals(runs, "global")),
        }
    return rows


def _table(found: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    text = (
        "Cumulative regret per client after T = 5000 pulls: global, and local for PF-PNE. Simulated (seeded) noise.\n\n"
    )
    for title, cells in found.items():
        base = totals(cells["not private"], "global").mean()
        text += f"| {title} | regret | over not private | releases made, planned | noise multiplier |\n"
        text += "|---|---|---|---|---|\n"
        for label, runs in cells.items():
            measure = "local" if "PF-PNE" in label else "global"
            regret = totals(runs, measure)
            ratio = "-" if measure == "local" else f"{regret.mean() / base:.2f}"
            made = f"{runs[0]['releases']}, {runs[0]['planned']}" if "releases" in runs[0] else "-"
            z = runs[0].get("noise_multiplier")
            text += (
                f"| {label} | {mean_and_deviation(regret)} | {ratio} | {made} | {'-' if z is None else f'{z:.2f}'} |\n"
            )
        text += "\n"
    return text


def _lost_table(lost: dict[str, Any], sure: dict[str, Any]) -> str:
    text = "Heuristic form (its cap drops nodes untested, its clipping biases means), M=1000, epsilon 2\n"
    text += "(delta 1e-5): share of runs whose last active nodes miss the optimum's cell\n\n"
    text += "| objective | runs | lost |\n|---|---|---|\n"
    text += "".join(f"| {f} | {row['runs']} | {row['lost']:.3f} |\n" for f, row in lost.items())
    text += "\nCertified form, epsilon 2 (delta 1e-5), reward noise inside [0, 1]\n\n"
    text += "| objective, M | runs | lost | bound | regret |\n|---|---|---|---|---|\n"
    for function, rows in sure.items():
        for n, r in rows.items():
            text += f"| {function}, {n} | {r['runs']} | {r['lost']:.3f} | {r['bound']:.3f} | {r['regret']} |\n"
    return text
