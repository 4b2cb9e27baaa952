"""Dominating pairs: for each event, the tails of its privacy loss under both hypotheses.

A release is described by two output distributions P and Q such that no two adjacent data
sets are told apart more easily; its privacy loss is L = log(dP/dQ). Dominating pairs
compose (Zhu, Dong, Wang 2022, Theorem 10), so a whole run is as private as the product of
its pairs. All numerical accounting needs of a pair is P(L > l) and Q(L > l) with high
relative accuracy in both tails, and the range of losses that matters.

Replace-one with Poisson sampling. With g_v the density of N(v, z^2 I) and |x|, |x'| <= 1/2, the
pair (1-q) g_0 + q g_x against (1-q) g_0 + q g_x' is dominated by the opposed one, x' = -x of
full length. For gamma >= 1 its divergence is max over sets A of a E_x[A] - b E_0[A] - c E_x'[A]
with a, b, c >= 0. The best A has outward normals n in the cone of -x and x' - x. Turn x' away
from x: its velocity v has v.x' = 0 and v.x <= 0, so n.v >= 0 and E_x'[A] falls, H grows. Once
opposed, A is a half-line and lengthening either vector only helps. gamma < 1 is the same
statement with P and Q exchanged.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

from accountant.divergence import log_mixture
from accountant.errors import EventError
from accountant.events import (
    Adjacency,
    Basic,
    FixedSizeSampledGaussian,
    Gaussian,
    Laplace,
    MixtureOfGaussians,
    PoissonSampledGaussian,
    PoissonSampledLaplace,
    RandomAllocationGaussian,
    TruncatedPoissonSampledGaussian,
)
from accountant.tight.allotted import allotted
from accountant.tight.displacing import displacing
from accountant.tight.laplace import added_laplace, laplace, opposed_laplace, removed_laplace
from accountant.tight.mixture import added_mixture, removed_mixture
from accountant.tight.pair import EPS, NODES, FloatArray, Pair, Tails, told
from accountant.truncation import shares


def pairs_of(  # noqa: C901, PLR0911 - one return per kind of event
    event: Basic, adjacency: Adjacency
) -> tuple[Pair, ...]:
    """Both directions of the dominating pair of ``event``; one where it is symmetric.

    Raises:
        EventError: No dominating pair is known for ``event``.
    """
    match event:
        case Gaussian(noise_multiplier=z):
            return (_gaussian(1.0 / z),)
        case PoissonSampledGaussian(sample_rate=q, noise_multiplier=z) if q < 1.0:
            if adjacency == Adjacency.REPLACE_ONE:
                return (_opposed(q, z),)
            return (_remove(q, z), _add(q, z))
        case FixedSizeSampledGaussian(noise_multiplier=z) if event.sample_rate < 1.0:
            return (_fixed_size(event.sample_rate, z),)
        case PoissonSampledGaussian(noise_multiplier=z) | FixedSizeSampledGaussian(noise_multiplier=z):
            return (_gaussian(1.0 / z),)
        case TruncatedPoissonSampledGaussian():
            return _truncated(event, adjacency)
        case RandomAllocationGaussian(n_rounds=rounds, participations=1, noise_multiplier=z) if rounds > 1:
            return allotted(rounds, z)
        case MixtureOfGaussians():
            return (removed_mixture(event), added_mixture(event))
        case Laplace(scale_multiplier=b):
            return (laplace(b),)
        case PoissonSampledLaplace(scale_multiplier=b, sample_rate=1.0):
            return (laplace(b),)
        case PoissonSampledLaplace(sample_rate=q, scale_multiplier=b):
            if adjacency == Adjacency.REPLACE_ONE:
                return (opposed_laplace(q, b),)
            return (removed_laplace(q, b), added_laplace(q, b))
    raise EventError(f"unknown event {event!r} of type {type(event).__name__}: no dominating pair is known")


def _normal_error(t: FloatArray) -> FloatArray:
    """Relative error of a normal tail at t: rounding of t^2/2 in the exponent, and ndtr's own."""
    return np.asarray(EPS * (8.0 + 2.0 * np.square(np.minimum(np.abs(t), 40.0))), dtype=np.float64)


def _mixture_loss(q: float, z: float, x: FloatArray) -> FloatArray:
    """log(1 - q + q exp(s)), s = (2x - 1) / (2 z^2)."""
    return log_mixture(q, (x - 0.5) / (z * z))


