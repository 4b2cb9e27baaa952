"""Play one federated run: the loss of the best point so far, or the share of vectors that are clipped."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import cast

import numpy as np

import privbo as pb
from experiments.outcome import Outcome, Task, paid, world
from privbo.protocol.messages import ClientHistory, FloatArray, IntArray


def tune(task: Task) -> Outcome:
    """Run the algorithm; figures are the loss summed over all rounds, over the first 20, and after the last."""
    clients = world(task.problem, task.seed)
    result = task.run(clients.problem())
    curve = [round(float(x), 8) for x in best_so_far(clients.losses(result.clients), result.clients)]
    figures = {"cumulative": sum(curve[1:]), "first 20": sum(curve[1:21]), "last": curve[-1]}
    return Outcome(figures=figures, curves={"loss": curve}, paid=paid(result))


def clipped(task: Task) -> Outcome:
    """Give the share of vectors that S clips, over all rounds and in the last.

    Clients model ``scale`` times the value plus ``shift`` (options; 1 and 0).
    """
    scale, shift = (cast("float", task.options.get(name, usual)) for name, usual in (("scale", 1.0), ("shift", 0.0)))
    problem = world(task.problem, task.seed).problem()
    observe = cast("Callable[[IntArray, FloatArray], FloatArray]", problem.batch_objective)
    changed = dataclasses.replace(problem, batch_objective=lambda who, where: scale * observe(who, where) + shift)
    with TemporaryDirectory() as home:
        shares = [one.clipped_share for one in pb.audit(task.run(changed, directory=f"{home}/run")).rounds]
    return Outcome(figures={"share": float(np.mean(shares)), "last": shares[-1]}, curves={"share": shares})


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
