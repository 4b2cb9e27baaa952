"""Log likelihood ratio of a mixture of Gaussians against one of them, and its Rényi divergences.

With s_j = (2 c_j x - c_j^2) / (2 z^2) the ratio is r(x) = sum over j of p_j exp(s_j). It grows with x. For complex x
with |Im x| < pi z^2 / c, c the largest length, all its terms lie in one half-plane and it has no zero.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from accountant.divergence import FloatArray, Grid, divergence
from accountant.events import MixtureOfGaussians

_FAR: Final = 30.0  # of an exponent, beyond which nothing is subtracted from it
_CHUNK: Final = 4096  # outputs at a time: every one has a term for each length


def exponents(event: MixtureOfGaussians, x: FloatArray) -> FloatArray:
    """s_j at every output, shape ``(n, lengths)``."""
    lengths = np.array(event.sensitivities)
    return np.asarray((x[:, None] - 0.5 * lengths) * lengths / event.noise_multiplier**2, dtype=np.float64)


def ratio(event: MixtureOfGaussians, x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Likelihood ratio less 1, capped where it would overflow, and its log, at every output, shape ``(n,)`` each."""
    chances = np.array(event.chances)
    excess, log_ratio = np.empty_like(x), np.empty_like(x)
    for begin in range(0, len(x), _CHUNK):
        few = slice(begin, begin + _CHUNK)
        s = exponents(event, x[few])
        peak = s.max(axis=1)
        excess[few] = np.expm1(np.minimum(s, 300.0)) @ chances
        near = np.log1p(np.where(peak < _FAR, excess[few], 0.0))
        log_ratio[few] = np.where(peak < _FAR, near, np.log(np.exp(s - peak[:, None]) @ chances) + peak)
    return excess, log_ratio


def mixture_divergence(event: MixtureOfGaussians, orders: FloatArray, t: FloatArray, step: float) -> FloatArray:
    """The larger direction's Rényi divergence, by the trapezoid rule at ``t`` standard deviations."""
    excess, log_ratio = ratio(event, t * event.noise_multiplier)
    log_weight = np.log(step) - 0.5 * np.log(2.0 * np.pi) - 0.5 * t * t
    removed = Grid(log_weight=log_weight, excess=excess, log_ratio=log_ratio)
    added = Grid(log_weight=log_weight + log_ratio, excess=-excess / (1.0 + excess), log_ratio=-log_ratio)
    return np.asarray(np.maximum(divergence(removed, orders), divergence(added, orders)), dtype=np.float64)
