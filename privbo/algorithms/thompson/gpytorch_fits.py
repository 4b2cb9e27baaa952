"""Kernel hyperparameters of many clients at once by GPyTorch's kernels and autograd: on GPUs, and what tests hold to.

Maximum a posteriori with a fixed number of Adam steps from a fixed start. Adam works
entry by entry, so a client's result depends on its own data only, whatever the batch.
"""

from __future__ import annotations

import math

import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel as GPyTorchKernel
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.settings import lazily_evaluate_kernels

from privbo.algorithms.thompson import adam
from privbo.algorithms.thompson.own_model import OwnModel, Prior
from privbo.algorithms.thompson.posterior import Hyperparameters, Observations, cholesky, masked_covariance

_SMOOTHNESS = {"matern52": 2.5, "matern32": 1.5, "matern12": 0.5}


def fit(
    observations: Observations, own: OwnModel, *, first: Hyperparameters, known: torch.Tensor | None
) -> Hyperparameters:
    """Maximum-a-posteriori hyperparameters of every client in the batch.

    Args:
        observations: Of n clients.
        own: Kernel and priors.
        first: Where the fits begin.
        known: Known observation variances, ``(n,)``; None fits them.
    """
    n, _, n_embedded = observations.embedded.shape
    covariance, likelihood = _model(own, first)
    parameters = [*covariance.parameters(), *(likelihood.parameters() if known is None else ())]
    optimiser = torch.optim.Adam(parameters, lr=adam.RATE, betas=(adam.FIRST, adam.SECOND), eps=adam.TINY)
    for _ in range(own.fit_steps):
        optimiser.zero_grad()
        noise = likelihood.noise[:, 0] if known is None else known
        loss = -_log_posterior(own, covariance, noise, observations).sum()
        torch.autograd.backward(loss)
        optimiser.step()
    with torch.no_grad():
        return Hyperparameters(
            lengthscale=covariance.base_kernel.lengthscale[:, 0, :].detach().expand(n, n_embedded).clone(),
            outputscale=covariance.outputscale.detach().clone(),
            noise=likelihood.noise[:, 0].detach().clone() if known is None else known,
        )


def _model(own: OwnModel, first: Hyperparameters) -> tuple[GPyTorchKernel, GaussianLikelihood]:
    n, n_embedded = first.lengthscale.shape
    batch, device = torch.Size([n]), first.noise.device
    shape = {
        "batch_shape": batch,
        "ard_num_dims": n_embedded if own.ard else None,
        "lengthscale_constraint": Interval(own.lengthscale.low, own.lengthscale.high),
    }
    base = RBFKernel(**shape) if own.kernel == "se" else MaternKernel(nu=_SMOOTHNESS[own.kernel], **shape)
    covariance = ScaleKernel(
        base, batch_shape=batch, outputscale_constraint=Interval(own.outputscale.low, own.outputscale.high)
    )
    likelihood = GaussianLikelihood(batch_shape=batch, noise_constraint=Interval(own.noise.low, own.noise.high))
    covariance, likelihood = covariance.to(device, torch.float64), likelihood.to(device, torch.float64)
    base.lengthscale = first.lengthscale[:, None, : n_embedded if own.ard else 1]
    covariance.outputscale = first.outputscale
    likelihood.noise = first.noise[:, None]
    return covariance, likelihood


def _log_posterior(
    own: OwnModel, covariance: GPyTorchKernel, noise: torch.Tensor, observations: Observations
) -> torch.Tensor:
    """Log marginal likelihood plus log priors per client, up to a constant, ``(n,)``."""
    # The whole matrix is wanted at once; a deferred one costs a fifth of a step in bookkeeping.
    with lazily_evaluate_kernels(False):
        dense = covariance(observations.embedded).to_dense()
    noisy = masked_covariance(dense, observations.mask, noise)
    factor = cholesky(noisy)
    white = torch.linalg.solve_triangular(factor, observations.values[..., None], upper=False)[..., 0]
    evidence: torch.Tensor = -0.5 * white.square().sum(-1) - factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    priors = (
        _log_prior(covariance.base_kernel.lengthscale[:, 0, :], own.lengthscale).sum(-1)
        + _log_prior(covariance.outputscale, own.outputscale)
        + _log_prior(noise, own.noise)
    )
    return evidence + priors


def _log_prior(value: torch.Tensor, prior: Prior) -> torch.Tensor:
    """Log density of the value's logarithm, which is normal, up to a constant."""
    away = value.log() - math.log(prior.median)
    away = torch.where(away.abs() < adam.ROUNDING, 0.0, away)
    return -0.5 * (away / prior.spread).square()
