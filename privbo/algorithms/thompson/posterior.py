"""Posteriors of many clients at once: ridge weights of features, and the kernels of own models.

Histories are ragged (evaluations fail), so every batch carries a mask; a masked
observation has zero features and zero value, which leaves the posterior untouched.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from privbo.algorithms.thompson.features import Kernel


def ridge_mean(features: torch.Tensor, values: torch.Tensor, noise: float | torch.Tensor) -> torch.Tensor:
    """Posterior mean of the weights (eq. 2 of the paper: nu = Sigma^-1 Phi' y), ``(n, n_features)``.

    Args:
        features: Features of the observations, ``(n, t, n_features)``; zero rows where masked.
        values: Observations ``(n, t)``; zero where masked.
        noise: lambda, the variance of the observation noise, one or one per client ``(n,)``.
    """
    n_observations, n_features = features.shape[-2:]
    if n_observations < n_features:
        dual = cholesky(_gram(features, noise))
        return row_times(torch.cholesky_solve(values[..., None], dual)[..., 0], features)
    primal = cholesky(_gram(features.mT, noise))
    weights: torch.Tensor = torch.cholesky_solve(batch_product(features.mT, values[..., None]), primal)[..., 0]
    return weights


def ridge_sample(
    features: torch.Tensor,
    values: torch.Tensor,
    noise: float | torch.Tensor,
    *,
    prior: torch.Tensor,
    observation_noise: torch.Tensor,
) -> torch.Tensor:
    """A draw of the weights from N(nu, lambda Sigma^-1), ``(n, n_features)`` (eq. 2 of the paper).

    With fewer observations than features it corrects a prior draw by Matheron's rule,
    which needs a factor of the small matrix only; otherwise it is the Cholesky draw.

    Args:
        features: As in ``ridge_mean``.
        values: As in ``ridge_mean``.
        noise: As in ``ridge_mean``.
        prior: Standard normal draws ``(n, n_features)``.
        observation_noise: Standard normal draws ``(n, t)``, used by Matheron's rule.
    """
    if features.shape[-2] < features.shape[-1]:
        return sample_by_matheron(features, values, noise, prior, observation_noise)
    return sample_by_cholesky(features, values, noise, prior)


def sample_by_cholesky(
    features: torch.Tensor, values: torch.Tensor, noise: float | torch.Tensor, prior: torch.Tensor
) -> torch.Tensor:
    """Cholesky draw: nu + sqrt(lambda) L'^-1 z with Sigma = L L'."""
    factor = cholesky(_gram(features.mT, noise))
    mean = torch.cholesky_solve(features.mT @ values[..., None], factor)
    spread = torch.linalg.solve_triangular(factor.mT, prior[..., None], upper=True)
    draw: torch.Tensor = mean[..., 0] + _column(noise, prior).sqrt() * spread[..., 0]
    return draw


def sample_by_matheron(
    features: torch.Tensor,
    values: torch.Tensor,
    noise: float | torch.Tensor,
    prior: torch.Tensor,
    observation_noise: torch.Tensor,
) -> torch.Tensor:
    """Corrected prior draw: w + Phi' (Phi Phi' + lambda I)^-1 (y - Phi w - sqrt(lambda) e), w a prior draw."""
    factor = cholesky(_gram(features, noise))
    imagined = row_times(prior, features.mT) + _column(noise, prior).sqrt() * observation_noise
    return prior + row_times(torch.cholesky_solve((values - imagined)[..., None], factor)[..., 0], features)


def cholesky(matrices: torch.Tensor) -> torch.Tensor:
    """Lower factors of a batch ``(..., c, c)``; the identity for a matrix that has none.

    Torch raises for the whole batch where one matrix fails; here a client fails alone.
    """
    factors: torch.Tensor
    factors, failures = torch.linalg.cholesky_ex(matrices)
    failed = failures != 0  # also where an entry is not a number
    if not failed.any():
        return factors
    identity = torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
    # Taken out before the factorisation, or a derivative would still see what failed.
    kept: torch.Tensor = torch.linalg.cholesky_ex(torch.where(failed[..., None, None], identity, matrices))[0]
    return kept


def row_times(rows: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """A row vector ``(n, a)`` times a matrix ``(n, a, b)`` per client, ``(n, b)``.

    Batched products take a row on the left several times as fast as a column on the right.
    """
    return batch_product(rows[:, None, :], matrices)[:, 0]


def batch_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Products of two matrices per client, ``(n, a, b)`` times ``(n, b, c)``.

    On a processor matrix by matrix through NumPy: the rounding errors of torch's batched products depend on how
    many clients there are, and they take 1.4 (from memory) to 2 times (from caches) as long.
    """
    if left.device.type == "cpu":
        return torch.from_numpy(np.matmul(left.numpy(), right.numpy()))
    return left @ right


