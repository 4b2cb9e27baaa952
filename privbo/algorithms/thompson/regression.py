"""Regression of many clients' own values at once: a kernel, and a mean that is a multiple of a shared function.

A client's standardised values are ``slope * heights(x) + f(x) + noise`` with f of a stationary
kernel. Length scales, variances and the slope are fitted together, maximum a posteriori, by
Adam steps with the gradient written out; every step works entry by entry or matrix by
matrix, so a client's result depends on its own data and on public numbers only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from privbo.algorithms.thompson.features import Kernel
from privbo.algorithms.thompson.hyperparameters import known_noise
from privbo.algorithms.thompson.own_model import OwnModel, Prior
from privbo.algorithms.thompson.posterior import Hyperparameters, Observations, kernel_values, row_times

_LEARNING_RATE = 0.15
_FIRST, _SECOND, _TINY = 0.9, 0.999, 1e-8  # of Adam (Kingma & Ba 2015)
_JITTER = 1e-8
_LEAST_VARIANCE = 1e-12


@dataclass(frozen=True, kw_only=True)
class SlopePrior:
    """Normal prior of the slope, the same for every client because it rests on public numbers.

    Attributes:
        mean: Expected multiple of the shared function.
        stddev: Its standard deviation.
    """

    mean: float
    stddev: float


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Where the fits of n clients stand; private.

    Attributes:
        logs: Logarithms of length scales, kernel variance and observation variance, ``(n, w + 2)``; w is the
            number of embedded coordinates, or 1 with one length scale for all.
        slope: Multiple of the shared function, ``(n,)``; NaN where there is none yet.
    """

    logs: torch.Tensor
    slope: torch.Tensor

    def rows(self, index: torch.Tensor) -> Fit:
        """Those of some clients."""
        return Fit(logs=self.logs[index], slope=self.slope[index])

    def hyperparameters(self, n_embedded: int) -> Hyperparameters:
        """The values themselves."""
        values = self.logs.exp()
        return Hyperparameters(
            lengthscale=values[:, :-2].expand(-1, n_embedded), outputscale=values[:, -2], noise=values[:, -1]
        )


def at_start(own: OwnModel, n_clients: int, n_embedded: int, device: torch.device) -> Fit:
    """The priors' medians and no slope."""
    medians = _column(own, n_embedded, "median", device).log()
    slope = torch.full((n_clients,), torch.nan, dtype=torch.float64, device=device)
    return Fit(logs=medians.expand(n_clients, -1).clone(), slope=slope)


def fit(
    start: Fit, observations: Observations, own: OwnModel, *, steps: int, shared: tuple[torch.Tensor, SlopePrior] | None
) -> Fit:
    """Maximum-a-posteriori fits from where the last ones ended.

    Args:
        start: Of n clients.
        observations: Of the same clients.
        own: Kernel and priors.
        steps: Adam steps.
        shared: Heights of the shared function at the observations ``(n, t)``, zero where masked, and the slope's
            prior; None for a mean of zero.
    """
    known = known_noise(own, observations)
    logs, slope = start.logs, start.slope
    n_embedded, device = observations.embedded.shape[-1], logs.device
    low, high, median, spread = (_column(own, n_embedded, name, device) for name in ("low", "high", "median", "spread"))
    low, high, median = low.log(), high.log(), median.log()
    if shared is None:
        slope = torch.full_like(slope, torch.nan)
    else:
        slope = torch.where(slope.isnan(), shared[1].mean, slope)
    squares = (observations.embedded[:, :, None] - observations.embedded[:, None]).square()
    first = logs.new_zeros(len(logs), logs.shape[1] + 1)
    second = torch.zeros_like(first)
    for step in range(1, steps + 1):
        gradient = first.new_zeros(first.shape)
        gradient[:, :-1], gradient[:, -1] = _gradient(logs, slope, observations, squares, own, known, shared)
        gradient[:, :-1] += (logs - median) / spread.square()
        first = _FIRST * first + (1.0 - _FIRST) * gradient
        second = _SECOND * second + (1.0 - _SECOND) * gradient.square()
        moved = (first / (1.0 - _FIRST**step)) / ((second / (1.0 - _SECOND**step)).sqrt() + _TINY)
        logs = torch.clamp(logs - _LEARNING_RATE * moved[:, :-1], low, high)
        slope = slope - _LEARNING_RATE * moved[:, -1]
    if known is not None:
        logs = torch.cat([logs[:, :-1], known.log()[:, None]], dim=1)
    return Fit(logs=logs, slope=slope)


