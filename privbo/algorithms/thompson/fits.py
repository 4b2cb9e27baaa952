"""Kernel hyperparameters of many clients at once: maximum a posteriori by Adam's steps.

A client's standardised values are ``slope * (mean(x) + g(x)) + c + f(x) + noise`` with f of a stationary kernel, the
mean and the covariance of g given by what is shared, and c a constant: what a client evaluates later are its better
points, whose mean is not the space's. Length scales, variances and the slope are fitted together. On a processor the
steps are compiled (``compiled`` has the formulas), in small runs NumPy's, and on GPUs torch's. A client's result
depends on its own data and on public numbers only, whatever the batch.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

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
    inverse_root,
)
from privbo.algorithms.thompson.settings import OwnModel

RATE, FIRST, SECOND, TINY = 0.15, 0.9, 0.999, 1e-8  # of Adam (Kingma & Ba 2015)
# A logarithm this close to its prior's median is at the median: from a gradient that is a rounding error only, Adam
# makes steps of a hundredth, and a parameter of which the values say nothing would wander.
ROUNDING = 1e-13
Native: TypeAlias = Any  # NumPy or torch, or an array of it
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
        parameters, slope = _climb(parameters, slope, observations, own, bounds, known, steps, logits, shared)
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
    """The same steps by NumPy, or by torch on GPUs, all clients' at once; ``compiled`` has the formulas.

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
    xp, native = library(slope.device), _native
    width, mask, values = parameters.shape[1] - 2, native(observations.mask), native(observations.values)
    low, high, median, spread = native(bounds)
    (jitter, constant), both = _extra(logits), mask[:, :, None] & mask[:, None]
    squares = native(_squares(xp, native(observations.embedded), both, width))
    given, expected, uncertain = constant * both, None, None
    if shared is not None:
        expected, uncertain = native(shared.mean), xp.where(both, native(shared.covariance), 0.0)
    at = native(torch.cat([parameters, slope[:, None]], dim=1))
    moved, multiple = at[:, :-1], at[:, -1:]
    whole = native(aligned(torch.eye(mask.shape[1]).to(slope).repeat(len(mask), 1, 1)))
    downhill, average, average_square = xp.zeros_like(at), xp.zeros_like(at), xp.zeros_like(at)
    for step in range(1, steps + 1):
        share = 1.0 / (1.0 + xp.exp(-moved)) if logits else moved
        value = low + (high - low) * share if logits else xp.exp(moved)
        away = (xp.log(value) if logits else moved) - median
        noise = (value[:, -1] if known is None else native(known)) + jitter
        residual, rest = values, given
        if expected is not None:
            residual = values - multiple * expected
            rest = given + xp.square(multiple)[..., None] * uncertain
        weights = _gradient(xp, own.kernel, squares, residual, both, value, noise, rest, uncertain, whole, downhill)
        downhill[:, width + 1] *= value[:, -1] if known is None else 0.0
        downhill[:, :-1] += xp.where(xp.abs(away) < ROUNDING, 0.0, away) / xp.square(spread)
        if logits:
            downhill[:, :-1] *= (high - low) * share * (1.0 - share) / value
        if expected is not None:
            fall = 2.0 * multiple * downhill[:, -1:] - (expected * weights).sum(axis=1, keepdims=True)
            downhill[:, -1:] = fall + (multiple - SLOPE_MEAN) / SLOPE_STDDEV**2
        average += (1.0 - FIRST) * (downhill - average)
        average_square += (1.0 - SECOND) * (xp.square(downhill) - average_square)
        at -= RATE / (1.0 - FIRST**step) * average / (xp.sqrt(average_square / (1.0 - SECOND**step)) + TINY)
        if not logits:
            xp.clip(moved, xp.log(low), xp.log(high), out=moved)
    return torch.as_tensor(moved), torch.as_tensor(at[:, -1])


