"""Play sites that hide single records: a released front, then private continuation, beside every site alone.

Noise of a release is a simulation. Regret is of exact values, in units of a site's range, 1 % at least.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch

import privbo as pb
from experiments.outcome import Outcome, Task, make
from experiments.plays.worth import judged
from experiments.problems.records import Sites
from privbo.algorithms.thompson.pooled import Pooled
from privbo.protocol.messages import Algorithm, Cohort, FloatArray
from privbo.protocol.space import Value
from privbo.testing.subject import Wrapped

EVALUATIONS = 22  # of every site, and those of a common setting's front


def play(task: Task) -> Outcome:
    """Run an algorithm on sites all of whose records score what the site's mean is.

    Every site is judged by its own surface, or by the mean of all where the option ``of`` is ``"mean surface"``: then
    by the common setting, or by the best setting that it found alone. With the option ``informed`` sites expect the
    exact mean surface, whatever releases say.
    """
    given = cast("Sites", make(task.problem, task.seed))
    algorithm: Algorithm | None = task.algorithm
    numbers = given.numbers
    if task.options.get("informed") and isinstance(algorithm, pb.MultiTask):
        algorithm = informed(algorithm, given)
    history, losses = given.at(task.run(problem(given), algorithm).clients.units), given.losses
    found = history[:, :EVALUATIONS]
    if task.options.get("of") == "mean surface":
        best = np.take_along_axis(given.values, found, axis=1).argmax(axis=1, keepdims=True)
        is_common = isinstance(algorithm, pb.MultiTask) and algorithm.goal == "common"
        numbers = None  # the mean surface is another one for every seed
        last, mean = (
            history[:, -1:] if is_common else np.take_along_axis(found, best, axis=1),
            given.values.mean(axis=0),
        )
        found, losses = (
            np.repeat(last, EVALUATIONS, axis=1),
            np.tile((mean.max() - mean) / np.ptp(mean), (len(last), 1)),
        )
    so_far = np.minimum.accumulate(np.take_along_axis(losses, found, axis=1), axis=1)
    outcome = judged(np.asarray(so_far), correlation(given), None)
    if numbers is not None:
        outcome.curves["number by client"] = numbers.tolist()
    return outcome


def problem(given: Sites) -> pb.Problem:
    """Give the sites as a problem; a record's score is its site's mean."""
    count, n_sites = given.n_records, len(given.values)

    def objective(site: int, params: dict[str, Value]) -> FloatArray:
        return np.full(count, given.values[site, given.at(given.space.encode(params))])

    return pb.Problem(space=given.space, objective=objective, n_clients=n_sites, n_records=(count,) * n_sites)


def informed(algorithm: pb.MultiTask, given: Sites) -> Wrapped:
    """Give the algorithm with the mean of all sites' surfaces as what sites expect: no release can tell more of it."""
    mean = given.values.mean(axis=0) - given.values.mean()
    held = float(np.square(mean).mean() / given.values.var(axis=1).mean())

    def function(units: FloatArray) -> tuple[torch.Tensor, torch.Tensor]:
        expected = torch.as_tensor(mean[given.at(units)])
        return expected, expected.new_zeros(*expected.shape, 0)

    exact = Pooled(function=function, width=0, rest=max(0.1, 1.0 - held), is_standardised=False)

    def told(cohort: Cohort) -> Cohort:
        cast("Any", cohort)._prior_of = lambda _: exact  # a study of what is inside
        return cohort

    return Wrapped(algorithm=algorithm, on_cohort=told, on_server=lambda server: server)


def correlation(given: Sites) -> float:
    """Mean correlation of two sites' surfaces."""
    count = len(given.values)
    return float((np.corrcoef(given.values).sum() - count) / (count * (count - 1)))
