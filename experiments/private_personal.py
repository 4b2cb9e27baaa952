"""What privacy costs PF-PNE: local regret against epsilon at 100, 1000 and 10,000 clients.

The heuristic form (at most 8 nodes per shared phase, s = 0.15) under optimistic trees, where the shared
stage only says where to look first, for one client and for one reward as the unit; beside the
non-private one, the clients' sum zeroed, clients that never share anything, and HCT of a single
client on its own objective. Epsilon is that of the H0 shared phases; what follows is silent and free.

From 1000 clients on, all of them take part in the shared phases, but only 300, evenly chosen, go on alone:
what a client does alone depends on nobody else, so their mean estimates that of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

import privbo as pb
from experiments.elimination_cells import Cell, mean_and_deviation, run_cells, totals
from experiments.elimination_runs import Clients, figures, play_federated, play_single, setting_for
from experiments.environments import Environment, Model, Shifted
from experiments.price_figures import Panel, draw_prices
from experiments.private_elimination import PLAIN, label, private
from privbo.algorithms.elimination.alone import PersonalElimination
from privbo.algorithms.elimination.personal_clients import PersonalCohort
from privbo.protocol.files import write_atomically, write_json
from privbo.protocol.messages import Ask, Evaluate, IntArray, Release, Request, Server, Setting

EPSILONS = (0.5, 2.0, 5.0)
ZEROED, ALONE, HCT = "epsilon 2, clients' sum zeroed", "nothing shared", "HCT of one client, not private"
FORM, REWARD = "PF-PNE heuristic", "PF-PNE heuristic, one reward"
ALGORITHM: TypeAlias = pb.PFPNE | PersonalElimination
SAMPLED = 300


@dataclass(frozen=True, kw_only=True)
class SharedStage:
    """The shared phases of an algorithm alone: the run ends where it would fall silent."""

    algorithm: ALGORITHM

    @property
    def caveat(self) -> str | None:
        """The algorithm's."""
        return self.algorithm.caveat

    @property
    def is_certified(self) -> bool:
        """The algorithm's."""
        return self.algorithm.is_certified

    def server(self, setting: Setting) -> Server:
        """The algorithm's, until it asks for nothing."""
        return _UntilSilence(self.algorithm.server(setting))

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> PersonalCohort:
        """The algorithm's."""
        return self.algorithm.cohort(setting, clients=clients, evaluate=evaluate, seed=seed)

    def local(self) -> PersonalElimination:
        """The algorithm's."""
        return self.algorithm.local()


class _UntilSilence:
    def __init__(self, server: Server) -> None:
        self._server = server

    def plan(self) -> Iterator[Request]:
        return self._server.plan()

    def ask(self) -> Ask | None:
        ask = self._server.ask()
        return None if ask is None or ask.request is None else ask

    def tell(self, release: Release | None) -> None:
        self._server.tell(release)


def play_sampled(
    clients: Clients,
    algorithm: ALGORITHM,
    privacy: pb.Privacy | pb.NoPrivacy,
    seed: int,
    world: int,
    sampled: int,
    control: Literal["zeroed"] | None = None,
) -> dict[str, Any]:
    """One run in which all clients share and ``sampled`` of them, with fresh reward noise, go on alone."""
    env = clients.environment(world, seed)
    fitted: ALGORITHM = replace(algorithm, horizon=clients.horizon, reward_range=env.reward_range)
    shared = SharedStage(algorithm=fitted)
    result = pb.run(env.problem(), shared, privacy=privacy, rounds=60, seed=seed, control=control)
    few = Environment(
        _some(clients.model(world), np.linspace(0, clients.n_clients - 1, sampled).astype(int)),
        seed=seed + 1_000_000,
        noise=clients.noise,
        width=clients.width,
        horizon=clients.horizon,
    )
    setting, releases = setting_for(env, rounds=60), iter(result.releases)
    server = fitted.server(setting)
    cohort = fitted.cohort(setting, clients=np.arange(sampled), evaluate=few, seed=0)
    while (ask := server.ask()) is not None:
        cohort.respond(ask.broadcast)
        server.tell(None if ask.request is None else next(releases))
    return {
        "local": figures(few)["local"],
        "releases": len(result.releases),
        "floats_up": sum(release.values.shape[1] for release in result.releases),
        "noise_multiplier": result.plan.noise_multiplier,
    }


def _some(model: Model, chosen: IntArray) -> Shifted:
    """The chosen clients of a model of shifted functions."""
    if not isinstance(model, Shifted):
        raise pb.ConfigurationError(f"{model.name} is no shifted function; only those can be played by some clients")
    few = Shifted(model.named, len(chosen), seed=0)
    few.shifts, few.scale, few.offsets = model.shifts[chosen], model.scale, model.offsets[chosen]
    return few


def _cells(clients: Clients, seeds: range) -> list[Cell]:
    heuristic, cells = pb.PFPNE.heuristic(), []
    many = clients.n_clients > SAMPLED
    play, some = (play_sampled, {"sampled": SAMPLED}) if many else (play_federated, {})
    for seed in seeds:
        alone: dict[str, Any] = {"clients": clients, "seed": seed, "world": seed}
        at, open_ = alone | some, {"privacy": pb.NoPrivacy()}
        cells.append(Cell(PLAIN, play, at | open_ | {"algorithm": pb.PFPNE()}))
        cells.append(Cell(ALONE, play, at | open_ | {"algorithm": PersonalElimination()}))
        for epsilon in EPSILONS:
            for form, unit in ((FORM, "client"), (REWARD, "reward")):
                privacy = private(epsilon, 1e-5, unit)
                settings = {"algorithm": heuristic, "privacy": privacy}
                cells.append(Cell(label(form, epsilon, "1e-5"), play, at | settings))
            paper = private(epsilon, pb.paper_delta(clients.n_clients))
            cells.append(Cell(label(FORM, epsilon, "M^-1.1"), play, at | {"algorithm": heuristic, "privacy": paper}))
        zeroed = {"algorithm": heuristic, "privacy": private(2.0, 1e-5), "control": "zeroed"}
        cells.append(Cell(ZEROED, play, at | zeroed))
        cells.append(Cell(HCT, play_single, alone | {"kind": "hct", "sampled": 100}))
    return cells


def main(out: Path, *, scale: str, seeds: int | None, jobs: int) -> None:
    """Run Garland and DoubleSine."""
    paper = scale == "paper"
    chosen = range(seeds if seeds is not None else (5 if paper else 2))
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for n in (100, 1000, 10_000) if paper else (100,):
        for function in ("garland", "double-sine"):
            title = f"{function}, M={n}"
            found[title] = run_cells(_cells(Clients(function=function, n_clients=n), chosen), out, jobs, title)
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
        series={
            f"{form}, delta {delta}": {e: totals(cells[label(form, e, delta)], "local") for e in EPSILONS}
            for form, delta in ((FORM, "1e-5"), (FORM, "M^-1.1"), (REWARD, "1e-5"))
        },
        flat={name: totals(cells[name], "local") for name in (PLAIN, ALONE, HCT)},
    )


def _table(title: str, cells: dict[str, list[dict[str, Any]]]) -> str:
    text = f"| {title} | regret | runs | releases | noise multiplier |\n|---|---|---|---|---|\n"
    for name, runs in cells.items():
        z = runs[0].get("noise_multiplier")
        text += f"| {name} | {mean_and_deviation(totals(runs, 'local'))} | {len(runs)} | "
        text += f"{runs[0].get('releases', '-')} | {'-' if z is None else f'{z:.2f}'} |\n"
    return text + "\n"
