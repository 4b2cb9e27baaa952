"""A world of three clients that takes a second."""

import numpy as np

import privbo as pb
from experiments.outcome import Outcome, Task
from experiments.problems.synthetic import GRID, GridFunctions


def tiny(seed: int) -> GridFunctions:
    """Three clients with a line up, a line down and a constant."""
    return GridFunctions(np.stack([np.linspace(0, 1, GRID), np.linspace(1, 0, GRID), np.full(GRID, 0.5)]), seed)


def process(n_clients: int, n_dims: int = 1, **facts: object) -> dict[str, object]:
    """As a study names drawn surfaces."""
    drawn = {"type": "experiments.problems.drawn_surfaces:gaussian_process", "n_clients": n_clients, "n_dims": n_dims}
    return drawn | {"correlation": 0.9} | facts


def task(problem: object, algorithm: object, **changes: object) -> Task:
    """A cell of seed 1 without privacy, unless told otherwise."""
    plain = {"privacy": pb.NoPrivacy(), "control": None, "rounds": 4, "seed": 1, "options": {}}
    return Task(problem=problem, algorithm=algorithm, **plain | changes)


def square(task: Task) -> Outcome:
    """A player that plays nothing."""
    height = float(task.options["height"])
    return Outcome(figures={"cumulative": height + task.seed}, curves={"loss": [height, height / 2]})


def judged_square(task: Task) -> Outcome:
    """``square`` as a player of the study of what sharing is worth, with one client."""
    height = float(task.options["height"]) + task.seed
    figures = {"mean": height, "end": height, "correlation": 0.5}
    return Outcome(figures=figures, curves={"mean by client": [height], "end by client": [height]})