def _mixture_position(q: float, z: float, loss: FloatArray) -> FloatArray:
    """The x at which the mixture's loss is ``loss``; -inf at and below log(1 - q)."""
    inside = np.maximum(1.0 + np.expm1(loss) / q, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(z * z * np.log(inside) + 0.5, dtype=np.float64)


def _mixture_tails(q: float, z: float, x: FloatArray) -> Tails:
    """P = (1-q) N(0, z^2) + q N(1, z^2) and Q = N(0, z^2) beyond x."""
    zero, one = x / z, (x - 1.0) / z
    return Tails(
        p_above=(1.0 - q) * ndtr(-zero) + q * ndtr(-one),
        p_below=(1.0 - q) * ndtr(zero) + q * ndtr(one),
        q_above=ndtr(-zero),
        q_below=ndtr(zero),
        relative_error=_normal_error(np.abs(zero) + 1.0 / z),
    )


def _mixture_loss_error(q: float) -> float:
    """An edge at the low end, where exp(l) - 1 + q cancels, lies off by up to eps q / (1 - q)."""
    return 16.0 * EPS * (2.0 - math.log(q) + q / (1.0 - q))


def _line_nodes(low: float, high: float, z: float, center: float) -> tuple[FloatArray, FloatArray]:
    """Points between low and high with log weights of N(center, z^2)."""
    x = np.linspace(low, high, NODES)
    t = (x - center) / z
    return x, -0.5 * t * t + math.log((x[1] - x[0]) / z) - 0.5 * math.log(2.0 * math.pi)


def _remove(q: float, z: float) -> Pair:
    """P = (1-q) N(0, z^2) + q N(1, z^2) against Q = N(0, z^2)."""

    def loss_range(t: float) -> tuple[float, float]:
        low, high = _mixture_loss(q, z, np.array([-z * t, 1.0 + z * t]))
        return float(low), float(high)

    def nodes(t: float) -> tuple[FloatArray, FloatArray]:
        x, log_weight = _line_nodes(-z * t, 1.0 + z * t, z, 0.0)
        loss = _mixture_loss(q, z, x)
        return loss, log_weight + loss

    return Pair(
        tails=lambda edges: _mixture_tails(q, z, _mixture_position(q, z, edges)),
        loss_range=loss_range,
        loss_error=_mixture_loss_error(q),
        nodes=nodes,
    )


def _add(q: float, z: float) -> Pair:
    """P = N(0, z^2) against Q = (1-q) N(0, z^2) + q N(1, z^2): the loss falls with x."""

    def loss_range(t: float) -> tuple[float, float]:
        high, low = -_mixture_loss(q, z, np.array([-z * t, z * t]))
        return float(low), float(high)

    def nodes(t: float) -> tuple[FloatArray, FloatArray]:
        x, log_weight = _line_nodes(-z * t, z * t, z, 0.0)
        return -_mixture_loss(q, z, x), log_weight

    return Pair(
        tails=lambda edges: _mixture_tails(q, z, _mixture_position(q, z, -edges)).exchanged(),
        loss_range=loss_range,
        loss_error=_mixture_loss_error(q),
        nodes=nodes,
    )


def _opposed(q: float, z: float) -> Pair:
    """P = (1-q) N(0) + q N(1/2) against Q = (1-q) N(0) + q N(-1/2); symmetric."""
    log_scale = math.log(q) - 0.125 / (z * z)

    def loss_at(x: FloatArray) -> FloatArray:
        y = 0.5 * x / (z * z)
        keep = math.log1p(-q)
        return np.asarray(np.logaddexp(keep, log_scale + y) - np.logaddexp(keep, log_scale - y), dtype=np.float64)

    def tails(edges: FloatArray) -> Tails:
        # e^l = (1-q + B e^y) / (1-q + B e^-y) solved for y, B = q exp(-1/(8 z^2))
        inner = (1.0 - q) * np.sinh(0.5 * edges) * math.exp(-log_scale)
        x = 2.0 * z * z * (0.5 * edges + np.arcsinh(inner))
        zero, up, down = x / z, (x - 0.5) / z, (x + 0.5) / z
        return Tails(
            p_above=(1.0 - q) * ndtr(-zero) + q * ndtr(-up),
            p_below=(1.0 - q) * ndtr(zero) + q * ndtr(up),
            q_above=(1.0 - q) * ndtr(-zero) + q * ndtr(-down),
            q_below=(1.0 - q) * ndtr(zero) + q * ndtr(down),
            relative_error=_normal_error(np.abs(zero) + 0.5 / z),
        )

    def loss_range(t: float) -> tuple[float, float]:
        low, high = loss_at(np.array([-z * t, 0.5 + z * t]))
        return float(low), float(high)

    def nodes(t: float) -> tuple[FloatArray, FloatArray]:
        x, log_zero = _line_nodes(-z * t, 0.5 + z * t, z, 0.0)
        log_p = np.logaddexp(math.log1p(-q), log_scale + 0.5 * x / (z * z))
        return loss_at(x), log_zero + log_p

    error = 16.0 * EPS * (2.0 - log_scale)
    return Pair(tails=tails, loss_range=loss_range, loss_error=error, nodes=nodes)


def _fixed_size(q: float, z: float) -> Pair:
    """The pair whose profile is q H_g(base) at 1 + q (g - 1); derived in ``accountant.quadrature``."""

    def tails(edges: FloatArray) -> Tails:
        side = _mixture_tails(q, z, _mixture_position(q, z, np.abs(edges)))
        right = edges >= 0.0
        return Tails(
            p_above=np.where(right, side.p_above, 1.0 - side.q_above),
            p_below=np.where(right, 1.0 - side.p_above, side.q_above),
            q_above=np.where(right, side.q_above, 1.0 - side.p_above),
            q_below=np.where(right, 1.0 - side.q_above, side.p_above),
            relative_error=side.relative_error + EPS,
        )

    def loss_range(t: float) -> tuple[float, float]:
        low, high = _mixture_loss(q, z, np.array([max(0.5, z * t), 1.0 + z * t]))
        return -float(low), float(high)

    def nodes(t: float) -> tuple[FloatArray, FloatArray]:
        x, log_zero = _line_nodes(0.5, 1.0 + z * t, z, 0.0)
        loss = _mixture_loss(q, z, x)
        up, down = log_zero + loss, log_zero
        rest = max(1e-300, 1.0 - float(np.sum(np.exp(up)) + np.sum(np.exp(down))))
        return np.concatenate([loss, -loss, [0.0]]), np.concatenate([up, down, [math.log(rest)]])

    return Pair(tails=tails, loss_range=loss_range, loss_error=_mixture_loss_error(q), nodes=nodes)


def _truncated(event: TruncatedPoissonSampledGaussian, adjacency: Adjacency) -> tuple[Pair, ...]:
    """The release that tells whether its sample is cut; a full batch at the whole rate dominates both."""
    found, z = shares(event), event.noise_multiplier
    poisson = PoissonSampledGaussian(sample_rate=event.sample_rate, noise_multiplier=z)
    both = pairs_of(poisson, adjacency)
    unsure, cut = (_full_batch(rate, z, adjacency) for rate in (event.sample_rate, found.cut_rate))
    return tuple(
        told([(found.uncut, both[min(at, len(both) - 1)]), (found.unsure, unsure[at]), (found.cut, cut[at])])
        for at in range(1 if adjacency == Adjacency.REPLACE_ONE else 2)
    )


def _full_batch(rate: float, z: float, adjacency: Adjacency) -> tuple[Pair, Pair]:
    """Both directions of a batch that is full whether our unit is in it or not (``accountant.truncation``)."""
    adding = adjacency == Adjacency.ADD_OR_REMOVE_ONE
    if rate >= 1.0:
        return (_gaussian(2.0 / z if adding else 1.0 / z),) * 2
    if adding:
        return _remove(rate, 0.5 * z), _add(rate, 0.5 * z)
    if adjacency == Adjacency.ZERO_OUT:
        return displacing(rate, z, _remove(rate, z), _add(rate, z))
    return (_fixed_size(rate, z),) * 2


def _gaussian(mu: float) -> Pair:
    """P = N(mu, 1) against Q = N(0, 1): the loss is N(mu^2/2, mu^2) under P; symmetric."""

    def tails(edges: FloatArray) -> Tails:
        p, q = edges / mu - 0.5 * mu, edges / mu + 0.5 * mu
        return Tails(
            p_above=ndtr(-p),
            p_below=ndtr(p),
            q_above=ndtr(-q),
            q_below=ndtr(q),
            relative_error=_normal_error(np.abs(p) + mu),
        )

    def loss_range(t: float) -> tuple[float, float]:
        return 0.5 * mu * mu - mu * t, 0.5 * mu * mu + mu * t

    def nodes(t: float) -> tuple[FloatArray, FloatArray]:
        x, log_weight = _line_nodes(-t, t, 1.0, 0.0)
        return 0.5 * mu * mu + mu * x, log_weight

    return Pair(tails=tails, loss_range=loss_range, loss_error=16.0 * EPS * (1.0 + mu * mu), nodes=nodes)
