"""PF-PNE: cumulative local regret per client, every way clients can go on alone, and communication.

The printed algorithm beside ours, per-client HCT (leaf-checked), Fed-PNE judged locally and Fed1-UCB, in
one dimension FN-UCB (adapted to fixed arms) and DP-FTS-DE without privacy too: on Garland, DoubleSine,
Himmelblau, Rastrigin and Ackley (100 clients each) and, where ``PRIVBO_DATA`` names them, landmines (29
fields, a client each).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import privbo as pb
from experiments.elimination_cells import Cell, draw, finish_figure, mean_and_deviation, run_cells, start_figure, totals
from experiments.elimination_runs import (
    NEURAL_SEEDS,
    Clients,
    has_landmines,
    play_dp_fts_de,
    play_fed1,
    play_federated,
    play_fn_ucb,
    play_single,
)
from privbo.algorithms.elimination.alone import PersonalElimination
from privbo.algorithms.elimination.pf_pne import PFPNE
from privbo.protocol.files import write_atomically, write_json

ARMS: dict[str, Any] = {
    "PF-PNE, printed": PFPNE(stage2="printed", tail="printed"),
    "PF-PNE, in-phase": PFPNE(stage2="in-phase"),
    "PF-PNE, warm": PFPNE(stage2="warm"),
    "PF-PNE, optimistic": PFPNE(),
    "PE alone, printed": PersonalElimination(stage2="printed", tail="printed"),
    "Fed-PNE": pb.FedPNE(),
}
BEST = "PF-PNE, optimistic"
LINES = ("garland", "double-sine")  # one dimension
FIELDS = 29


def main(out: Path, *, scale: str, seeds: int | None, jobs: int) -> None:
    """Run all objectives."""
    paper = scale == "paper"
    chosen = range(seeds if seeds is not None else (10 if paper else 2))
    functions = ["garland", "double-sine", "himmelblau", "rastrigin", "ackley"]
    functions += ["landmine"] if has_landmines() else []
    panels = {}
    for function in functions if paper else functions[:2]:
        clients = Clients(function=function, n_clients=FIELDS if function == "landmine" else 100)
        panels[function] = run_cells(_cells(clients, chosen, paper=paper), out, jobs, function)
    verdict = {
        function: {
            "best": BEST,
            "regret": float(totals(arms[BEST], "local").mean()),
            "hct": float(totals(arms["HCT per client"], "local").mean()),
            "below_hct": bool(totals(arms[BEST], "local").mean() < totals(arms["HCT per client"], "local").mean()),
        }
        for function, arms in panels.items()
    }
    final = {f: {a: totals(c, "local").tolist() for a, c in arms.items()} for f, arms in panels.items()}
    write_json(out / "summary.json", {"seeds": list(chosen), "final_regret": final, "verdict": verdict})
    write_atomically(out / "table.md", _table(panels).encode())
    draw(panels, "local", 5000, out / "figure.png")
    _draw_communication(panels, out / "communication.png")


def _cells(clients: Clients, seeds: range, *, paper: bool) -> list[Cell]:
    cells, sampled = [], min(clients.n_clients, 100 if paper else 20)
    for seed in seeds:
        at: dict[str, Any] = {"clients": clients, "seed": seed, "world": clients.world(seed)}
        for label, algorithm in ARMS.items():
            plain = {"algorithm": algorithm, "privacy": pb.NoPrivacy()}
            cells.append(Cell(label, play_federated, at | plain))
        cells.append(Cell("HCT per client", play_single, at | {"kind": "hct", "sampled": sampled}))
        cells.append(Cell("Fed1-UCB", play_fed1, at))
        if paper and clients.function in LINES:
            cells.append(Cell("DP-FTS-DE, not private", play_dp_fts_de, at))
            if seed < NEURAL_SEEDS:
                cells.append(Cell("FN-UCB, 20 arms", play_fn_ucb, at))
    return cells


def _draw_communication(panels: dict[str, dict[str, list[dict[str, Any]]]], path: Path) -> None:
    """Numbers one client has sent after so many pulls, one run per arm."""
    figure, grid = start_figure(len(panels), "numbers one client has sent")
    for axes, (title, arms) in zip(grid, panels.items(), strict=True):
        for label, shown in (("Fed-PNE", "Fed-PNE"), (BEST, "PF-PNE, every form")):
            pulls, floats = np.array(arms[label][0]["sent"]).T
            axes.step([0, *pulls, 5000], [0, *np.cumsum(floats), floats.sum()], where="post", label=shown)
        axes.set_title(title)
    finish_figure(figure, grid, path)


def _table(panels: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    labels = [*ARMS, "HCT per client", "DP-FTS-DE, not private", "Fed1-UCB", "FN-UCB, 20 arms"]
    head = "| arm | " + " | ".join(panels) + " |\n" + "|---" * (len(panels) + 1) + "|\n"
    text = "Cumulative local regret per client after T = 5000 pulls, mean and one standard deviation (runs).\n\n" + head
    for label in labels:
        text += _line(label, [_regret(arms.get(label, [])) for arms in panels.values()])
    text += "\nCommunication of one client: rounds; numbers sent; numbers received. Means over runs.\n\n" + head
    for label in labels:
        entries = [_communication(arms.get(label, [])) for arms in panels.values()]
        text += _line(label, entries) if any(entry != "-" for entry in entries) else ""
    return text


def _line(label: str, entries: list[str]) -> str:
    return f"| {label} | " + " | ".join(entries) + " |\n"


def _regret(cells: list[dict[str, Any]]) -> str:
    return f"{mean_and_deviation(totals(cells, 'local'))} ({len(cells)})" if cells else "-"


def _communication(cells: list[dict[str, Any]]) -> str:
    if not cells or not cells[0].get("releases"):
        return "-"
    means = [np.mean([cell[name] for cell in cells]) for name in ("releases", "floats_up", "floats_down")]
    return "; ".join(f"{mean:.0f}" for mean in means)