def _gram(rows: torch.Tensor, noise: float | torch.Tensor) -> torch.Tensor:
    gram = batch_product(rows, rows.mT)
    gram.diagonal(dim1=-2, dim2=-1).add_(_column(noise, rows))
    return gram


def _column(noise: float | torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The noise as ``(1,)`` or ``(n, 1)``, to stand beside a row per client."""
    return torch.as_tensor(noise, dtype=like.dtype, device=like.device)[..., None]


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """Kernel hyperparameters of n clients, in units of the cube and of standardised values.

    Attributes:
        lengthscale: ``(n, n_embedded)``.
        outputscale: Prior variance ``(n,)``.
        noise: Observation variance ``(n,)``.
    """

    lengthscale: torch.Tensor
    outputscale: torch.Tensor
    noise: torch.Tensor

    def rows(self, index: torch.Tensor) -> Hyperparameters:
        """Those of some of the clients."""
        return Hyperparameters(**{name: values[index] for name, values in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class Observations:
    """Observations of n clients, standardised per client unless they model raw values.

    Attributes:
        embedded: Points as kernels see them, ``(n, t, n_embedded)``.
        values: Values as they are modelled, ``(n, t)``; zero where masked.
        mask: True where there is an observation, ``(n, t)``.
        scale: What the values were divided by, ``(n,)``.
    """

    embedded: torch.Tensor
    values: torch.Tensor
    mask: torch.Tensor
    scale: torch.Tensor

    def rows(self, index: torch.Tensor) -> Observations:
        """Those of some of the clients."""
        return Observations(**{name: values[index] for name, values in vars(self).items()})


def masked_covariance(covariance: torch.Tensor, mask: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Covariance of the observations ``(n, t, t)``; masked ones become independent unit variances."""
    both = mask[..., :, None] & mask[..., None, :]
    diagonal = torch.where(mask, noise[..., None], 1.0)
    return torch.where(both, covariance, 0.0) + torch.diag_embed(diagonal)


def kernel_values(kernel: Kernel, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Correlations ``(n, a, b)`` of points scaled by their length scale."""
    # In place: the arrays are large and most of the time goes into moving them.
    squares = (left @ right.mT).mul_(-2.0).add_(left.square().sum(-1)[..., :, None])
    return correlations(kernel, squares.add_(right.square().sum(-1)[..., None, :]).clamp_min_(0.0))


def correlations(kernel: Kernel, squares: torch.Tensor) -> torch.Tensor:
    """Correlations at squared scaled distances, which are overwritten."""
    if kernel == "se":
        return squares.mul_(-0.5).exp_()
    if kernel == "matern12":
        return squares.sqrt_().neg_().exp_()
    if kernel == "matern32":
        distance = squares.mul_(3.0).sqrt_()
        return (1.0 + distance).mul_(distance.neg_().exp_())
    distance = torch.sqrt(5.0 * squares)
    return squares.mul_(5.0 / 3.0).add_(distance).add_(1.0).mul_(distance.neg_().exp_())
