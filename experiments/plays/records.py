"""Play sites that hide single records: a released front, then private continuation, beside every site alone.

Noise of a release is drawn here, as a simulation: ``sqrt(points) / (n mu)``, mu that of Gaussian differential privacy
at (epsilon, 1e-6) for one record of one site. Regret is of exact values, in units of a site's range, 1 % at least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import cast

import numpy as np

import privbo as pb
from accountant.gaussian_dp import mu_from_epsilon
from experiments.outcome import Outcome, Task, make
from experiments.plays.worth import judged
from experiments.problems.records import Sites
from privbo.algorithms.multitask.posterior import Posterior, Prior, Releases, alone, front, propose
from privbo.protocol.messages import FloatArray, IntArray

DELTA, EVALUATIONS = 1e-6, 22


def play(task: Task) -> Outcome:
    """Play one arm, the option ``arm``, on a front of ``points`` per site.

    ``"shared"`` releases it at ``epsilon``; ``"noise"`` releases its noise alone; ``"exact"`` releases exact values;
    ``"alone"`` releases nothing; ``"engine"`` is the local engine of ``SharedPrior``, with its own start. Two are
    judged on the mean surface: ``"common"`` is the best setting by the releases, ``"own"`` each site's best one alone.

    Raises:
        ConfigurationError: If the arm is none of these.
    """
    given, arm = cast("Sites", make(task.problem, task.seed)), task.options["arm"]
    points = cast("int", task.options["points"])
    start = front(given.space, len(given.values), points, task.seed)
    losses = given.losses
    stddev = 0.0
    if "epsilon" in task.options:
        stddev = noise_stddev(points, given.n_records, cast("float", task.options["epsilon"]))
    if arm == "engine":
        found = by_engine(given, points, task)
    elif arm in ("alone", "own"):
        found = carried_on(given, start, [alone(given.space)] * len(start))
    elif arm in ("exact", "shared", "noise", "common"):
        posterior = Posterior(given.space, released(given, start, stddev, task.seed, noise_only=arm == "noise"))
        if arm == "common":
            found = np.full((len(start), EVALUATIONS), given.at(posterior.best()[None]))
        else:
            found = carried_on(given, start, [posterior.of(site) for site in range(len(start))])
    else:
        raise pb.ConfigurationError(f"arm={arm!r} is none of shared, noise, exact, alone, engine, common, own")
    if arm in ("common", "own"):
        best = np.take_along_axis(given.values, found, axis=1).argmax(axis=1)
        found = np.repeat(np.take_along_axis(found, best[:, None], axis=1), EVALUATIONS, axis=1)
        mean = given.values.mean(axis=0)
        losses = np.broadcast_to((mean.max() - mean) / np.ptp(mean), losses.shape)
    so_far = np.minimum.accumulate(np.take_along_axis(losses, found, axis=1), axis=1)
    return judged(np.asarray(so_far), correlation(given), None)


def by_engine(given: Sites, points: int, task: Task) -> IntArray:
    """What every site evaluates by the local engine, ``(n_sites, EVALUATIONS)``."""

    def objective(sites: IntArray, units: FloatArray) -> FloatArray:
        return np.asarray(given.values[sites, given.at(units)])

    problem = pb.Problem(space=given.space, batch_objective=objective, n_clients=len(given.values))
    algorithm = pb.SharedPrior(n_init=points).local()
    record = pb.run(problem, algorithm, privacy=task.privacy, rounds=EVALUATIONS - points, seed=task.seed)
    return given.at(record.clients.units)


@cache
def noise_stddev(points: int, n_records: int, epsilon: float) -> float:
    """Standard deviation of the noise in each of a site's releases."""
    return math.sqrt(points) / (n_records * mu_from_epsilon(epsilon, DELTA))


def correlation(given: Sites) -> float:
    """Mean correlation of two sites' surfaces."""
    count = len(given.values)
    return float((np.corrcoef(given.values).sum() - count) / (count * (count - 1)))


def released(given: Sites, start: FloatArray, stddev: float, seed: int, *, noise_only: bool) -> Releases:
    """Releases of a front, ``(n_sites, points, n_dims)``, or of its noise alone."""
    values = np.take_along_axis(given.values, given.at(start), axis=1)
    noise = stddev * np.random.default_rng([seed, 37]).standard_normal(values.shape)
    return Releases.of_front(start, noise if noise_only else values + noise, np.full(len(start), stddev))


def carried_on(given: Sites, start: FloatArray, priors: Sequence[Prior]) -> IntArray:
    """What every site evaluates: its part of the front, then what its prior and its own values propose."""
    found = np.empty((len(start), EVALUATIONS), dtype=np.int64)
    found[:, : start.shape[1]] = given.at(start)
    for site, prior in enumerate(priors):
        for t in range(start.shape[1], EVALUATIONS):
            seen = found[site, :t]
            found[site, t] = given.at(propose(prior, given.points[seen], given.values[site, seen])[None])[0]
    return found
