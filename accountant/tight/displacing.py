"""Dominating pair of a full batch in which a unit, when drawn, takes another's place; zero-out adjacency.

Noise has standard deviation z, and no contribution is longer than 1. A batch of B is drawn, unit n in it with chance q
whatever its data. Draw B of the others and one place j of theirs, which n takes when it is in. Given these
(joint convexity), with w the contribution at place j and everything measured from the other B - 1,

    P = (1-q) N(w) + q N(v)   with n's contribution v, against   Q = (1-q) N(w) + q N(0)   with zero.

For g >= 1, H_g(P || Q) = sup over sets A of q E_v[A] - g q E_0[A] - (g-1) (1-q) E_w[A]. This is a E_v - b E_0 - c E_w
with a, b, c >= 0, and the best A has outward normals in the cone of -v and w - v: by the argument of
``accountant.tight.pairs`` for replace-one turning w away from v only helps, and then lengthening either, up to w = -v
of length 1.

For g >= 1, H_g(Q || P) = sup of q E_0[A] - g q E_v[A] - (g-1) (1-q) E_w[A], and the best A has outward normals in the
cone of v and w. Turn w towards v: its velocity u has u.v >= 0 and u.w = 0, so that E_w[A] falls and the whole grows;
so does lengthening v = w, up to length 1: then Q against P is the Poisson sample's pair, (1-q) N(0) + q N(1) against
N(0).

So the largest profile of P against Q is that of the opposed pair at g >= 1 and, as H_g(P || Q) = 1 - g + g H_{1/g}(Q
|| P), that of N(0) against (1-q) N(0) + q N(1) at g < 1. As a supremum of profiles it is one: it jumps at loss 0
only, where what is left of the mass is equal under both. A larger q dominates a smaller one: that is a mixture of it
and of N(w) against itself.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

from accountant.divergence import log_mixture
from accountant.tight.pair import EPS, NODES, FloatArray, Pair, Tails

_NAMES = ("p_above", "p_below", "q_above", "q_below", "relative_error")


def displacing(q: float, z: float, removed: Pair, added: Pair) -> tuple[Pair, Pair]:
    """Both directions at chance ``q`` below 1; ``removed`` and ``added`` are the Poisson sample's at the same rate."""

    def opposed(losses: FloatArray) -> Tails:
        return _opposed_tails(q, z, losses)

    def loss_range(t: float) -> tuple[float, float]:
        return added.loss_range(t)[0], float(_opposed_loss(q, z, np.array([1.0 + z * t]))[0])

    def exchanged_range(t: float) -> tuple[float, float]:
        return -float(_opposed_loss(q, z, np.array([max(0.5, z * t)]))[0]), removed.loss_range(t)[1]

    def nodes(t: float) -> tuple[FloatArray, FloatArray]:
        x = np.linspace(0.5, 1.0 + z * t, NODES)
        log_p = np.logaddexp(math.log1p(-q) + _log_weight(x, -1.0, z), math.log(q) + _log_weight(x, 1.0, z))
        return _joined(_opposed_loss(q, z, x), log_p, *_side(added, t, -1.0))

    def exchanged_nodes(t: float) -> tuple[FloatArray, FloatArray]:
        x = np.linspace(0.5, max(0.6, z * t), NODES)
        log_q = np.logaddexp(math.log1p(-q) + _log_weight(x, -1.0, z), math.log(q) + _log_weight(x, 0.0, z))
        return _joined(-_opposed_loss(q, z, x), log_q, *_side(removed, t, 1.0))

    error = removed.loss_error + 16.0 * EPS * (2.0 + 1.0 / (z * z) - math.log(q))
    return (
        Pair(
            tails=lambda edges: _either(edges, opposed(np.maximum(edges, 0.0)), added.tails(np.minimum(edges, 0.0))),
            loss_range=loss_range,
            loss_error=error,
            nodes=nodes,
        ),
        Pair(
            tails=lambda edges: _either(
                edges, removed.tails(np.maximum(edges, 0.0)), opposed(np.maximum(-edges, 0.0)).exchanged()
            ),
            loss_range=exchanged_range,
            loss_error=error,
            nodes=exchanged_nodes,
        ),
    )


def _opposed_loss(q: float, z: float, x: FloatArray) -> FloatArray:
    """Of (1-q) N(-1) + q N(1) against (1-q) N(-1) + q N(0); positive and rising from x = 1/2 on."""
    return np.asarray(log_mixture(q, 2.0 * x / (z * z)) - log_mixture(q, (x + 0.5) / (z * z)), dtype=np.float64)


def _opposed_tails(q: float, z: float, losses: FloatArray) -> Tails:
    """Beyond losses of at least 0.

    With u = exp(x / z^2) the loss exceeds log g where q u^2 - g q exp(1 / (2 z^2)) u - (g - 1) (1 - q) > 0, beyond
    the one positive root.
    """
    log_half = losses + 0.5 / (z * z) - math.log(2.0)
    with np.errstate(divide="ignore"):
        log_rest = losses + np.log(-np.expm1(-losses)) + math.log1p(-q) - math.log(q)
    x = z * z * np.logaddexp(log_half, 0.5 * np.logaddexp(2.0 * log_half, log_rest))
    other, none, one = (x + 1.0) / z, x / z, (x - 1.0) / z
    return Tails(
        p_above=(1.0 - q) * ndtr(-other) + q * ndtr(-one),
        p_below=(1.0 - q) * ndtr(other) + q * ndtr(one),
        q_above=(1.0 - q) * ndtr(-other) + q * ndtr(-none),
        q_below=(1.0 - q) * ndtr(other) + q * ndtr(none),
        relative_error=EPS * (8.0 + 2.0 * np.square(np.minimum(np.abs(other) + 1.0 / z, 40.0))),
    )


def _either(edges: FloatArray, right: Tails, left: Tails) -> Tails:
    """One pair's tails beyond losses of at least 0, another's below."""
    return Tails(**{name: np.where(edges >= 0.0, getattr(right, name), getattr(left, name)) for name in _NAMES})


def _log_weight(x: FloatArray, center: float, z: float) -> FloatArray:
    t = (x - center) / z
    return np.asarray(-0.5 * t * t + math.log((x[1] - x[0]) / z) - 0.5 * math.log(2.0 * math.pi), dtype=np.float64)


def _side(pair: Pair, t: float, sign: float) -> tuple[FloatArray, FloatArray]:
    """A pair's nodes on one side of loss 0."""
    loss, log_mass = pair.nodes(t)
    kept = sign * loss > 0.0
    return loss[kept], log_mass[kept]


def _joined(
    one: FloatArray, log_one: FloatArray, other: FloatArray, log_other: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Nodes of both sides, and what is left of the mass at 0."""
    rest = max(1e-300, 1.0 - float(np.exp(log_one).sum() + np.exp(log_other).sum()))
    return np.concatenate([one, other, [0.0]]), np.concatenate([log_one, log_other, [math.log(rest)]])