def _squares(xp: Native, points: Native, both: Native, width: int) -> torch.Tensor:
    """Squared distances per coordinate ``(n, w, t t)``, or of all together; where masked, so far that nothing is left.

    Args:
        xp: NumPy or torch.
        points: ``(n, t, e)``.
        both: Whether both of a pair have values, ``(n, t, t)``.
        width: w, e or 1.
    """
    squares = xp.square(points[:, :, None] - points[:, None])
    squares = squares if width > 1 else squares.sum(axis=3, keepdims=True)
    squares = xp.where(both[..., None], squares, _FAR)
    return torch.as_tensor(squares).reshape(len(points), -1, width).mT.contiguous()


def library(device: torch.device) -> Native:
    """Give NumPy, whose sums have the same bits however clients are grouped, or torch on GPUs, whose have not."""
    return np if device.type == "cpu" else torch


def _native(tensor: torch.Tensor) -> Native:
    """A tensor as an array of its device's library."""
    return tensor.numpy() if library(tensor.device) is np else tensor


def _gradient(
    xp: Native,
    kernel: Kernel,
    squares: Native,
    residual: Native,
    both: Native,
    value: Native,
    noise: Native,
    given: Native,
    uncertain: Native,
    whole: Native,
    gradient: Native,
) -> Native:
    """The negative log evidence's gradient as ``compiled`` has it, and K^-1 times the values; zero without a factor."""
    n, width, pairs = squares.shape
    t = residual.shape[1]
    closeness, variance = value[:, :width] ** -2.0, value[:, width : width + 1]
    correlation, falling = _correlated(xp, kernel, xp.matmul(closeness[:, None], squares)[:, 0])
    covariance = (variance * correlation).reshape(n, t, t) + given
    covariance.reshape(n, pairs)[:, :: t + 1] += noise[:, None]
    whole[:, :t, :t] = covariance
    factor, failed = torch.linalg.cholesky_ex(torch.as_tensor(whole))
    root = _native(inverse_root(factor))[:, :t, :t]
    if failed.any() or not both.all():  # in place: products of a copy have other bits
        root[~both | _native(failed != 0)[:, None, None]] = 0.0
    weights = xp.matmul(xp.matmul(residual[:, None], root.swapaxes(1, 2)), root)
    half = xp.matmul(root.swapaxes(1, 2), root)
    half -= weights.swapaxes(1, 2) * weights
    half *= 0.5
    line = half.reshape(n, pairs)
    gradient[:, :width] = variance * closeness * xp.matmul((line * falling)[:, None], squares.swapaxes(1, 2))[:, 0]
    gradient[:, width] = variance[:, 0] * (line * correlation).sum(axis=1)
    gradient[:, width + 1] = line[:, :: t + 1].sum(axis=1)
    if uncertain is not None:
        gradient[:, width + 2] = (line * uncertain.reshape(n, pairs)).sum(axis=1)
    return weights[:, 0]


def _correlated(xp: Native, kernel: Kernel, squares: Native) -> tuple[Native, Native]:
    """Correlations at squared scaled distances, and minus twice their derivative by them."""
    if kernel == "se":
        shrunk = xp.exp(-0.5 * squares)
        return shrunk, shrunk
    r = xp.sqrt(SMOOTHNESS[kernel] * squares)
    shrunk = xp.exp(-r)
    if kernel == "matern52":
        r += 1.0
        return (r + (5.0 / 3.0) * squares) * shrunk, (5.0 / 3.0) * r * shrunk
    if kernel == "matern32":
        return (1.0 + r) * shrunk, 3.0 * shrunk
    # Its product with a distance has a limit at 0: 0.
    return shrunk, xp.where(r > 0.0, shrunk / xp.where(r > 0.0, r, 1.0), 0.0)


def _extra(logits: bool) -> tuple[float, float]:
    """What is added to every observation variance, and the variance of a constant."""
    return (0.0, 0.0) if logits else (JITTER, CONSTANT)
