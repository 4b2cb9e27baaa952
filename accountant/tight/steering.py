"""Choice of tilt, spacing and window from rough moments; decides speed, never correctness.

Everything here works on a coarse quadrature of each pair's loss (``Pair.nodes``). The
results only say *where* to compute; what is computed there carries its own certificate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import fft

from accountant.mechanisms.pair import FloatArray, Pair
from accountant.tight.fourier import Window

_OUTSIDE_LOG = 23.0  # -log of the tilted mass allowed outside the window; delta is at least 1e-3 of all
_USUAL_TILT = 1e4  # beyond it that much less is allowed: delta is to all as 1 to the tilt
_CAPPINGS = 12
_USUAL = 0.99
_UNHEARD = 1e-13  # tilted mass of all releases that may be lifted
_USUAL_TILTS = 18  # powers of four that are always tried
_SHARES = 2.0 ** np.arange(-7.0, 9.0)  # multiples of the natural extra tilt that are tried


@dataclass(frozen=True, kw_only=True)
class Rough:
    """Coarse loss distributions of all parts: losses and log masses ``(parts, nodes)``, counts."""

    loss: FloatArray
    log_mass: FloatArray
    counts: FloatArray

    def log_mgf(self, theta: float) -> float:
        """Log of E exp(theta L) of the whole composition."""
        terms = self.log_mass + theta * self.loss
        peaks = terms.max(axis=1, keepdims=True)
        return float(self.counts @ (np.log(np.exp(terms - peaks).sum(axis=1)) + peaks[:, 0]))

    def clipped(self, cap: float) -> Rough:
        """The same with every single loss above ``cap`` moved there."""
        return Rough(loss=np.minimum(self.loss, cap), log_mass=self.log_mass, counts=self.counts)

    def cap(self, epsilon: float) -> float:
        """A loss beyond which no single release need be told apart, where ``epsilon`` is asked for.

        One that large exceeds epsilon whatever all others lose, but for a few in a thousand: a lattice that ends
        there is as good as an endless one, and tilts well however rare large losses are.
        """
        level = max(epsilon, self._typical())
        within = Rough(loss=np.clip(self.loss, -level, level), log_mass=self.log_mass, counts=self.counts)
        mean, variance = within.tilted_moments(0.0)
        return 1.1 * epsilon + max(0.0, -mean) + 4.0 * math.sqrt(variance)

    def _typical(self) -> float:
        """Standard deviation of the whole, each release's largest losses, a hundredth of all, clipped."""
        size = np.abs(self.loss)
        order = np.argsort(size, axis=1)
        below = np.cumsum(np.take_along_axis(self._weights(0.0), order, axis=1), axis=1)
        ranks = np.minimum(np.sum(below < _USUAL, axis=1), size.shape[1] - 1)
        level = np.take_along_axis(size, order, axis=1)[np.arange(len(ranks)), ranks][:, None]
        clipped = Rough(loss=np.clip(self.loss, -level, level), log_mass=self.log_mass, counts=self.counts)
        return math.sqrt(clipped.tilted_moments(0.0)[1])

    def bottom(self, theta: float) -> float:
        """A loss to which all below it may be lifted: even there it has no tilted mass to speak of."""
        order = np.argsort(self.loss, axis=1)
        loss, log_mass = (np.take_along_axis(values, order, axis=1) for values in (self.loss, self.log_mass))
        below = np.cumsum(np.exp(log_mass), axis=1)
        terms = log_mass + theta * loss
        peaks = terms.max(axis=1, keepdims=True)
        total = np.exp(terms - peaks).sum(axis=1, keepdims=True)
        lifted = below * np.exp(np.minimum(theta * loss - peaks, 700.0)) / total
        first = np.argmax(lifted * self.counts[:, None] > _UNHEARD, axis=1)
        return float(loss[np.arange(len(first)), first].min())

    def tilted_moments(self, theta: float) -> tuple[float, float]:
        """Mean and variance of the tilted sum."""
        weight = self._weights(theta)
        mean = (weight * self.loss).sum(axis=1)
        variance = (weight * np.square(self.loss - mean[:, None])).sum(axis=1)
        return float(self.counts @ mean), float(self.counts @ variance)

    def added_variance(self, theta: float, spacing: float) -> float:
        """Variance that both lattices together add to the tilted sum."""
        size = np.abs(self.loss)
        per_release = np.minimum(spacing**2 / 6.0, size * spacing) + np.minimum(spacing**2 / 12.0, size**2)
        return float(self.counts @ (self._weights(theta) * per_release).sum(axis=1))

    def _weights(self, theta: float) -> FloatArray:
        terms = self.log_mass + theta * self.loss
        weight = np.exp(terms - terms.max(axis=1, keepdims=True))
        return np.asarray(weight / weight.sum(axis=1, keepdims=True), dtype=np.float64)


