"""The pooled function: all releases so far as one function, and how far public numbers let it be trusted.

The pooled weights carry Gaussian noise of a public standard deviation, so the variance that noise alone
would give the function over the space is public too. Only what stands above it counts.

A mean of many clients' ridge weights is no ridge of all their values together: each client saw few points, so what they
have in common arrives blurred. The blur depends on how many points were seen and on nothing private; it is
taken back as far as the noise allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from privbo.algorithms.thompson.features import FourierFeatures, times
from privbo.algorithms.thompson.maximise import candidates
from privbo.algorithms.thompson.regression import SlopePrior
from privbo.algorithms.thompson.streams import Stream, public_stream
from privbo.protocol.messages import FloatArray, Setting
from privbo.protocol.space import Space

_POINTS = 1024
# The noise counts this many times where a function is trusted; whether it is, a one-sided test of 5 % says.
_STRICT, _ONE_SIDED = 1.5, 1.645
_LARGEST_TRUST = 0.98
_DESIGNS = 128  # designs over which a blur is averaged
_POWERS = np.logspace(-4.0, 3.0, 29)  # of common weights, in units of a client's bound
_TINY = 1e-9
_LEAST_SPREAD, _SPREAD = 0.05, 0.5


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """The shared part of every client's mean; public.

    Attributes:
        heights: The pooled function at mean 0 and standard deviation 1 over the space, ``(n or 1, c)`` at points
            of the cube ``(n or 1, c, n_dims)``.
        slope: Prior of a client's multiple of it.
    """

    heights: Callable[[FloatArray], torch.Tensor]
    slope: SlopePrior


def trust(variance: float, noise_variance: float, directions: float = math.inf) -> float:
    """Correlation that a function of this variance can have with its own noiseless form, at most .98.

    Noise alone has a chi-square's spread, so a function is trusted only if noise alone would vary less nineteen times
    out of twenty.

    Args:
        variance: Of the function over the space.
        noise_variance: What noise alone would give it on average; counted one and a half times.
        directions: Over which that is spread; in few directions noise may vary much by chance.

    Example:
        >>> trust(1.0, 0.0), trust(1.0, 0.5), trust(1.0, 0.7), trust(1.0, 0.5, directions=4.0)
        (0.98, 0.5, 0.0, 0.0)
    """
    if variance <= noise_variance * (1.0 + _ONE_SIDED * math.sqrt(2.0 / directions)):
        return 0.0
    return math.sqrt(min(max(1.0 - _STRICT * noise_variance / variance, 0.0), _LARGEST_TRUST**2))


def blur(features: FourierFeatures, setting: Setting, n_points: int, noise: float) -> FloatArray:
    """Expected ridge weights of a client for every weight vector it could have, ``(n_features, n_features)``; public.

    A client with weights w that centres its values at ``n_points`` points answers with B w on average over uniform
    points, B = E Phi' (Phi Phi' + noise I)^-1 (I - 11' / n_points) Phi, symmetric up to chance; here over a public
    sample.
    """
    generator = public_stream(setting.public_seed, Stream.FEATURES, 1 + n_points)
    units = setting.space.snap(generator.random((_DESIGNS, n_points, setting.space.n_dims)))
    waves = features(_embedded(setting.space, units, torch.device("cpu"))).numpy()
    gram = waves @ waves.swapaxes(1, 2) + noise * np.eye(n_points)
    found = (waves.swapaxes(1, 2) @ np.linalg.solve(gram, waves - waves.mean(axis=1, keepdims=True))).mean(axis=0)
    return np.asarray(0.5 * (found + found.T))


def sharpen(weights: FloatArray, noise_stddev: float, blurred: FloatArray, n_clients: int) -> FloatArray:
    """Take a blur back from noisy weights, direction by direction (a Wiener filter); post-processing.

    In the blur's basis with eigenvalues l_i, weights are z_i ~ N(0, t l_i^2 + s^2 + l_i / (n sum l)): the common
    weights of power t, the release's noise s, and the clients' own differences, whose vectors of norm at most 1 are
    averaged over n clients. t has the largest likelihood; the result is the posterior mean of the common weights.

    Args:
        weights: Pooled weights, ``(n_features,)``.
        noise_stddev: Of the noise in every one of them, s.
        blurred: What the weights went through, ``(n_features, n_features)``.
        n_clients: n.
    """
    eigenvalues, basis = np.linalg.eigh(blurred)
    eigenvalues = np.maximum(eigenvalues, 0.0)
    turned = basis.T @ weights
    known = noise_stddev**2 + eigenvalues / (n_clients * eigenvalues.sum()) + _TINY
    variances = _POWERS[:, None] * eigenvalues**2 + known
    likelihood = -(turned**2 / variances + np.log(variances)).sum(axis=1)
    best = int(likelihood.argmax())
    return np.asarray(basis @ (_POWERS[best] * eigenvalues / variances[best] * turned))


def pool(
    features: FourierFeatures,
    setting: Setting,
    weights: FloatArray,
    noise_stddev: float,
    blurred: FloatArray | None = None,
) -> Pooled | None:
    """The pooled function of a broadcast; None where it cannot be told from its own noise.

    Args:
        features: Of the run.
        setting: Of the run.
        weights: Pooled weights, ``(n_features,)``.
        noise_stddev: Of the noise in every one of them.
        blurred: What the weights went through; None takes them as they are.
    """
    device = torch.device(setting.device)
    waves = features(_embedded(setting.space, public_points(setting), device))
    apart = waves - waves.mean(dim=0)
    covariance = apart.mT @ apart / len(apart)
    total = float(covariance.trace())
    noise_variance, directions = noise_stddev**2 * total, total**2 / float(covariance.square().sum())
    vector = torch.as_tensor(weights, dtype=torch.float64, device=device)
    heights = apart @ vector
    variance = float(heights.square().mean())
    level = trust(variance, noise_variance, directions)
    if level == 0.0:
        return None
    if blurred is not None:
        vector = torch.as_tensor(sharpen(weights, noise_stddev, blurred, setting.n_clients), device=device)
        variance = float((apart @ vector).square().mean())
    scaled, centre = vector / math.sqrt(variance), float((waves @ vector).mean()) / math.sqrt(variance)

    def function(units: FloatArray) -> torch.Tensor:
        return times(features(_embedded(setting.space, units, device)), scaled) - centre

    return Pooled(heights=function, slope=SlopePrior(mean=level, stddev=_LEAST_SPREAD + _SPREAD * level))


def public_points(setting: Setting) -> FloatArray:
    """Points over which functions are compared: a small space whole, else a net; public."""
    grid = setting.space.grid(_POINTS)
    if grid is not None:
        return grid
    return candidates(setting.space, _POINTS, public_stream(setting.public_seed, Stream.FEATURES, 1))


def _embedded(space: Space, units: FloatArray, device: torch.device) -> torch.Tensor:
    return torch.as_tensor(np.asarray(space.embed(units)), dtype=torch.float64, device=device)
