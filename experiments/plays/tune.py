"""Play one federated run and give the loss of the best point so far."""

from __future__ import annotations

import numpy as np

from experiments.outcome import Outcome, Task, paid, world
from privbo.protocol.messages import ClientHistory, FloatArray


def tune(task: Task) -> Outcome:
    """Run the algorithm; figures are the loss summed over all rounds, over the first 20, and after the last."""
    clients = world(task.problem, task.seed)
    result = task.run(clients.problem())
    curve = [round(float(x), 8) for x in best_so_far(clients.losses(result.clients), result.clients)]
    figures = {"cumulative": sum(curve[1:]), "first 20": sum(curve[1:21]), "last": curve[-1]}
    return Outcome(figures=figures, curves={"loss": curve}, paid=paid(result))


def best_so_far(losses: FloatArray, history: ClientHistory) -> FloatArray:
    """Give the mean over clients of the smallest loss so far, after initialisation and each round.

    Args:
        losses: Of every evaluation, ``(n_clients, n_evaluations)``.
        history: The rounds they were made in.
    """
    running = np.fmin.accumulate(losses, axis=1)
    rounds = np.unique(history.rounds)
    last = np.searchsorted(history.rounds, rounds, side="right") - 1
    return np.asarray(np.nanmean(running[:, last], axis=0))
