"""The Rényi accountant: divergences at any real order add up, the order is optimised.

Valid for any event this package knows; the usual upper bound where no tight number is
available. The optimal order can be 1.01 or 10,000, so no fixed grid of orders is used:
every order gives a valid bound and the best one is searched.

Example:
    >>> from accountant import PoissonSampledGaussian, renyi, repeat
    >>> rounds = repeat(PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=2.0), 40)
    >>> round(renyi.epsilon(rounds, 1e-5, adjacency=Adjacency.ZERO_OUT), 2)
    4.36
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from accountant.events import Adjacency, Basic, Event, parts, trivial_delta, trivial_epsilon
from accountant.mechanisms.pair import FloatArray

_MIN_EXCESS: Final = 2.0**-8  # order - 1
_MAX_EXCESS: Final = 2.0**20
_CHUNK: Final = 2
_RISEN: Final = 6
_WIDTHS: Final = (0.2, 0.02, 0.001)  # octaves of order - 1
_REFINEMENTS: Final = 5
_POINTS: Final = 9
_GRID: Final[FloatArray] = 1.0 + 2.0 ** np.arange(-8.0, 14.0, 0.125)


def curve(event: Event, orders: npt.ArrayLike, *, adjacency: Adjacency) -> FloatArray:
    """Rényi divergence of the whole composition at real ``orders`` > 1, shape ``(n,)``."""
    wanted = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    key = tuple(float(order) for order in wanted)
    total = np.zeros_like(wanted)
    for part, count in parts(event):
        total = total + count * _cached(part, key, adjacency)
    return total


@lru_cache(maxsize=16384)
def _cached(event: Basic, orders: tuple[float, ...], adjacency: Adjacency) -> FloatArray:
    value = np.maximum(0.0, event.renyi_curve(np.array(orders), adjacency))  # rounding may leave less
    value.flags.writeable = False
    return value


def epsilon_at_orders(divergences: FloatArray, orders: FloatArray, delta: float) -> FloatArray:
    """Epsilon that each order alone guarantees at ``delta``; never negative.

    Canonne, Kamath, Steinke 2020, Proposition 12 (also Balle et al. 2020, Theorem 21).
    """
    return np.asarray(np.maximum(0.0, divergences + epsilon_offsets(orders, delta)), dtype=np.float64)


def epsilon_offsets(orders: FloatArray, delta: float) -> FloatArray:
    """Term that the conversion adds to the divergence at each order; may be negative at small orders."""
    a = np.asarray(orders, dtype=np.float64)
    return np.asarray(np.log1p(-1.0 / a) - (math.log(delta) + np.log(a)) / (a - 1.0), dtype=np.float64)


def log_delta_at_orders(divergences: FloatArray, orders: FloatArray, epsilon: float | FloatArray) -> FloatArray:
    """Log of the delta that each order alone guarantees at ``epsilon``; at most 0."""
    a = np.asarray(orders, dtype=np.float64)
    value = (a - 1.0) * (divergences - epsilon)
    value = value - np.log(a - 1.0) + a * np.log1p(-1.0 / a)
    return np.asarray(np.minimum(0.0, value), dtype=np.float64)


def epsilon(event: Event, delta: float, *, adjacency: Adjacency) -> float:
    """Epsilon at ``delta``, minimised over real orders; 0 for nothing, infinite for non-private.

    Raises:
        AccountingError: ``delta`` is not in (0, 1).
        EventError: ``event`` is unknown or unsound under ``adjacency``.
    """
    if (trivial := trivial_epsilon(event, delta, adjacency)) is not None:
        return trivial
    if delta >= _total_variation(event, adjacency):
        return 0.0
    return _best(lambda orders: epsilon_at_orders(curve(event, orders, adjacency=adjacency), orders, delta))


def delta(event: Event, epsilon: float, *, adjacency: Adjacency) -> float:
    """Delta at ``epsilon``, minimised over real orders; the inverse of ``epsilon``."""
    if (trivial := trivial_delta(event, epsilon, adjacency)) is not None:
        return trivial
    least = _best(lambda orders: log_delta_at_orders(curve(event, orders, adjacency=adjacency), orders, epsilon))
    return min(math.exp(least), _total_variation(event, adjacency))


def deltas(event: Event, epsilons: FloatArray, *, adjacency: Adjacency) -> FloatArray:
    """Deltas at many epsilons, each the least over a grid of orders; a little above ``delta``."""
    divergences = curve(event, _GRID, adjacency=adjacency)
    logs = log_delta_at_orders(divergences[:, None], _GRID[:, None], epsilons)
    return np.asarray(np.minimum(np.exp(np.min(logs, axis=0)), _total_variation(event, adjacency)))


def _total_variation(event: Event, adjacency: Adjacency) -> float:
    """Bretagnolle-Huber: the total variation is at most sqrt(1 - exp(-D)), best at the lowest order."""
    lowest = float(curve(event, [1.0 + _MIN_EXCESS], adjacency=adjacency)[0])
    return math.sqrt(-math.expm1(-lowest))


def _best(bound: Callable[[FloatArray], FloatArray]) -> float:
    """The minimum of a bound over orders: powers of two of order - 1 first, then where parabolas have their least.

    Where those do not enclose it, at a kink, ever finer brackets are searched.
    """
    excesses, values = _walk(bound)
    if not np.any(np.isfinite(values)):
        return math.inf
    for width in _WIDTHS:
        middle = _vertex(np.log2(excesses), values)
        excesses, values = _with(bound, 2.0 ** (middle + width * np.array([-1.0, 0.0, 1.0])), excesses, values)
    low, high = _bracket(excesses, values)
    if high > 2.0 ** (3.0 * _WIDTHS[-1]) * low:
        for _ in range(_REFINEMENTS):
            excesses, values = _with(bound, np.geomspace(*_bracket(excesses, values), _POINTS), excesses, values)
    return float(np.min(values))


def _bracket(excesses: FloatArray, values: FloatArray) -> tuple[float, float]:
    """The neighbours of the least value."""
    best = int(np.argmin(values))
    return float(excesses[max(best - 1, 0)]), float(excesses[min(best + 1, len(excesses) - 1)])


def _vertex(logs: FloatArray, values: FloatArray) -> float:
    """Where the parabola through the least value and its neighbours is least; the middle where it has no least."""
    best = min(max(int(np.argmin(values)), 1), len(values) - 2)
    (low, here, high), (down, at, up) = logs[best - 1 : best + 2], values[best - 1 : best + 2]
    if not np.all(np.isfinite([down, at, up])) or (high - here) * (down - at) + (here - low) * (up - at) <= 0.0:
        return float(logs[int(np.argmin(values))])
    left, right = (at - down) / (here - low), (up - at) / (high - here)
    bend = (right - left) / (high - low)
    return float(min(max(0.5 * (low + here) - 0.5 * left / bend, low), high))


def _with(
    bound: Callable[[FloatArray], FloatArray], more: FloatArray, excesses: FloatArray, values: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Excesses in order, with more of them, and the bound at each."""
    more = np.asarray(np.setdiff1d(more, excesses), dtype=np.float64)
    if not len(more):
        return excesses, values
    together = np.append(excesses, more)
    order = np.argsort(together)
    return together[order], np.append(values, bound(1.0 + more))[order]


def _walk(bound: Callable[[FloatArray], FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Bound at order - 1 = 2^-8, 2^-7, ... until it has risen for six octaves; two at a time, large ones are slow."""
    excesses, values = np.empty(0, dtype=np.float64), np.empty(0, dtype=np.float64)
    start = _MIN_EXCESS
    while start <= _MAX_EXCESS:
        chunk = np.asarray(start * 2.0 ** np.arange(_CHUNK), dtype=np.float64)
        excesses, values = np.append(excesses, chunk), np.append(values, bound(1.0 + chunk))
        if int(np.argmin(values)) < len(values) - _RISEN or not np.any(np.isfinite(values)):
            break
        start *= 2.0**_CHUNK
    return excesses, values
