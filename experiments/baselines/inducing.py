"""Clients alone whose model of a long history has inducing points: a comparison for ``OwnModel.max_points``.

The points that ``OwnModel.kept`` names are the inducing ones, and hyperparameters are fitted to them; the posterior
is the projected process (Seeger, Williams, Lawrence 2003; the posterior of Titsias 2009) given *all* values. An
experiment names it as ``experiments.baselines.inducing:Inducing``. No trial may fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from privbo.algorithms.thompson.evaluations import INITIAL_ROUND, Evaluations, narrowed
from privbo.algorithms.thompson.exploration import first_points
from privbo.algorithms.thompson.fits import fit, start
from privbo.algorithms.thompson.local_model import among
from privbo.algorithms.thompson.maximise import Search, log_expected_improvement, maximise
from privbo.algorithms.thompson.posterior import (
    CONSTANT,
    Hyperparameters,
    Moments,
    Observations,
    cholesky,
    kernel_values,
)
from privbo.algorithms.thompson.servers import SharedPriorServer
from privbo.algorithms.thompson.settings import OwnModel, SharedPriorSettings
from privbo.algorithms.thompson.streams import Stream, public_stream
from privbo.protocol.messages import Broadcast, ClientHistory, Cohort, Evaluate, FloatArray, IntArray, Setting
from privbo.protocol.settings import settings

_JITTER = 1e-6
_WARM = 4  # as in the engine: a fit that goes on from the last one takes a quarter of the steps


@settings(table="algorithm")
class Inducing(SharedPriorSettings):
    """``SharedPrior().local()`` with a projected process in place of a model of the kept points.

    Example:
        >>> Inducing().schedule, Inducing().answers_together
        ((), True)
    """

    answers_together = True  # its cohort raises for no client's data
    type: Literal["inducing"] = field(default="inducing", repr=False)  # type: ignore[assignment]  # as a study names it
    schedule: tuple[int, ...] = ()

    def local(self) -> Inducing:
        """Give the same: nothing is shared."""
        return self

    def server(self, setting: Setting) -> SharedPriorServer:
        """Make the public side, which asks for nothing."""
        return SharedPriorServer(self, setting)

    def cohort(self, setting: Setting, *, clients: IntArray, evaluate: Evaluate, seed: int) -> Cohort:  # noqa: ARG002 (nothing is drawn)
        """Make the private side for ``clients``."""
        return InducingClients(self, setting, clients=clients, evaluate=evaluate)


class InducingClients:
    """Clients alone, all at once; every quantity is torch's."""

    def __init__(self, algorithm: Inducing, setting: Setting, *, clients: IntArray, evaluate: Evaluate) -> None:
        self._algorithm, self._setting = algorithm, setting
        self._seen = Evaluations(clients, evaluate, setting.space, torch.device("cpu"))
        self._models = start(algorithm.own, len(clients), setting.space.n_embedded, torch.device("cpu"))
        self._fitted = -1

    @property
    def clients(self) -> IntArray:
        """Global numbers of the clients, ``(n,)``."""
        return self._seen.clients

    def respond(self, broadcast: Broadcast) -> FloatArray:
        """Query a point per client and answer nothing."""
        round_, n_init = broadcast.round, self._algorithm.n_init
        exploring = self._algorithm.exploring(self._setting)
        if not len(self._seen.rounds):
            for points in self._start(n_init + exploring)[:, :n_init].swapaxes(0, 1):
                self._seen.query(points, INITIAL_ROUND)
        if round_ > max(0, self._seen.rounds[-1]):
            early = round_ <= exploring
            points = self._start(n_init + exploring)[:, n_init + round_ - 1] if early else self._points(round_)
            self._seen.query(points, round_)
        return np.empty((len(self.clients), 0))

    def snapshot(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """Evaluations and fitted models; private."""
        models = {name: values.numpy().copy() for name, values in vars(self._models).items()}
        return {**self._seen.snapshot(), "fitted": np.array(self._fitted), **models}

    def restore(self, snapshot: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Take the state of ``snapshot``."""
        self._seen.restore(snapshot)
        self._models = Hyperparameters(
            **{name: torch.as_tensor(np.array(snapshot[name])) for name in vars(self._models)}
        )
        self._fitted = int(snapshot["fitted"])

    def history(self) -> ClientHistory:
        """Every evaluation."""
        return self._seen.history()

    def _start(self, count: int) -> FloatArray:
        return first_points(self._setting, self.clients, count)

    def _points(self, round_: int) -> FloatArray:
        own, rows = self._algorithm.own, np.arange(len(self.clients))
        been = self._seen.before(rows, round_)
        seen = self._seen.observations(rows, round_ - 1)
        kept, _ = narrowed(seen, been, own)
        if self._fitted < 0 or self._fitted <= round_ - own.refit_every:
            steps = own.fit_steps if self._fitted < 0 else max(1, own.fit_steps // _WARM)
            self._models, self._fitted = fit(self._models, kept, own, steps=steps, compiled=True), round_
        posterior = projected(self._models, seen, kept, own)
        best = posterior(seen.embedded)[0].amax(dim=1, keepdim=True)

        def functions(points: FloatArray) -> torch.Tensor:
            wishes = log_expected_improvement(*posterior(torch.as_tensor(self._setting.space.embed(points))), best)
            return wishes.masked_fill(torch.as_tensor(among(points, been)), -torch.inf)

        generator = public_stream(self._setting.public_seed, Stream.CANDIDATES, round_)
        return maximise(functions, self._setting.space, Search(n_candidates=own.n_candidates), generator)


def projected(
    models: Hyperparameters, seen: Observations, kept: Observations, own: OwnModel
) -> Callable[[torch.Tensor], Moments]:
    """Condition fitted models on all that was seen, by way of their values at the kept points.

    Returns:
        Mean and variance ``(n, c)`` at points ``(n or 1, c, n_embedded)``.
    """
    scale, variance = models.lengthscale[:, None], models.outputscale[:, None, None]
    inducing, noise = kept.embedded / scale, models.noise[:, None, None].sqrt()

    def covariance(points: torch.Tensor) -> torch.Tensor:
        return variance * kernel_values(own.kernel, inducing, points / scale) + CONSTANT

    eye = torch.eye(inducing.shape[1], dtype=torch.float64)
    root = cholesky(covariance(kept.embedded) + _JITTER * eye)
    told = torch.linalg.solve_triangular(root, covariance(seen.embedded), upper=False) / noise
    inner = cholesky(eye + told @ told.mT)
    weights = torch.linalg.solve_triangular(inner, told @ (seen.values[..., None] / noise), upper=False)

    def posterior(points: torch.Tensor) -> Moments:
        prior = torch.linalg.solve_triangular(root, covariance(points), upper=False)
        left = torch.linalg.solve_triangular(inner, prior, upper=False)
        unexplained = variance[:, 0] + CONSTANT - prior.square().sum(1) + left.square().sum(1)
        return (left * weights).sum(1), unexplained.clamp_min(1e-12)

    return posterior
