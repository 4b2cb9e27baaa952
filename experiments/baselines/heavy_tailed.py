"""Clipped accelerated methods for heavy-tailed noise (Sadiev et al. 2023).

They promise much (moments of order alpha in (1, 2] suffice) with constants nobody can
use: with a of the theorem, about 5e7, the method does not move. ``step_divisor`` (a),
``clip_scale`` (B) and ``rate_scale`` (the factor of g) are therefore inputs; the defaults
worked in experiments, are no theorem, and F-LCB reports a rate that fails.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from experiments.baselines.first_order import require_positive
from privbo.algorithms.functional.methods import State
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray


def clip(vector: FloatArray, norm: float) -> FloatArray:
    """The vector, shortened to ``norm`` if it is longer."""
    length = math.sqrt(vector @ vector)
    return vector if length <= norm else vector * (norm / length)


def _require_alpha(alpha: float) -> None:
    if not 1.0 < alpha <= 2.0:
        raise ConfigurationError(f"alpha={alpha!r} must lie in (1, 2]")


@dataclass(frozen=True, kw_only=True)
class ClippedSSTM:
    """Clipped stochastic similar-triangles method for L-smooth functions.

    alf = (k+2)/(2 a L), A += alf, lam = B/alf; query (A y + alf z)/A+; z -= alf clip(G, lam);
    y = (A y + alf z)/A+. Defaults a = max(1, sigma (K+1) K^(1/alpha) / (20 L R)), B = R/l with
    l = log(4 K/delta) for the horizon K. Printed rate, times ``rate_scale``:
    max(L R^2/k^2, sigma R/k^(1-1/alpha)) log(1/delta); nothing is certified.

    Attributes:
        smoothness: L.
        distance: R.
        sigma: Bound on the alpha-th moment's root.
        alpha: Order of the moment, in (1, 2].
        horizon: K, the steps it is tuned for.
        delta: Failure probability it is tuned for.
    """

    smoothness: float
    distance: float
    sigma: float
    horizon: int
    alpha: float = 2.0
    delta: float = 1e-3
    step_divisor: float | None = None
    clip_scale: float | None = None
    rate_scale: float = 1.0

    def __post_init__(self) -> None:
        require_positive(smoothness=self.smoothness, distance=self.distance, sigma=self.sigma, horizon=self.horizon)
        require_positive(rate_scale=self.rate_scale, step_divisor=self.divisor, clip_scale=self.scale)
        _require_alpha(self.alpha)

    @property
    def divisor(self) -> float:
        """The theorem's a."""
        if self.step_divisor is not None:
            return self.step_divisor
        growth = (self.horizon + 1) * math.pow(self.horizon, 1.0 / self.alpha)
        return max(1.0, self.sigma * growth / (20.0 * self.smoothness * self.distance))

    @property
    def scale(self) -> float:
        """The theorem's B."""
        if self.clip_scale is not None:
            return self.clip_scale
        return self.distance / math.log(4.0 * self.horizon / self.delta)

    def init(self, start: FloatArray) -> State:
        """Start at ``start``."""
        x = np.array(start, dtype=np.float64)
        return State(k=0, point=x, query=x, memory=x)

    def _weight(self, k: int) -> float:
        """A_k, the sum of the first k steps' alf."""
        return k * (k + 3) / (4.0 * self.divisor * self.smoothness)

    def step(self, state: State, gradient: FloatArray) -> State:
        """Move z by the clipped gradient and average it in; ``memory`` is z, ``point`` is y."""
        k = state.k
        size = (k + 2) / (2.0 * self.divisor * self.smoothness)
        z = state.memory - size * clip(gradient, self.scale / size)
        point = state.point + (size / self._weight(k + 1)) * (z - state.point)
        ahead = (k + 3) / (2.0 * self.divisor * self.smoothness) / self._weight(k + 2)
        return State(k=k + 1, point=point, query=point + ahead * (z - point), memory=z)

    def rate(self, k: int, delta: float) -> float:
        """The printed rate times ``rate_scale``."""
        smooth = self.smoothness * self.distance**2 / (k * k)
        noisy = self.sigma * self.distance / math.pow(k, 1.0 - 1.0 / self.alpha)
        return self.rate_scale * max(smooth, noisy) * math.log(1.0 / delta)


