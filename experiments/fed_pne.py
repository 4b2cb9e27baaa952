"""Fed-PNE, figures 2 and 3: cumulative global regret per client, and what more clients bring.

Fed-PNE with both tails beside HCT on the average objective (leaf-checked, and with PyXAB's
re-splitting), VHCT, Fed1-UCB, FN-UCB (adapted to fixed arms), random search and DP-FTS-DE, on
Garland, DoubleSine, fractional doses and (where ``PRIVBO_DATA`` names it) landmines; then Fed-PNE with
1 to 1000 clients.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import privbo as pb
from experiments.elimination_cells import Cell, draw, mean_and_deviation, run_cells, totals
from experiments.elimination_runs import (
    NEURAL_SEEDS,
    Clients,
    has_landmines,
    play_dp_fts_de,
    play_fed1,
    play_federated,
    play_fn_ucb,
    play_random,
    play_single,
    settings_of,
)
from privbo.protocol.files import write_atomically, write_json

NUMBERS = (1, 10, 50, 100, 200, 400, 1000)
OWN = "DP-FTS-DE, not private"


def cells_for(clients: Clients, seeds: range, *, slow: bool) -> list[Cell]:
    """All arms on one objective; ``slow`` adds those that take minutes."""
    found = []
    single = clients.function != "landmine"
    for seed in seeds:
        at: dict[str, Any] = {"clients": clients, "seed": seed, "world": clients.world(seed)}
        plain = at | {"privacy": pb.NoPrivacy()}
        found.append(Cell("Fed-PNE", play_federated, plain | {"algorithm": pb.FedPNE()}))
        found.append(Cell("Fed-PNE, printed tail", play_federated, plain | {"algorithm": pb.FedPNE(tail="printed")}))
        for label, kind in (("HCT", "hct"), ("HCT, re-splitting", "hct-resplit"), ("VHCT", "vhct")):
            if single or kind == "hct":
                found.append(Cell(label, play_single, at | {"kind": kind}))
        found.append(Cell("Fed1-UCB", play_fed1, at))
        if slow and single and seed < NEURAL_SEEDS:
            found.append(Cell("FN-UCB, 20 arms", play_fn_ucb, at))
        if slow and single:
            found.append(Cell("random search", play_random, at))
            found.append(Cell(OWN, play_dp_fts_de, at))
    return found


def main(out: Path, *, scale: str, seeds: int | None, jobs: int) -> None:
    """Run all objectives and numbers of clients."""
    paper = scale == "paper"
    chosen = range(seeds if seeds is not None else (10 if paper else 2))
    functions = ["garland", "double-sine", "covid"] + (["landmine"] if has_landmines() else [])
    panels, tables, ratios = {}, [], {}
    for function in functions:
        clients = Clients(function=function, n_clients=100)
        panels[function] = run_cells(cells_for(clients, chosen, slow=paper), out, jobs, function)
        tables.append(_table(function, panels[function]))
        fed = totals(panels[function]["Fed-PNE"], "global").mean()
        ratios[function] = {
            label: float(fed / totals(panels[function][label], "global").mean())
            for label in ("HCT", "HCT, re-splitting")
            if label in panels[function]
        }
    runs = {f: _runs_by_clients(f, chosen, out, jobs, NUMBERS if paper else NUMBERS[1:4]) for f in functions}
    growth = {f: _growth(cells) for f, cells in runs.items()}
    write_json(
        out / "summary.json",
        {
            "clients": settings_of(Clients(function="garland", n_clients=100)),
            "seeds": list(chosen),
            "final_regret": {
                f: {a: totals(c, "global").tolist() for a, c in arms.items()} for f, arms in panels.items()
            },
            "ratios": ratios,
            "clients_and_regret": growth,
        },
    )
    text = "Cumulative global regret per client after T = 5000 pulls, mean and one standard deviation.\n\n"
    text += "".join(tables) + _growth_table(growth)
    write_atomically(out / "table.md", text.encode())
    # DP-FTS-DE's clients play points of their own: against the best common one their regret is below zero.
    common = {f: {a: c for a, c in arms.items() if a != OWN} for f, arms in panels.items()}
    draw(common, "global", 5000, out / "figure.png", log=True)
    by_number = {f: {f"M={n}": c for n, c in cells.items()} for f, cells in runs.items()}
    draw(by_number, "global", 5000, out / "clients.png", log=True)


def _table(function: str, arms: dict[str, list[dict[str, Any]]]) -> str:
    lines = [f"| {function} | global regret | local | runs | rounds | floats up |", "|---|---|---|---|---|---|"]
    for label, cells in arms.items():
        rounds = sorted({cell["releases"] for cell in cells if "releases" in cell})
        floats = [cell["floats_up"] for cell in cells if "floats_up" in cell]
        lines.append(
            f"| {label} | {mean_and_deviation(totals(cells, 'global'))} | "
            f"{mean_and_deviation(totals(cells, 'local')) if 'local' in cells[0] else '-'} | {len(cells)} | "
            f"{'-' if not rounds else f'{rounds[0]} to {rounds[-1]}'} | {np.mean(floats) if floats else 0:.0f} |"
        )
    return "\n".join(lines) + "\n\n"


def _runs_by_clients(
    function: str, seeds: range, out: Path, jobs: int, numbers: tuple[int, ...]
) -> dict[int, list[dict[str, Any]]]:
    """Fed-PNE with so many clients; there are no more than 200 countries."""
    numbers = tuple(n for n in numbers if n <= 200) if function == "covid" else numbers
    cells = []
    for n in numbers:
        clients = Clients(function=function, n_clients=n)
        for seed in seeds:
            at = {"clients": clients, "seed": seed, "world": clients.world(seed)}
            plain = {"algorithm": pb.FedPNE(), "privacy": pb.NoPrivacy()}
            cells.append(Cell(str(n), play_federated, at | plain))
    return {int(n): found for n, found in run_cells(cells, out, jobs, f"{function}, clients").items()}


def _growth(runs: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    """Regret against the number of clients, and the slope of its logarithm from 10 to 400."""
    means = {n: float(totals(cells, "global").mean()) for n, cells in runs.items()}
    inside = [n for n in means if 10 <= n <= 400]
    slope = float(np.polyfit(np.log(inside), np.log([means[n] for n in inside]), 1)[0])
    return {"regret": {str(n): value for n, value in means.items()}, "slope_10_to_400": slope}


def _growth_table(growth: dict[str, dict[str, Any]]) -> str:
    text = ""
    for function, row in growth.items():
        text += f"| clients, {function} | " + " | ".join(row["regret"]) + " |\n"
        text += "|---" * (len(row["regret"]) + 1) + "|\n"
        text += "| regret | " + " | ".join(f"{value:.1f}" for value in row["regret"].values()) + " |\n\n"
        text += f"Slope of log regret over log clients, 10 to 400: {row['slope_10_to_400']:.2f}\n\n"
    return text
