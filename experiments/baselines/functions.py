"""Convex functions with known constants and minima, for experiments and tests of rates."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from experiments.baselines.function_arms import Oracle
from privbo.protocol.messages import FloatArray


@dataclass(frozen=True, kw_only=True, eq=False)
class RootQuadratic:
    """sqrt(1 + (x-x*)' diag(scales) (x-x*)) + offset, eq. 20: L = max scales, minimum 1 + offset."""

    centre: FloatArray
    scales: FloatArray
    offset: float = 0.0

    @property
    def minimum(self) -> float:
        """Smallest value."""
        return 1.0 + self.offset

    def value(self, x: FloatArray) -> float:
        """f(x)."""
        away = x - self.centre
        return math.sqrt(1.0 + away @ (self.scales * away)) + self.offset

    def gradient(self, x: FloatArray) -> FloatArray:
        """f'(x), of norm at most sqrt(L)."""
        away = x - self.centre
        pull = self.scales * away
        return np.asarray(pull / math.sqrt(1.0 + away @ pull))


@dataclass(frozen=True, kw_only=True, eq=False)
class MaxAffine:
    """max_k slopes_k . (x - x*) + convexity/2 |x - x*|^2 + offset, eq. 21 where convexity = 0.

    With 0 in the slopes' convex hull (as ``draw_max_affine`` makes them) x* is the
    minimiser and ``offset`` the minimum.
    """

    slopes: FloatArray
    centre: FloatArray
    convexity: float = 0.0
    offset: float = 0.0

    @property
    def minimum(self) -> float:
        """Smallest value."""
        return self.offset

    @property
    def lipschitz(self) -> float:
        """M of the piecewise linear part."""
        return float(np.linalg.norm(self.slopes, axis=1).max())

    def value(self, x: FloatArray) -> float:
        """f(x)."""
        away = x - self.centre
        return float((self.slopes @ away).max() + 0.5 * self.convexity * (away @ away) + self.offset)

    def gradient(self, x: FloatArray) -> FloatArray:
        """A subgradient at x."""
        away = x - self.centre
        return np.asarray(self.slopes[int((self.slopes @ away).argmax())] + self.convexity * away)


def draw_max_affine(
    rng: np.random.Generator, *, n_pieces: int, centre: FloatArray, convexity: float = 0.0, offset: float = 0.0
) -> MaxAffine:
    """Random unit slopes, the last one closing the hull around 0, so that ``centre`` is the minimiser."""
    slopes = rng.normal(size=(n_pieces, len(centre)))
    slopes /= np.linalg.norm(slopes, axis=1, keepdims=True)
    closing = -rng.dirichlet(np.ones(n_pieces - 1)) @ slopes[:-1]
    slopes[-1] = closing / max(float(np.linalg.norm(closing)), 1.0)
    return MaxAffine(slopes=slopes, centre=centre, convexity=convexity, offset=offset)


@dataclass(frozen=True, kw_only=True, eq=False)
class Quadratic:
    """(x-x*)' diag(scales) (x-x*)/2 + offset: mu = min scales, L = max scales."""

    centre: FloatArray
    scales: FloatArray
    offset: float = 0.0

    @property
    def minimum(self) -> float:
        """Smallest value."""
        return self.offset

    def value(self, x: FloatArray) -> float:
        """f(x)."""
        away = x - self.centre
        return float(0.5 * away @ (self.scales * away) + self.offset)

    def gradient(self, x: FloatArray) -> FloatArray:
        """f'(x)."""
        return self.scales * (x - self.centre)


@dataclass(frozen=True, kw_only=True, eq=False)
class HeavyTailed:
    """An oracle whose gradients carry Student's t noise: moments of an order below ``degrees`` exist, no others.

    Attributes:
        oracle: The exact one; values are exact.
        rng: Source of the noise.
        degrees: Degrees of freedom.
        scale: Per coordinate.
    """

    oracle: Oracle
    rng: np.random.Generator
    degrees: float
    scale: float

    def value(self, x: FloatArray) -> float:
        """f(x)."""
        return self.oracle.value(x)

    def gradient(self, x: FloatArray) -> FloatArray:
        """f'(x) plus noise."""
        return self.oracle.gradient(x) + self.scale * self.rng.standard_t(self.degrees, len(x))


@dataclass(frozen=True, kw_only=True, eq=False)
class Noisy:
    """An oracle with independent Gaussian noise on gradients and values.

    Attributes:
        oracle: The exact one.
        rng: Source of the noise.
        gradient_stddev: Per coordinate.
        value_stddev: Of values.
    """

    oracle: Oracle
    rng: np.random.Generator
    gradient_stddev: float = 0.0
    value_stddev: float = 0.0

    def value(self, x: FloatArray) -> float:
        """f(x) plus noise."""
        return self.oracle.value(x) + self.value_stddev * float(self.rng.standard_normal())

    def gradient(self, x: FloatArray) -> FloatArray:
        """f'(x) plus noise."""
        return self.oracle.gradient(x) + self.gradient_stddev * self.rng.standard_normal(len(x))
