"""Thompson draws from many clients' own posteriors at once.

Three kinds: paths (random features conditioned exactly), weights of random features, and
joint draws from the exact posterior at given points. All are affine in standard normals
that the caller draws per client.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from privbo.algorithms.thompson.features import SMOOTHNESS, Kernel
from privbo.algorithms.thompson.posterior import (
    JITTER,
    Hyperparameters,
    Observations,
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
        kernel: Of all clients.
        frequencies: Of the waves at unit length scale, ``(f, n_embedded)``.
        amplitudes: Of every client's waves, ``(n, f)``.
        phases: Of every client's waves, ``(n, f)``.
        known: Points with values, divided by the length scales, ``(n, t, n_embedded)``.
        lengthscale: ``(n, n_embedded)``.
        correction: Multiples of the kernel at the known points, ``(n, t)``.
        multiples: Of given functions, ``(n, r)``.
    """

    kernel: Kernel
    frequencies: torch.Tensor
    amplitudes: torch.Tensor
    phases: torch.Tensor
    known: torch.Tensor
    lengthscale: torch.Tensor
    correction: torch.Tensor
    multiples: torch.Tensor

    def __call__(self, embedded: torch.Tensor) -> torch.Tensor:
        """Values ``(n, c)`` at points ``(n, c, n_embedded)`` or ``(1, c, n_embedded)``, without the given functions."""
        return self._compiled(embedded) if is_compiled(embedded.device) else self.by_torch(embedded)

    def _compiled(self, embedded: torch.Tensor) -> torch.Tensor:
        from privbo.algorithms.thompson import compiled  # loads Numba, which nobody needs who draws nothing

        n, count = len(self.known), embedded.shape[1]
        values, points, lengthscale = np.zeros((n, count)), as_array(embedded), as_array(self.lengthscale)
        waves = (as_array(numbers) for numbers in (self.frequencies, self.amplitudes, self.phases))
        compiled.add_prior_paths(*waves, lengthscale, points, values)
        compiled.expect(
            SMOOTHNESS[self.kernel],
            as_array(self.known),
            np.empty((n, 0, 0)),
            as_array(self.correction),
            lengthscale,
            np.ones(n),
            0.0,
            points,
            compiled.NOTHING,
            values,
            np.empty((n, 0)),
        )
        return torch.from_numpy(values)

    def by_torch(self, embedded: torch.Tensor) -> torch.Tensor:
        """The same by torch: on GPUs, and what tests hold the compiled values to."""
        scaled = embedded / self.lengthscale[:, None, :]
        path = _waves(scaled, self.frequencies, self.amplitudes, self.phases)
        return path + row_times(self.correction, kernel_values(self.kernel, self.known, scaled))


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
    return Paths(
        kernel=kernel,
        frequencies=frequencies,
        amplitudes=amplitudes,
        phases=phases,
        known=known,
        lengthscale=hyperparameters.lengthscale,
        correction=scale * surprise,
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
    nothing = weights.new_zeros((len(weights), 0))
    return Paths(
        kernel="se",  # no kernel is added to the waves
        frequencies=frequencies,
        amplitudes=amplitudes,
        phases=phases,
        known=observations.embedded[:, :0],
        lengthscale=hyperparameters.lengthscale,
        correction=nothing,
        multiples=nothing,
    )


def _paired(scaled: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    angles = scaled @ frequencies.T
    return torch.cat([angles.cos(), angles.sin_()], dim=-1).div_(math.sqrt(len(frequencies)))


def common_factor(points: torch.Tensor, lengthscale: torch.Tensor, outputscale: float, kernel: Kernel) -> torch.Tensor:
    """B ``(c, r)`` with B B' the prior covariance at points ``(c, n_embedded)`` that all clients share.

    Directions whose variance is negligible are left out, which makes B narrow for smooth kernels.
    """
    scaled = points / lengthscale
    variances, directions = torch.linalg.eigh(outputscale * kernel_values(kernel, scaled, scaled))
    kept = variances > _NEGLIGIBLE * variances[-1]
    return torch.as_tensor(directions[:, kept] * variances[kept].sqrt())


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
