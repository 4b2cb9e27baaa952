"""Rényi divergences of Laplace noise, all clients taking part or a secret Poisson sample of them.

The pairs are those of ``accountant.tight.laplace``: two atoms, and between them a smooth density that composite
Gauss-Legendre panels integrate.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from accountant.divergence import FloatArray, Grid, divergence, log_mixture

_NODES = 24  # points of a panel
_GROWTH = 8.0  # an integrand grows by at most exp(2 * _GROWTH) over a panel
_MAX_PANELS = 2000  # beyond it an order is answered by bounds that hold without a quadrature


def sampled_laplace_divergence(q: float, b: float, orders: FloatArray, *, opposed: bool) -> FloatArray:
    """The larger direction's divergence; at orders too large for the panels the smaller of two upper bounds.

    Sampling never costs more than taking everybody (Rényi divergence is jointly quasi-convex), and no divergence
    exceeds the largest loss.
    """
    everybody = laplace_divergence(b, orders)
    if q == 1.0:
        return everybody
    reach = 0.5 / b if opposed else 1.0 / b
    largest = float(log_mixture(q, np.array([reach]))[0])
    if opposed:
        largest -= float(log_mixture(q, np.array([-reach]))[0])
    out = np.minimum(everybody, largest)
    few = reach * np.maximum(1.0, orders / _GROWTH) <= _MAX_PANELS
    if np.any(few):
        top = float(2.0 ** math.ceil(math.log2(float(orders[few].max()))))
        grids = _opposed_grid(q, b, top) if opposed else _removed_grids(q, b, top)
        out[few] = np.minimum(out[few], np.max([divergence(grid, orders[few]) for grid in grids], axis=0))
    return np.asarray(out, dtype=np.float64)


def _panels(low: float, high: float, top: float) -> tuple[FloatArray, FloatArray]:
    """Gauss-Legendre points between two positions and their log weights."""
    count = math.ceil((high - low) * max(1.0, top / _GROWTH))
    width = (high - low) / count
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    starts = low + width * np.arange(count)
    points = (starts[:, None] + 0.5 * width * (nodes[None, :] + 1.0)).ravel()
    return points, np.tile(np.log(0.5 * width * weights), count)


@lru_cache(maxsize=64)
def _removed_grids(q: float, b: float, top: float) -> tuple[Grid, Grid]:
    """Both directions; positions y in units of b, Q = Laplace(0, 1), r = 1 - q + q exp(2y - s) for 0 < y < s = 1/b."""
    s = 1.0 / b
    y, log_width = _panels(0.0, s, top)
    log_weight = np.concatenate([[-math.log(2.0)], log_width - y - math.log(2.0), [-s - math.log(2.0)]])
    exponent = np.concatenate([[-s], 2.0 * y - s, [s]])
    log_ratio = log_mixture(q, exponent)
    excess = q * np.expm1(np.minimum(exponent, 300.0))
    back = Grid(log_weight=log_weight + log_ratio, excess=-excess / (1.0 + excess), log_ratio=-log_ratio)
    return Grid(log_weight=log_weight, excess=excess, log_ratio=log_ratio), back


@lru_cache(maxsize=64)
def _opposed_grid(q: float, b: float, top: float) -> tuple[Grid]:
    """Q = (1-q) Laplace(0, 1) + q Laplace(-h, 1), P the same with h = 1/(2b): a symmetric pair."""
    h = 0.5 / b
    right, log_width = _panels(0.0, h, top)
    y = np.concatenate([[-h], -right, right, [h]])
    log_width = np.concatenate([[0.0], log_width, log_width, [0.0]])
    size = np.abs(y)
    near, far = log_mixture(q, 2.0 * size - h), log_mixture(q, np.full_like(y, -h))
    log_ratio = np.sign(y) * (near - far)
    # between the atoms Laplace(0) has density exp(-|y|) / 2; beyond them lies exp(-h) / 2, the same value
    log_weight = log_width - size - math.log(2.0) + np.where(y < 0.0, near, far)
    # r - 1 without the cancellation near y = 0: q exp(-h) (exp(2|y|) - 1) over the smaller or the larger mixture
    rise = q * np.exp(-h) * np.expm1(np.minimum(2.0 * size, 300.0))
    excess = np.where(y < 0.0, -rise * np.exp(-near), rise * np.exp(-far))
    return (Grid(log_weight=log_weight, excess=excess, log_ratio=log_ratio),)


def laplace_divergence(b: float, orders: FloatArray) -> FloatArray:
    """Mironov 2017, Table II, in logarithms; relative to the pure-epsilon bound 1/b never larger."""
    a = orders
    first = np.log(a / (2.0 * a - 1.0)) + (a - 1.0) / b
    second = np.log((a - 1.0) / (2.0 * a - 1.0)) - a / b
    near = (a - 1.0) / b < 1.0
    value = np.where(near, _laplace_near(b, np.where(near, a, 1.0)), np.logaddexp(first, second)) / (a - 1.0)
    return np.asarray(np.minimum(value, 1.0 / b), dtype=np.float64)


def _laplace_near(b: float, a: FloatArray) -> FloatArray:
    """log1p of the same sum less 1, of two terms that are never negative; for (a - 1) / b up to 1."""
    x = 1.0 / b

    def tail(y: FloatArray) -> FloatArray:  # expm1(y) - y, by its series where that cancels
        series = 0.5 * y * y * (1.0 + y / 3.0 * (1.0 + y / 4.0 * (1.0 + y / 5.0)))
        return np.where(np.abs(y) < 1e-3, series, np.expm1(y) - y)

    c = 2.0 * a - 1.0
    return np.asarray(np.log1p((a * tail((a - 1.0) * x) + (a - 1.0) * tail(-a * x)) / c), dtype=np.float64)
