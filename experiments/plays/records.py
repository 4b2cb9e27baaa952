"""Play sites that hide single records: a released front, then private continuation, beside every site alone.

Noise of a release is drawn here, as a simulation: ``sqrt(points) / (n mu)``, mu that of Gaussian differential privacy
at (epsilon, 1e-6) for one record of one site. Regret is of exact values, in units of a site's range, 1 % at least.
"""

from __future__ import annotations

import math
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
    ``"alone"`` releases nothing; ``"engine"`` is the local engine of ``SharedPrior``, alone, with its own start.

    Raises:
        ConfigurationError: If the arm is none of these.
    """
    given, arm = cast("Sites", make(task.problem, task.seed)), task.options["arm"]
    points = cast("int", task.options["points"])
    if arm == "engine":
        losses = by_engine(given, points, task)
    elif arm in ("alone", "exact", "shared", "noise"):
        stddev = None if arm == "alone" else 0.0
        if arm in ("shared", "noise"):
            stddev = noise_stddev(points, given.n_records, cast("float", task.options["epsilon"]))
        losses = regrets(given, points, stddev, task.seed, noise_only=arm == "noise")
    else:
        raise pb.ConfigurationError(f"arm={arm!r} is none of shared, noise, exact, alone, engine")
    return judged(losses, correlation(given), None)


def by_engine(given: Sites, points: int, task: Task) -> FloatArray:
    """Regret of every site's best point by the local engine, ``(n_sites, evaluations)``."""
    index = {point.tobytes(): i for i, point in enumerate(given.points)}

    def objective(sites: IntArray, units: FloatArray) -> FloatArray:
        return np.asarray(given.values[sites, [index[unit.tobytes()] for unit in units]])

    problem = pb.Problem(space=given.space, batch_objective=objective, n_clients=len(given.values))
    algorithm = pb.SharedPrior(n_init=points).local()
    record = pb.run(problem, algorithm, privacy=task.privacy, rounds=EVALUATIONS - points, seed=task.seed)
    found = np.array([[index[unit.tobytes()] for unit in units] for units in record.clients.units])
    return np.asarray(np.minimum.accumulate(np.take_along_axis(given.losses, found, axis=1), axis=1))


@cache
def noise_stddev(points: int, n_records: int, epsilon: float) -> float:
    """Standard deviation of the noise in each of a site's releases."""
    return math.sqrt(points) / (n_records * mu_from_epsilon(epsilon, DELTA))


def correlation(given: Sites) -> float:
    """Mean correlation of two sites' surfaces."""
    count = len(given.values)
    return float((np.corrcoef(given.values).sum() - count) / (count * (count - 1)))


def regrets(
    given: Sites,
    points: int,
    stddev: float | None,
    seed: int,
    *,
    noise_only: bool = False,
) -> FloatArray:
    """Regret of every site's best point after each evaluation, ``(n_sites, EVALUATIONS)``.

    Args:
        given: The sites.
        points: Of the front.
        stddev: Of the noise in a release; None where nothing is released.
        seed: Of the front and the noise.
        noise_only: Whether releases are their noise alone.
    """
    n_sites, index = len(given.values), {point.tobytes(): i for i, point in enumerate(given.points)}
    start = front(given.space, n_sites, points, seed)
    chosen = np.array([[index[point.tobytes()] for point in row] for row in start])
    values = np.take_along_axis(given.values, chosen, axis=1)
    priors: list[Prior] = [alone(given.space)] * n_sites
    if stddev is not None:
        noise = stddev * np.random.default_rng([seed, 37]).standard_normal(values.shape)
        releases = Releases(
            sites=np.repeat(np.arange(n_sites), points),
            units=start.reshape(n_sites * points, -1),
            values=(noise if noise_only else values + noise).ravel(),
            noise_stddev=np.full(n_sites * points, stddev),
        )
        posterior = Posterior(given.space, releases)
        priors = [posterior.of(site) for site in range(n_sites)]
    found = np.empty((n_sites, EVALUATIONS), dtype=np.int64)
    found[:, :points] = chosen
    for site in range(n_sites):
        for t in range(points, EVALUATIONS):
            at = found[site, :t]
            found[site, t] = index[propose(priors[site], given.points[at], given.values[site, at]).tobytes()]
    return np.asarray(np.minimum.accumulate(np.take_along_axis(given.losses, found, axis=1), axis=1))
