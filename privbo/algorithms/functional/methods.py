"""Accelerated stochastic method (Lan 2020, Section 4.2) for noisy gradients, as a pure state machine of known rate.

A method never calls a function: it names the point at which it wants a gradient, takes
the gradient, and names the point its rate speaks of. ``rate(k, delta)`` bounds
f(point) - min f after k steps. The ``printed`` rate is the table of the F-LCB paper, which
drops constants; the ``certified`` one is a theorem's with its constants, and a lower
confidence bound is valid with it alone. Other methods are in ``experiments.baselines``.

It assumes f(y) <= f(x) + <f'(x), y-x> + L/2 |y-x|^2 on a box of diameter D, and gradients
with independent noise of expected squared norm sigma^2.

``certified`` rates hold with probability 1 - delta when the noise is Gaussian with
standard deviation s in each of d coordinates (as a private release's is). Lan's proofs
bound the gap by a deterministic part, a martingale of norm at most 2 s D / sqrt(3k), and
the noise's squared norms; we bound the martingale by its Gaussian tail at delta/2 and
all k squared norms by s^2 (sqrt d + sqrt(2 log(2k/delta)))^2 together at delta/2.
(The paper's Assumption 3, E exp(|noise|^2/sigma^2) <= 1, allows no noise at all; Lan's bound is e.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from privbo.protocol.messages import FloatArray

Rates: TypeAlias = Literal["certified", "printed"]


@dataclass(frozen=True, kw_only=True)
class Box:
    """All points of ``[low, high]^n_dims``."""

    low: float
    high: float
    n_dims: int

    @property
    def diameter(self) -> float:
        """The diagonal."""
        return (self.high - self.low) * math.sqrt(self.n_dims)

    def project(self, x: FloatArray) -> FloatArray:
        """The nearest point of the box."""
        return np.minimum(np.maximum(x, self.low), self.high)


@dataclass(frozen=True, kw_only=True, eq=False)
class State:
    """State of a method after ``k`` steps; never changed in place.

    Attributes:
        k: Steps made.
        point: The point the rate speaks of, ``(n_dims,)``.
        query: Where the next gradient is wanted.
        memory: What the method carries besides.
    """

    k: int
    point: FloatArray
    query: FloatArray
    memory: FloatArray


@dataclass(frozen=True, kw_only=True)
class GradientNoise:
    """Noise of the gradients: Gaussian, independent per coordinate.

    Attributes:
        stddev: s, per coordinate; 0 for exact gradients.
        n_dims: d.
    """

    stddev: float
    n_dims: int

    @property
    def sigma(self) -> float:
        """Root of the expected squared norm."""
        return self.stddev * math.sqrt(self.n_dims)

    def largest_square(self, k: int, delta: float) -> float:
        """Bound on all of k squared norms, except with probability delta/2."""
        return self.stddev**2 * (math.sqrt(self.n_dims) + math.sqrt(2.0 * math.log(2.0 * k / delta))) ** 2

    def drift(self, k: int, diameter: float, delta: float) -> float:
        """Bound on the martingale, except with probability delta/2."""
        return 2.0 * self.stddev * diameter / math.sqrt(3.0 * k) * math.sqrt(2.0 * math.log(2.0 / delta))


@dataclass(frozen=True, kw_only=True)
class StochasticAccelerated:
    """Lan 2020, Proposition 4.5 with M = 0: smooth convex functions, noisy gradients.

    With D' = D^2/2 and gam = sigma/sqrt(D'):
    4 L D'/(k(k+1)) + 2 gam D'/sqrt(k) + 4 sqrt(2) sigma^2/(3 gam sqrt(k)) in
    expectation. Printed: the last two terms with R = D for D', up to a constant.

    Attributes:
        smoothness: L, may be 0.
        noise: Of the gradients.
        domain: A bounded set.
        bias: Bound on the norm of the gradients' systematic error.
    """

    smoothness: float
    noise: GradientNoise
    domain: Box
    rates: Rates = "certified"
    bias: float = 0.0

    @property
    def _gamma(self) -> float:
        return math.sqrt(2.0 * self.noise.sigma**2) / self.domain.diameter

    def init(self, start: FloatArray) -> State:
        """Start at ``start``."""
        x = self.domain.project(np.array(start, dtype=np.float64))
        return State(k=0, point=x, query=x, memory=x)

    def step(self, state: State, gradient: FloatArray) -> State:
        """Move ``memory`` (Lan's x), average it into ``point``, and look ahead."""
        t = state.k + 1
        size = 1.0 / (2.0 * self.smoothness / t + self._gamma * math.sqrt(t))
        x = self.domain.project(state.memory - size * gradient)
        point = state.point + (2.0 / (t + 1)) * (x - state.point)
        query = point + (2.0 / (t + 2)) * (x - point)
        return State(k=t, point=point, query=query, memory=x)

    def rate(self, k: int, delta: float) -> float:
        """Bound on the gap after k steps."""
        gamma, reach = self._gamma, self.domain.diameter
        if self.rates == "printed":
            tail = 4.0 * math.sqrt(2.0) * self.noise.sigma**2 / (3.0 * gamma) if gamma else 0.0
            return (2.0 * gamma * reach + tail) / math.sqrt(k)
        half = 0.5 * reach**2
        tail = 4.0 * math.sqrt(2.0) * self.noise.largest_square(k, delta) / (3.0 * gamma) if gamma else 0.0
        smooth = 4.0 * self.smoothness * half / (k * (k + 1))
        # Lan's proof adds a_t <error, x - x_t>, with weights that sum to 1: a bias costs its norm times the diameter.
        drift = self.noise.drift(k, reach, delta) + self.bias * reach
        return smooth + (2.0 * gamma * half + tail) / math.sqrt(k) + drift
