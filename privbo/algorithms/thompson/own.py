"""Acting alone: every client's own model, a Thompson draw from it, and the draw's maximiser.

Batched over clients and cut into chunks that bound memory; a client's choice depends on
its own data and streams, not on the chunk.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

from privbo.algorithms.thompson.draws import (
    Paths,
    common_factor,
    draw_exact,
    draw_feature_paths,
    draw_paths,
    own_factors,
)
from privbo.algorithms.thompson.features import Kernel, draw_frequencies
from privbo.algorithms.thompson.hyperparameters import fit, known_noise, start
from privbo.algorithms.thompson.long_history import narrowed
from privbo.algorithms.thompson.maximise import Search, candidates, maximise
from privbo.algorithms.thompson.own_model import OwnModel
from privbo.algorithms.thompson.posterior import Hyperparameters, Observations
from privbo.algorithms.thompson.streams import Stream, client_normals, public_stream
from privbo.algorithms.thompson.theory import Theorem1, information_gains
from privbo.protocol.messages import FloatArray, IntArray, Setting
from privbo.protocol.space import Space

_NEVER = -(2**31)
_GAIN_POINTS = 256  # candidates among which the most informative queries are sought
# Floating-point numbers worked on at once: a few times the caches of a processor, some gigabytes of a GPU.
_ENTRIES = {"cpu": 2**22, "cuda": 2**28}


def chunks(rows: IntArray, entries_per_row: int, device: torch.device) -> list[IntArray]:
    """``rows`` in pieces whose work stays within the device's memory."""
    limit = _ENTRIES.get(device.type, _ENTRIES["cpu"])
    size = max(1, limit // max(1, entries_per_row))
    return [rows[i : i + size] for i in range(0, len(rows), size)]


class OwnActors:
    """The own models of a cohort's clients.

    Attributes:
        models: Hyperparameters of every client.
    """

    def __init__(self, own: OwnModel, setting: Setting, *, clients: IntArray, seed: int) -> None:
        self._own, self._setting = dataclasses.replace(own, regularisation=own.fixed_noise(setting.rounds)), setting
        self._clients, self._seed = clients, seed
        self._device = torch.device(setting.device)
        paths = public_stream(setting.public_seed, Stream.PATHS)
        frequencies = draw_frequencies(paths, own.n_features // 2, setting.space.n_embedded, own.kernel)
        self._frequencies = torch.as_tensor(frequencies, device=self._device)
        self._fitted = np.full(len(clients), _NEVER, dtype=np.int64)
        self.models = start(own, len(clients), setting.space.n_embedded, self._device)
        self._grid = setting.space.grid(own.n_candidates)
        self._gains: FloatArray | None = None

    def snapshot(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """Fitted models; private."""
        models = {name: values.cpu().numpy().copy() for name, values in vars(self.models).items()}
        return {"fitted": self._fitted.copy(), **models}

    def restore(self, snapshot: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Take the models of ``snapshot``."""
        self._fitted = np.array(snapshot["fitted"], dtype=np.int64)
        taken = {name: self._tensor(np.array(snapshot[name], dtype=np.float64)) for name in vars(self.models)}
        self.models = Hyperparameters(**taken)

    def entries(self, n_observations: int) -> int:
        """Numbers held at once for one client."""
        own, t = self._own, min(n_observations, self._own.max_points or n_observations)
        if own.draw != "exact":
            return own.n_candidates * (own.n_features + t)
        if own.is_common and self._grid is not None:
            return len(self._grid) + t * len(self._grid) // 4 + t * t
        points = own.n_candidates if self._grid is None else len(self._grid)
        return 3 * (points + t) ** 2

    def maximisers(self, rows: IntArray, observations: Observations, units: FloatArray, round_: int) -> FloatArray:
        """The maximiser of a draw from every client's own posterior (Algorithm 2, line 6), ``(n, n_dims)``.

        Args:
            rows: Which of the cohort's clients.
            observations: What they know.
            units: Their points in the cube, ``(n, t, n_dims)``.
            round_: The round they act in.
        """
        inflation = self._inflation(units.shape[1])
        observations, units = narrowed(observations, units, self._own)
        models = self._models_of(rows, observations, round_)
        noise = inflation * self._normals(rows, round_, Stream.OBSERVATION_NOISE, units.shape[1])
        with torch.no_grad():
            drawn, pool = self._draws(rows, observations, models, noise, units, round_, inflation)
            if pool is not None:
                return np.asarray(pool[drawn(pool[None]).argmax(dim=1).cpu().numpy()])
            search = Search(n_candidates=self._own.n_candidates)
            return maximise(drawn, self._setting.space, search, self._candidates(round_))

    def _draws(
        self,
        rows: IntArray,
        observations: Observations,
        models: Hyperparameters,
        noise: torch.Tensor,
        units: FloatArray,
        round_: int,
        inflation: float,
    ) -> tuple[Callable[[FloatArray], torch.Tensor], FloatArray | None]:
        """A draw of every client's function, and the only points ``(c, n_dims)`` that it is known at, if it is."""
        if self._own.draw == "exact":
            pool, values = self._exact_draws(rows, observations, models, noise, units, round_, inflation)
            return lambda _: values, pool
        prior = inflation * self._normals(rows, round_, Stream.PRIOR, self._own.n_features)
        paths = self._paths(observations, models, prior, noise)
        return lambda points: paths(self._tensor(self._setting.space.embed(points))), None

    def _paths(
        self, observations: Observations, models: Hyperparameters, prior: torch.Tensor, noise: torch.Tensor
    ) -> Paths:
        draw = draw_feature_paths if self._own.draw == "features" else draw_paths
        return draw(
            observations,
            models,
            kernel=self._own.kernel,
            frequencies=self._frequencies,
            prior=prior,
            observation_noise=noise,
        )

    def _exact_draws(
        self,
        rows: IntArray,
        observations: Observations,
        models: Hyperparameters,
        observation_noise: torch.Tensor,
        units: FloatArray,
        round_: int,
        inflation: float,
    ) -> tuple[FloatArray, torch.Tensor]:
        """Joint draws ``(n, c)`` at the points that are searched, and those points."""
        own, space = self._own, self._setting.space
        scale = None
        if self._grid is not None and own.is_common:
            points = self._common_factor(self._grid)
            known = points[torch.as_tensor(grid_index(space, self._grid, units), device=self._device)]
            pool = self._grid
            scale = (models.outputscale / own.outputscale.median).sqrt()
            known = known * scale[:, None, None]
        else:
            pool = candidates(space, own.n_candidates, self._candidates(round_)) if self._grid is None else self._grid
            embedded = self._tensor(space.embed(pool)).expand(len(rows), -1, -1)
            factors = own_factors(torch.cat([embedded, observations.embedded], dim=1), models, own.kernel)
            points, known = factors[:, : len(pool)], factors[:, len(pool) :]
        values = draw_exact(
            observations,
            models.noise,
            known=known,
            points=points,
            prior=inflation * self._normals(rows, round_, Stream.PRIOR, known.shape[-1]),
            observation_noise=observation_noise,
        )
        return pool, values if scale is None else values * scale[:, None]

    def _common_factor(self, grid: FloatArray) -> torch.Tensor:
        """The factor of the prior at the grid, the same for every client and run with this kernel."""
        own, points = self._own, self._setting.space.embed(grid)
        lengthscale, outputscale = own.lengthscale.median, own.outputscale.median
        return _factor_of(points.tobytes(), points.shape[1], lengthscale, outputscale, own.kernel, self._setting.device)

    def _models_of(self, rows: IntArray, observations: Observations, round_: int) -> Hyperparameters:
        """Hyperparameters of some clients, fitted anew where the last fit is too old."""
        own = self._own
        if own.is_common:
            models = start(own, len(rows), self.models.lengthscale.shape[1], self._device)
            noise = known_noise(own, observations)
            return models if noise is None else dataclasses.replace(models, noise=noise)
        due = np.flatnonzero(self._fitted[rows] <= round_ - own.refit_every)
        if len(due):
            stale = torch.as_tensor(due, device=self._device)
            index = torch.as_tensor(rows[due], device=self._device)
            with torch.enable_grad():
                fitted = fit(observations.rows(stale), own)
            for name, values in vars(fitted).items():
                getattr(self.models, name)[index] = values
            self._fitted[rows[due]] = round_
        return self.models.rows(torch.as_tensor(rows, device=self._device))

    def _normals(self, rows: IntArray, round_: int, stream: Stream, count: int) -> torch.Tensor:
        return self._tensor(client_normals(self._seed, self._clients[rows], round_, stream, (count,)))

    def _inflation(self, n_observations: int) -> float:
        """Beta after so many queries; the information they can give depends on the prior alone."""
        beta = self._own.inflation
        if not isinstance(beta, Theorem1):
            return beta
        if self._gains is None or len(self._gains) <= n_observations:
            pool = self._grid
            if pool is None or len(pool) > _GAIN_POINTS:
                pool = candidates(self._setting.space, _GAIN_POINTS, self._candidates(0))
            first = start(self._own, 1, self._setting.space.n_embedded, self._device)
            factor = own_factors(self._tensor(self._setting.space.embed(pool))[None], first, self._own.kernel)[0]
            noise = float(first.noise[0]) if self._own.regularisation is None else float(self._own.regularisation)
            gains = information_gains((factor @ factor.mT).cpu().numpy(), noise, n_observations + self._setting.rounds)
            self._gains = gains
        return beta.beta(float(self._gains[n_observations]))

    def _candidates(self, round_: int) -> np.random.Generator:
        return public_stream(self._setting.public_seed, Stream.CANDIDATES, round_)

    def _tensor(self, array: FloatArray) -> torch.Tensor:
        return torch.as_tensor(array, dtype=torch.float64, device=self._device)


@lru_cache(maxsize=4)
def _factor_of(
    points: bytes, n_embedded: int, lengthscale: float, outputscale: float, kernel: Kernel, device: str
) -> torch.Tensor:
    known = torch.tensor(np.frombuffer(points).reshape(-1, n_embedded), device=device)
    return common_factor(
        known, torch.full((n_embedded,), lengthscale, dtype=torch.float64, device=device), outputscale, kernel
    )


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
