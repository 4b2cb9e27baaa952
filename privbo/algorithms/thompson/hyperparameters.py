"""Kernel hyperparameters of many clients at once: maximum a posteriori by Adam's steps from a fixed start.

On a processor the steps are compiled; elsewhere they are GPyTorch's. A client's result depends on its own data
only, whatever the batch.
"""

from __future__ import annotations

import numpy as np
import torch

from privbo.algorithms.thompson.fits import climb, is_compiled
from privbo.algorithms.thompson.own_model import OwnModel
from privbo.algorithms.thompson.posterior import Hyperparameters, Observations


def start(own: OwnModel, n_clients: int, n_embedded: int, device: torch.device) -> Hyperparameters:
    """The priors' medians, where every fit begins."""
    ones = torch.ones(n_clients, dtype=torch.float64, device=device)
    return Hyperparameters(
        lengthscale=own.lengthscale.median * ones[:, None].expand(n_clients, n_embedded).clone(),
        outputscale=own.outputscale.median * ones,
        noise=own.noise.median * ones,
    )


def known_noise(own: OwnModel, observations: Observations) -> torch.Tensor | None:
    """The known observation variance on every client's standardised values, ``(n,)``; None if it is fitted."""
    if isinstance(own.regularisation, (int, float)):
        return torch.full_like(observations.scale, own.regularisation)
    if own.noise_variance is None:
        return None
    return (own.noise_variance / observations.scale.square()).clamp_min(own.noise.low)


def fit(observations: Observations, own: OwnModel) -> Hyperparameters:
    """Maximum-a-posteriori hyperparameters of every client in the batch."""
    n, _, n_embedded = observations.embedded.shape
    first, known = start(own, n, n_embedded, observations.embedded.device), known_noise(own, observations)
    if not is_compiled(observations.embedded.device):
        from privbo.algorithms.thompson import gpytorch_fits  # loads GPyTorch, which a processor does without

        return gpytorch_fits.fit(observations, own, first=first, known=known)
    width = n_embedded if own.ard else 1
    priors = [*[own.lengthscale] * width, own.outputscale, own.noise]
    low, high, median = (np.array([getattr(p, name) for p in priors]) for name in ("low", "high", "median"))
    share = (median - low) / (high - low)
    # Values between the bounds are low + (high - low) / (1 + exp(-x)), and the steps are those of x.
    x = np.tile(np.log(share) - np.log1p(-share), (n, 1))
    climb(observations, own, x, known=known, steps=own.fit_steps, between=True)
    values = torch.from_numpy(low + (high - low) / (1.0 + np.exp(-x)))
    return Hyperparameters(
        lengthscale=values[:, :width].expand(n, n_embedded).clone(),
        outputscale=values[:, width].clone(),
        noise=values[:, width + 1].clone() if known is None else known,
    )
