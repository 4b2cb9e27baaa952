"""Laplace noise, all clients taking part or a secret Poisson sample of them.

Let M_t(x) be the density of a vector query's answer where one unit contributes t v, 0 <= t <= 1, with |v|_1 at
most the sensitivity 1. |d log M_t / dt| <= 1/b, and the probability a(t) of any set A of outputs has

    |a'| = |E[1_A d log M_t / dt]| = |E[(1 - 1_A) d log M_t / dt]| <= min(a, 1 - a) / b,

with equality for half-lines and Laplace noise on a number: b times its density is the smaller tail. By comparison of
differential equations no A has a larger (or smaller) a(1) at the same a(0) than such a half-line. So:

- All clients: Laplace(0, b) against Laplace(1, b) dominates every such query; a number attains it.
- Sampled, one present or absent: P(A) = (1-q) a(0) + q a(1) and Q(A) = a(0) are, at each a(0), apart at most as
  far as with the half-line: (1-q) Laplace(0, b) + q Laplace(1, b) against Laplace(0, b), both directions.
- Sampled, one replaced, contributions of norm at most 1/2: P(A) - g Q(A) = (1-q) (1-g) a(0) + q (a_x(1) - g a_x'(1))
  is at each a(0) largest where a_x(1) is largest and a_x'(1) least; one half-line does both where x and x' are
  opposed: (1-q) Laplace(0, b) + q Laplace(1/2, b) against (1-q) Laplace(0, b) + q Laplace(-1/2, b).

Each is the pair of two data sets of numbers, so it is exact. Positions below are in units of b, losses grow with
them and lie between two atoms.

Rényi divergences: two atoms, and between them a smooth density that composite Gauss-Legendre panels integrate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from accountant.mechanisms.basic import Adjacency, Basic, DpCall
from accountant.mechanisms.pair import EPS, NODES, FloatArray, Pair, Tails
from accountant.mechanisms.quadrature import Grid, divergence, log_mixture, panels, top_of

_GROWTH = 8.0  # an integrand grows by at most exp(2 * _GROWTH) over a panel
_MAX_PANELS = 2000  # beyond it an order is answered by bounds that hold without a quadrature

_Halves: TypeAlias = Callable[[FloatArray], tuple[FloatArray, FloatArray]]


class Laplace(Basic):
    """A query answered with Laplace noise in every coordinate; all clients take part.

    The worst pair is Laplace(0, b) against Laplace(1, b), under every adjacency.

    Proof: docs/proofs/laplace.md.

    Attributes:
        scale_multiplier: b, noise scale over L1 sensitivity under the stated adjacency.

    Example:
        >>> from accountant import Adjacency, numerical
        >>> event = Laplace(scale_multiplier=2.0)
        >>> 0.499 < numerical.epsilon(event, 1e-9, adjacency=Adjacency.ZERO_OUT) < 0.501
        True
    """

    words = "Laplace, scale multiplier {scale_multiplier:.4g}"
    sampling = "none: every client takes part in every release"
    is_attained = True
    sample_rate = 1.0

    scale_multiplier: float

    def pairs(self, adjacency: Adjacency) -> tuple[Pair, ...]:
        return (laplace(self.scale_multiplier),)

    def renyi_curve(self, orders: FloatArray, adjacency: Adjacency) -> FloatArray:
        return laplace_divergence(self.scale_multiplier, orders)

    def for_group(self, size: int, adjacency: Adjacency) -> Laplace:
        return Laplace(scale_multiplier=self.scale_multiplier / size)

    def seen_samples(self) -> tuple[Basic, int]:
        return self, 1

    def dp_event(self, factor: float) -> DpCall:
        return DpCall("LaplaceDpEvent", {"noise_multiplier": factor * self.scale_multiplier})


class PoissonSampledLaplace(Basic):
    """Every unit joins independently with probability q, in secret; then a sum with Laplace noise in every coordinate.

    The sum must not be divided by the realised number of participants. Worst pairs, exact (the module has the proof;
    for queries of a number also Zhu, Dong, Wang 2022, Theorem 11):

    - add-or-remove-one and zero-out: (1-q) Laplace(0, b) + q Laplace(1, b) against Laplace(0, b), in
      both directions;
    - replace-one (sensitivity 2C, so each contribution has L1 norm at most 1/2):
      (1-q) Laplace(0, b) + q Laplace(1/2, b) against (1-q) Laplace(0, b) + q Laplace(-1/2, b).

    Proof: docs/proofs/laplace.md.

    .. versionadded:: 0.3.0

    Attributes:
        sample_rate: q in (0, 1].
        scale_multiplier: b, noise scale over L1 sensitivity under the stated adjacency.

    Example:
        >>> from accountant import Adjacency, numerical
        >>> event = PoissonSampledLaplace(sample_rate=0.1, scale_multiplier=2.0)
        >>> round(numerical.epsilon(event, 1e-9, adjacency=Adjacency.ZERO_OUT), 3)  # log(1 + 0.1 (exp(1/2) - 1))
        0.063
    """

    words = "Poisson-sampled Laplace, rate {sample_rate:.4g}, scale multiplier {scale_multiplier:.4g}"
    sampling = "Poisson: every client by its own secret coin, rate {sample_rate:.4g}"
    is_attained = True

    sample_rate: float
    scale_multiplier: float

    def pairs(self, adjacency: Adjacency) -> tuple[Pair, ...]:
        q, b = self.sample_rate, self.scale_multiplier
        if q == 1.0:
            return (laplace(b),)
        return (opposed_laplace(q, b),) if adjacency == Adjacency.REPLACE_ONE else sampled_laplace(q, b)

    def renyi_curve(self, orders: FloatArray, adjacency: Adjacency) -> FloatArray:
        """The larger direction's divergence; at orders too large for the panels the smaller of two upper bounds.

        Sampling never costs more than taking all (Rényi divergence is jointly quasi-convex), and no divergence
        exceeds the largest loss.
        """
        q, b, opposed = self.sample_rate, self.scale_multiplier, adjacency == Adjacency.REPLACE_ONE
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
            top = top_of(orders[few])
            grids = _opposed_grid(q, b, top) if opposed else _removed_grids(q, b, top)
            out[few] = np.minimum(out[few], np.max([divergence(grid, orders[few]) for grid in grids], axis=0))
        return np.asarray(out, dtype=np.float64)

    def seen_samples(self) -> tuple[Basic, int]:
        return Laplace(scale_multiplier=self.scale_multiplier), 1

    def dp_event(self, factor: float) -> DpCall:
        event = self.seen_samples()[0].dp_event(factor)
        return DpCall("PoissonSampledDpEvent", {"sampling_probability": self.sample_rate, "event": event})


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


def sampled_laplace(q: float, b: float) -> tuple[Pair, Pair]:
    """P = (1-q) Laplace(0, b) + q Laplace(1, b) against Q = Laplace(0, b), and the other way, mirrored."""
    s = 1.0 / b

    def position(loss: FloatArray) -> FloatArray:
        inside = np.maximum(1.0 + np.expm1(np.minimum(loss, 700.0)) / q, 0.0)
        with np.errstate(divide="ignore"):
            return np.asarray(0.5 * (np.log(inside) + s), dtype=np.float64)

    def loss_at(y: FloatArray) -> FloatArray:
        return log_mixture(q, 2.0 * y - s)

    alone, error = _mixed((1.0, 0.0)), 16.0 * EPS * (2.0 - math.log(q) + q / (1.0 - q) + s)
    present, mirrored = (_mixed((1.0 - q, 0.0), (q, center)) for center in (s, -s))
    return (
        _between(position, loss_at, present, alone, ends=(0.0, s), loss_error=error),
        _between(
            lambda loss: -position(-loss), lambda y: -loss_at(-y), alone, mirrored, ends=(-s, 0.0), loss_error=error
        ),
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
        above, below = [zero, one], [one, zero]  # beyond either end
        masses = ((above, p_above), (below, p_below), (above, q_above), (below, q_below))
        error = EPS * (8.0 + np.abs(y) + ends[1] - ends[0])
        return Tails._make([*(np.select([over, under], *both) for both in masses), error])

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


def _panels(high: float, top: float) -> tuple[FloatArray, FloatArray]:
    """Points between 0 and a position in panels over which an integrand grows little enough, and their log weights."""
    count = math.ceil(high * max(1.0, top / _GROWTH))
    return panels(0.0, high / count, count)


@lru_cache(maxsize=64)
def _removed_grids(q: float, b: float, top: float) -> tuple[Grid, Grid]:
    """Both directions; positions y in units of b, Q = Laplace(0, 1), r = 1 - q + q exp(2y - s) for 0 < y < s = 1/b."""
    s = 1.0 / b
    y, log_width = _panels(s, top)
    log_weight = np.concatenate([[-math.log(2.0)], log_width - y - math.log(2.0), [-s - math.log(2.0)]])
    exponent = np.concatenate([[-s], 2.0 * y - s, [s]])
    log_ratio = log_mixture(q, exponent)
    excess = q * np.expm1(np.minimum(exponent, 300.0))
    removed = Grid(log_weight=log_weight, excess=excess, log_ratio=log_ratio)
    return removed, removed.exchanged()


@lru_cache(maxsize=64)
def _opposed_grid(q: float, b: float, top: float) -> tuple[Grid]:
    """Q = (1-q) Laplace(0, 1) + q Laplace(-h, 1), P the same with h = 1/(2b): a symmetric pair."""
    h = 0.5 / b
    right, log_width = _panels(h, top)
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
