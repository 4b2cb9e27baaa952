"""Regression of many clients' own values at once: a kernel, and a mean that is a multiple of a shared function.

A client's standardised values are ``slope * (heights(x) + g(x)) + c + f(x) + noise`` with f of a stationary kernel,
g of a given covariance, how uncertain the heights are, and c a constant: what a client evaluates later are its better
points, whose mean is not the space's. Length scales, variances and the slope are fitted together,
maximum a posteriori, by Adam steps with the gradient written out; every step works entry by entry or matrix by
matrix, so a client's result depends on its own data and on public numbers only. On a processor
the work is compiled (``compiled`` has the formulas); elsewhere, as on GPUs, it is torch's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from privbo.algorithms.thompson import adam
from privbo.algorithms.thompson.features import Kernel
from privbo.algorithms.thompson.fits import climb, is_compiled
from privbo.algorithms.thompson.hyperparameters import known_noise
from privbo.algorithms.thompson.own_model import OwnModel, Prior
from privbo.algorithms.thompson.posterior import (
    Hyperparameters,
    Observations,
    cholesky,
    row_times,
)
from privbo.algorithms.thompson.shared_part import Shared

_JITTER = 1e-8
CONSTANT = 1.0  # its variance, on standardised values


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


def fit(start: Fit, observations: Observations, own: OwnModel, *, steps: int, shared: Shared | None) -> Fit:
    """Maximum-a-posteriori fits from where the last ones ended.

    Args:
        start: Of n clients.
        observations: Of the same clients.
        own: Kernel and priors.
        steps: Adam steps.
        shared: The shared function at the observations; None for a mean of zero.
    """
    slope = torch.full_like(start.slope, torch.nan)
    if shared is not None:
        slope = torch.where(start.slope.isnan(), shared.slope.mean, start.slope)
    first, known = Fit(logs=start.logs, slope=slope), known_noise(own, observations)
    compiled = is_compiled(start.logs.device)
    found = (_climbed if compiled else climb_by_torch)(
        first, observations, own, steps=steps, shared=shared, known=known
    )
    if known is None:
        return found
    return Fit(logs=torch.cat([found.logs[:, :-1], known.log()[:, None]], dim=1), slope=found.slope)


def _climbed(
    start: Fit,
    observations: Observations,
    own: OwnModel,
    *,
    steps: int,
    shared: Shared | None,
    known: torch.Tensor | None,
) -> Fit:
    logs, slopes = (np.array(values.numpy(), order="C") for values in (start.logs, start.slope))
    climb(
        observations,
        own,
        logs,
        known=known,
        steps=steps,
        jitter=_JITTER,
        constant=CONSTANT,
        shared=shared,
        slopes=slopes,
    )
    return Fit(logs=torch.from_numpy(logs), slope=torch.from_numpy(slopes))


def climb_by_torch(
    start: Fit,
    observations: Observations,
    own: OwnModel,
    *,
    steps: int,
    shared: Shared | None,
    known: torch.Tensor | None,
) -> Fit:
    """The same steps as small torch operations: on GPUs, and what tests hold the compiled ones to.

    Args:
        start: Of n clients, slopes included.
        observations: As of ``fit``.
        own: As of ``fit``.
        steps: As of ``fit``.
        shared: As of ``fit``.
        known: Known observation variances, ``(n,)``; None fits them.
    """
    logs, slope = start.logs, start.slope
    n_embedded, device = observations.embedded.shape[-1], logs.device
    low, high, median, spread = (_column(own, n_embedded, name, device) for name in ("low", "high", "median", "spread"))
    low, high, median = low.log(), high.log(), median.log()
    squares = (observations.embedded[:, :, None] - observations.embedded[:, None]).square()
    first = logs.new_zeros(len(logs), logs.shape[1] + 1)
    second = torch.zeros_like(first)
    for step in range(1, steps + 1):
        gradient = first.new_zeros(first.shape)
        gradient[:, :-1], gradient[:, -1] = _gradient(logs, slope, observations, squares, own, known, shared)
        gradient[:, :-1] += (logs - median) / spread.square()
        first = adam.FIRST * first + (1.0 - adam.FIRST) * gradient
        second = adam.SECOND * second + (1.0 - adam.SECOND) * gradient.square()
        moved = (first / (1.0 - adam.FIRST**step)) / ((second / (1.0 - adam.SECOND**step)).sqrt() + adam.TINY)
        logs = torch.clamp(logs - adam.RATE * moved[:, :-1], low, high)
        slope = slope - adam.RATE * moved[:, -1]
    return Fit(logs=logs, slope=slope)


def _gradient(
    logs: torch.Tensor,
    slope: torch.Tensor,
    observations: Observations,
    squares: torch.Tensor,
    own: OwnModel,
    known: torch.Tensor | None,
    shared: Shared | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradient of the negative log evidence in the logarithms and, with its prior, in the slope."""
    mask = observations.mask
    scaled = squares * torch.exp(-2.0 * logs[:, None, None, :-2])
    variance, noise = logs[:, -2].exp(), logs[:, -1].exp() if known is None else known
    both = (mask[:, :, None] & mask[:, None]).to(scaled.dtype)
    correlation, falling = _kernel(own.kernel, scaled.sum(-1))
    covariance = variance[:, None, None] * both * correlation
    uncertain = torch.zeros_like(both) if shared is None else both * shared.covariance
    square = 0.0 if shared is None else slope.square()[:, None, None]
    measured = noisy(covariance + both * CONSTANT + square * uncertain, mask, noise)
    inverse = torch.cholesky_inverse(cholesky(measured))
    # A client whose covariance has no factor moves by its priors alone.
    failures = torch.linalg.cholesky_ex(measured).info
    inverse = torch.where(failures[:, None, None] == 0, inverse, 0.0)
    residual = observations.values if shared is None else observations.values - slope[:, None] * shared.heights
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
    prior = shared.slope
    widening = 2.0 * slope * (outer * uncertain).sum((1, 2))
    return gradient, widening + (slope - prior.mean) / prior.stddev**2 - (shared.heights * weights).sum(1)


def _kernel(kernel: Kernel, squares: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Correlation at squared scaled distances, and minus twice its derivative by them.

    The derivative by the logarithm of a length scale is the latter times that coordinate's share of the square.
    """
    if kernel == "se":
        correlation = (-0.5 * squares).exp()
        return correlation, correlation
    if kernel == "matern12":  # the derivative has no limit at 0; times the square it is 0 there
        distance = squares.sqrt()
        falling = distance.neg().exp()
        return falling, torch.where(distance > 0.0, falling / distance, 0.0)
    if kernel == "matern32":
        distance = (3.0 * squares).sqrt()
        falling = distance.neg().exp()
        return (1.0 + distance) * falling, 3.0 * falling
    distance = (5.0 * squares).sqrt()
    falling = distance.neg().exp()
    return (1.0 + distance + squares * (5.0 / 3.0)) * falling, (5.0 / 3.0) * (1.0 + distance) * falling


def noisy(covariance: torch.Tensor, mask: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """The observations' covariance; a masked one is an independent unit variance."""
    return covariance + torch.diag_embed(torch.where(mask, noise[:, None] + _JITTER, 1.0))


def _column(own: OwnModel, n_embedded: int, name: str, device: torch.device) -> torch.Tensor:
    """One number of every prior in the order of ``Fit.logs``."""
    scales: list[Prior] = [own.lengthscale] * (n_embedded if own.ard else 1)
    values = [getattr(prior, name) for prior in (*scales, own.outputscale, own.noise)]
    return torch.tensor(values, dtype=torch.float64, device=device)