def rough(pairs: Sequence[tuple[Pair, int]], t: float) -> Rough:
    """Coarse distributions of all parts over ``t`` standard deviations."""
    nodes = [pair.nodes(t) for pair, _ in pairs]
    width = max(len(loss) for loss, _ in nodes)
    loss = np.zeros((len(nodes), width))
    log_mass = np.full((len(nodes), width), -1e6)
    for row, (values, logs) in enumerate(nodes):
        loss[row, : len(values)], log_mass[row, : len(values)] = values, logs
    return Rough(loss=loss, log_mass=log_mass, counts=np.array([count for _, count in pairs], dtype=np.float64))


@dataclass(frozen=True, kw_only=True)
class Aim:
    """Epsilon to compute at, with the tilt and the largest single loss for it, and the losses so clipped."""

    epsilon: float
    theta: float
    cap: float
    moments: Rough


def aim_at_delta(moments: Rough, delta: float) -> Aim:
    """The aim at the least epsilon that Chernoff's bound proves at ``delta``; a lower one allows a lower cap."""
    theta, epsilon = tilt_for_delta(moments, delta)
    aim = Aim(epsilon=epsilon, theta=theta, cap=math.inf, moments=moments)
    largest = float(moments.loss.max())
    for _ in range(_CAPPINGS):
        cap = moments.cap(aim.epsilon)
        if cap >= min(aim.cap, largest):
            break
        clipped = moments.clipped(cap)
        theta, epsilon = tilt_for_delta(clipped, delta)
        close = epsilon > 0.95 * aim.epsilon
        aim = Aim(epsilon=epsilon, theta=theta, cap=cap, moments=clipped)
        if close:
            break
    return aim


def aim_at_epsilon(moments: Rough, epsilon: float) -> Aim:
    """The aim at this epsilon."""
    cap = moments.cap(epsilon)
    clipped = moments.clipped(cap)
    theta, _ = tilt_for_epsilon(clipped, epsilon)
    return Aim(epsilon=epsilon, theta=theta, cap=cap, moments=clipped)


def tilt_for_delta(moments: Rough, delta: float) -> tuple[float, float]:
    """The Chernoff-optimal tilt at ``delta`` and the epsilon it proves."""
    log_inverse = -math.log(delta)
    theta = _minimise(lambda tilt: (moments.log_mgf(tilt) + log_inverse) / tilt)
    return theta, (moments.log_mgf(theta) + log_inverse) / theta


def tilt_for_epsilon(moments: Rough, epsilon: float) -> tuple[float, float]:
    """The Chernoff-optimal tilt at ``epsilon`` and the log delta it proves."""
    theta = _minimise(lambda tilt: moments.log_mgf(tilt) - tilt * epsilon)
    return theta, moments.log_mgf(theta) - theta * epsilon


def _minimise(objective: Callable[[float], float]) -> float:
    """Golden section in log tilt around the best power of four from 4^-8 to 4^10, or to 4^18 where losses are tiny."""
    grid = 4.0 ** np.arange(-8.0, 19.0)
    values: list[float] = []
    for tilt in grid:
        if len(values) > _USUAL_TILTS and values[-1] > values[-2]:
            break
        values.append(objective(float(tilt)))
    grid = grid[: len(values)]
    best = int(np.argmin(values))
    low, high = math.log(grid[max(best - 1, 0)]), math.log(grid[min(best + 1, len(grid) - 1)])
    golden = 0.5 * (math.sqrt(5.0) - 1.0)
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = objective(math.exp(left)), objective(math.exp(right))
    for _ in range(12):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = objective(math.exp(left))
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = objective(math.exp(right))
    return math.exp(0.5 * (low + high))


def spacing_for(moments: Rough, theta: float, tolerance: float) -> float:
    """The lattice spacing whose added variance moves epsilon by about ``tolerance``."""
    low, high = 1e-9, 1.0
    for _ in range(16):  # the nine decades to 1e-4 relative
        middle = math.sqrt(low * high)
        moved = 0.5 * (theta + 1.0) * moments.added_variance(theta, middle)
        low, high = (middle, high) if moved < tolerance else (low, middle)
    return low


def outside_log(theta: float) -> float:
    """Minus the log of the tilted mass that may lie outside of a window."""
    return _OUTSIDE_LOG + max(0.0, math.log(theta / _USUAL_TILT))


def window_for(moments: Rough, theta: float, spacing: float) -> Window:
    """A window outside which the tilted sum has a mass of about ``exp(-outside_log(theta))``."""
    _, variance = moments.tilted_moments(theta)
    outside = outside_log(theta)
    natural = math.sqrt(2.0 * outside / max(variance, spacing**2))
    base = moments.log_mgf(theta)
    ups = [(moments.log_mgf(theta + t) - base + outside) / t for t in natural * _SHARES]
    downs = [(moments.log_mgf(theta - t) - base + outside) / -t for t in natural * _SHARES]
    up, down = int(np.argmin(ups)), int(np.argmax(downs))
    start = math.floor(downs[down] / spacing) - 4
    size = math.ceil(ups[up] / spacing) + 4 - start
    return Window(
        start=start,
        size=fft.next_fast_len(max(size + size % 2, 16), real=True),
        up=float(natural * _SHARES[up]),
        down=-float(natural * _SHARES[down]),
    )
