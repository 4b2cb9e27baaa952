"""Dominating pairs of Laplace noise, all clients taking part or a secret Poisson sample of them.

Let M_t(x) be the density of a vector query's answer where one unit contributes t v, 0 <= t <= 1, with |v|_1 at
most the sensitivity 1. |d log M_t / dt| <= 1/b, and the probability a(t) of any set A of outputs has

    |a'| = |E[1_A d log M_t / dt]| = |E[(1 - 1_A) d log M_t / dt]| <= min(a, 1 - a) / b,

with equality for half-lines and Laplace noise on a number: b times its density is the smaller tail. By comparison of
differential equations no A has a larger (or smaller) a(1) at the same a(0) than such a half-line. So:

- Everybody: Laplace(0, b) against Laplace(1, b) dominates every such query; a number attains it.
- Sampled, one present or absent: P(A) = (1-q) a(0) + q a(1) and Q(A) = a(0) are, at each a(0), apart at most as
  far as with the half-line: (1-q) Laplace(0, b) + q Laplace(1, b) against Laplace(0, b), both directions.
- Sampled, one replaced, contributions of norm at most 1/2: P(A) - g Q(A) = (1-q) (1-g) a(0) + q (a_x(1) - g a_x'(1))
  is at each a(0) largest where a_x(1) is largest and a_x'(1) least; one half-line does both where x and x' are
  opposed: (1-q) Laplace(0, b) + q Laplace(1/2, b) against (1-q) Laplace(0, b) + q Laplace(-1/2, b).

Each is the pair of two data sets of numbers, so it is exact. Positions below are in units of b, losses grow with
them and lie between two atoms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from accountant.divergence import log_mixture
from accountant.tight.pair import EPS, NODES, FloatArray, Pair, Tails

_Halves: TypeAlias = Callable[[FloatArray], tuple[FloatArray, FloatArray]]


def laplace(b: float) -> Pair:
    """P = Laplace(1, b) against Q = Laplace(0, b), all in units of the sensitivity; symmetric."""
    return _between(
        lambda loss: 0.5 * (loss + 1.0 / b),
        lambda y: 2.0 * y - 1.0 / b,
        _mixed((1.0, 1.0 / b)),
        _mixed((1.0, 0.0)),
        ends=(0.0, 1.0 / b),
        loss_error=8.0 * EPS * (1.0 + 1.0 / b),
    )


def removed_laplace(q: float, b: float) -> Pair:
    """P = (1-q) Laplace(0, b) + q Laplace(1, b) against Q = Laplace(0, b)."""
    s = 1.0 / b

    def position(loss: FloatArray) -> FloatArray:
        inside = np.maximum(1.0 + np.expm1(np.minimum(loss, 700.0)) / q, 0.0)
        with np.errstate(divide="ignore"):
            return np.asarray(0.5 * (np.log(inside) + s), dtype=np.float64)

    return _between(
        position,
        lambda y: log_mixture(q, 2.0 * y - s),
        _mixed((1.0 - q, 0.0), (q, s)),
        _mixed((1.0, 0.0)),
        ends=(0.0, s),
        loss_error=16.0 * EPS * (2.0 - math.log(q) + q / (1.0 - q) + s),
    )


def added_laplace(q: float, b: float) -> Pair:
    """P = Laplace(0, b) against Q = (1-q) Laplace(0, b) + q Laplace(1, b): mirrored, so that losses grow."""
    s = 1.0 / b

    def position(loss: FloatArray) -> FloatArray:
        inside = np.maximum(1.0 + np.expm1(np.minimum(-loss, 700.0)) / q, 0.0)
        with np.errstate(divide="ignore"):
            return np.asarray(-0.5 * (np.log(inside) + s), dtype=np.float64)

    return _between(
        position,
        lambda y: -log_mixture(q, -2.0 * y - s),
        _mixed((1.0, 0.0)),
        _mixed((1.0 - q, 0.0), (q, -s)),
        ends=(-s, 0.0),
        loss_error=16.0 * EPS * (2.0 - math.log(q) + q / (1.0 - q) + s),
    )


def opposed_laplace(q: float, b: float) -> Pair:
    """P = (1-q) Laplace(0, b) + q Laplace(1/2, b) against the same with -1/2; symmetric."""
    h = 0.5 / b
    least = log_mixture(q, np.array([-h]))

    def position(loss: FloatArray) -> FloatArray:
        size = np.minimum(np.abs(loss), 700.0)
        with np.errstate(divide="ignore"):
            return np.asarray(
                0.5 * np.sign(loss) * np.logaddexp(0.0, np.log(np.expm1(size)) + least - math.log(q) + h),
                dtype=np.float64,
            )

    return _between(
        position,
        lambda y: np.sign(y) * (log_mixture(q, 2.0 * np.abs(y) - h) - least),
        _mixed((1.0 - q, 0.0), (q, h)),
        _mixed((1.0 - q, 0.0), (q, -h)),
        ends=(-h, h),
        loss_error=16.0 * EPS * (2.0 - math.log(q) + 2.0 * h),
    )


def _mixed(*parts: tuple[float, float]) -> _Halves:
    """Masses below and above a position, of a mixture of Laplace laws given as (weight, center)."""

    def halves(y: FloatArray) -> tuple[FloatArray, FloatArray]:
        below, above = np.zeros_like(y), np.zeros_like(y)
        for weight, center in parts:
            x = y - center
            tail = 0.5 * np.exp(-np.abs(x))
            below = below + weight * np.where(x < 0.0, tail, 1.0 - tail)
            above = above + weight * np.where(x < 0.0, 1.0 - tail, tail)
        return below, above

    return halves


def _between(
    position: Callable[[FloatArray], FloatArray],
    loss: Callable[[FloatArray], FloatArray],
    p: _Halves,
    q: _Halves,
    *,
    ends: tuple[float, float],
    loss_error: float,
) -> Pair:
    """The pair whose loss grows between the positions ``ends`` and stays constant beyond them."""
    low, high = (float(end) for end in loss(np.array(ends)))

    def tails(edges: FloatArray) -> Tails:
        y = position(edges)
        over, under = y >= ends[1], y < ends[0]
        y = np.clip(y, *ends)
        zero, one = np.zeros_like(y), np.ones_like(y)
        (p_below, p_above), (q_below, q_above) = p(y), q(y)
        return Tails(
            p_above=np.select([over, under], [zero, one], p_above),
            p_below=np.select([over, under], [one, zero], p_below),
            q_above=np.select([over, under], [zero, one], q_above),
            q_below=np.select([over, under], [one, zero], q_below),
            relative_error=EPS * (8.0 + np.abs(y) + ends[1] - ends[0]),
        )

    def nodes(t: float) -> tuple[FloatArray, FloatArray]:  # noqa: ARG001 - bounded losses need no cut
        y = np.linspace(*ends, NODES + 1)
        below, above = p(y)
        inner = np.where(below[1:] < 0.5, np.diff(below), -np.diff(above))
        mass = np.concatenate([[below[0]], inner, [above[-1]]])
        at = np.concatenate([[low], loss(0.5 * (y[1:] + y[:-1])), [high]])
        return at, np.log(np.maximum(mass, 1e-300))

    def loss_range(t: float) -> tuple[float, float]:  # noqa: ARG001 - bounded losses need no cut
        return low, high

    return Pair(tails=tails, loss_range=loss_range, loss_error=loss_error, nodes=nodes)
