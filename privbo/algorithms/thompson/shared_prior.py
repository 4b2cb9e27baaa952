"""The shared prior: few releases, pooled, as the prior mean of every client's own model.

The public side is in ``servers``, the private side in ``clients``. Rounds, for a run of T rounds:

    round 0      clients evaluate their first points; with a release: pool 0
    round t      clients act on their own models, whose mean holds the pool so far
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from privbo.algorithms.thompson.servers import SharedPriorServer
from privbo.algorithms.thompson.settings import SharedPriorSettings
from privbo.protocol.messages import Cohort, Evaluate, IntArray, Setting
from privbo.protocol.settings import settings


@settings(table="algorithm")
class SharedPrior(SharedPriorSettings):
    """Private federated Bayesian optimisation by a shared prior mean.

    Every client models its own objective and acts by log expected improvement. In a few
    early rounds the mean of the clients' ridge weights, all of one length, is released; all releases so far,
    pooled, are one function that enters each client's model as a part of its prior mean, times
    a slope fitted to the client's own values, for the rest of the run.

    | In a round | what leaves a client | guarantee |
    |---|---|---|
    | with a release | one vector of length S; only the noisy mean becomes public | (epsilon, delta) of the run's plan |
    | without one, and of ``local()`` | nothing | nothing is released or charged |
    | of any kind | no point after the first, no value, no own model | they stay in memory and in ``private/`` |

    .. versionadded:: 0.3.0

    Attributes:
        schedule: Rounds that end with a release, as far as a later round uses them; round 0 is the first points.
        shares: Shares of the run's squared budget, one per release: a release of share s has 1 / sqrt(s / sum)
            times the noise multiplier that the run's only release would have.
        release_when: ``"useful"`` makes none, and charges nothing, where N s / z is below 3: clients would gain no more
            than from the noise alone. z is the noise multiplier of a run's only release, s the sample rate.
            ``"always"`` makes all.
        n_init: Points that clients evaluate before the first release.
        explore: Rounds in which clients go on with their exploring start, unless by then the pool says that their
            surfaces are common for the larger part; None is two, or a quarter of the rounds where that is less.
        n_features: M, how many numbers the shared vectors have.
        clipping_norm: S, to which the shared vectors are brought; noise is in proportion, so no choice gains.
        lengthscale: Of the shared features' kernel, in units of the cube; public. None is .5 (e / 2)^(3/4) in e
            embedded coordinates.
        noise: lambda of the shared features, variance on standardised values; public.
        kernel: Of the shared features.
        own: How clients model their own objective; by default the prior of its variance is wide, and so is that of its
            noise, around a ten-thousandth of the values' variance.
        acquisition: ``"log-ei"``: the largest expected improvement, by its logarithm; ``"thompson"``: the maximiser of
            a draw from the client's posterior.
        failures: ``"worst"`` lets a client's own model and its answers take a trial that failed for its worst value, so
            that clients stay away from there. ``"ignored"`` has such points tried again: for failures that are mishaps
            and no property of the point, people who leave questions open among them.
        repeats: ``"avoid"`` never evaluates a point twice, which would tell nothing where the objective
            is deterministic; ``"query"`` may, for noisy objectives.
        evaluations: Most evaluations of one client over the whole run: ``n_init`` and one a round. It ends the run
            earlier than ``rounds`` where it is less; None: ``rounds`` decides.

    Raises:
        ConfigurationError: If a number is out of its range.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda client, p: -p["x"], n_clients=40)
        >>> plan = pb.plan(problem, pb.SharedPrior(), privacy=pb.Privacy(epsilon=2.0), rounds=20)
        >>> plan.releases
        2
        >>> pb.plan(problem, pb.SharedPrior(), privacy=pb.Privacy(epsilon=0.1), rounds=20).releases
        0
    """

    answers_together: ClassVar[bool] = True

    def local(self) -> SharedPrior:
        """Give the same clients acting alone: own models, the same start, nothing shared.

        Example:
            >>> import privbo as pb
            >>> pb.SharedPrior().local().schedule
            ()
        """
        return dataclasses.replace(self, schedule=())

    def server(self, setting: Setting) -> SharedPriorServer:
        """Make the public side."""
        return SharedPriorServer(self, self.within(setting))

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> Cohort:
        """Make the private side for ``clients``."""
        from privbo.algorithms.thompson.clients import PriorClients  # loads torch, which the public side does not

        return PriorClients(self, self.within(setting), clients=clients, evaluate=evaluate, seed=seed)
