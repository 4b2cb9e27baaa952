"""Rényi divergences from quadrature points, without losing digits however close to 0 they are.

With r = dP/dQ and u = r - 1, E_Q[u] = 0, so

    A(a) - 1 = E_Q[r^a] - 1 = E_Q[phi_a(u)],   phi_a(u) = (1 + u)^a - 1 - a u >= 0 for a > 1,

and the Rényi divergence is log(A) / (a - 1). Summing the non-negative phi keeps full
relative precision however close A is to 1; everything is summed in logarithms, so
nothing overflows.

Smooth integrands over the line are summed by the trapezoid rule, whose error falls as exp(-2 pi d / step) with d the
distance of the nearest complex singularity (1 + u = 0, at pi z standard deviations); half-line integrands by composite
Gauss-Legendre panels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from accountant.mechanisms.pair import FloatArray

IntArray = npt.NDArray[np.int64]

_SERIES_BOUND = 0.2  # |a u| below it: binomial series, 24 terms leave less than 1e-17 of the sum
_SERIES_PLACES = np.arange(24.0, 2.0, -1.0)
LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
MARGIN = 10.0  # standard deviations beyond the outermost peaks: exp(-50) of their mass
_LEAST_LOG = -1e4  # a sum whose terms all underflowed is taken to be this large
_MAX_POINTS = 50_000  # beyond it an order is answered without sampling, which only costs more


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Quadrature points: log of the weights (density of Q included), u and log(1 + u)."""

    log_weight: FloatArray
    excess: FloatArray
    log_ratio: FloatArray

    def exchanged(self) -> Grid:
        """The points of Q against P."""
        ratio = np.where(self.excess < -0.5, np.exp(np.clip(self.log_ratio, -300.0, 0.0)), 1.0 + self.excess)
        inverse = -self.excess / ratio
        return Grid(log_weight=self.log_weight + self.log_ratio, excess=inverse, log_ratio=-self.log_ratio)


def shift(q: float, s: FloatArray) -> FloatArray:
    """Q (exp(s) - 1), capped where it would overflow (only log(1 + u) is used there)."""
    return np.asarray(q * np.expm1(np.minimum(s, 300.0)), dtype=np.float64)


def log_mixture(q: float, s: FloatArray) -> FloatArray:
    """log(1 - q + q exp(s)) without overflow and without loss for small q."""
    direct = np.log1p(shift(q, np.minimum(s, 30.0)))
    far = s + math.log(q) + np.log1p((1.0 - q) / q * np.exp(-np.maximum(s, 30.0)))
    return np.where(s > 30.0, far, direct)


def divergence(grid: Grid, orders: FloatArray) -> FloatArray:
    """log(1 + E[phi_a]) / (a - 1) for every order."""
    log_terms = log_phi(grid, orders) + grid.log_weight
    return from_log_excess(log_sum(log_terms), orders)


def from_log_excess(log_excess: FloatArray, orders: FloatArray) -> FloatArray:
    """log(A) / (a - 1) from log(A - 1)."""
    large = np.logaddexp(0.0, log_excess)
    log_moment = np.where(log_excess < 0.0, np.log1p(np.exp(np.minimum(log_excess, 0.0))), large)
    return np.asarray(log_moment / (orders - 1.0), dtype=np.float64)


def log_sum(log_terms: FloatArray) -> FloatArray:
    """Log of the sum over the last axis of exp(log_terms)."""
    peak = np.maximum(np.max(log_terms, axis=-1, keepdims=True), _LEAST_LOG)
    total = np.log(np.maximum(np.sum(np.exp(log_terms - peak), axis=-1), 1.0))  # the largest term's, or more
    return np.asarray(total + peak[..., 0], dtype=np.float64)


