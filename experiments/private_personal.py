"""What privacy costs PF-PNE: local regret against epsilon at 100, 1000 and 10,000 clients.

The heuristic form (at most 8 nodes per shared phase, s = 0.15) under optimistic trees, where the shared
stage only says where to look first, for one client and for one reward as the unit; beside the
non-private one, the clients' sum zeroed, clients that never share anything, and HCT of a single
client on its own objective. Epsilon is that of the H0 shared phases; what follows is silent and free.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import privbo as pb
from experiments.elimination_runs import (
    Cell,
    Clients,
    mean_and_deviation,
    play_federated,
    play_single,
    run_cells,
    totals,
)
from experiments.price_figures import Panel, draw_prices
from experiments.private_elimination import PLAIN, label, private
from privbo.elimination.alone import PersonalElimination
from privbo.record import write_atomically, write_json

EPSILONS = (0.5, 2.0, 5.0)
ZEROED, ALONE, HCT = "epsilon 2, clients' sum zeroed", "nothing shared", "HCT of one client, not private"
FORM, REWARD = "PF-PNE heuristic", "PF-PNE heuristic, one reward"


def _cells(clients: Clients, seeds: range) -> list[Cell]:
    heuristic, cells = pb.PFPNE.heuristic(), []
    for seed in seeds:
        at: dict[str, Any] = {"clients": clients, "seed": seed, "world": seed}
        cells.append(Cell(PLAIN, play_federated, at | {"algorithm": pb.PFPNE(), "privacy": pb.NoPrivacy()}))
        cells.append(Cell(ALONE, play_federated, at | {"algorithm": PersonalElimination(), "privacy": pb.NoPrivacy()}))
        for epsilon in EPSILONS:
            for form, unit in ((FORM, "client"), (REWARD, "reward")):
                privacy = private(epsilon, 1e-5, unit)
                settings = {"algorithm": heuristic, "privacy": privacy}
                cells.append(Cell(label(form, epsilon, "1e-5"), play_federated, at | settings))
        zeroed = {"algorithm": heuristic, "privacy": private(2.0, 1e-5), "control": "zeroed"}
        cells.append(Cell(ZEROED, play_federated, at | zeroed))
        paper = private(2.0, pb.paper_delta(clients.n_clients))
        cells.append(Cell(label(FORM, 2.0, "M^-1.1"), play_federated, at | {"algorithm": heuristic, "privacy": paper}))
        cells.append(Cell(HCT, play_single, at | {"kind": "hct", "sampled": 20}))
    return cells


def main(out: Path, *, scale: str, seeds: int | None, jobs: int) -> None:
    """Run Garland and DoubleSine; 5 seeds at M=100, fewer where every client has a tree of its own to grow."""
    paper = scale == "paper"
    runs = {100: 5, 1000: 2, 10_000: 1} if paper else {100: 2}
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for n, many in runs.items():
        for function in ("garland", "double-sine"):
            title = f"{function}, M={n}"
            cells = _cells(Clients(function=function, n_clients=n), range(min(many, seeds or many)))
            found[title] = run_cells(cells, out, jobs, title)
    write_json(
        out / "summary.json",
        {"local_regret": {t: {a: totals(c, "local").tolist() for a, c in cells.items()} for t, cells in found.items()}},
    )
    text = "Cumulative local regret per client after T = 5000 pulls. Simulated (seeded) noise.\n\n"
    text += "".join(_table(title, cells) for title, cells in found.items())
    write_atomically(out / "table.md", text.encode())
    panels = [_panel(title, cells) for title, cells in found.items()]
    draw_prices(panels, "cumulative local regret per client", out / "figure.png", columns=2)


def _panel(title: str, cells: dict[str, list[dict[str, Any]]]) -> Panel:
    return Panel(
        title=title,
        series={f: {e: totals(cells[label(f, e, "1e-5")], "local") for e in EPSILONS} for f in (FORM, REWARD)},
        flat={name: totals(cells[name], "local") for name in (PLAIN, ALONE, HCT)},
    )


def _table(title: str, cells: dict[str, list[dict[str, Any]]]) -> str:
    text = f"| {title} | regret | runs | releases | noise multiplier |\n|---|---|---|---|---|\n"
    for name, runs in cells.items():
        z = runs[0].get("noise_multiplier")
        text += f"| {name} | {mean_and_deviation(totals(runs, 'local'))} | {len(runs)} | "
        text += f"{runs[0].get('releases', '-')} | {'-' if z is None else f'{z:.2f}'} |\n"
    return text + "\n"
