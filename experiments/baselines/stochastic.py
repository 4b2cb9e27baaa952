"""Accelerated stochastic method for strongly convex functions, beside the wheel's for convex ones (Lan 2020, 4.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from experiments.baselines.convex_sets import ConvexSet
from experiments.baselines.first_order import require_positive
from privbo.algorithms.functional.methods import GradientNoise, Rates, State
from privbo.protocol.messages import FloatArray


class AlsoExpected(GradientNoise):
    """The wheel's noise, with bounds that hold in expectation at delta = 1."""

    def largest_square(self, k: int, delta: float) -> float:
        """Bound on all of k squared norms; sigma^2 at delta = 1."""
        return self.sigma**2 if delta >= 1.0 else super().largest_square(k, delta)

    def drift(self, k: int, diameter: float, delta: float) -> float:
        """Bound on the martingale; its mean, 0, at delta = 1."""
        return 0.0 if delta >= 1.0 else super().drift(k, diameter, delta)


@dataclass(frozen=True, kw_only=True)
class StronglyConvexStochasticAccelerated:
    """Lan 2020, Proposition 4.6: mu-strongly convex functions, noisy gradients.

    Step t, with a = 2/(t+1), 1/gam = mu (t-1)/2 + 2 L/t and q = a/(a + (1-a)(1 + mu gam)):
    low = (1-q) up + q x; x = P((x + mu gam low - gam G)/(1 + mu gam)); up = (1-a) up + a x.
    Certified: 4 L V/(k(k+1)) + 4 (M^2 + sigma^2)/(mu (k+1)) and the Gaussian tails, with V
    half the squared distance R of the start. Printed: the paper's, with R in place of V.

    Attributes:
        smoothness: L, may be 0.
        convexity: mu.
        noise: Of the gradients.
        domain: A bounded set.
        lipschitz: M, may be 0.
        distance: R, of the start from the minimiser; D if None.
    """

    smoothness: float
    convexity: float
    noise: GradientNoise
    domain: ConvexSet
    lipschitz: float = 0.0
    distance: float | None = None
    rates: Rates = "certified"

    def __post_init__(self) -> None:
        require_positive(convexity=self.convexity, diameter=self.domain.diameter)

    def init(self, start: FloatArray) -> State:
        """Start at ``start``."""
        x = self.domain.project(np.array(start, dtype=np.float64))
        return State(k=0, point=x, query=x, memory=x)

    def _inverse_size(self, t: int) -> float:
        return self.convexity * (t - 1) / 2.0 + 2.0 * self.smoothness / t

    def step(self, state: State, gradient: FloatArray) -> State:
        """Move ``memory`` (Lan's x), average it into ``point``, and look ahead."""
        t = state.k + 1
        inverse = self._inverse_size(t)
        # The prox step multiplied by 1/gam, so that an infinite first step (L = 0) is the plain limit.
        goal = inverse * state.memory + self.convexity * state.query - gradient
        x = self.domain.project(goal / (inverse + self.convexity))
        point = state.point + (2.0 / (t + 1)) * (x - state.point)
        a, following = 2.0 / (t + 2), self._inverse_size(t + 1)
        q = a / (a + (1.0 - a) * (1.0 + self.convexity / following))
        return State(k=t, point=point, query=point + q * (x - point), memory=x)

    def rate(self, k: int, delta: float) -> float:
        """Bound on the gap after k steps."""
        reach = self.domain.diameter if self.distance is None else self.distance
        if self.rates == "printed":
            sigma, log = self.noise.sigma, math.log(1.0 / delta)
            start = 4.0 * self.smoothness * reach / (k * (k + 1))
            tail = 4.0 * (self.lipschitz**2 + sigma**2) / (self.convexity * (k + 1))
            return start + tail + (2 * sigma * reach / math.sqrt(3 * k) + 4 * sigma**2 / (self.convexity * k)) * log
        square = self.lipschitz**2 + self.noise.largest_square(k, delta)
        start = 2.0 * self.smoothness * reach**2 / (k * (k + 1))
        drift = self.noise.drift(k, self.domain.diameter, delta)
        return start + 4.0 * square / (self.convexity * (k + 1)) + drift
