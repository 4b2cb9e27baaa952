"""Thompson draws from many clients' own posteriors at once.

Three kinds: paths (random features conditioned exactly), weights of random features, and
joint draws from the exact posterior at given points. All are affine in standard normals
that the caller draws per client.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from privbo.algorithms.thompson.features import Kernel
from privbo.algorithms.thompson.posterior import (
    JITTER,
    Hyperparameters,
    Observations,
    Posterior,
    as_array,
    is_compiled,
    kernel_values,
    masked_covariance,
)
from privbo.algorithms.thompson.ridge import batch_product, cholesky, ridge_sample, row_times

_NEGLIGIBLE = 1e-10  # share of the largest eigenvalue below which a direction of a prior covariance is left out


@dataclass(frozen=True, kw_only=True)
class Paths:
    """One sample path of every client's posterior: waves, and what the data correct in them.

    The drawn multiples of given functions are left to the caller.

    Attributes:
        frequencies: Of the waves at unit length scale, ``(f, n_embedded)``.
        amplitudes: Of every client's waves, ``(n, f)``.
        phases: Of every client's waves, ``(n, f)``.
        lengthscale: ``(n, n_embedded)``.
        correction: Its mean is what the data correct; None: nothing.
        multiples: Of given functions, ``(n, r)``.
    """

    frequencies: torch.Tensor
    amplitudes: torch.Tensor
    phases: torch.Tensor
    lengthscale: torch.Tensor
    correction: Posterior | None
    multiples: torch.Tensor

    def __call__(self, embedded: torch.Tensor) -> torch.Tensor:
        """Values ``(n, c)`` at points ``(n, c, n_embedded)`` or ``(1, c, n_embedded)``, without the given functions."""
        if is_compiled(embedded.device):
            from privbo.algorithms.thompson import compiled  # loads Numba, which servers do without

            waves = torch.zeros(len(self.phases), embedded.shape[1], dtype=torch.float64, device=embedded.device)
            numbers = (self.frequencies, self.amplitudes, self.phases, self.lengthscale, embedded, waves)
            compiled.add_prior_paths(*map(as_array, numbers))
        else:
            waves = _waves(embedded / self.lengthscale[:, None], self.frequencies, self.amplitudes, self.phases)
        return waves if self.correction is None else waves + self.correction.conditioned(embedded)[0]


def draw_paths(
    observations: Observations,
    hyperparameters: Hyperparameters,
    *,
    kernel: Kernel,
    frequencies: torch.Tensor,
    prior: torch.Tensor,
    observation_noise: torch.Tensor,
    basis: torch.Tensor,
    multiples: torch.Tensor,
) -> Paths:
    """A path of every client's exact posterior: a prior path plus the data's correction.

    The prior path is a random-feature draw; conditioning is exact in the kernel (Matheron's
    rule in function space, Wilson et al. 2020), so accuracy near the data does not depend
    on the number of features.

    Args:
        observations: Of n clients.
        hyperparameters: Of the same clients.
        kernel: Of all of them.
        frequencies: Spectral draws at unit length scale, ``(f, n_embedded)``.
        prior: Standard normal draws ``(n, 2 f)``.
        observation_noise: Standard normal draws ``(n, t)``.
        basis: Given functions at the observations, each with a standard normal multiple, ``(n, t, r)``.
        multiples: Standard normal draws ``(n, r)`` of those multiples before anything was observed.
    """
    known = observations.embedded / hyperparameters.lengthscale[:, None, :]
    scale, noise = hyperparameters.outputscale[:, None], hyperparameters.noise[:, None]
    amplitudes, phases = _as_waves(prior * (scale / len(frequencies)).sqrt())
    covariance = scale[..., None] * kernel_values(kernel, known, known) + batch_product(basis, basis.mT)
    imagined = _waves(known, frequencies, amplitudes, phases) + noise.sqrt() * observation_noise
    imagined = imagined + row_times(multiples, basis.mT)
    factor = cholesky(masked_covariance(covariance, observations.mask, hyperparameters.noise))
    residual = torch.where(observations.mask, observations.values - imagined, 0.0)
    surprise = torch.cholesky_solve(residual[..., None], factor)[..., 0]
    correction = Posterior(
        kernel=kernel,
        constant=0.0,
        known=known,
        covariance_root=factor[:, :0, :0],
        weights=surprise,
        models=hyperparameters,
    )
    return Paths(
        frequencies=frequencies,
        amplitudes=amplitudes,
        phases=phases,
        lengthscale=hyperparameters.lengthscale,
        correction=correction,
        multiples=multiples + row_times(surprise, basis),
    )


def _waves(
    scaled: torch.Tensor, frequencies: torch.Tensor, amplitudes: torch.Tensor, phases: torch.Tensor
) -> torch.Tensor:
    angles = (scaled @ frequencies.T).add_(phases[:, None, :])
    return row_times(amplitudes, angles.cos_().mT)


def _as_waves(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Amplitudes and phases of weights on cosines and, after them, sines: one wave each, which halves the work."""
    cosines, sines = weights.chunk(2, dim=-1)
    return torch.hypot(cosines, sines), torch.atan2(-sines, cosines)


