"""The pooled function: all releases so far as one function, and how far public numbers let it be trusted.

The pooled weights carry Gaussian noise of a public standard deviation, so the variance that noise alone
would give the function over the space is public too. Only what stands above it counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from privbo.algorithms.thompson.features import FourierFeatures
from privbo.algorithms.thompson.maximise import candidates
from privbo.algorithms.thompson.regression import SlopePrior
from privbo.algorithms.thompson.streams import Stream, public_stream
from privbo.protocol.messages import FloatArray, Setting
from privbo.protocol.space import Space

_POINTS = 1024
# The noise counts this many times: alone it must not look like a signal.
_STRICT = 1.5
_LARGEST_TRUST = 0.98
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


def trust(variance: float, noise_variance: float) -> float:
    """Correlation that a function of this variance can have with its own noiseless form, at most .98.

    Args:
        variance: Of the function over the space.
        noise_variance: What noise alone would give it on average; counted one and a half times.

    Example:
        >>> trust(1.0, 0.0), trust(1.0, 0.5), trust(1.0, 0.7)
        (0.98, 0.5, 0.0)
    """
    if variance <= 0.0:
        return 0.0
    return math.sqrt(min(max(1.0 - _STRICT * noise_variance / variance, 0.0), _LARGEST_TRUST**2))


def pool(features: FourierFeatures, setting: Setting, weights: FloatArray, noise_stddev: float) -> Pooled | None:
    """The pooled function of a broadcast; None where it cannot be told from its own noise.

    Args:
        features: Of the run.
        setting: Of the run.
        weights: Pooled weights, ``(n_features,)``.
        noise_stddev: Of the noise in every one of them.
    """
    device = torch.device(setting.device)
    waves = features(_embedded(setting.space, public_points(setting), device))
    apart = waves - waves.mean(dim=0)
    noise_variance = noise_stddev**2 * float(apart.square().mean(dim=0).sum())
    vector = torch.as_tensor(weights, dtype=torch.float64, device=device)
    heights = apart @ vector
    variance = float(heights.square().mean())
    level = trust(variance, noise_variance)
    if level == 0.0:
        return None
    scaled, centre = vector / math.sqrt(variance), float((waves @ vector).mean()) / math.sqrt(variance)

    def function(units: FloatArray) -> torch.Tensor:
        return features(_embedded(setting.space, units, device)) @ scaled - centre

    return Pooled(heights=function, slope=SlopePrior(mean=level, stddev=_LEAST_SPREAD + _SPREAD * level))


def public_points(setting: Setting) -> FloatArray:
    """Points over which functions are compared: a small space whole, else a net; public."""
    grid = setting.space.grid(_POINTS)
    if grid is not None:
        return grid
    return candidates(setting.space, _POINTS, public_stream(setting.public_seed, Stream.FEATURES, 1))


def _embedded(space: Space, units: FloatArray, device: torch.device) -> torch.Tensor:
    return torch.as_tensor(np.asarray(space.embed(units)), dtype=torch.float64, device=device)
