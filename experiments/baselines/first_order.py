"""First-order methods as pure state machines with known rates, for exact gradients.

A method never calls a function: it names the point at which it wants a gradient, takes
the gradient, and names the point its rate speaks of. ``rate(k, delta)`` bounds
f(point) - min f after k steps. Two rates are kept for every method: ``printed`` is the
table of the F-LCB paper, which drops constants, and ``certified`` is a theorem's with
its constants; a lower confidence bound is valid with the second only.

Throughout, R bounds the distance from the start to a minimiser and D is the diameter of
the set. The stochastic method of the wheel is in
``privbo.algorithms.functional.methods``, those under heavy tails in ``heavy_tailed``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from experiments.baselines.convex_sets import ConvexSet, Everywhere
from privbo.algorithms.functional.methods import Rates, State
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray


class Optimiser(Protocol):
    """A first-order method of known rate."""

    def init(self, start: FloatArray) -> State:
        """The state before any step, ``start`` of shape ``(n_dims,)``."""
        ...

    def step(self, state: State, gradient: FloatArray) -> State:
        """One step with a (sub)gradient, exact or noisy, at ``state.query``."""
        ...

    def rate(self, k: int, delta: float) -> float:
        """g(k, delta): f(point) - min f after k >= 1 steps, exceeded with probability at most delta."""
        ...


def require_positive(**values: float) -> None:
    """Refuse a constant of a function class that is not finite and positive."""
    for name, value in values.items():
        if isinstance(value, bool) or not (math.isfinite(value) and value > 0):
            raise ConfigurationError(f"{name}={value!r} must be a finite number > 0")


def _begin(start: FloatArray, domain: ConvexSet) -> State:
    x = domain.project(np.array(start, dtype=np.float64))
    return State(k=0, point=x, query=x, memory=x)


@dataclass(frozen=True, kw_only=True)
class AcceleratedGradient:
    """Nesterov's method for L-smooth functions without constraints.

    After k steps the next query is x_k + (k-1)/(k+2) (x_k - x_{k-1}). Certified:
    2 L R^2 / (k^2 + 5k + 6), exact in the worst case (Taylor, Hendrickx and Glineur 2017);
    printed L R^2 / k^2, which fails from k = 7 on.

    Attributes:
        smoothness: L.
        distance: R.
    """

    smoothness: float
    distance: float
    rates: Rates = "certified"

    def __post_init__(self) -> None:
        require_positive(smoothness=self.smoothness, distance=self.distance)

    def init(self, start: FloatArray) -> State:
        """Start at ``start``."""
        return _begin(start, Everywhere())

    def step(self, state: State, gradient: FloatArray) -> State:
        """A gradient step from the query, then momentum."""
        point = state.query - gradient / self.smoothness
        query = point + (state.k / (state.k + 3)) * (point - state.point)
        return State(k=state.k + 1, point=point, query=query, memory=state.memory)

    def rate(self, k: int, delta: float) -> float:  # noqa: ARG002  # deterministic
        """Bound on the gap after k steps."""
        scale = self.smoothness * self.distance**2
        return 2.0 * scale / (k * k + 5 * k + 6) if self.rates == "certified" else scale / (k * k)


@dataclass(frozen=True, kw_only=True)
class TripleAveraging:
    """Quasi-monotone subgradient method with triple averaging (Nesterov and Shikhman 2015).

    With s the sum of gradients and gam_t = gam sqrt(t+1): x' = P(x0 - s/gam_t),
    xh = (gam_t/gam_{t+1}) x' + (1 - gam_t/gam_{t+1}) x0, x <- x + (xh - x)/(t+2).

    Certified, from their estimate sequence with A_t = t+1:
    (gam R^2 sqrt(k+1)/2 + M^2 (1 + 2 sqrt k)/(2 gam)) / (k+1). The printed M R / sqrt(k)
    fails for long runs: the exact worst case with gam = M/R is 1.0595 M R / sqrt(k) at
    k = 12 (a semidefinite programme in the tests' notes).

    Attributes:
        lipschitz: M.
        distance: R, of the start from a minimiser.
        gamma: gam; M/R if None.
        domain: The set.
    """

    lipschitz: float
    distance: float
    gamma: float | None = None
    domain: ConvexSet = field(default_factory=Everywhere)
    rates: Rates = "certified"

    def __post_init__(self) -> None:
        require_positive(lipschitz=self.lipschitz, distance=self.distance, gamma=self._gamma)

    @property
    def _gamma(self) -> float:
        return self.lipschitz / self.distance if self.gamma is None else self.gamma

    def init(self, start: FloatArray) -> State:
        """Start at ``start``."""
        x = self.domain.project(np.array(start, dtype=np.float64))
        return State(k=0, point=x, query=x, memory=np.stack([x, np.zeros_like(x)]))

    def step(self, state: State, gradient: FloatArray) -> State:
        """Add the gradient to the sum; average thrice."""
        t = state.k
        first, total = state.memory[0], state.memory[1] + gradient
        nearer = self.domain.project(first - total / (self._gamma * math.sqrt(t + 1)))
        share = math.sqrt((t + 1) / (t + 2))
        x = state.point + (share * nearer + (1.0 - share) * first - state.point) / (t + 2)
        return State(k=t + 1, point=x, query=x, memory=np.stack([first, total]))

    def rate(self, k: int, delta: float) -> float:  # noqa: ARG002  # deterministic
        """Bound on the gap after k steps."""
        if self.rates == "printed":
            return self.lipschitz * self.distance / math.sqrt(k)
        pull = 0.5 * self._gamma * self.distance**2 * math.sqrt(k + 1)
        return (pull + self.lipschitz**2 * (1.0 + 2.0 * math.sqrt(k)) / (2.0 * self._gamma)) / (k + 1)
