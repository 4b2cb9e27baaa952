"""What privacy costs Fed-PNE: regret against epsilon at 100 and 1000 clients, where tuned at 10,000 too.

Both named forms beside the non-private one and HCT on the average objective. *Heuristic*: at most 8
active nodes (the rest is dropped untested), 5 releases, s = 0.15 (which biases means), w = 1, for one
client and for one reward as the unit. *Certified*: no cap, nothing clipped, w = 1. Epsilon is the whole
plan's, at delta = 1e-5 and at M^-1.1. Cap, s and w were fixed on Garland and DoubleSine, the 5 releases
after a look at Himmelblau, Ackley and the two sines too; Branin, camel and Griewank were never looked at before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import privbo as pb
from experiments.elimination_cells import Cell, mean_and_deviation, run_cells, totals
from experiments.elimination_runs import Clients, play_federated, play_single
from experiments.price_figures import Panel, draw_prices
from privbo.protocol.files import write_atomically, write_json
from privbo.protocol.messages import UnitName

EPSILONS = (0.5, 1.0, 2.0, 5.0)
TUNED, SEEN, UNSEEN = ("garland", "double-sine"), ("himmelblau", "ackley", "two-sines"), ("branin", "camel", "griewank")
WORLDS = 10  # shifts are drawn this often; reward and privacy noise in every run
PLAIN, HCT = "not private", "HCT on the average, not private"
FORMS: dict[str, tuple[pb.FedPNE, UnitName]] = {
    "heuristic": (pb.FedPNE.heuristic(), "client"),
    "heuristic, one reward": (pb.FedPNE.heuristic(), "reward"),
    "certified": (pb.FedPNE(), "client"),
}


def private(epsilon: float, delta: float, unit: UnitName = "client") -> pb.Privacy:
    """Simulated noise for the whole plan's epsilon."""
    return pb.Privacy(epsilon=epsilon, delta=delta, noise="simulation", unit=unit)


def label(form: str, epsilon: float, delta: str) -> str:
    """How an arm is called in tables."""
    return f"{form}, epsilon {epsilon:g}, delta {delta}"


def arms(n_clients: int) -> dict[str, dict[str, Any]]:
    """Algorithms under privacies, by label."""
    found: dict[str, dict[str, Any]] = {PLAIN: {"algorithm": pb.FedPNE(), "privacy": pb.NoPrivacy()}}
    for epsilon in EPSILONS:
        for form, (algorithm, unit) in FORMS.items():
            found[label(form, epsilon, "1e-5")] = {"algorithm": algorithm, "privacy": private(epsilon, 1e-5, unit)}
        found[label("heuristic", epsilon, "M^-1.1")] = {
            "algorithm": pb.FedPNE.heuristic(),
            "privacy": private(epsilon, pb.paper_delta(n_clients)),
        }
    found["heuristic, epsilon 2, clients' sum zeroed"] = {
        "algorithm": pb.FedPNE.heuristic(),
        "privacy": private(2.0, 1e-5),
        "control": "zeroed",
    }
    return found


def main(out: Path, *, scale: str, seeds: int | None, jobs: int) -> None:
    """Run all objectives and numbers of clients; ``paper`` draws 1,000 runs of the heuristic form at epsilon 2."""
    paper = scale == "paper"
    chosen = range(seeds if seeds is not None else (10 if paper else 2))
    functions = TUNED + UNSEEN + SEEN if paper else TUNED[:1] + UNSEEN[:1]
    found: dict[str, dict[int, dict[str, list[dict[str, Any]]]]] = {}
    for n in (100, 1000, 10_000) if paper else (100, 1000):
        for function in TUNED if n > 1000 else functions:
            clients = Clients(function=function, n_clients=n)
            found.setdefault(function, {})[n] = run_cells(_cells(clients, chosen), out, jobs, f"{function}, M={n}")
    lost = {f: _lost(f, range(1000 if paper else 20), out, jobs) for f in functions}
    sure = {f: _sure(f, range(100 if paper else 5), out, jobs) for f in functions if f in TUNED}
    summary = {
        f: {str(n): {a: totals(c, "global").tolist() for a, c in cells.items()} for n, cells in rows.items()}
        for f, rows in found.items()
    }
    write_json(out / "summary.json", {"global_regret": summary, "optimum_lost": lost, "certified": sure})
    write_atomically(out / "table.md", (_bars(found) + _lost_table(lost, sure) + _tables(found)).encode())
    for name, group in (("figure.png", TUNED), ("unseen.png", UNSEEN), ("seen.png", SEEN)):
        panels = [_panel(f, n, cells) for f in group if f in found for n, cells in found[f].items()]
        if panels:
            draw_prices(panels, "cumulative global regret per client", out / name, columns=len(found[group[0]]))


