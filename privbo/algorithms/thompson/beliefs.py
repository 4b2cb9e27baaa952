"""Clients' beliefs about their own objectives: fitted models conditioned on values, a shared part included.

On a processor the work is compiled (``compiled`` has the formulas); elsewhere, as on GPUs, it is torch's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from privbo.algorithms.thompson.features import Kernel
from privbo.algorithms.thompson.fits import as_array, is_compiled
from privbo.algorithms.thompson.own_model import OwnModel
from privbo.algorithms.thompson.posterior import (
    Hyperparameters,
    Observations,
    batch_product,
    cholesky,
    kernel_values,
    row_times,
)
from privbo.algorithms.thompson.regression import CONSTANT, Fit, noisy
from privbo.algorithms.thompson.shared_part import Shared

Moments: TypeAlias = tuple[torch.Tensor, torch.Tensor]
_LEAST_VARIANCE = 1e-12


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """Expectations of n clients about their own objectives, before the shared part of the mean is added.

    Attributes:
        kernel: Of all of them.
        known: Points as the kernel sees them, divided by the length scales, ``(n, t, n_embedded)``.
        covariance_root: Inverse of the covariance's Cholesky factor, ``(n, t, t)``.
        weights: Of the observations in the mean, ``(n, t)``.
        models: Hyperparameters.
        slope: Multiples of the shared function, ``(n,)``; unused where nothing is shared.
        uncertainty: Of the shared function at the known points, ``(n, t, r)``; None where nothing is shared.
    """

    kernel: Kernel
    known: torch.Tensor
    covariance_root: torch.Tensor
    weights: torch.Tensor
    models: Hyperparameters
    slope: torch.Tensor
    uncertainty: torch.Tensor | None = None

    def __call__(self, embedded: torch.Tensor, uncertainty: torch.Tensor | None = None) -> Moments:
        """Mean and variance ``(n, c)`` at points ``(n or 1, c, n_embedded)``.

        Args:
            embedded: The points.
            uncertainty: Of the shared function there, ``(n or 1, c, r)``; None where nothing is shared.
        """
        together, prior = None, self.models.outputscale[:, None] + CONSTANT
        if uncertainty is not None and self.uncertainty is not None:
            square = self.slope.square()
            together = batch_product(square[:, None, None] * self.uncertainty, uncertainty.mT)
            prior = prior + square[:, None] * uncertainty.square().sum(-1)
        mean, explained = (self._compiled if is_compiled(embedded.device) else self.by_torch)(embedded, together)
        return mean, (prior - explained).clamp_min_(_LEAST_VARIANCE)

    def _compiled(self, embedded: torch.Tensor, together: torch.Tensor | None) -> Moments:
        from privbo.algorithms.thompson import compiled  # loads Numba, which nobody needs who models nothing

        mean, explained = (np.empty((len(self.known), embedded.shape[1])) for _ in range(2))
        compiled.expect(
            compiled.SMOOTHNESS[self.kernel],
            as_array(self.known),
            as_array(self.covariance_root),
            as_array(self.weights),
            as_array(self.models.lengthscale),
            as_array(self.models.outputscale),
            CONSTANT,
            as_array(embedded),
            compiled.NOTHING if together is None else as_array(together),
            mean,
            explained,
        )
        return torch.from_numpy(mean), torch.from_numpy(explained)

    def by_torch(self, embedded: torch.Tensor, together: torch.Tensor | None = None) -> Moments:
        """Mean and explained variance by torch: on GPUs, and what tests hold the compiled ones to.

        Args:
            embedded: As for a call.
            together: Covariance of the shared function's uncertainty at known points and these, ``(n, t, c)``.
        """
        scaled = embedded / self.models.lengthscale[:, None]
        covariance = kernel_values(self.kernel, scaled, self.known).mul_(self.models.outputscale[:, None, None])
        covariance = covariance + CONSTANT
        if together is not None:
            covariance = covariance + together.mT
        mean = (covariance @ self.weights[..., None])[..., 0]
        return mean, (covariance @ self.covariance_root.mT).square_().sum(-1)


def posterior(found: Fit, residual: Observations, own: OwnModel, shared: Shared | None = None) -> Posterior:
    """Condition the fitted models on what the shared function's expected heights leave of the values."""
    mask = residual.mask
    models = found.hyperparameters(residual.embedded.shape[-1])
    known = residual.embedded / models.lengthscale[:, None]
    covariance = models.outputscale[:, None, None] * kernel_values(own.kernel, known, known) + CONSTANT
    if shared is not None:
        covariance = covariance + found.slope.square()[:, None, None] * shared.covariance
    covariance = torch.where(mask[:, :, None] & mask[:, None], covariance, 0.0)
    factor = cholesky(noisy(covariance, mask, models.noise))
    unit = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device).expand_as(factor)
    root = torch.linalg.solve_triangular(factor, unit, upper=False)
    # Zero rows and columns: a masked observation says nothing about any point.
    root = torch.where(mask[:, :, None] & mask[:, None], root, 0.0)
    weights = row_times(row_times(torch.where(mask, residual.values, 0.0), root.mT), root)
    return Posterior(
        kernel=own.kernel,
        known=known,
        covariance_root=root,
        weights=weights,
        models=models,
        slope=found.slope,
        uncertainty=None if shared is None else shared.uncertainty,
    )
