"""The local engine: every client's own model and the point it evaluates next; nothing leaves a client here.

Log expected improvement over the client's best value, or a Thompson draw, maximised over the
space, batched over clients and cut into chunks that bound memory. A client's choice depends
on its own data, its own streams and public numbers, not on the chunk.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from privbo.algorithms.thompson.acquisition import log_expected_improvement
from privbo.algorithms.thompson.beliefs import Moments, posterior
from privbo.algorithms.thompson.draws import draw_paths
from privbo.algorithms.thompson.evaluations import Evaluations, Failures
from privbo.algorithms.thompson.features import draw_frequencies
from privbo.algorithms.thompson.long_history import narrowed
from privbo.algorithms.thompson.maximise import Functions, Search, maximise
from privbo.algorithms.thompson.own import chunks
from privbo.algorithms.thompson.own_model import OwnModel
from privbo.algorithms.thompson.pooled import Pooled
from privbo.algorithms.thompson.posterior import Observations, row_times
from privbo.algorithms.thompson.regression import CONSTANT, Fit, at_start, fit
from privbo.algorithms.thompson.shared_part import Shared
from privbo.algorithms.thompson.streams import Stream, client_normals, public_stream
from privbo.protocol.messages import FloatArray, IntArray, Setting

Acquisition: TypeAlias = Literal["log-ei", "thompson"]
_NEVER = -(2**31)
_WARM = 4  # a fit that goes on from the last one takes a quarter of the steps


@dataclass(frozen=True, kw_only=True)
class Known:
    """Knowledge of some clients when they choose; private.

    Attributes:
        rows: Which of the cohort's clients, ``(n,)``.
        round: The round they choose in.
        units: The points in the cube that they model, ``(n, t, n_dims)``.
        been: All their points.
        observations: The values.
        shared: The shared part of their models at those points; None where nothing is shared.
        pooled: The same anywhere.
        fits: Their models.
    """

    rows: IntArray
    round: int
    units: FloatArray
    been: FloatArray
    observations: Observations
    shared: Shared | None
    pooled: Pooled | None
    fits: Fit

    @property
    def residual(self) -> Observations:
        """Observations without what the shared function's expected heights explain."""
        if self.shared is None:
            return self.observations
        explained = self.fits.slope[:, None] * self.shared.heights
        return dataclasses.replace(self.observations, values=self.observations.values - explained)


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
        space, own = self._setting.space, self._own
        points = np.empty((len(self._clients), space.n_dims))
        generator = partial(public_stream, self._setting.public_seed, Stream.CANDIDATES, round_)
        search = Search(n_candidates=own.n_candidates)
        with torch.no_grad():
            for known in self._pieces(
                seen, np.arange(len(points)), round_, pooled, 2 * own.n_candidates, self._failures
            ):
                points[known.rows] = maximise(self._wishes(known), space, search, generator())
        return points

    def expected(self, seen: Evaluations, round_: int, pooled: Pooled | None, units: FloatArray) -> FloatArray:
        """The clients' expected standardised values at shared points ``(c, n_dims)`` before a round, ``(n, c)``.

        NaN for a client without a finite value.
        """
        found = np.full((len(self._clients), len(units)), np.nan)
        knowing = np.flatnonzero(np.isfinite(seen.values[:, seen.rounds < round_]).any(axis=1))
        with torch.no_grad():
            for known in self._pieces(seen, knowing, round_, pooled, len(units)):
                found[known.rows] = self._beliefs(known)(units[None])[0].cpu().numpy()
        return found

    def _pieces(
        self,
        seen: Evaluations,
        rows: IntArray,
        round_: int,
        pooled: Pooled | None,
        n_points: int,
        failures: Failures = "ignored",
    ) -> Iterator[Known]:
        """Clients' knowledge before a round, in pieces whose work at so many points stays within the memory."""
        t, space = int((seen.rounds < round_).sum()), self._setting.space
        t = t if self._own.max_points is None else min(t, self._own.max_points)
        own = self._own if pooled is None else self._own.scaled(pooled.rest)
        width = t + space.n_embedded if pooled is None else 2 * t + space.n_embedded + pooled.width
        for some in chunks(rows, n_points * width + t * t * (space.n_embedded + 5), self._device):
            been = seen.before(some, round_)
            whole = seen.observations(some, round_ - 1, failures=failures)
            observations, units = narrowed(whole, been, own)
            shared = None if pooled is None else pooled.at(units, observations.mask)
            fits = self._models(some, observations, shared, round_, own)
            yield Known(
                rows=some,
                round=round_,
                units=units,
                been=been,
                observations=observations,
                shared=shared,
                pooled=pooled,
                fits=fits,
            )

    def _wishes(self, known: Known) -> Functions:
        """Functions that clients maximise; minus infinity where they have been, unless they may return."""
        wishes = self._draws(known) if self._acquisition == "thompson" else self._improvement(known)

        def functions(points: FloatArray) -> torch.Tensor:
            been = torch.as_tensor(among(points, known.been), device=self._device)
            return wishes(points).masked_fill(been, -torch.inf)

        return functions if self._avoid else wishes

    def _beliefs(self, known: Known) -> Callable[[FloatArray], Moments]:
        """Mean and variance of clients' objectives at points ``(n or 1, c, n_dims)``."""
        model = posterior(known.fits, known.residual, self._own, known.shared)

        def beliefs(points: FloatArray) -> Moments:
            embedded = self._tensor(self._setting.space.embed(points))
            if known.pooled is None:
                return model(embedded)
            heights, uncertainty = known.pooled(points)
            mean, variance = model(embedded, uncertainty)
            return mean + known.fits.slope[:, None] * heights, variance

        return beliefs

    def _improvement(self, known: Known) -> Functions:
        """Log expected improvement over the best value a client has reached, noise set aside."""
        beliefs, mask = self._beliefs(known), known.observations.mask
        best = beliefs(known.units)[0].masked_fill(~mask, -torch.inf).amax(dim=1, keepdim=True)
        best = torch.where(best.isfinite(), best, 0.0)  # nothing known: improve upon the prior mean
        return lambda points: log_expected_improvement(*beliefs(points), best)

    def _draws(self, known: Known) -> Functions:
        """A draw from the posterior of clients' objectives (Wilson et al. 2020)."""
        normals = partial(client_normals, self._seed, self._clients[known.rows], known.round)
        n_features, t = self._own.n_features, known.units.shape[1]
        pooled, slope, constant = known.pooled, known.fits.slope[:, None], math.sqrt(CONSTANT)
        basis = torch.full((*known.units.shape[:2], 1), constant, dtype=torch.float64, device=self._device)
        if known.shared is not None:
            basis = torch.cat([slope[..., None] * known.shared.uncertainty, basis], dim=-1)
        paths = draw_paths(
            known.residual,
            known.fits.hyperparameters(self._setting.space.n_embedded),
            kernel=self._own.kernel,
            frequencies=self._frequencies,
            prior=self._tensor(normals(Stream.PRIOR, (n_features,))),
            observation_noise=self._tensor(normals(Stream.OBSERVATION_NOISE, (t,))),
            basis=basis,
            multiples=self._tensor(normals(Stream.SHARED_SAMPLE, basis.shape[-1:])),
        )

        def functions(points: FloatArray) -> torch.Tensor:
            drawn = paths(self._tensor(self._setting.space.embed(points))) + constant * paths.multiples[:, -1:]
            if pooled is None:
                return drawn
            heights, uncertainty = pooled(points)
            return drawn + slope * (heights + row_times(paths.multiples[:, :-1], uncertainty.mT))

        return functions

    def _models(
        self, rows: IntArray, observations: Observations, shared: Shared | None, round_: int, own: OwnModel
    ) -> Fit:
        """Fits of some clients, made anew where the last one is too old or knew nothing of what is shared."""
        index = torch.as_tensor(rows, device=self._device)
        if not own.is_common:
            without = self._fit.slope[index].isnan().cpu().numpy()
            fresh = (self._fitted[rows] == _NEVER) | (without if shared is not None else ~without)
            due = fresh | (self._fitted[rows] <= round_ - own.refit_every)
            for chosen, steps in ((fresh, own.fit_steps), (due & ~fresh, max(1, own.fit_steps // _WARM))):
                self._refit(rows, np.flatnonzero(chosen), observations, shared, steps, own)
            self._fitted[rows[due]] = round_
            return self._fit.rows(index)
        start = at_start(own, len(rows), self._setting.space.n_embedded, self._device)
        return fit(start, observations, own, steps=0, shared=shared)

    def _refit(
        self,
        rows: IntArray,
        chosen: IntArray,
        observations: Observations,
        shared: Shared | None,
        steps: int,
        own: OwnModel,
    ) -> None:
        if not len(chosen):
            return
        among = torch.as_tensor(chosen, device=self._device)
        index = torch.as_tensor(rows[chosen], device=self._device)
        theirs = None if shared is None else shared.rows(among)
        made = fit(self._fit.rows(index), observations.rows(among), own, steps=steps, shared=theirs)
        self._fit.logs[index], self._fit.slope[index] = made.logs, made.slope

    def _tensor(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.as_tensor(array, dtype=torch.float64, device=self._device)


def among(points: FloatArray, units: FloatArray) -> npt.NDArray[np.bool_]:
    """Tell whether points ``(n or 1, c, n_dims)`` are among each client's ``(n, t, n_dims)``, ``(n, c)``.

    One coordinate after another, and candidates last: what is compared is then long rows in one piece.
    """
    same = np.ones((len(units), units.shape[1], points.shape[1]), dtype=bool)
    for dim in range(units.shape[2]):
        same &= np.ascontiguousarray(points[..., dim])[:, None] == units[..., dim, None]
    return np.asarray(same.any(axis=1))
