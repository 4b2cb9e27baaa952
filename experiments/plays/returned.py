"""What is returned: the common point, which follows from releases, beside the points of the clients themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np

import privbo as pb
from experiments.outcome import Outcome, Task, make, paid
from experiments.problems.clients import Clients
from experiments.problems.environments import Environment, Model
from experiments.problems.three_functions import OFFSETS
from privbo.protocol.messages import FloatArray, IntArray

Losses = Callable[[FloatArray], FloatArray]  # of points, for the clients together


def returned(task: Task) -> Outcome:
    """Run an elimination on shifted functions; losses on the average objective, and of every client on its own."""
    made = make(task.problem, task.seed)
    environment = made.environment() if isinstance(made, Clients) else cast("Environment", made)
    horizon = made.horizon if isinstance(made, Clients) else cast("int", task.problem["horizon"])
    algorithm = cast("pb.FedPNE | pb.ParallelXArmed", task.algorithm)
    fitted = replace(algorithm, horizon=horizon, reward_range=environment.reward_range)
    model: Model = environment.model
    best = float(model.average(model.global_optimum[None])[0])
    result = task.run(environment.problem(), fitted)
    found = _losses(result, lambda points: best - model.average(points))
    everyone, common = np.arange(model.n_clients), _common(result)
    each = np.repeat(common[None], model.n_clients, axis=0)
    for name, points in (("common, own loss", each), ("own, own loss", result.clients.recommended)):
        found[name] = float(np.mean(model.local_bests - model.values(everyone, points)))
    return Outcome(figures=found, paid=paid(result))


def functions(task: Task) -> Outcome:
    """Run federated F-LCB on three functions; losses on the clients' average, whose best arm loses nothing."""
    problem = cast("pb.Problem", make(task.problem, task.seed))
    result = task.run(problem)
    objective = cast("Callable[[IntArray, FloatArray], FloatArray]", problem.batch_objective)
    everyone = np.arange(problem.n_clients)

    def losses(points: FloatArray) -> FloatArray:
        different, place = np.unique(points, axis=0, return_inverse=True)
        means = [objective(everyone, np.repeat(point[None], len(everyone), axis=0)).mean() for point in different]
        return np.asarray(1.0 - min(OFFSETS) - np.array(means)[place.reshape(-1)])

    return Outcome(figures=_losses(result, losses), paid=paid(result))


def _common(result: pb.Record) -> FloatArray:
    if result.common is None:
        raise pb.ConfigurationError("the run announced no common point; its first phase has to fit")
    return np.asarray(result.spec.problem.search_space.encode(result.common.params))


def _losses(result: pb.Record, losses: Losses) -> dict[str, float]:
    common, own = float(losses(_common(result)[None])[0]), losses(result.clients.recommended)
    return {
        "common": common,
        "own": float(own.mean()),
        "worst": float(own.max()),
        "own more": float(own.mean() - common),
    }
