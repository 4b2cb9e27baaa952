"""Result of one arm at one seed: figures by name, curves by name, and the plan that was paid for."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Protocol, cast

import numpy as np

import privbo as pb
from accountant.events import to_dict
from privbo.protocol.messages import Algorithm, ClientHistory, FloatArray
from privbo.protocol.settings import JsonObject, settings
from privbo.runs.record import OnRound
from privbo.runs.sources import load_function


@settings(table="outcome")
class Paid:
    """The plan of a run, from which its price follows at any delta.

    Attributes:
        n_clients: N.
        releases: Planned releases.
        noise_multiplier: z of the plan; None without privacy or releases.
        event: The accountant's event, as JSON.
        adjacency: Name of the adjacency.
    """

    n_clients: int
    releases: int
    noise_multiplier: float | None
    event: JsonObject
    adjacency: str


@settings(table="outcome")
class Outcome:
    """Result of one cell.

    Attributes:
        figures: Numbers by measure.
        curves: Values over rounds, pulls or budgets, by measure.
        paid: The plan; None where nothing was shared or priced.
    """

    figures: dict[str, float] = dataclasses.field(default_factory=dict)
    curves: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    paid: Paid | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """One arm at one seed, as a worker process gets it.

    Attributes:
        problem: Table of the problem: ``type`` as ``module:function``, and its arguments.
        algorithm: What is run; None for players that are no federated algorithm.
        privacy: Of the run.
        control: ``"zeroed"`` replaces the clients' sum by zero.
        rounds: Federated rounds.
        seed: Of everything random.
        options: Further arguments of the player.
    """

    problem: JsonObject
    algorithm: Algorithm | None
    privacy: pb.Privacy | pb.NoPrivacy
    control: Literal["zeroed"] | None
    rounds: int
    seed: int
    options: JsonObject

    def run(
        self,
        problem: pb.Problem,
        algorithm: Algorithm | None = None,
        *,
        on_round: OnRound | None = None,
        directory: str | None = None,
    ) -> pb.Record:
        """Run the algorithm (or another one) on a problem; the delta that every table names is not warned of."""
        chosen = algorithm or self.algorithm
        if chosen is None:
            raise pb.ConfigurationError("this player runs an algorithm, but its arm names none; add [algorithm]")
        with named_delta():
            return pb.run(
                problem,
                chosen,
                privacy=self.privacy,
                rounds=self.rounds,
                seed=self.seed,
                control=self.control,
                on_round=on_round,
                directory=directory,
            )


class World(Protocol):
    """Simulated clients of a seed, and how an experiment judges what they evaluated."""

    def problem(self) -> pb.Problem:
        """Give what the clients optimise."""
        ...

    def losses(self, history: ClientHistory) -> FloatArray:
        """Give the loss of every evaluation, ``(n_clients, n_evaluations)``, without observation noise."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Known:
    """A problem that knows its clients' best values, as a world: losses are regrets."""

    known: pb.Problem

    def problem(self) -> pb.Problem:
        """Give the problem."""
        return self.known

    def losses(self, history: ClientHistory) -> FloatArray:
        """Give the regret of every evaluation.

        Raises:
            ConfigurationError: If the best values are not known.
        """
        best = self.known.best_values() if callable(self.known.best_values) else self.known.best_values
        if best is None:
            raise pb.ConfigurationError(f"problem {self.known.name!r} has no best_values; give them, or losses")
        return np.asarray(best)[:, None] - history.values


def make(problem: JsonObject, seed: int) -> object:
    """Make what the table of a problem names, at a seed."""
    arguments = {key: value for key, value in problem.items() if key != "type"}
    return load_function(str(problem["type"]), "problem.type")(seed=seed, **arguments)


def world(problem: JsonObject, seed: int) -> World:
    """Make the simulated clients of a seed from the table of a problem."""
    found = make(problem, seed)
    return Known(known=found) if isinstance(found, pb.Problem) else cast("World", found)


class Player(Protocol):
    """Function that plays an arm at a seed."""

    def __call__(self, task: Task) -> Outcome:
        """Play."""
        ...


@contextmanager
def named_delta() -> Iterator[None]:
    """Silence the warning about delta = N^-1.1, which is named beside every epsilon here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def paid(record: pb.Record) -> Paid:
    """Give the plan of a run."""
    plan = record.plan
    return Paid(
        n_clients=plan.n_clients,
        releases=plan.releases,
        noise_multiplier=plan.noise_multiplier,
        event=to_dict(plan.event),
        adjacency=plan.adjacency.value,
    )
