"""Kernel hyperparameters of many clients at once: maximum a posteriori by Adam's steps.

A client's standardised values are ``slope * (mean(x) + g(x)) + c + f(x) + noise`` with f of a stationary kernel, the
mean and the covariance of g given by what is shared, and c a constant: what a client evaluates later are its better
points, whose mean is not the space's. Length scales, variances and the slope are fitted together. On a processor the
steps are compiled (``compiled`` has the formulas), in small runs NumPy's, and on GPUs GPyTorch's. A client's result
depends on its own data and on public numbers only, whatever the batch.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from privbo.algorithms.thompson.features import SMOOTHNESS, Kernel
from privbo.algorithms.thompson.posterior import (
    CONSTANT,
    JITTER,
    SLOPE_MEAN,
    SLOPE_STDDEV,
    Hyperparameters,
    Observations,
    Shared,
    aligned,
    as_array,
    cholesky,
    inverse_root,
    masked_covariance,
)
from privbo.algorithms.thompson.settings import OwnModel
from privbo.protocol.messages import BoolArray, FloatArray

RATE, FIRST, SECOND, TINY = 0.15, 0.9, 0.999, 1e-8  # of Adam (Kingma & Ba 2015)
# A logarithm this close to its prior's median is at the median: from a gradient that is a rounding error only, Adam
# makes steps of a hundredth, and a parameter of which the values say nothing would wander.
ROUNDING = 1e-13
_FAR = 1e15  # a squared distance over which nothing is correlated
_OPTIMISER = (RATE, FIRST, SECOND, TINY, ROUNDING)


def start(own: OwnModel, n_clients: int, n_embedded: int, device: torch.device) -> Hyperparameters:
    """The priors' medians, where every first fit begins, and no slope."""
    ones = torch.ones(n_clients, dtype=torch.float64, device=device)
    return Hyperparameters(
        lengthscale=own.lengthscale.median * ones[:, None].expand(n_clients, n_embedded).clone(),
        outputscale=own.outputscale.median * ones,
        noise=own.noise.median * ones,
        slope=torch.nan * ones,
    )


def known_noise(own: OwnModel, observations: Observations) -> torch.Tensor | None:
    """The known observation variance on every client's standardised values, ``(n,)``; None if it is fitted."""
    if isinstance(own.regularisation, (int, float)):
        return torch.full_like(observations.scale, own.regularisation)
    if own.noise_variance is None:
        return None
    return (own.noise_variance / observations.scale.square()).clamp_min(own.noise.low)


def fit(
    first: Hyperparameters,
    observations: Observations,
    own: OwnModel,
    *,
    steps: int,
    logits: bool = False,
    shared: Shared | None = None,
    compiled: bool,
) -> Hyperparameters:
    """Maximum-a-posteriori hyperparameters of every client in the batch.

    Args:
        first: Where the fits begin.
        observations: Of the same clients.
        own: Kernel and priors.
        steps: Adam steps; 0 takes over what is known and given.
        logits: Whether steps are those of logits between the priors' bounds, of values without a constant, as
            DP-FTS-DE has them; else of logarithms, cut off at the bounds.
        shared: The shared function at the observations; None for a mean of zero.
        compiled: Whether by machine code.
    """
    slope, known = torch.full_like(first.slope, torch.nan), known_noise(own, observations)
    if shared is not None:
        slope = torch.where(first.slope.isnan(), SLOPE_MEAN, first.slope)
    if not steps:
        return dataclasses.replace(first, slope=slope, noise=first.noise if known is None else known)
    n_embedded = first.lengthscale.shape[1]
    width = n_embedded if own.ard else 1
    priors = [*[own.lengthscale] * width, own.outputscale, own.noise]
    columns = [[p.low, p.high, np.log(p.median), p.spread] for p in priors]
    bounds = torch.tensor(columns, dtype=torch.float64, device=slope.device).T
    low, high = bounds[:2]
    values = torch.cat([first.lengthscale[:, :width], first.outputscale[:, None], first.noise[:, None]], dim=1)
    parameters = torch.logit((values - low) / (high - low)) if logits else values.log()
    if compiled:
        from privbo.algorithms.thompson.compiled import climb  # loads Numba, which servers do without

        # Of no client where nothing is shared, or known.
        theirs = (observations.values[:0], observations.embedded[:0])
        theirs = theirs if shared is None else (shared.mean, shared.covariance)
        prior, optimiser = slope.new_tensor([SLOPE_MEAN, SLOPE_STDDEV]), slope.new_tensor(_OPTIMISER)
        variances = slope[:0] if known is None else known
        numbers = observations.embedded, observations.values, *theirs, bounds, variances, optimiser, prior, parameters
        mask = np.ascontiguousarray(observations.mask.numpy())
        climb(SMOOTHNESS[own.kernel], *_extra(logits), logits, steps, mask, *map(as_array, (*numbers, slope)))
    else:
        # A GPU's sums have no bits to keep however clients are grouped.
        climbing = _climb if slope.device.type == "cpu" else climb_by_gpytorch
        parameters, slope = climbing(parameters, slope, observations, own, bounds, known, steps, logits, shared)
    values = low + (high - low) / (1.0 + torch.exp(-parameters)) if logits else parameters.exp()
    return Hyperparameters(
        lengthscale=values[:, :width].expand(-1, n_embedded).clone(),
        outputscale=values[:, -2].clone(),
        noise=values[:, -1].clone() if known is None else known,
        slope=slope,
    )