@dataclass(frozen=True, kw_only=True)
class RestartedClippedSSTM:
    """Clipped-SSTM restarted at its output, for mu-strongly convex, L-smooth functions.

    Stage t = 1, 2, ...: R_t = R 2^(-t/2); from R_{t-1} the stage wants
    eps_t = mu R_{t-1}^2 / 4 and lasts ``length_scale`` times
    max(sqrt(L R_{t-1}^2/eps_t), (sigma R_{t-1}/eps_t)^(alpha/(alpha-1))) steps. Printed rate,
    times ``rate_scale``: max(R^2 exp(-k/sqrt kappa), sigma^2/mu k^(-2(alpha-1)/alpha))
    log(1/delta) (the print's first term has no units; R^2 mu is what it means).

    Attributes:
        smoothness: L.
        convexity: mu.
        distance: R.
        sigma: Bound on the alpha-th moment's root.
        alpha: Order of the moment.
    """

    smoothness: float
    convexity: float
    distance: float
    sigma: float
    alpha: float = 2.0
    delta: float = 1e-3
    length_scale: float = 2.0
    step_divisor: float | None = None
    rate_scale: float = 1.0

    def __post_init__(self) -> None:
        require_positive(
            smoothness=self.smoothness,
            convexity=self.convexity,
            distance=self.distance,
            sigma=self.sigma,
            length_scale=self.length_scale,
            rate_scale=self.rate_scale,
        )
        _require_alpha(self.alpha)

    def stage(self, k: int) -> tuple[int, int]:
        """The stage (from 1) that step k + 1 belongs to, and the steps made before the stage."""
        stage, made = 1, 0
        while made + self._length(stage) <= k:
            made += self._length(stage)
            stage += 1
        return stage, made

    def _radius(self, stage: int) -> float:
        return self.distance * math.pow(2.0, -(stage - 1) / 2.0)

    def _length(self, stage: int) -> int:
        reach = self._radius(stage)
        goal = self.convexity * reach**2 / 4.0
        smooth = math.sqrt(self.smoothness * reach**2 / goal)
        noisy = math.pow(self.sigma * reach / goal, self.alpha / (self.alpha - 1.0))
        return math.ceil(self.length_scale * max(smooth, noisy))

    def _method(self, stage: int) -> ClippedSSTM:
        return ClippedSSTM(
            smoothness=self.smoothness,
            distance=self._radius(stage),
            sigma=self.sigma,
            alpha=self.alpha,
            horizon=self._length(stage),
            delta=self.delta,
            step_divisor=self.step_divisor,
        )

    def init(self, start: FloatArray) -> State:
        """Start at ``start``."""
        return self._method(1).init(start)

    def step(self, state: State, gradient: FloatArray) -> State:
        """A step of the stage's method; at its end the next stage starts from its output."""
        stage, made = self.stage(state.k)
        inner = State(k=state.k - made, point=state.point, query=state.query, memory=state.memory)
        after = self._method(stage).step(inner, gradient)
        if after.k == self._length(stage):
            after = self._method(stage + 1).init(after.point)
        return State(k=state.k + 1, point=after.point, query=after.query, memory=after.memory)

    def rate(self, k: int, delta: float) -> float:
        """The printed rate, with the units of f, times ``rate_scale``."""
        root = math.sqrt(self.smoothness / self.convexity)
        smooth = self.convexity * self.distance**2 * math.exp(-k / root)
        noisy = self.sigma**2 / self.convexity * math.pow(k, -2.0 * (self.alpha - 1.0) / self.alpha)
        return self.rate_scale * max(smooth, noisy) * math.log(1.0 / delta)