def _gradient(
    logs: torch.Tensor,
    slope: torch.Tensor,
    observations: Observations,
    squares: torch.Tensor,
    own: OwnModel,
    known: torch.Tensor | None,
    shared: tuple[torch.Tensor, SlopePrior] | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradient of the negative log evidence in the logarithms and, with its prior, in the slope."""
    mask = observations.mask
    scaled = squares * torch.exp(-2.0 * logs[:, None, None, :-2])
    variance, noise = logs[:, -2].exp(), logs[:, -1].exp() if known is None else known
    both = (mask[:, :, None] & mask[:, None]).to(scaled.dtype)
    correlation, falling = _kernel(own.kernel, scaled.sum(-1))
    covariance = variance[:, None, None] * both * correlation
    inverse = torch.cholesky_inverse(_factor(covariance, mask, noise))
    residual = observations.values if shared is None else observations.values - slope[:, None] * shared[0]
    weights = row_times(residual, inverse)
    # d/dp of (y' K^-1 y + log |K|) / 2 is the sum over both indices of this times dK/dp.
    outer = 0.5 * (inverse - weights[:, :, None] * weights[:, None])
    change = outer * both * variance[:, None, None] * falling
    by_coordinate = (change[..., None] * scaled).sum((1, 2))
    gradient = torch.empty_like(logs)
    gradient[:, :-2] = by_coordinate if logs.shape[1] > 3 else by_coordinate.sum(1, keepdim=True)
    gradient[:, -2] = (outer * covariance).sum((1, 2))
    diagonal = (outer.diagonal(dim1=1, dim2=2) * mask).sum(1)
    gradient[:, -1] = diagonal * noise if known is None else 0.0
    if shared is None:
        return gradient, torch.zeros_like(slope)
    heights, prior = shared
    return gradient, (slope - prior.mean) / prior.stddev**2 - (heights * weights).sum(1)


def _kernel(kernel: Kernel, squares: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Correlation at squared scaled distances, and minus twice its derivative by them.

    The derivative by the logarithm of a length scale is the latter times that coordinate's share of the square.
    """
    if kernel == "se":
        correlation = (-0.5 * squares).exp()
        return correlation, correlation
    if kernel == "matern32":
        distance = (3.0 * squares).sqrt()
        falling = distance.neg().exp()
        return (1.0 + distance) * falling, 3.0 * falling
    distance = (5.0 * squares).sqrt()
    falling = distance.neg().exp()
    return (1.0 + distance + squares * (5.0 / 3.0)) * falling, (5.0 / 3.0) * (1.0 + distance) * falling


def _factor(covariance: torch.Tensor, mask: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Cholesky factor of the observations' covariance; a masked one is an independent unit variance."""
    diagonal = torch.where(mask, noise[:, None] + _JITTER, 1.0)
    return torch.as_tensor(torch.linalg.cholesky(covariance + torch.diag_embed(diagonal)))


def _column(own: OwnModel, n_embedded: int, name: str, device: torch.device) -> torch.Tensor:
    """One number of every prior in the order of ``Fit.logs``."""
    scales: list[Prior] = [own.lengthscale] * (n_embedded if own.ard else 1)
    values = [getattr(prior, name) for prior in (*scales, own.outputscale, own.noise)]
    return torch.tensor(values, dtype=torch.float64, device=device)


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """Expectations of n clients about their own objectives, before the shared part of the mean is added.

    Attributes:
        kernel: Of all of them.
        known: Points as the kernel sees them, divided by the length scales, ``(n, t, n_embedded)``.
        covariance_root: Inverse of the covariance's Cholesky factor, ``(n, t, t)``.
        weights: Of the observations in the mean, ``(n, t)``.
        models: Hyperparameters.
    """

    kernel: Kernel
    known: torch.Tensor
    covariance_root: torch.Tensor
    weights: torch.Tensor
    models: Hyperparameters

    def __call__(self, embedded: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance ``(n, c)`` at points ``(n or 1, c, n_embedded)``."""
        scaled = embedded / self.models.lengthscale[:, None]
        covariance = kernel_values(self.kernel, scaled, self.known).mul_(self.models.outputscale[:, None, None])
        mean = (covariance @ self.weights[..., None])[..., 0]
        explained = (covariance @ self.covariance_root.mT).square_().sum(-1)
        return mean, (self.models.outputscale[:, None] - explained).clamp_min_(_LEAST_VARIANCE)


def posterior(found: Fit, observations: Observations, own: OwnModel, residual: torch.Tensor) -> Posterior:
    """Condition the fitted models on what the shared function leaves of the values, ``(n, t)``."""
    mask = observations.mask
    models = found.hyperparameters(observations.embedded.shape[-1])
    known = observations.embedded / models.lengthscale[:, None]
    covariance = models.outputscale[:, None, None] * kernel_values(own.kernel, known, known)
    covariance = torch.where(mask[:, :, None] & mask[:, None], covariance, 0.0)
    factor = _factor(covariance, mask, models.noise)
    unit = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device).expand_as(factor)
    root = torch.linalg.solve_triangular(factor, unit, upper=False)
    # Zero rows and columns: a masked observation says nothing about any point.
    root = torch.where(mask[:, :, None] & mask[:, None], root, 0.0)
    weights = row_times(row_times(torch.where(mask, residual, 0.0), root.mT), root)
    return Posterior(kernel=own.kernel, known=known, covariance_root=root, weights=weights, models=models)
