"""Play the parallel X-armed bandit: loss of the returned point against exchanges and players."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

import privbo as pb
from experiments.outcome import Outcome, Task, make, paid
from experiments.problems.environments import Environment, Shifted
from privbo.algorithms.elimination.settings import Partition
from privbo.protocol.messages import FloatArray, Release, Setting

POINTS = 200  # of every curve


def parallel(task: Task) -> Outcome:
    """Run the bandit; ``above`` says whether the loss is above its bound 6 nu1 rho^depth."""
    environment = cast("Environment", make(task.problem, task.seed))
    algorithm = cast("pb.ParallelXArmed", task.algorithm)
    result = task.run(environment.problem())
    curve = _by_pulls(algorithm, environment, result.releases, task.rounds)
    loss = curve[-1]  # of the point the server returns; players would use one of their own
    depth = len(result.releases) - 1
    figures = {
        "loss": loss,
        "depth": depth,
        "exchanges": len(result.releases),
        "floats up": sum(release.values.shape[1] for release in result.releases),
        "above": float(loss > 6 * algorithm.nu1 * algorithm.rho**depth),
        "pulls": int(environment.pulls[0]),
    }
    return Outcome(figures=figures, curves={"loss": curve}, paid=paid(result))


def _losses(environment: Environment, points: FloatArray) -> FloatArray:
    model = cast("Shifted", environment.model)
    return np.asarray(model.named.maximum - model.values(np.zeros(len(points), dtype=np.int64), points))


def _by_pulls(
    algorithm: pb.ParallelXArmed, environment: Environment, releases: Sequence[Release], rounds: int
) -> list[float]:
    """Loss of the best point by pulls of one player, from the releases alone.

    Before the first exchange it is that of the centre, which the first one names.
    """
    space = environment.problem().search_space
    setting = Setting(space=space, n_clients=environment.n_clients, rounds=rounds, public_seed=0)
    server, partition, pulls = algorithm.server(setting), Partition(n_dims=1), 0.0
    steps, losses = [], []
    for release in releases:
        ask = server.ask()
        if ask is None:
            break
        pulls += float(np.sum(ask.broadcast.arrays["pulls"]))
        server.tell(release)
        if server.best is not None:
            depth, node = server.best
            steps.append(pulls)
            losses.append(float(_losses(environment, partition.centres(depth, np.array([node])))[0]))
    times = np.linspace(0, algorithm.horizon, POINTS + 1)
    return [losses[max(int(i) - 1, 0)] for i in np.searchsorted(steps, times, side="right")]
