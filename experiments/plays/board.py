"""Play an arm of the leaderboard: any algorithm, judged by what its clients evaluated, in the order they did.

An elimination's history has one entry for many pulls, and F-LCB's leaves gradients out, so evaluations are written
down where they happen. Values are handed out in the family's declared range, [0, 1] for the lowest and the highest
value of any client: a public fact that eliminations and searches need and that the others standardise away.
"""

from __future__ import annotations

import dataclasses
from typing import cast

import numpy as np

import privbo as pb
from experiments.baselines.common import CommonSearch
from experiments.outcome import Outcome, Task, make, named_delta, paid
from experiments.plays.worth import FIRST, FLOOR, judged, seen
from experiments.problems.surfaces import Surfaces
from privbo.protocol.common import Final
from privbo.protocol.messages import ClientHistory, FloatArray, IntArray

EVALUATIONS = FIRST + 20  # of every client, as in the study of what sharing is worth


@dataclasses.dataclass
class Logged:
    """Clients whose evaluations are written down.

    Attributes:
        surfaces: The clients.
        points: Of every client in its order, ``(n_dims,)`` each.
        values: That it saw.
    """

    surfaces: Surfaces
    points: list[list[FloatArray]] = dataclasses.field(default_factory=list)
    values: list[list[float]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.points = [[] for _ in self.surfaces.best]
        self.values = [[] for _ in self.surfaces.best]

    def problem(self) -> pb.Problem:
        """Give the problem, in its declared range."""
        return dataclasses.replace(self.surfaces.problem(), batch_objective=self._evaluate, best_values=None)

    def _evaluate(self, clients: IntArray, units: FloatArray) -> FloatArray:
        low, high = float(self.surfaces.low.min()), float(self.surfaces.best.max())
        found = np.asarray((self.surfaces.observe(clients, units) - low) / (high - low))
        for client, unit, value in zip(clients.tolist(), units, found.tolist(), strict=True):
            self.points[client].append(np.array(unit))
            self.values[client].append(value)
        return found

    def history(self, count: int) -> ClientHistory:
        """Give every client's evaluations; who made fewer than ``count`` has nothing new in the others.

        Raises:
            ConfigurationError: If somebody made more.
        """
        most = max(map(len, self.values))
        if most > count:
            raise pb.ConfigurationError(f"a client made {most} evaluations, {count} are allowed; set evaluations")
        n, d = len(self.values), self.surfaces.space.n_dims
        units, values = np.full((n, count, d), 0.5), np.full((n, count), np.nan)
        for row, (points, told) in enumerate(zip(self.points, self.values, strict=True)):
            units[row, : len(points)], values[row, : len(told)] = np.array(points), told
        return ClientHistory(units=units, values=values, rounds=np.arange(count), recommended=units[:, -1])


def play(task: Task) -> Outcome:
    """Run an algorithm on clients whose evaluations are written down.

    With the option ``final`` the run ends with a common setting. The figure ``common`` is the mean regret of clients
    that all use the common setting, where the run has one.
    """
    surfaces = cast("Surfaces", make(task.problem, task.seed))
    logged = Logged(surfaces)
    if task.algorithm is None:
        raise pb.ConfigurationError("this player runs an algorithm, but its arm names none; add algorithm")
    with named_delta():
        result = pb.run(
            logged.problem(),
            task.algorithm,
            privacy=task.privacy,
            rounds=task.rounds,
            seed=task.seed,
            control=task.control,
            final=cast("Final | None", task.options.get("final")),
        )
    history = logged.history(EVALUATIONS)
    outcome = judged(seen(surfaces.losses(history), history), surfaces.correlation(), paid(result))
    chosen = announced(result)
    if chosen is None:
        return outcome
    units = np.tile(chosen, (surfaces.n_clients, 1))[:, None]
    here = dataclasses.replace(history, units=units, values=np.zeros(units.shape[:2]))
    regret = float(np.maximum(surfaces.losses(here), FLOOR).mean())
    return dataclasses.replace(outcome, figures=outcome.figures | {"common": regret})


def announced(result: pb.Record) -> FloatArray | None:
    """Give the setting that is announced to everybody, in the cube; None where there is none."""
    if result.common is not None:
        return result.spec.problem.search_space.encode(result.common.params)
    announces = isinstance(result.spec.algorithm, CommonSearch | pb.FederatedFLCB) and result.releases
    return result.clients.recommended[0] if announces else None
