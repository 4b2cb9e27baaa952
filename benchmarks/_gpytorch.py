"""The steps of ``privbo``'s fits by GPyTorch: the peer of a benchmark, and what tests hold the fits against."""

from __future__ import annotations

import torch

from privbo.algorithms.thompson import fits
from privbo.algorithms.thompson.features import SMOOTHNESS
from privbo.algorithms.thompson.posterior import Observations, Shared, cholesky, masked_covariance
from privbo.algorithms.thompson.settings import OwnModel


@torch.enable_grad()
def climb_by_gpytorch(
    parameters: torch.Tensor,
    slope: torch.Tensor,
    observations: Observations,
    own: OwnModel,
    bounds: torch.Tensor,
    known: torch.Tensor | None,
    steps: int,
    logits: bool,
    shared: Shared | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Climb by GPyTorch's kernels and torch's derivatives; takes what ``fits._climb`` takes."""
    from gpytorch.kernels import MaternKernel, RBFKernel
    from gpytorch.settings import lazily_evaluate_kernels

    kernel = RBFKernel() if own.kernel == "se" else MaternKernel(nu=SMOOTHNESS[own.kernel] / 2)
    kernel = kernel.to(slope.device, torch.float64).requires_grad_(False)
    kernel.lengthscale, (low, high, median, spread), (jitter, constant) = 1.0, bounds, fits._extra(logits)
    parameters, slope = parameters.clone().requires_grad_(), slope.clone().requires_grad_(shared is not None)
    moved = [parameters] if shared is None else [parameters, slope]
    optimiser = torch.optim.Adam(moved, lr=fits.RATE, betas=(fits.FIRST, fits.SECOND), eps=fits.TINY)
    for _ in range(steps):
        values = low + (high - low) * parameters.sigmoid() if logits else parameters.exp()
        # The whole matrix is wanted at once; a deferred one costs a fifth of a step in bookkeeping.
        with lazily_evaluate_kernels(False):
            correlation = kernel(observations.embedded / values[:, None, :-2]).to_dense()
        covariance = values[:, -2, None, None] * correlation + constant
        noise = (values[:, -1] if known is None else known) + jitter
        residual, away = observations.values, values.log() - median
        loss = 0.5 * (torch.where(away.abs() < fits.ROUNDING, 0.0, away) / spread).square().sum()
        if shared is not None:
            covariance = covariance + slope.square()[:, None, None] * shared.covariance
            residual = residual - slope[:, None] * shared.mean
            loss = loss + 0.5 * ((slope - fits.SLOPE_MEAN) / fits.SLOPE_STDDEV).square().sum()
        measured = masked_covariance(covariance, observations.mask, noise)
        factor = cholesky(measured)
        white = torch.linalg.solve_triangular(factor, residual[..., None], upper=False)[..., 0]
        evidence = 0.5 * white.square().sum(-1) + factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        # A client whose covariance has no factor moves by its priors alone.
        loss = loss + evidence[torch.linalg.cholesky_ex(measured.detach()).info == 0].sum()
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        if not logits:
            parameters.data.clamp_(low.log(), high.log())
    return parameters.detach(), slope.detach()
