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

from accountant import quadrature
from accountant.checks import trivial_delta, trivial_epsilon
from accountant.events import Adjacency, Basic, Event, parts

FloatArray = npt.NDArray[np.float64]

_MIN_EXCESS: Final = 2.0**-8  # order - 1
_MAX_EXCESS: Final = 2.0**16
_CHUNK: Final = 6
_REFINEMENTS: Final = 5
_POINTS: Final = 9


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
    value = quadrature.renyi_divergence(event, np.array(orders), adjacency)
    value.flags.writeable = False
    return value


def clear_caches() -> None:
    """Forget all cached curves and grids; for measurements."""
    _cached.cache_clear()
    quadrature.clear_caches()


def epsilon_at_orders(divergences: FloatArray, orders: FloatArray, delta: float) -> FloatArray:
    """Epsilon that each order alone guarantees at ``delta``; never negative.

    Canonne, Kamath, Steinke 2020, Proposition 12 (also Balle et al. 2020, Theorem 21).
    """
    return np.asarray(np.maximum(0.0, divergences + epsilon_offsets(orders, delta)), dtype=np.float64)


def epsilon_offsets(orders: FloatArray, delta: float) -> FloatArray:
    """Term that the conversion adds to the divergence at each order; may be negative at small orders."""
    a = np.asarray(orders, dtype=np.float64)
    return np.asarray(np.log1p(-1.0 / a) - (math.log(delta) + np.log(a)) / (a - 1.0), dtype=np.float64)


def log_delta_at_orders(divergences: FloatArray, orders: FloatArray, epsilon: float) -> FloatArray:
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
    trivial = trivial_epsilon(event, delta, adjacency)
    if trivial is not None:
        return trivial
    if delta >= _total_variation(event, adjacency):
        return 0.0
    return _best(lambda orders: epsilon_at_orders(curve(event, orders, adjacency=adjacency), orders, delta))


def delta(event: Event, epsilon: float, *, adjacency: Adjacency) -> float:
    """Delta at ``epsilon``, minimised over real orders; the inverse of ``epsilon``."""
    trivial = trivial_delta(event, epsilon, adjacency)
    if trivial is not None:
        return trivial
    least = _best(lambda orders: log_delta_at_orders(curve(event, orders, adjacency=adjacency), orders, epsilon))
    return min(math.exp(least), _total_variation(event, adjacency))


def _total_variation(event: Event, adjacency: Adjacency) -> float:
    """Bretagnolle-Huber: the total variation is at most sqrt(1 - exp(-D)), best at the lowest order."""
    lowest = float(curve(event, [1.0 + _MIN_EXCESS], adjacency=adjacency)[0])
    return math.sqrt(-math.expm1(-lowest))


def _best(bound: Callable[[FloatArray], FloatArray]) -> float:
    """The minimum of a bound over orders: powers of two of order - 1 first, then ever finer brackets."""
    excesses, values = _walk(bound)
    for _ in range(_REFINEMENTS):
        best = int(np.argmin(values))
        low, high = excesses[max(best - 1, 0)], excesses[min(best + 1, len(excesses) - 1)]
        finer = np.asarray(np.geomspace(low, high, _POINTS), dtype=np.float64)
        found = bound(np.asarray(1.0 + finer, dtype=np.float64))
        if found.min() > values[best]:  # keep the incumbent: rounding only
            finer, found = np.append(finer, excesses[best]), np.append(found, values[best])
            order = np.argsort(finer)
            finer, found = finer[order], found[order]
        excesses, values = finer, found
    return float(np.min(values))


def _walk(bound: Callable[[FloatArray], FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Bound at order - 1 = 2^-8, 2^-7, ... until it has risen for a whole chunk."""
    excesses, values = np.empty(0, dtype=np.float64), np.empty(0, dtype=np.float64)
    start = _MIN_EXCESS
    while start <= _MAX_EXCESS:
        chunk = np.asarray(start * 2.0 ** np.arange(_CHUNK), dtype=np.float64)
        excesses, values = np.append(excesses, chunk), np.append(values, bound(1.0 + chunk))
        if int(np.argmin(values)) < len(values) - _CHUNK or not np.any(np.isfinite(values)):
            break
        start *= 2.0**_CHUNK
    return excesses, values
