"""A world of three clients that takes a second."""

import numpy as np

import privbo as pb
from experiments.outcome import Outcome, Task
from experiments.problems.synthetic import GRID, GridFunctions


def tiny(seed: int) -> GridFunctions:
    """Three clients with a line up, a line down and a constant."""
    return GridFunctions(np.stack([np.linspace(0, 1, GRID), np.linspace(1, 0, GRID), np.full(GRID, 0.5)]), seed)


def square(task: Task) -> Outcome:
    """A player that plays nothing."""
    height = float(task.options["height"])
    return Outcome(figures={"cumulative": height + task.seed}, curves={"loss": [height, height / 2]})


def known(seed: int) -> pb.Problem:
    """A problem that knows its best value."""
    return pb.Problem(
        space={"x": pb.Real(0.0, 1.0)}, objective=lambda client, x: x["x"], n_clients=2, best_values=np.ones(2)
    )


def judged_square(task: Task) -> Outcome:
    """``square`` as a player of the study of what sharing is worth, with one client."""
    height = float(task.options["height"]) + task.seed
    figures = {"mean": height, "end": height, "correlation": 0.5}
    return Outcome(figures=figures, curves={"mean by client": [height], "end by client": [height]})