def _climb(
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
    """The same steps by NumPy, all clients' at once; ``compiled`` has the formulas.

    Args:
        parameters: Logits or logarithms of length scales, kernel variance and observation variance, ``(n, w + 2)``.
        slope: Multiples of the shared function, ``(n,)``.
        observations: As of ``fit``.
        own: As of ``fit``.
        bounds: Rows low, high, logarithm of the median and spread of the parameters' priors, ``(4, w + 2)``.
        known: Known observation variances, ``(n,)``; None fits them.
        steps: As of ``fit``.
        logits: As of ``fit``.
        shared: As of ``fit``.
    """
    width, mask, values = parameters.shape[1] - 2, observations.mask.numpy(), observations.values.numpy()
    low, high, median, spread = bounds.numpy()
    (jitter, constant), both = _extra(logits), mask[:, :, None] & mask[:, None]
    squares = _squares(observations.embedded.numpy(), both, width)
    given, expected, uncertain = constant * both, None, None
    if shared is not None:
        expected, uncertain = shared.mean.numpy(), np.where(both, shared.covariance.numpy(), 0.0)
    at = np.concatenate([parameters.numpy(), slope.numpy()[:, None]], axis=1)
    moved, multiple = at[:, :-1], at[:, -1:]
    whole = aligned(torch.from_numpy(np.tile(np.eye(mask.shape[1]), (len(mask), 1, 1)))).numpy()
    downhill, averages = np.zeros_like(at), np.zeros((2, *at.shape))
    for step in range(1, steps + 1):
        share = 1.0 / (1.0 + np.exp(-moved)) if logits else moved
        value = low + (high - low) * share if logits else np.exp(moved)
        away = (np.log(value) if logits else moved) - median
        noise = (value[:, -1] if known is None else known.numpy()) + jitter
        residual, rest = values, given
        if expected is not None:
            residual = values - multiple * expected
            rest = given + np.square(multiple)[..., None] * uncertain
        weights = _gradient(own.kernel, squares, residual, both, value, noise, rest, uncertain, whole, downhill)
        downhill[:, width + 1] *= value[:, -1] if known is None else 0.0
        downhill[:, :-1] += np.where(np.abs(away) < ROUNDING, 0.0, away) / np.square(spread)
        if logits:
            downhill[:, :-1] *= (high - low) * share * (1.0 - share) / value
        if expected is not None:
            fall = 2.0 * multiple * downhill[:, -1:] - (expected * weights).sum(axis=1, keepdims=True)
            downhill[:, -1:] = fall + (multiple - SLOPE_MEAN) / SLOPE_STDDEV**2
        averages[0] += (1.0 - FIRST) * (downhill - averages[0])
        averages[1] += (1.0 - SECOND) * (np.square(downhill) - averages[1])
        length = np.sqrt(averages[1] / (1.0 - SECOND**step))
        at -= RATE / (1.0 - FIRST**step) * averages[0] / (length + TINY)
        if not logits:
            np.clip(moved, np.log(low), np.log(high), out=moved)
    return torch.from_numpy(moved), torch.from_numpy(at[:, -1])


def _squares(points: FloatArray, both: BoolArray, width: int) -> FloatArray:
    """Squared distances per coordinate ``(n, w, t t)``, or of all together; where masked, so far that nothing is left.

    Args:
        points: ``(n, t, e)``.
        both: Whether both of a pair have values, ``(n, t, t)``.
        width: w, e or 1.
    """
    squares = np.square(points[:, :, None] - points[:, None])
    squares = squares if width > 1 else squares.sum(axis=3, keepdims=True)
    squares = np.where(both[..., None], squares, _FAR)
    return np.ascontiguousarray(squares.reshape(len(points), -1, width).swapaxes(1, 2))


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
    """The same steps by GPyTorch's kernels and torch's derivatives, on GPUs; takes what ``_climb`` takes."""
    from gpytorch.kernels import MaternKernel, RBFKernel
    from gpytorch.settings import lazily_evaluate_kernels

    kernel = RBFKernel() if own.kernel == "se" else MaternKernel(nu=SMOOTHNESS[own.kernel] / 2)
    kernel = kernel.to(slope.device, torch.float64).requires_grad_(False)
    kernel.lengthscale, (low, high, median, spread), (jitter, constant) = 1.0, bounds, _extra(logits)
    parameters, slope = parameters.clone().requires_grad_(), slope.clone().requires_grad_(shared is not None)
    moved = [parameters] if shared is None else [parameters, slope]
    optimiser = torch.optim.Adam(moved, lr=RATE, betas=(FIRST, SECOND), eps=TINY)
    for _ in range(steps):
        values = low + (high - low) * parameters.sigmoid() if logits else parameters.exp()
        # The whole matrix is wanted at once; a deferred one costs a fifth of a step in bookkeeping.
        with lazily_evaluate_kernels(False):
            correlation = kernel(observations.embedded / values[:, None, :-2]).to_dense()
        covariance = values[:, -2, None, None] * correlation + constant
        noise = (values[:, -1] if known is None else known) + jitter
        residual, away = observations.values, values.log() - median
        loss = 0.5 * (torch.where(away.abs() < ROUNDING, 0.0, away) / spread).square().sum()
        if shared is not None:
            covariance = covariance + slope.square()[:, None, None] * shared.covariance
            residual = residual - slope[:, None] * shared.mean
            loss = loss + 0.5 * ((slope - SLOPE_MEAN) / SLOPE_STDDEV).square().sum()
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


def _gradient(
    kernel: Kernel,
    squares: FloatArray,
    residual: FloatArray,
    both: BoolArray,
    value: FloatArray,
    noise: FloatArray,
    given: FloatArray,
    uncertain: FloatArray | None,
    whole: FloatArray,
    gradient: FloatArray,
) -> FloatArray:
    """The negative log evidence's gradient as ``compiled`` has it, and K^-1 times the values; zero without a factor."""
    n, width, pairs = squares.shape
    t = residual.shape[1]
    closeness, variance = value[:, :width] ** -2.0, value[:, width : width + 1]
    correlation, falling = _correlated(kernel, np.matmul(closeness[:, None], squares)[:, 0])
    covariance = (variance * correlation).reshape(n, t, t) + given
    covariance.reshape(n, pairs)[:, :: t + 1] += noise[:, None]
    whole[:, :t, :t] = covariance
    factor, failed = torch.linalg.cholesky_ex(torch.from_numpy(whole))
    root = inverse_root(factor).numpy()[:, :t, :t]
    if failed.any() or not both.all():  # in place: products of a copy have other bits
        np.copyto(root, 0.0, where=~both | (failed != 0).numpy()[:, None, None])
    weights = np.matmul(np.matmul(residual[:, None], root.swapaxes(1, 2)), root)
    half = np.matmul(root.swapaxes(1, 2), root)
    half -= weights.swapaxes(1, 2) * weights
    half *= 0.5
    line = half.reshape(n, pairs)
    gradient[:, :width] = variance * closeness * np.matmul((line * falling)[:, None], squares.swapaxes(1, 2))[:, 0]
    gradient[:, width] = variance[:, 0] * (line * correlation).sum(axis=1)
    gradient[:, width + 1] = line[:, :: t + 1].sum(axis=1)
    if uncertain is not None:
        gradient[:, width + 2] = (line * uncertain.reshape(n, pairs)).sum(axis=1)
    return np.asarray(weights[:, 0])


def _correlated(kernel: Kernel, squares: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Correlations at squared scaled distances, and minus twice their derivative by them."""
    if kernel == "se":
        shrunk = np.exp(-0.5 * squares)
        return shrunk, shrunk
    r = np.sqrt(SMOOTHNESS[kernel] * squares)
    shrunk = np.exp(-r)
    if kernel == "matern52":
        r += 1.0
        return (r + (5.0 / 3.0) * squares) * shrunk, (5.0 / 3.0) * r * shrunk
    if kernel == "matern32":
        return (1.0 + r) * shrunk, 3.0 * shrunk
    # Its product with a distance has a limit at 0: 0.
    return shrunk, np.divide(shrunk, r, out=np.zeros_like(r), where=r > 0.0)


def _extra(logits: bool) -> tuple[float, float]:
    """What is added to every observation variance, and the variance of a constant."""
    return (0.0, 0.0) if logits else (JITTER, CONSTANT)