def _cells(clients: Clients, seeds: range) -> list[Cell]:
    cells = []
    for seed in seeds:
        at = {"clients": clients, "seed": seed, "world": seed % WORLDS}
        for name, settings in arms(clients.n_clients).items():
            cells.append(Cell(name, play_federated, at | settings))
        cells.append(Cell(HCT, play_single, at | {"kind": "hct"}))
    return cells


def _lost(function: str, seeds: range, out: Path, jobs: int) -> dict[str, Any]:
    """How often the heuristic form loses the optimum's cell at M=1000, epsilon 2, delta 1e-5."""
    at = {"clients": Clients(function=function, n_clients=1000), "algorithm": pb.FedPNE.heuristic()}
    at["privacy"] = private(2.0, 1e-5)
    cells = [Cell("lost", play_federated, at | {"seed": seed, "world": seed % WORLDS}) for seed in seeds]
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


def _panel(function: str, n_clients: int, cells: dict[str, list[dict[str, Any]]]) -> Panel:
    series = {
        f"{form}, delta {delta}": {e: totals(cells[label(form, e, delta)], "global") for e in EPSILONS}
        for form, delta in (*((form, "1e-5") for form in FORMS), ("heuristic", "M^-1.1"))
    }
    flat = {name: totals(cells[name], "global") for name in (PLAIN, HCT)}
    return Panel(title=f"{function}, M={n_clients}", series=series, flat=flat)


def _bars(found: dict[str, dict[int, dict[str, list[dict[str, Any]]]]]) -> str:
    """The heuristic form at epsilon 2 over the non-private one: ratio of means over the same seeds."""
    numbers = max((list(rows) for rows in found.values()), key=len)
    text = "Heuristic Fed-PNE at epsilon 2 over non-private Fed-PNE, ratio of mean regrets (one client as the unit)\n\n"
    text += "| objective | " + " | ".join(f"M={n}, delta 1e-5 | M={n}, delta M^-1.1" for n in numbers) + " |\n"
    text += "|---" * (1 + 2 * len(numbers)) + "|\n"
    for function, rows in found.items():
        ratios = []
        for cells in rows.values():
            base = totals(cells[PLAIN], "global").mean()
            ratios += [totals(cells[label("heuristic", 2.0, d)], "global").mean() / base for d in ("1e-5", "M^-1.1")]
        entries = [f"{ratio:.2f}" for ratio in ratios] + ["-"] * (2 * len(numbers) - len(ratios))
        text += f"| {function} | " + " | ".join(entries) + " |\n"
    return text + "\n"


def _tables(found: dict[str, dict[int, dict[str, list[dict[str, Any]]]]]) -> str:
    text = "\nCumulative global regret per client after T = 5000 pulls. Simulated (seeded) noise.\n\n"
    for function, rows in found.items():
        for n, cells in rows.items():
            base = totals(cells[PLAIN], "global").mean()
            text += f"| {function}, M={n} | regret | over not private | releases made, planned | noise multiplier |\n"
            text += "|---|---|---|---|---|\n"
            text += "".join(_row(name, runs, base) for name, runs in cells.items()) + "\n"
    return text


def _row(name: str, runs: list[dict[str, Any]], base: float) -> str:
    regret = totals(runs, "global")
    made = f"{runs[0]['releases']}, {runs[0]['planned']}" if "releases" in runs[0] else "-"
    z = runs[0].get("noise_multiplier")
    ratio = f"{regret.mean() / base:.2f}"
    return f"| {name} | {mean_and_deviation(regret)} | {ratio} | {made} | {'-' if z is None else f'{z:.2f}'} |\n"


def _lost_table(lost: dict[str, Any], sure: dict[str, Any]) -> str:
    text = "Heuristic form (its cap drops nodes untested, its clipping biases means), M=1000, epsilon 2\n"
    text += "(delta 1e-5): share of runs whose last active nodes miss every optimum's cell\n\n"
    text += "| objective | runs | lost |\n|---|---|---|\n"
    text += "".join(f"| {f} | {row['runs']} | {row['lost']:.3f} |\n" for f, row in lost.items())
    text += "\nCertified form, epsilon 2 (delta 1e-5), reward noise inside [0, 1]\n\n"
    text += "| objective, M | runs | lost | bound | regret |\n|---|---|---|---|---|\n"
    for function, rows in sure.items():
        for n, r in rows.items():
            text += f"| {function}, {n} | {r['runs']} | {r['lost']:.3f} | {r['bound']:.3f} | {r['regret']} |\n"
    return text
