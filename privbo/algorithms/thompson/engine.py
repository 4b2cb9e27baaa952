"""The local engine: every client's own model and the point it evaluates next; nothing leaves a client here.

Log expected improvement over the client's best value, or a Thompson draw, maximised over the
space, batched over clients and cut into chunks that bound memory. A client's choice depends
on its own data, its own streams and public numbers, not on the chunk.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from privbo.algorithms.thompson.acquisition import log_expected_improvement
from privbo.algorithms.thompson.draws import draw_paths
from privbo.algorithms.thompson.evaluations import Evaluations, Failures
from privbo.algorithms.thompson.features import draw_frequencies
from privbo.algorithms.thompson.maximise import Functions, Search, maximise
from privbo.algorithms.thompson.own import chunks
from privbo.algorithms.thompson.own_model import OwnModel
from privbo.algorithms.thompson.pooled import Pooled
from privbo.algorithms.thompson.posterior import Observations
from privbo.algorithms.thompson.regression import Fit, SlopePrior, at_start, fit, posterior
from privbo.algorithms.thompson.streams import Stream, client_normals, public_stream
from privbo.protocol.messages import FloatArray, IntArray, Setting

Acquisition: TypeAlias = Literal["log-ei", "thompson"]
_NEVER = -(2**31)
_WARM = 4  # a fit that goes on from the last one takes a quarter of the steps


class LocalEngine:
    """The own models of a cohort's clients and their choices.

    Args:
        own: Kernel, priors and effort.
        setting: Of the run.
        acquisition: What is maximised.
        avoid: Whether a point evaluated before is passed over.
        clients: Global numbers, ``(n,)``.
        seed: Of Thompson draws.
        failures: What trials without a value count as, where the next point is chosen.
    """

    def __init__(
        self,
        own: OwnModel,
        setting: Setting,
        *,
        acquisition: Acquisition,
        avoid: bool,
        clients: IntArray,
        seed: int,
        failures: Failures = "ignored",
    ) -> None:
        self._own = dataclasses.replace(own, regularisation=own.fixed_noise(setting.rounds))
        self._setting, self._acquisition, self._avoid = setting, acquisition, avoid
        self._clients, self._seed, self._failures = clients, seed, failures
        self._device = torch.device(setting.device)
        self._fitted = np.full(len(clients), _NEVER, dtype=np.int64)
        self._fit = at_start(own, len(clients), setting.space.n_embedded, self._device)
        paths = public_stream(setting.public_seed, Stream.PATHS)
        frequencies = draw_frequencies(paths, own.n_features // 2, setting.space.n_embedded, own.kernel)
        self._frequencies = torch.as_tensor(frequencies, device=self._device)

    def snapshot(self) -> dict[str, npt.NDArray[np.generic]]:
        """Fitted models; private."""
        kept = {name: values.cpu().numpy().copy() for name, values in vars(self._fit).items()}
        return {"fitted": self._fitted.copy(), **kept}

    def restore(self, snapshot: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Take the models of ``snapshot``."""
        self._fitted = np.array(snapshot["fitted"], dtype=np.int64)
        self._fit = Fit(**{f.name: self._tensor(np.array(snapshot[f.name])) for f in dataclasses.fields(Fit)})

    def points(self, seen: Evaluations, round_: int, pooled: Pooled | None) -> FloatArray:
        """The point every client evaluates in a round, ``(n, n_dims)``.

        Args:
            seen: What the clients know; what they learn in this round does not count.
            round_: The round.
            pooled: What was shared, where the public numbers say that it can be trusted.
        """
        t, space = int((seen.rounds < round_).sum()), self._setting.space
        points = np.empty((len(self._clients), space.n_dims))
        entries = 2 * self._own.n_candidates * (t + space.n_embedded) + t * t * (space.n_embedded + 4)
        with torch.no_grad():
            for rows in chunks(np.arange(len(points)), entries, self._device):
                observations = seen.observations(rows, round_ - 1, failures=self._failures)
                points[rows] = self._chosen(rows, observations, seen.before(rows, round_), round_, pooled)
        return points

    def _chosen(
        self, rows: IntArray, observations: Observations, units: FloatArray, round_: int, pooled: Pooled | None
    ) -> FloatArray:
        found, explained = self._explained(rows, observations, units, round_, pooled)
        residual = observations.values if explained is None else observations.values - explained
        if self._acquisition == "thompson":
            own = self._draws(rows, found, dataclasses.replace(observations, values=residual), round_)
        else:
            own = self._improvement(found, observations, residual, explained, pooled)

        def functions(points: FloatArray) -> torch.Tensor:
            values = own(points)
            if self._acquisition == "thompson" and pooled is not None:
                values = values + found.slope[:, None] * pooled.heights(points)
            if not self._avoid:
                return values
            return values.masked_fill(torch.as_tensor(_among(points, units), device=self._device), -torch.inf)

        generator = public_stream(self._setting.public_seed, Stream.CANDIDATES, round_)
        return maximise(functions, self._setting.space, Search(n_candidates=self._own.n_candidates), generator)

    def _explained(
        self, rows: IntArray, observations: Observations, units: FloatArray, round_: int, pooled: Pooled | None
    ) -> tuple[Fit, torch.Tensor | None]:
        """Fits of some clients, and what the shared function explains of their values, ``(n, t)``."""
        heights = None if pooled is None else pooled.heights(units).masked_fill(~observations.mask, 0.0)
        found = self._models(rows, observations, heights, round_, pooled)
        return found, None if heights is None else found.slope[:, None] * heights

    def expected(self, seen: Evaluations, round_: int, pooled: Pooled | None, units: FloatArray) -> FloatArray:
        """The clients' expected standardised values at shared points ``(c, n_dims)`` before a round, ``(n, c)``.

        NaN for a client without a finite value.
        """
        found = np.full((len(self._clients), len(units)), np.nan)
        t, points = int((seen.rounds < round_).sum()), units[None]
        entries = len(units) * (t + self._setting.space.n_embedded) + t * t * (self._setting.space.n_embedded + 4)
        known = np.flatnonzero(np.isfinite(seen.values[:, seen.rounds < round_]).any(axis=1))
        with torch.no_grad():
            for rows in chunks(known, entries, self._device):
                observations = seen.observations(rows, round_ - 1)
                fits, explained = self._explained(rows, observations, seen.before(rows, round_), round_, pooled)
                residual = observations.values if explained is None else observations.values - explained
                model = posterior(fits, observations, self._own, residual)
                mean = model(self._tensor(self._setting.space.embed(points)))[0]
                if pooled is not None:
                    mean = mean + fits.slope[:, None] * pooled.heights(points)
                found[rows] = mean.cpu().numpy()
        return found

    def _improvement(
        self,
        found: Fit,
        observations: Observations,
        residual: torch.Tensor,
        explained: torch.Tensor | None,
        pooled: Pooled | None,
    ) -> Functions:
        """Log expected improvement over the best value a client has reached, noise set aside."""
        model = posterior(found, observations, self._own, residual)
        reached = model(observations.embedded)[0]
        if explained is not None:
            reached = reached + explained
        best = reached.masked_fill(~observations.mask, -torch.inf).amax(dim=1, keepdim=True)
        best = torch.where(best.isfinite(), best, 0.0)  # nothing known: improve upon the prior mean

        def functions(points: FloatArray) -> torch.Tensor:
            mean, variance = model(self._tensor(self._setting.space.embed(points)))
            if pooled is not None:
                mean = mean + found.slope[:, None] * pooled.heights(points)
            return log_expected_improvement(mean, variance, best)

        return functions

    def _draws(self, rows: IntArray, found: Fit, observations: Observations, round_: int) -> Functions:
        """A draw from the posterior of what the shared function leaves (Wilson et al. 2020)."""
        own, clients = self._own, self._clients[rows]
        prior = client_normals(self._seed, clients, round_, Stream.PRIOR, (own.n_features,))
        noise_shape = (observations.values.shape[1],)
        noise = client_normals(self._seed, clients, round_, Stream.OBSERVATION_NOISE, noise_shape)
        paths = draw_paths(
            observations,
            found.hyperparameters(self._setting.space.n_embedded),
            kernel=own.kernel,
            frequencies=self._frequencies,
            prior=self._tensor(prior),
            observation_noise=self._tensor(noise),
        )
        return lambda points: paths(self._tensor(self._setting.space.embed(points)))

    def _models(
        self,
        rows: IntArray,
        observations: Observations,
        heights: torch.Tensor | None,
        round_: int,
        pooled: Pooled | None,
    ) -> Fit:
        """Fits of some clients, made anew where the last one is too old or knew nothing of what is shared."""
        own = self._own
        index = torch.as_tensor(rows, device=self._device)
        if not own.is_common:
            without = self._fit.slope[index].isnan().cpu().numpy()
            fresh = (self._fitted[rows] == _NEVER) | (without if heights is not None else ~without)
            due = fresh | (self._fitted[rows] <= round_ - own.refit_every)
            for chosen, steps in ((fresh, own.fit_steps), (due & ~fresh, max(1, own.fit_steps // _WARM))):
                self._refit(rows, np.flatnonzero(chosen), observations, heights, steps, pooled)
            self._fitted[rows[due]] = round_
            return self._fit.rows(index)
        start = at_start(own, len(rows), self._setting.space.n_embedded, self._device)
        return fit(start, observations, own, steps=0, shared=_shared(heights, pooled))

    def _refit(
        self,
        rows: IntArray,
        chosen: IntArray,
        observations: Observations,
        heights: torch.Tensor | None,
        steps: int,
        pooled: Pooled | None,
    ) -> None:
        if not len(chosen):
            return
        among = torch.as_tensor(chosen, device=self._device)
        index = torch.as_tensor(rows[chosen], device=self._device)
        theirs = None if heights is None else heights.expand(len(rows), -1)[among]
        made = fit(
            self._fit.rows(index), observations.rows(among), self._own, steps=steps, shared=_shared(theirs, pooled)
        )
        self._fit.logs[index], self._fit.slope[index] = made.logs, made.slope

    def _tensor(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.as_tensor(array, dtype=torch.float64, device=self._device)


def _among(points: FloatArray, units: FloatArray) -> npt.NDArray[np.bool_]:
    """Whether points ``(n or 1, c, n_dims)`` are among each client's ``(n, t, n_dims)``, ``(n, c)``.

    One coordinate after another, and candidates last: what is compared is then long rows in one piece.
    """
    same = np.ones((len(units), units.shape[1], points.shape[1]), dtype=bool)
    for dim in range(units.shape[2]):
        same &= np.ascontiguousarray(points[..., dim])[:, None] == units[..., dim, None]
    return np.asarray(same.any(axis=1))


def _shared(heights: torch.Tensor | None, pooled: Pooled | None) -> tuple[torch.Tensor, SlopePrior] | None:
    return None if heights is None or pooled is None else (heights, pooled.slope)