def log_phi(grid: Grid, orders: FloatArray) -> FloatArray:
    """log((1 + u)^a - 1 - a u), shape (orders, points); -inf where u = 0."""
    a = orders[:, None]
    b = a - 1.0
    u, lr = grid.excess[None, :], grid.log_ratio[None, :]
    growth = b * lr
    small = np.maximum(a, 1.0) * np.abs(u) < _SERIES_BOUND
    if small.all():
        return _log_phi_series(orders, u)
    large = ~small & ((growth > 1.0) | (lr > 200.0))
    middle = ~small & ~large
    out = np.empty(np.broadcast_shapes(a.shape, u.shape))
    rows, columns = np.nonzero(small)
    out[small] = _log_phi_series(orders, grid.excess[columns], rows)
    rows, columns = np.nonzero(large)
    aa, ll = orders[rows], grid.log_ratio[columns]
    out[large] = aa * ll + np.log1p(-(aa * np.exp(-(aa - 1.0) * ll) - (aa - 1.0) * np.exp(-aa * ll)))
    rows, columns = np.nonzero(middle)
    bb, uu, ll = orders[rows] - 1.0, grid.excess[columns], grid.log_ratio[columns]
    out[middle] = np.log((1.0 + uu) * np.expm1(bb * ll) - bb * uu)
    return out


def _log_phi_series(orders: FloatArray, u: FloatArray, rows: IntArray | None = None) -> FloatArray:
    """The binomial series of phi from its second term on: a (a-1)/2 u^2 (1 + (a-2)/3 u (1 + ...)).

    At all orders, ``(1, n)`` values of u each; with ``rows`` at a value of u for each of these orders.
    """
    a = orders[:, None] if rows is None else orders[rows]
    inner = np.ones(np.broadcast_shapes(a.shape, u.shape))
    term = np.empty_like(inner)
    places = _SERIES_PLACES[:, None]
    for of_order in (orders - places + 1.0) / places:  # inner becomes 1 + (a - k + 1) / k u inner
        factor = of_order[:, None] if rows is None else of_order[rows]
        inner *= np.multiply(factor, u, out=term)
        inner += 1.0
    with np.errstate(divide="ignore"):
        value = np.log(0.5 * a * (a - 1.0)) + 2.0 * np.log(np.abs(u)) + np.log(inner)
    return np.asarray(value, dtype=np.float64)


def capped(sampled: Callable[[FloatArray], FloatArray], orders: FloatArray, z: float, step: float) -> FloatArray:
    """``sampled`` at orders its grid can hold; the unsampled Gaussian's a / (2 z^2) at larger ones.

    Sampling never costs more than taking all: Rényi divergence is jointly quasi-convex.
    """
    out = orders / (2.0 * z * z)
    few = orders <= 0.5 * z * step * _MAX_POINTS
    if np.any(few):
        out[few] = sampled(orders[few])
    return out


def top_of(orders: FloatArray) -> float:
    """The largest order, rounded up so that grids are shared between nearby calls."""
    return float(2.0 ** math.ceil(math.log2(float(orders.max()))))


def step_of(z: float) -> float:
    """Trapezoid step in standard deviations: relative error below 1e-15 for singularities at pi z."""
    return min(0.45, 0.48 * z)


def line(z: float, top: float, *, lowest: float = -MARGIN) -> FloatArray:
    """Trapezoid points from ``lowest``, in standard deviations, that cover every peak up to order ``top``."""
    step = step_of(z)
    count = int((top / z + MARGIN - lowest) / step) + 1
    return np.asarray(lowest + step * np.arange(count), dtype=np.float64)


def panels(start: float, width: float, count: int) -> tuple[FloatArray, FloatArray]:
    """Gauss-Legendre points of consecutive panels and their log weights."""
    nodes, weights = np.polynomial.legendre.leggauss(24)
    starts = start + width * np.arange(count)
    points = (starts[:, None] + 0.5 * width * (nodes[None, :] + 1.0)).ravel()
    return points, np.tile(np.log(0.5 * width * weights), count)
