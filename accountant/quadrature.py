"""Rényi divergences of one release at a whole vector of real orders, by stable quadrature.

``accountant.divergence`` sums them. Smooth integrands over the line are summed by the trapezoid rule,
whose error falls as exp(-2 pi d / step) with d the distance of the nearest complex
singularity (1 + u = 0, at pi z standard deviations); half-line integrands by composite
Gauss-Legendre panels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from accountant.allocation import allocation_divergence
from accountant.divergence import FloatArray, Grid, divergence, from_log_excess, log_mixture, log_phi, log_sum, shift
from accountant.errors import EventError
from accountant.events import (
    Adjacency,
    Basic,
    BestOfRandomRuns,
    Composed,
    FixedSizeSampledGaussian,
    Gaussian,
    Laplace,
    MixtureOfGaussians,
    NonPrivate,
    PoissonSampledGaussian,
    PoissonSampledLaplace,
    RandomAllocationGaussian,
    TruncatedPoissonSampledGaussian,
    ZeroConcentrated,
)
from accountant.laplace_curve import laplace_divergence, sampled_laplace_divergence
from accountant.mixture import mixture_divergence
from accountant.selection import TruncatedNegativeBinomial
from accountant.truncation import shares

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
_MARGIN = 10.0  # standard deviations beyond the outermost peaks: exp(-50) of their mass
_MAX_POINTS = 50_000  # beyond it an order is answered without sampling, which only costs more


def renyi_divergence(  # noqa: C901, PLR0911 - one return per kind of event
    event: Basic, orders: FloatArray, adjacency: Adjacency
) -> FloatArray:
    """Rényi divergence of one release, the larger of both directions.

    Args:
        event: A basic event, sound under ``adjacency``.
        orders: Real orders above 1, shape ``(n,)``.
        adjacency: The ledger's adjacency.

    Returns:
        Divergences, shape ``(n,)``; infinite for a non-private event.
    """
    orders = np.asarray(orders, dtype=np.float64)
    match event:
        case Gaussian(noise_multiplier=z) | PoissonSampledGaussian(sample_rate=1.0, noise_multiplier=z):
            return orders / (2.0 * z * z)
        case PoissonSampledGaussian(sample_rate=q, noise_multiplier=z):
            grid_of = _opposed_grid if adjacency == Adjacency.REPLACE_ONE else _poisson_grid
            return _capped(lambda few: divergence(grid_of(q, z, _top(few)), few), orders, z, _step(z))
        case FixedSizeSampledGaussian(noise_multiplier=z) if event.sample_size == event.n_clients:
            return orders / (2.0 * z * z)
        case FixedSizeSampledGaussian(noise_multiplier=z):
            rate = event.sample_rate
            return _capped(lambda few: _fixed_size_divergence(rate, z, few), orders, z, min(1.0, z) / 24.0)
        case TruncatedPoissonSampledGaussian():
            return _truncated_divergence(event, orders, adjacency)
        case RandomAllocationGaussian(n_rounds=rounds, participations=times, noise_multiplier=z):
            return allocation_divergence(rounds, times, z, orders)
        case MixtureOfGaussians(noise_multiplier=z):
            return _mixture_divergence(event, z / event.sensitivities[-1], orders)
        case ZeroConcentrated(rho=rho, xi=xi):
            return xi + rho * orders
        case Laplace(scale_multiplier=b):
            return laplace_divergence(b, orders)
        case PoissonSampledLaplace(sample_rate=q, scale_multiplier=b):
            return sampled_laplace_divergence(q, b, orders, opposed=adjacency == Adjacency.REPLACE_ONE)
        case BestOfRandomRuns(eta=eta, gamma=gamma):
            runs = TruncatedNegativeBinomial(eta=eta, gamma=gamma)
            return runs.curve(lambda at: _one_run(event.run, tuple(at.tolist()), adjacency), orders)
        case NonPrivate():
            return np.full_like(orders, math.inf)
    raise EventError(f"unknown event {event!r} of type {type(event).__name__}: no Rényi curve is known")


@lru_cache(maxsize=256)
def _one_run(run: Composed, orders: tuple[float, ...], adjacency: Adjacency) -> FloatArray:
    """Divergence of one run of a selection; its second orders are asked for again and again."""
    at = np.array(orders)
    rows = [count * renyi_divergence(part, at, adjacency) for part, count in run.parts]
    return np.asarray(np.sum(rows, axis=0))


def _capped(sampled: Callable[[FloatArray], FloatArray], orders: FloatArray, z: float, step: float) -> FloatArray:
    """``sampled`` at orders its grid can hold; the unsampled Gaussian's a / (2 z^2) at larger ones.

    Sampling never costs more than taking everybody: Rényi divergence is jointly quasi-convex.
    """
    out = orders / (2.0 * z * z)
    few = orders <= 0.5 * z * step * _MAX_POINTS
    if np.any(few):
        out[few] = sampled(orders[few])
    return out


def clear_caches() -> None:
    """Forget all cached grids; for measurements."""
    for cached in (_poisson_grid, _opposed_grid, _half_line):
        cached.cache_clear()


def _top(orders: FloatArray) -> float:
    """The largest order, rounded up so that grids are shared between nearby calls."""
    return float(2.0 ** math.ceil(math.log2(float(orders.max()))))


def _step(z: float) -> float:
    """Trapezoid step in standard deviations: relative error below 1e-15 for singularities at pi z."""
    return min(0.45, 0.48 * z)


def _line(z: float, top: float) -> FloatArray:
    """Trapezoid points, in standard deviations, that cover every peak up to order ``top``."""
    step = _step(z)
    count = int((top / z + 2.0 * _MARGIN) / step) + 1
    return np.asarray(-_MARGIN + step * np.arange(count), dtype=np.float64)


@lru_cache(maxsize=512)
def _poisson_grid(q: float, z: float, top: float) -> Grid:
    """Q = N(0, z^2), r = 1 - q + q exp(s), s = (2x - 1) / (2 z^2).

    The other direction is never larger (Mironov, Talwar, Zhang 2019, Theorem 5).
    """
    t = _line(z, top)
    s = t / z - 0.5 / (z * z)
    log_weight = math.log(_step(z)) - _LOG_SQRT_2PI - 0.5 * t * t
    return Grid(log_weight=log_weight, excess=shift(q, s), log_ratio=log_mixture(q, s))


@lru_cache(maxsize=512)
def _opposed_grid(q: float, z: float, top: float) -> Grid:
    """Q = (1-q) N(0) + q N(-1/2), P = (1-q) N(0) + q N(1/2): replace-one; the pair is symmetric."""
    t = _line(z, top)
    s_up, s_down = 0.5 * t / z - 0.125 / (z * z), -0.5 * t / z - 0.125 / (z * z)
    log_q = log_mixture(q, s_down)
    log_ratio = log_mixture(q, s_up) - log_q
    near = np.abs(t / z) < 1.0
    # r - 1 = q (e^s_up - e^s_down) / mixture; the hyperbolic sine keeps the digits near t = 0
    excess = np.expm1(np.minimum(log_ratio, 300.0))
    small = 2.0 * q * np.exp(-0.125 / (z * z)) * np.sinh(0.5 * np.where(near, t, 0.0) / z) * np.exp(-log_q)
    excess = np.where(near, small, excess)
    log_weight = math.log(_step(z)) - _LOG_SQRT_2PI - 0.5 * t * t + log_q
    return Grid(
        log_weight=log_weight, excess=excess, log_ratio=np.where(near, np.log1p(np.where(near, excess, 0.0)), log_ratio)
    )


@lru_cache(maxsize=64)
def _half_line(z: float, top: float) -> tuple[FloatArray, FloatArray]:
    """Gauss-Legendre points and log weights on t >= 1/(2z), up to every peak at order ``top``."""
    width = min(1.0, z)
    panels = math.ceil((top / z + 1.0 / z + _MARGIN) / width)
    nodes, weights = np.polynomial.legendre.leggauss(24)
    starts = 0.5 / z + width * np.arange(panels)
    t = (starts[:, None] + 0.5 * width * (nodes[None, :] + 1.0)).ravel()
    return t, np.tile(np.log(0.5 * width * weights), panels)


def _fixed_size_divergence(q: float, z: float, orders: FloatArray) -> FloatArray:
    """Rényi divergence of a Gaussian sum over a fixed number of clients drawn without replacement.

    Let M draw m of n clients uniformly and answer with a Gaussian sum; D and D'
    differ in one client, q = m/n. Conditioned on that client being drawn, both runs differ by
    at most the replace-one sensitivity s (= 1 here); conditioned on it not being drawn they are
    equal, and every sample without the client is one exchange away from a sample with it.
    Write M(D) = (1-q) w_0 + q w_1 and M(D') = (1-q) w_0 + q w_1'. Advanced joint convexity
    (Balle, Barthe, Gaboardi 2018, Theorem 2) with gamma = 1 + q (g - 1), g >= 1, gives

        H_gamma(M(D) || M(D')) = q H_g(w_1 || (1-b) w_0 + b w_1'),  b = gamma / g,

    and w_1 against w_0 and against w_1' are mixtures of pairs at distance at most s (couple the
    samples by exchanging one client), so by joint convexity, their Theorem 10,

        H_{1+q(g-1)}(M(D) || M(D')) <= q H_g(N(1, z^2) || N(0, z^2)).                       (1)

    The same holds with D and D' exchanged, and H_{1/gamma}(P || Q) = 1 - 1/gamma +
    H_gamma(Q || P)/gamma carries it to gamma < 1. With r(x) = 1 - q + q dN(1)/dN(0), the right-hand
    side of (1) is E_{N(0)}[(r - gamma)_+]. A pair with exactly this profile is therefore: on
    {r > 1} the density N(0) under Q and r N(0) under P; a mirror image of it with P and Q
    exchanged; and the rest of the mass, (1-q) (1 - 2 P(N(0, z^2) > 1/2)) >= 0, equal under both
    (loss 0). Having the larger profile it dominates M, and dominating pairs compose. From it

        A(a) = E_Q[(dP/dQ)^a] = 1 + E_{N(0)}[phi(r) 1{r>1}] + E_{(1-q) N(0) + q N(1)}[phi(1/r) 1{r>1}],
        phi(t) = t^a - 1 - a (t - 1).

    ``accountant.tight.pairs`` puts the same pair on a lattice.
    """
    t, log_dt = _half_line(z, _top(orders))
    s = t / z - 0.5 / (z * z)
    log_ratio, excess = log_mixture(q, s), shift(q, s)
    log_base = log_dt - _LOG_SQRT_2PI - 0.5 * t * t
    above = Grid(log_weight=log_base, excess=excess, log_ratio=log_ratio)
    inverse = -excess / (1.0 + excess)
    below = Grid(log_weight=log_base + log_ratio, excess=inverse, log_ratio=-log_ratio)
    terms = [log_sum(log_phi(grid, orders) + grid.log_weight) for grid in (above, below)]
    return from_log_excess(np.logaddexp(*terms), orders)


def _mixture_divergence(event: MixtureOfGaussians, z: float, orders: FloatArray) -> FloatArray:
    """Of a mixture with 1 / ``z`` the largest length in standard deviations; were all as long, it only cost more."""
    return _capped(lambda few: mixture_divergence(event, few, _line(z, _top(few)), _step(z)), orders, z, _step(z))


def _truncated_divergence(
    event: TruncatedPoissonSampledGaussian, orders: FloatArray, adjacency: Adjacency
) -> FloatArray:
    """Of the release that tells whether its sample is cut: A - 1 is the weighted sum of its parts'."""
    found, z = shares(event), event.noise_multiplier
    full = z if adjacency == Adjacency.REPLACE_ONE else 0.5 * z

    def fixed_size(rate: float) -> FloatArray:
        if rate == 1.0:
            return orders / (2.0 * full * full)
        return _capped(lambda few: _fixed_size_divergence(rate, full, few), orders, full, min(1.0, full) / 24.0)

    poisson = PoissonSampledGaussian(sample_rate=event.sample_rate, noise_multiplier=z)
    parts = [(found.uncut, renyi_divergence(poisson, orders, adjacency))]
    parts += [(found.unsure, fixed_size(event.sample_rate)), (found.cut, fixed_size(found.cut_rate))]
    logs = [
        math.log(weight) + (growth := (orders - 1.0) * divergences) + np.log(-np.expm1(-growth))
        for weight, divergences in parts
        if weight
    ]
    return from_log_excess(np.logaddexp.reduce(logs, axis=0), orders)
