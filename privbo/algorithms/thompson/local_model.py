"""Clients' own models and the point that each client evaluates next; nothing leaves a client here.

Log expected improvement over the client's best value, or a Thompson draw, maximised over the space, batched over
clients and cut into chunks that bound memory. A client's choice depends on its own data, its own streams and public
numbers, not on the chunk.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
import torch

from privbo.algorithms.thompson.evaluations import Evaluations, Failures, narrowed
from privbo.algorithms.thompson.features import draw_frequencies
from privbo.algorithms.thompson.fits import fit, start
from privbo.algorithms.thompson.maximise import Functions, Search, candidates, log_expected_improvement, maximise
from privbo.algorithms.thompson.pooled import Pooled
from privbo.algorithms.thompson.posterior import (
    CONSTANT,
    Hyperparameters,
    Moments,
    Observations,
    Shared,
    common_factor,
    condition,
    draw_exact,
    draw_feature_paths,
    draw_paths,
    is_compiled,
    own_factors,
    row_times,
)
from privbo.algorithms.thompson.settings import OwnModel, Theorem1, information_gains
from privbo.algorithms.thompson.streams import Stream, client_normals, public_stream
from privbo.protocol.messages import Array, Arrays, BoolArray, FloatArray, IntArray, Setting
from privbo.protocol.processes import limited_loaded_threads
from privbo.protocol.space import Space

Acquisition: TypeAlias = Literal["log-ei", "thompson"]
_NEVER = -(2**31)
_WARM = 4  # a fit that goes on from the last one takes a quarter of the steps
_GAIN_POINTS = 256  # candidates among which the most informative queries are sought
# Floating-point numbers worked on at once: a few times the caches of a processor, some gigabytes of a GPU.
_ENTRIES = {"cpu": 2**22, "cuda": 2**28}


def chunks(rows: IntArray, entries_per_row: int, device: torch.device) -> list[IntArray]:
    """``rows`` in pieces whose work stays within the device's memory."""
    limit = _ENTRIES.get(device.type, _ENTRIES["cpu"])
    size = max(1, limit // max(1, entries_per_row))
    return [rows[i : i + size] for i in range(0, len(rows), size)]


@dataclass(frozen=True, kw_only=True)
class Known:
    """Knowledge of some clients when they choose; private.

    Attributes:
        rows: Which of the cohort's clients, ``(n,)``.
        round: The round they choose in.
        units: The points in the cube that they model, ``(n, t, n_dims)``.
        evaluated: All their points.
        observations: The values.
        shared: The shared part of their models at those points; None where nothing is shared.
        pooled: The same anywhere.
        models: Their hyperparameters.
    """

    rows: IntArray
    round: int
    units: FloatArray
    evaluated: FloatArray
    observations: Observations
    shared: Shared | None
    pooled: Pooled | None
    models: Hyperparameters

    @property
    def residual(self) -> Observations:
        """Observations without what the shared function's expected values explain."""
        if self.shared is None:
            return self.observations
        explained = self.models.slope[:, None] * self.shared.mean
        return dataclasses.replace(self.observations, values=self.observations.values - explained)


class LocalModel:
    """The own models of a cohort's clients, and their choices.

    Args:
        own: Kernel, priors and effort, and what a Thompson draw is.
        setting: Of the run.
        clients: Global numbers, ``(n,)``.
        seed: Of Thompson draws.
        acquisition: What is maximised.
        avoid: Whether a point evaluated before is passed over.
        failures: What trials without a value count as, where the next point is chosen.
        logits: Whether fits are those of DP-FTS-DE, which begin anew every time; see ``fits.fit``.

    Attributes:
        models: Hyperparameters of every client.
    """

    def __init__(
        self,
        own: OwnModel,
        setting: Setting,
        clients: IntArray,
        seed: int,
        *,
        acquisition: Acquisition = "log-ei",
        avoid: bool = False,
        failures: Failures = "ignored",
        logits: bool = False,
    ) -> None:
        self._own = dataclasses.replace(own, regularisation=own.fixed_noise(setting.rounds))
        self._setting, self._clients, self._seed = setting, clients, seed
        self._acquisition, self._avoid, self._failures, self._logits = acquisition, avoid, failures, logits
        self._constant = 0.0 if logits else CONSTANT
        self._device = torch.device(setting.device)
        self._compiled = is_compiled(setting, draws=acquisition == "thompson")
        paths = public_stream(setting.public_seed, Stream.PATHS)
        frequencies = draw_frequencies(paths, own.n_features // 2, setting.space.n_embedded, own.kernel)
        self._frequencies = self._tensor(frequencies)
        self._fitted = np.full(len(clients), _NEVER, dtype=np.int64)
        self.models = start(own, len(clients), setting.space.n_embedded, self._device)
        self._grid = setting.space.grid(own.n_candidates)
        self._gains: FloatArray = np.empty(0)

    def snapshot(self) -> dict[str, Array]:
        """Fitted models; private."""
        models = {name: values.cpu().numpy().copy() for name, values in vars(self.models).items()}
        return {"fitted": self._fitted.copy(), **models}

    def restore(self, snapshot: Arrays) -> None:
        """Take the models of ``snapshot``."""
        self._fitted = np.array(snapshot["fitted"], dtype=np.int64)
        self.models = Hyperparameters(**{name: self._tensor(np.array(snapshot[name])) for name in vars(self.models)})

    def propose(
        self, seen: Evaluations, round_: int, prior_mean: Pooled | None = None, rows: IntArray | None = None
    ) -> FloatArray:
        """The point that some clients evaluate in a round, ``(n, n_dims)``.

        Args:
            seen: What the clients know; what they learn in this round does not count.
            round_: The round.
            prior_mean: What was shared, where the public numbers say that it can be trusted.
            rows: Which of the cohort's clients; None for all.
        """
        space, own = self._setting.space, self._own
        rows = np.arange(len(self._clients)) if rows is None else rows
        points = np.empty((len(self._clients), space.n_dims))
        search = Search(n_candidates=own.n_candidates)
        if own.draw == "exact":  # known where it was drawn, and nowhere else
            search = Search(n_candidates=own.n_candidates, n_starts=1, n_refinements=0)
        n_points = own.n_candidates if self._logits else 2 * own.n_candidates  # held at once: a mean has a variance
        with torch.no_grad(), limited_loaded_threads(1):
            for known in self._pieces(seen, rows, round_, prior_mean, n_points, self._failures):
                points[known.rows] = maximise(self._wishes(known), space, search, self._candidates(round_))
        return np.asarray(points[rows])

    def expected(
        self, seen: Evaluations, round_: int, units: FloatArray, prior_mean: Pooled | None = None
    ) -> FloatArray:
        """The clients' expected standardised values at shared points ``(c, n_dims)`` before a round, ``(n, c)``.

        NaN for a client without a finite value.
        """
        values = np.full((len(self._clients), len(units)), np.nan)
        knowing = np.flatnonzero(np.isfinite(seen.values[:, seen.rounds < round_]).any(axis=1))
        with torch.no_grad(), limited_loaded_threads(1):
            for known in self._pieces(seen, knowing, round_, prior_mean, len(units), "ignored"):
                values[known.rows] = self._posterior(known)(units[None])[0].cpu().numpy()
        return values

    def _pieces(
        self,
        seen: Evaluations,
        rows: IntArray,
        round_: int,
        pooled: Pooled | None,
        n_points: int,
        failures: Failures,
    ) -> Iterator[Known]:
        """Clients' knowledge before a round, in pieces whose work at so many points stays within the memory."""
        own = self._own if pooled is None else self._own.scaled(pooled.rest)
        for some in chunks(rows, self._entries(int((seen.rounds < round_).sum()), n_points, pooled), self._device):
            evaluated = seen.before(some, round_)
            whole = seen.observations(some, round_ - 1, failures)
            observations, units = narrowed(whole, evaluated, own)
            theirs = shared = None
            if pooled is not None:
                theirs = pooled.over(observations.scale)
                mean, uncertainty = theirs.function(units)
                shared = Shared(mean=mean.masked_fill(~observations.mask, 0.0), uncertainty=uncertainty)
            yield Known(
                rows=some,
                round=round_,
                units=units,
                evaluated=evaluated,
                observations=observations,
                shared=shared,
                pooled=theirs,
                models=self._models(some, observations, shared, round_, own),
            )

    def _entries(self, n_observations: int, n_points: int, pooled: Pooled | None) -> int:
        """Numbers held at once for one client."""
        own, e = self._own, self._setting.space.n_embedded
        t = min(n_observations, own.max_points or n_observations)
        if own.draw == "exact" and self._grid is not None and own.is_common:
            return len(self._grid) + t * len(self._grid) // 4 + t * t
        if own.draw == "exact":
            return 3 * ((own.n_candidates if self._grid is None else len(self._grid)) + t) ** 2
        width = own.n_features + t if self._logits else t + e if pooled is None else 2 * t + e + pooled.width
        return n_points * width + t * t * (e + 5)

    def _wishes(self, known: Known) -> Functions:
        """Functions that clients maximise; minus infinity where they have been, unless they may return."""
        if self._acquisition == "thompson":
            wishes = self._draw(known)
        else:  # log expected improvement over the best value that a client has reached, without noise
            posterior, unknown = self._posterior(known), ~known.observations.mask
            best = posterior(known.units)[0].masked_fill(unknown, -torch.inf).amax(dim=1, keepdim=True)
            best = torch.where(best.isfinite(), best, 0.0)  # nothing known: improve upon the prior mean
            wishes = lambda points: log_expected_improvement(*posterior(points), best)  # noqa: E731 (a line says it)

        def functions(points: FloatArray) -> torch.Tensor:
            again = torch.as_tensor(among(points, known.evaluated), device=self._device)
            return wishes(points).masked_fill(again, -torch.inf)

        return functions if self._avoid else wishes

    def _posterior(self, known: Known) -> Callable[[FloatArray], Moments]:
        """Mean and variance of clients' objectives at points ``(n or 1, c, n_dims)``."""
        model = condition(
            known.models,
            known.residual,
            self._own.kernel,
            known.shared,
            constant=self._constant,
            compiled=self._compiled,
        )

        def posterior(points: FloatArray) -> Moments:
            embedded = self._tensor(self._setting.space.embed(points))
            if known.pooled is None or known.shared is None:
                return model(embedded)
            expected, *uncertain = known.pooled.moments(points, known.shared.uncertainty)
            mean, variance = model(embedded, (uncertain[0], uncertain[1]))
            return mean + known.models.slope[:, None] * expected, variance

        return posterior

    def _draw(self, known: Known) -> Functions:
        """A draw from the posterior of clients' objectives, its deviation from the mean inflated."""
        own, models, pooled, constant = self._own, known.models, known.pooled, math.sqrt(self._constant)
        inflation, embed = self._inflation(known.evaluated.shape[1]), self._setting.space.embed

        def normals(stream: Stream, count: int) -> torch.Tensor:
            clients = self._clients[known.rows]
            return inflation * self._tensor(client_normals(self._seed, clients, known.round, stream, (count,)))

        noise, slope = normals(Stream.OBSERVATION_NOISE, known.units.shape[1]), models.slope[:, None]
        if own.draw == "exact":
            return self._exact_draw(known, noise, partial(normals, Stream.PRIOR))
        prior = normals(Stream.PRIOR, own.n_features)
        if own.draw == "features":
            paths = draw_feature_paths(
                known.observations,
                models,
                frequencies=self._frequencies,
                prior=prior,
                observation_noise=noise,
                compiled=self._compiled,
            )
            return lambda points: paths(self._tensor(embed(points)))
        basis = torch.full((*known.units.shape[:2], 1), constant, dtype=torch.float64, device=self._device)
        if known.shared is not None:
            basis = torch.cat([slope[..., None] * known.shared.uncertainty, basis], dim=-1)
        paths = draw_paths(
            known.residual,
            models,
            kernel=own.kernel,
            frequencies=self._frequencies,
            prior=prior,
            observation_noise=noise,
            basis=basis,
            multiples=normals(Stream.SHARED_SAMPLE, basis.shape[-1]),
            compiled=self._compiled,
        )

        def functions(points: FloatArray) -> torch.Tensor:
            drawn = paths(self._tensor(embed(points))) + constant * paths.multiples[:, -1:]
            if pooled is None:
                return drawn
            mean, uncertainty = pooled.function(points)
            return drawn + slope * (mean + row_times(paths.multiples[:, :-1], uncertainty.mT))

        return functions

    def _exact_draw(self, known: Known, noise: torch.Tensor, normals: Callable[[int], torch.Tensor]) -> Functions:
        """A joint draw at the points that are searched, which are the same for all clients: ``(1, c, n_dims)``."""
        own, space, models = self._own, self._setting.space, known.models
        draw = partial(draw_exact, known.observations, models.noise, observation_noise=noise)

        def common(points: FloatArray) -> torch.Tensor:
            lengthscale, outputscale = own.lengthscale.median, own.outputscale.median
            everywhere = space.embed(points[0]).tobytes()
            factor = common_factor(
                everywhere, space.n_embedded, lengthscale, outputscale, own.kernel, self._setting.device
            )
            here = factor[torch.as_tensor(grid_index(space, points[0], known.units), device=self._device)]
            scale = (models.outputscale / outputscale).sqrt()[:, None]
            return scale * draw(known=here * scale[..., None], points=factor, prior=normals(factor.shape[-1]))

        def of_each(points: FloatArray) -> torch.Tensor:
            embedded, count = self._tensor(space.embed(points)).expand(len(known.rows), -1, -1), points.shape[1]
            factors = own_factors(torch.cat([embedded, known.observations.embedded], dim=1), models, own.kernel)
            return draw(known=factors[:, count:], points=factors[:, :count], prior=normals(factors.shape[-1]))

        return common if own.is_common and self._grid is not None else of_each

    def _inflation(self, n_observations: int) -> float:
        """Beta after so many queries; the information they can give depends on the prior alone."""
        beta = self._own.inflation
        if not isinstance(beta, Theorem1):
            return beta
        if len(self._gains) <= n_observations:
            pool = self._grid
            if pool is None or len(pool) > _GAIN_POINTS:
                pool = candidates(self._setting.space, _GAIN_POINTS, self._candidates(0))
            first = start(self._own, 1, self._setting.space.n_embedded, self._device)
            factor = own_factors(self._tensor(self._setting.space.embed(pool))[None], first, self._own.kernel)[0]
            noise = float(first.noise[0]) if self._own.regularisation is None else float(self._own.regularisation)
            gains = information_gains((factor @ factor.mT).cpu().numpy(), noise, n_observations + self._setting.rounds)
            self._gains = gains
        return beta.beta(float(self._gains[n_observations]))

    def _models(
        self, rows: IntArray, observations: Observations, shared: Shared | None, round_: int, own: OwnModel
    ) -> Hyperparameters:
        """Models of some clients, fitted anew where the last fit is too old or knew nothing of what is shared."""
        fitted = partial(fit, own=own, logits=self._logits, compiled=self._compiled)
        if own.is_common:
            medians = start(own, len(rows), self._setting.space.n_embedded, self._device)
            return fitted(medians, observations, steps=0, shared=shared)
        index = torch.as_tensor(rows, device=self._device)
        stale, models = self._fitted[rows] <= round_ - own.refit_every, self.models
        without = models.slope[index].isnan().cpu().numpy()
        fresh = (self._fitted[rows] == _NEVER) | (without if shared is not None else ~without)
        if self._logits:
            models, fresh = start(own, len(self._clients), self._setting.space.n_embedded, self._device), stale
        for chosen, steps in ((fresh, own.fit_steps), (stale & ~fresh, max(1, own.fit_steps // _WARM))):
            some = torch.as_tensor(np.flatnonzero(chosen), device=self._device)
            if len(some):
                theirs = None if shared is None else shared.rows(some)
                refitted = fitted(models.rows(index[some]), observations.rows(some), steps=steps, shared=theirs)
                for name, values in vars(refitted).items():
                    getattr(self.models, name)[index[some]] = values
        self._fitted[rows[fresh | stale]] = round_
        return self.models.rows(index)

    def _candidates(self, round_: int) -> np.random.Generator:
        return public_stream(self._setting.public_seed, Stream.CANDIDATES, round_)

    def _tensor(self, array: Array) -> torch.Tensor:
        return torch.as_tensor(array, dtype=torch.float64, device=self._device)


def among(points: FloatArray, units: FloatArray) -> BoolArray:
    """Tell whether points ``(n or 1, c, n_dims)`` are among each client's ``(n, t, n_dims)``, ``(n, c)``.

    One coordinate after another, and candidates last: what is compared is then long rows in one piece.
    """
    same = np.ones((len(units), units.shape[1], points.shape[1]), dtype=bool)
    for dim in range(units.shape[2]):
        same &= np.ascontiguousarray(points[..., dim])[:, None] == units[..., dim, None]
        if not same.any():
            break
    return np.asarray(same.any(axis=1))


def grid_index(space: Space, grid: FloatArray, units: FloatArray) -> IntArray:
    """Position in the space's ``grid`` of canonical points ``(..., n_dims)``."""
    axes = [np.unique(grid[:, i]) for i in range(space.n_dims)]

    # Canonical coordinates are equal to the last bit, or nearly; half a step decides.
    def number(points: FloatArray) -> IntArray:
        places = [np.searchsorted(0.5 * (axis[1:] + axis[:-1]), points[..., i]) for i, axis in enumerate(axes)]
        return np.asarray(np.ravel_multi_index(tuple(places), tuple(len(axis) for axis in axes)))

    own = number(grid)  # not 0, 1, ... where conditions leave points out
    order = np.argsort(own)
    return np.asarray(order[np.searchsorted(own[order], number(units))])