def draw_feature_paths(
    observations: Observations,
    hyperparameters: Hyperparameters,
    *,
    frequencies: torch.Tensor,
    prior: torch.Tensor,
    observation_noise: torch.Tensor,
) -> Paths:
    """A draw of every client's feature weights given its data (eq. 2 of the paper with own features).

    Args:
        observations: Of n clients.
        hyperparameters: Of the same clients.
        frequencies: As in ``draw_paths``.
        prior: As in ``draw_paths``.
        observation_noise: As in ``draw_paths``.
    """
    scale = hyperparameters.outputscale[:, None, None].sqrt()
    features = scale * _paired(observations.embedded / hyperparameters.lengthscale[:, None, :], frequencies)
    weights = ridge_sample(
        features * observations.mask[..., None],
        observations.values,
        hyperparameters.noise,
        prior=prior,
        observation_noise=observation_noise,
    )
    amplitudes, phases = _as_waves(weights * (scale[..., 0] / math.sqrt(len(frequencies))))
    return Paths(
        frequencies=frequencies,
        amplitudes=amplitudes,
        phases=phases,
        lengthscale=hyperparameters.lengthscale,
        correction=None,
        multiples=weights[:, :0],
    )


def _paired(scaled: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    angles = scaled @ frequencies.T
    return torch.cat([angles.cos(), angles.sin_()], dim=-1).div_(math.sqrt(len(frequencies)))


@lru_cache(maxsize=4)
def common_factor(
    points: bytes, n_embedded: int, lengthscale: float, outputscale: float, kernel: Kernel, device: str
) -> torch.Tensor:
    """B ``(c, r)`` with B B' the prior covariance at points that all clients share.

    Directions whose variance is negligible are left out, which makes B narrow for smooth kernels.

    Args:
        points: Bytes of numbers, ``(c, n_embedded)``.
        n_embedded: Coordinates a kernel sees.
        lengthscale: Of all coordinates.
        outputscale: Prior variance.
        kernel: Of unit variance.
        device: Where to keep it.
    """
    scaled = torch.tensor(np.frombuffer(points).reshape(-1, n_embedded), device=device) / lengthscale
    variances, directions = torch.linalg.eigh(outputscale * kernel_values(kernel, scaled, scaled))
    large = variances > _NEGLIGIBLE * variances[-1]
    return torch.as_tensor(directions[:, large] * variances[large].sqrt())


def own_factors(points: torch.Tensor, hyperparameters: Hyperparameters, kernel: Kernel) -> torch.Tensor:
    """Cholesky factors ``(n, c, c)`` of every client's prior covariance at points ``(n, c, n_embedded)``."""
    scaled = points / hyperparameters.lengthscale[:, None, :]
    covariance = kernel_values(kernel, scaled, scaled)
    covariance.diagonal(dim1=-2, dim2=-1).add_(JITTER)
    return torch.as_tensor(hyperparameters.outputscale.sqrt()[:, None, None] * cholesky(covariance))


def draw_exact(
    observations: Observations,
    noise: torch.Tensor,
    *,
    known: torch.Tensor,
    points: torch.Tensor,
    prior: torch.Tensor,
    observation_noise: torch.Tensor,
) -> torch.Tensor:
    """Joint draws ``(n, c)`` from every client's exact posterior.

    Args:
        observations: Of n clients.
        noise: Observation variance ``(n,)``.
        known: Rows of the prior covariance's factor at the observations, ``(n, t, r)``.
        points: Rows of it where values are wanted, ``(n, c, r)`` or ``(c, r)``.
        prior: Standard normal draws ``(n, r)``.
        observation_noise: Standard normal draws ``(n, t)``.
    """
    weights = ridge_sample(
        known * observations.mask[..., None],
        observations.values,
        noise,
        prior=prior,
        observation_noise=observation_noise,
    )
    return weights @ points.mT if points.ndim == 2 else row_times(weights, points.mT)
