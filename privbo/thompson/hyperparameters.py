"""Kernel hyperparameters of many clients at once, on GPyTorch kernels.

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

from privbo.thompson.features import Kernel
from privbo.thompson.posterior import Hyperparameters, Observations, masked_covariance

# Log-normal priors (centre and spread of the logarithm) for points in the unit cube and values of
# unit variance: smooth on a scale of about half the cube, little noise. With a handful of
# observations they carry most of the weight.
_LENGTHSCALE = (math.log(0.4), 0.7)
_OUTPUTSCALE = (0.0, 0.5)
_NOISE = (math.log(1e-2), 1.0)
_BOUNDS = {"lengthscale": (0.02, 10.0), "outputscale": (0.05, 20.0), "noise": (1e-5, 1.0)}


_LEARNING_RATE = 0.15


def start(n_clients: int, n_embedded: int, device: torch.device) -> Hyperparameters:
    """The priors' medians, where every fit begins."""
    ones = torch.ones(n_clients, dtype=torch.float64, device=device)
    return Hyperparameters(
        lengthscale=math.exp(_LENGTHSCALE[0]) * ones[:, None].expand(n_clients, n_embedded).clone(),
        outputscale=math.exp(_OUTPUTSCALE[0]) * ones,
        noise=math.exp(_NOISE[0]) * ones,
    )


def fit(observations: Observations, *, kernel: Kernel, steps: int) -> Hyperparameters:
    """Maximum-a-posteriori hyperparameters of every client in the batch."""
    n, _, n_embedded = observations.embedded.shape
    covariance, likelihood = _model(n, n_embedded, kernel, observations.embedded.device)
    parameters = [*covariance.parameters(), *likelihood.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=_LEARNING_RATE)
    for _ in range(steps):
        optimiser.zero_grad()
        loss = -_log_posterior(covariance, likelihood, observations).sum()
        torch.autograd.backward(loss)
        optimiser.step()
    with torch.no_grad():
        return Hyperparameters(
            lengthscale=covariance.base_kernel.lengthscale[:, 0, :].detach().clone(),
            outputscale=covariance.outputscale.detach().clone(),
            noise=likelihood.noise[:, 0].detach().clone(),
        )


def _model(n: int, n_embedded: int, kernel: Kernel, device: torch.device) -> tuple[GPyTorchKernel, GaussianLikelihood]:
    batch = torch.Size([n])
    shape = {
        "batch_shape": batch,
        "ard_num_dims": n_embedded,
        "lengthscale_constraint": Interval(*_BOUNDS["lengthscale"]),
    }
    base = RBFKernel(**shape) if kernel == "se" else MaternKernel(nu=2.5, **shape)
    covariance = ScaleKernel(base, batch_shape=batch, outputscale_constraint=Interval(*_BOUNDS["outputscale"]))
    likelihood = GaussianLikelihood(batch_shape=batch, noise_constraint=Interval(*_BOUNDS["noise"]))
    covariance, likelihood = covariance.to(device, torch.float64), likelihood.to(device, torch.float64)
    first = start(n, n_embedded, device)
    base.lengthscale = first.lengthscale[:, None, :]
    covariance.outputscale = first.outputscale
    likelihood.noise = first.noise[:, None]
    return covariance, likelihood


def _log_posterior(
    covariance: GPyTorchKernel, likelihood: GaussianLikelihood, observations: Observations
) -> torch.Tensor:
    """Log marginal likelihood plus log priors per client, up to a constant, ``(n,)``."""
    dense = covariance(observations.embedded).to_dense()
    noisy = masked_covariance(dense, observations.mask, likelihood.noise[:, 0])
    factor = torch.linalg.cholesky(noisy)
    white = torch.linalg.solve_triangular(factor, observations.values[..., None], upper=False)[..., 0]
    evidence: torch.Tensor = -0.5 * white.square().sum(-1) - factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    priors = (
        _log_prior(covariance.base_kernel.lengthscale[:, 0, :], _LENGTHSCALE).sum(-1)
        + _log_prior(covariance.outputscale, _OUTPUTSCALE)
        + _log_prior(likelihood.noise[:, 0], _NOISE)
    )
    return evidence + priors


def _log_prior(value: torch.Tensor, prior: tuple[float, float]) -> torch.Tensor:
    """Log density of the value's logarithm, which is normal, up to a constant."""
    centre, spread = prior
    return -0.5 * ((value.log() - centre) / spread).square()
