"""What privacy costs the parallel bandit: loss against epsilon with 100, 1000 and 10,000 players.

Certified margins (twice the noise's half-width more), vectors centred and never clipped, for one
player and for one reward as the unit, on Garland and the two sines moved by a random shift per run;
beside the non-private search, the players' sum zeroed, and one player alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import privbo as pb
from experiments.elimination_cells import Cell, run_cells
from experiments.parallel import play
from experiments.price_figures import Panel, draw_prices
from experiments.private_elimination import PLAIN, label, private
from privbo.protocol.files import write_atomically, write_json

EPSILONS = (0.5, 1.0, 2.0, 5.0)
ZEROED, ALONE = "epsilon 2, players' sum zeroed", "one player, not private"
FUNCTIONS, SIZES = ("garland", "two-sines"), (100, 1000, 10_000)
PLAYER, REWARD = "one player's data", "one reward"


def _cells(function: str, n_players: int, seeds: range) -> list[Cell]:
    cells = []
    for seed in seeds:
        at: dict[str, Any] = {"function": function, "n_players": n_players, "seed": seed}
        cells.append(Cell(PLAIN, play, at))
        cells.append(Cell(ALONE, play, at | {"n_players": 1}))
        for epsilon in EPSILONS:
            for form, unit in ((PLAYER, "client"), (REWARD, "reward")):
                privacy = private(epsilon, 1e-5, unit)
                cells.append(Cell(label(form, epsilon, "1e-5"), play, at | {"privacy": privacy}))
        paper = private(2.0, pb.paper_delta(n_players))
        cells.append(Cell(label(PLAYER, 2.0, "M^-1.1"), play, at | {"privacy": paper}))
        cells.append(Cell(ZEROED, play, at | {"privacy": private(2.0, 1e-5), "control": "zeroed"}))
    return cells


def main(out: Path, *, scale: str, seeds: int | None, jobs: int) -> None:
    """Run both functions."""
    paper = scale == "paper"
    chosen = range(seeds if seeds is not None else (20 if paper else 5))
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for function in FUNCTIONS:
        for n in SIZES if paper else SIZES[:1]:
            title = f"{function}, {n} players"
            found[title] = run_cells(_cells(function, n, chosen), out, jobs, title)
    write_json(
        out / "summary.json",
        {"loss": {t: {a: _losses(c).tolist() for a, c in cells.items()} for t, cells in found.items()}},
    )
    text = "Loss of the returned point, mean over shifts, ± one standard error. Simulated (seeded) noise.\n\n"
    text += "".join(_table(title, cells) for title, cells in found.items())
    write_atomically(out / "table.md", text.encode())
    panels = [_panel(title, cells) for title, cells in found.items()]
    draw_prices(panels, "loss of the returned point", out / "figure.png", columns=len(SIZES) if paper else 2)


def _losses(cells: list[dict[str, Any]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([cell["loss"] for cell in cells])


def _panel(title: str, cells: dict[str, list[dict[str, Any]]]) -> Panel:
    return Panel(
        title=title,
        series={f: {e: _losses(cells[label(f, e, "1e-5")]) for e in EPSILONS} for f in (PLAYER, REWARD)},
        flat={name: _losses(cells[name]) for name in (PLAIN, ALONE)},
    )


def _table(title: str, cells: dict[str, list[dict[str, Any]]]) -> str:
    text = f"| {title} | loss | depth | exchanges | runs above 6 nu1 rho^h |\n|---|---|---|---|---|\n"
    for name, runs in cells.items():
        losses = _losses(runs)
        error = losses.std(ddof=1) / np.sqrt(len(losses)) if len(losses) > 1 else 0.0
        text += f"| {name} | {losses.mean():.4f} ± {error:.4f} | {np.mean([r['depth'] for r in runs]):.1f} | "
        text += f"{min(r['exchanges'] for r in runs)} to {max(r['exchanges'] for r in runs)} | "
        text += f"{sum(r['loss'] > r['bound'] for r in runs)} |\n"
    return text + "\n"
