"""A Gaussian process over few points with known noise, fitted over a grid; numpy, deterministic.

Constant mean, Matern-5/2 kernel with one lengthscale. Lengthscale and amplitude are the most probable ones of a grid
under wide log-normal priors: with a dozen noisy means there is no more to be learned, and a grid has no local optimum.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.special import ndtr

from privbo.protocol.messages import FloatArray

_LENGTHSCALES = np.geomspace(0.05, 2.0, 12)  # times the root of the number of coordinates
_AMPLITUDES = np.geomspace(0.02, 1.0, 8)  # times the width of the scores' range
_CENTRES, _SPREAD = (0.3, 0.2), 1.0  # medians of the priors, and their spread in logarithms
_NUGGET = 1e-6  # of the amplitude's square


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """A fitted process.

    Attributes:
        points: ``(m, e)``, embedded.
        factor: Lower Cholesky factor of the covariance of what was observed.
        weights: Its inverse times the centred observations, ``(m,)``.
        mean, lengthscale, amplitude: Of the process.
    """

    points: FloatArray
    factor: FloatArray
    weights: FloatArray
    mean: float
    lengthscale: float
    amplitude: float

    def at(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Give mean and standard deviation at embedded points ``(k, e)``."""
        cross = self.amplitude**2 * matern(points, self.points, self.lengthscale)
        mean = self.mean + cross @ self.weights
        explained = (solve_triangular(self.factor, cross.T, lower=True) ** 2).sum(axis=0)
        return mean, np.sqrt(np.maximum(self.amplitude**2 - explained, 0.0))


def matern(first: FloatArray, second: FloatArray, lengthscale: float) -> FloatArray:
    """Give the Matern-5/2 correlations of points ``(a, e)`` and ``(b, e)``, ``(a, b)``.

    Example:
        >>> float(matern(np.zeros((1, 2)), np.zeros((1, 2)), 0.5)[0, 0])
        1.0
    """
    distance = np.sqrt(((first[:, None] - second[None]) ** 2).sum(axis=-1)) * (math.sqrt(5.0) / lengthscale)
    return np.asarray((1.0 + distance + distance**2 / 3.0) * np.exp(-distance))


def fit(points: FloatArray, means: FloatArray, stddev: FloatArray, width: float) -> Posterior:
    """Fit a process to noisy means.

    Args:
        points: ``(m, e)``, embedded.
        means: Observations, ``(m,)``.
        stddev: Standard deviation of the noise in each, ``(m,)``.
        width: Of the range that the true means lie in.
    """
    found: tuple[float, Posterior] | None = None
    for length, amplitude in itertools.product(_LENGTHSCALES, _AMPLITUDES):
        lengthscale, height = float(length) * math.sqrt(points.shape[1]), float(amplitude) * width
        covariance = height**2 * matern(points, points, lengthscale)
        covariance += np.diag(stddev**2 + _NUGGET * height**2)
        factor = cholesky(covariance, lower=True)
        ones = cho_solve((factor, True), np.ones(len(means)))
        mean = float(ones @ means / ones.sum())
        weights = cho_solve((factor, True), means - mean)
        prior = sum((math.log(x / c) / _SPREAD) ** 2 for x, c in zip((length, amplitude), _CENTRES, strict=True))
        score = -0.5 * float((means - mean) @ weights) - float(np.log(np.diag(factor)).sum()) - 0.5 * prior
        if found is None or score > found[0]:
            made = Posterior(
                points=points, factor=factor, weights=weights, mean=mean, lengthscale=lengthscale, amplitude=height
            )
            found = score, made
    if found is None:
        raise AssertionError("the grid has no point")
    return found[1]


def expected_improvement(mean: FloatArray, stddev: FloatArray, best: float) -> FloatArray:
    """Give E[max(f - best, 0)] of normal values ``(k,)``.

    Example:
        >>> expected_improvement(np.array([0.0, 1.0]), np.array([1.0, 0.0]), 0.5).round(4).tolist()
        [0.1978, 0.5]
    """
    gap = mean - best
    z = np.divide(gap, stddev, out=np.zeros_like(gap), where=stddev > 0.0)
    density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    return np.where(stddev > 0.0, gap * ndtr(z) + stddev * density, np.maximum(gap, 0.0))
