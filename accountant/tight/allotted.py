"""Dominating pair of one participation in m rounds at a secret random time, from the law of a mean.

With Q = N(0, z^2 I) over m rounds and P the uniform mixture of N(e_i, z^2 I), the ratio dP/dQ is the mean
R of m independent w_i = dN(e_i, z^2 I)/dQ, log w_i normal with mean -1/(2 z^2) and variance 1/z^2 under Q. The pair's
profile is H_g(P || Q) = E (R - g)_+. Let w' have the law of w with the mass of every cell between two points of
a grid split between its ends so that mass and mean are kept: then E f(w) <= E f(w') for convex f, which stays true
of sums of independent ones. So whatever is put on the grid in this way, and summed, and put on it again, has a larger
profile at every g: it dominates the pair, in both directions, and enters compositions like any other.

The grid is geometric (points exp(j h), so that a sum's place depends on the distance of its terms alone), and is
made twice as fine, which changes nothing, wherever the law has drawn together. Beyond the last point a cell's other
end is infinity: P-mass there, of Q none. Below the first one mass is lifted to it; what that could take from the
exchanged direction is booked as infinite loss of that one. All masses are sums of positive terms.

For k participations see ``accountant.allocation``: k independent such pairs, of T // k rounds or one more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from accountant.tight.pair import EPS, NODES, FloatArray, Pair, Tails

LEAST_NOISE = 0.05  # below it a single ratio is too large to be exponentiated
_POINTS = 1400  # of a grid, at most one and a half times as many
_MANY_ROUNDS = 4096  # beyond so many rounds twice as many points
_REACH = 13.0  # standard deviations of a single log ratio
_ERROR = 1e-12  # relative, of a cell's normal mass
_UNHEARD = 1e-40  # mass that may be moved to a law's ends


@dataclass(frozen=True, kw_only=True)
class _Mean:
    """A law that is larger, in convex order, than that of the mean of ``rounds`` ratios.

    Attributes:
        rounds: Number of them.
        spacing: h.
        start: Number of the first point, exp(start h).
        masses: Under Q, point by point.
        infinite: P-mass of an infinite ratio.
        lifted: Q-mass that was lifted to the first point.
        error: Relative error of every mass.
    """

    rounds: int
    spacing: float
    start: int
    masses: FloatArray
    infinite: float
    lifted: float
    error: float


def allotted(rounds: int, z: float) -> tuple[Pair, Pair]:
    """Both directions of one participation in so many rounds, with noise multiplier ``z``."""
    law = _mean(rounds, z, _POINTS if rounds <= _MANY_ROUNDS else 2 * _POINTS)
    points, q = _points(law.spacing, law.start, len(law.masses)), law.masses
    p = q * np.exp(points)
    exchanged = np.asarray(-points[::-1])
    rounding = law.error + 8.0 * EPS * (1.0 + float(np.abs(points).max()))
    slip = _ERROR * (1.0 + float(np.abs(points).max())) * (1.0 + math.log2(rounds))
    removed = _pair(points, p, q, infinite=law.infinite, error=rounding, slip=slip)
    return removed, _pair(exchanged, q[::-1], p[::-1], infinite=law.lifted, error=rounding, slip=slip)


def _pair(loss: FloatArray, p: FloatArray, q: FloatArray, *, infinite: float, error: float, slip: float) -> Pair:
    """Atoms of both masses at rising losses, and P-mass of infinite loss."""
    p_up, q_up = (np.append(np.cumsum(masses[::-1])[::-1], 0.0) for masses in (p, q))
    p_down, q_down = (np.append(0.0, np.cumsum(masses)) for masses in (p, q))

    def tails(edges: FloatArray) -> Tails:
        above = np.searchsorted(loss, edges, side="right")
        return Tails(
            p_above=p_up[above] + infinite,
            p_below=p_down[above],
            q_above=q_up[above],
            q_below=q_down[above],
            relative_error=np.full(len(edges), error),
        )

    def loss_range(t: float) -> tuple[float, float]:
        rare = float(ndtr(-t))
        low = int(np.searchsorted(p_down[1:], rare))
        high = len(loss) - 1 - int(np.searchsorted((p_up[:-1] + infinite)[::-1], rare))
        return float(loss[min(low, len(loss) - 1)]), float(loss[max(high, 0)])

    def nodes(t: float) -> tuple[FloatArray, FloatArray]:
        low, high = loss_range(t)
        inside = np.flatnonzero((loss >= low) & (loss <= high) & (p > 0.0))
        groups = np.array_split(inside, min(NODES, len(inside)))
        mass = np.array([p[group].sum() for group in groups])
        center = np.array([float(p[group] @ loss[group]) for group in groups]) / mass
        return center, np.log(mass)

    return Pair(tails=tails, loss_range=loss_range, loss_error=slip, nodes=nodes)


@lru_cache(maxsize=64)
def _mean(rounds: int, z: float, size: int) -> _Mean:
    """By doubling: the mean of 2n ratios is that of two means of n."""
    if rounds == 1:
        return _single(z, size)
    half = _mean(rounds // 2, z, size)
    whole = _fine(_mixed(half, half), size)
    return whole if rounds % 2 == 0 else _fine(_mixed(whole, _single(z, size)), size)


def _single(z: float, size: int) -> _Mean:
    """One ratio, log-normal, put on the grid."""
    low, high = -0.5 / (z * z) - _REACH / z, 0.5 / (z * z) + _REACH / z
    spacing = (high - low) / size
    start = math.floor(low / spacing)
    points = _points(spacing, start, size + 2)
    under_q, under_p = z * points + 0.5 / z, z * points - 0.5 / z
    q, p = _cells(under_q), _cells(under_p)
    ratio = np.exp(points)
    up = np.clip((p - ratio * q) / (ratio * math.expm1(spacing)), 0.0, q)
    up[-1] = 0.0  # beyond the last point: all of Q's mass to it, what P has more to infinity
    masses = q - up
    masses[1:] += up[:-1]
    lifted = float(ndtr(under_q[0]))
    masses[0] += lifted
    return _Mean(
        rounds=1,
        spacing=spacing,
        start=start,
        masses=masses,
        infinite=max(0.0, float(p[-1] - ratio[-1] * q[-1])),
        lifted=lifted,
        error=_ERROR,
    )


def _points(spacing: float, start: int, count: int) -> FloatArray:
    return np.asarray(spacing * (start + np.arange(count)), dtype=np.float64)


def _cells(t: FloatArray) -> FloatArray:
    """Normal mass between consecutive places, and last beyond all of them."""
    mass = np.where(t[1:] < 0.0, ndtr(t[1:]) - ndtr(t[:-1]), ndtr(-t[:-1]) - ndtr(-t[1:]))
    return np.append(mass, ndtr(-t[-1]))


def _mixed(one: _Mean, other: _Mean) -> _Mean:
    """The mean of the ratios of both, put on the finer of both grids."""
    spacing = min(one.spacing, other.spacing)
    one, other = _refined(one, spacing), _refined(other, spacing)
    a, b, rounds = one.masses, other.masses, one.rounds + other.rounds
    distances = other.start - one.start + np.arange(1 - len(a), len(b))
    share = one.rounds / rounds
    place = np.logaddexp(math.log(share), math.log1p(-share) + spacing * distances) / spacing
    below = np.floor(place).astype(np.int64)
    up = np.clip(np.expm1(spacing * (place - below)) / math.expm1(spacing), 0.0, 1.0)
    start = min(one.start, other.start)
    masses = np.zeros(max(one.start + len(a), other.start + len(b)) + 2 - start)
    apart = distances - other.start + one.start
    for distance, cell, share_up in zip(apart.tolist(), below.tolist(), up.tolist(), strict=True):
        first, last = max(0, -distance), min(len(a), len(b) - distance)
        both = a[first:last] * b[first + distance : last + distance]
        at = one.start + first + cell - start
        masses[at : at + len(both)] += both * (1.0 - share_up)
        masses[at + 1 : at + 1 + len(both)] += both * share_up
    return _Mean(
        rounds=rounds,
        spacing=spacing,
        start=start,
        masses=masses,
        infinite=share * one.infinite + (1.0 - share) * other.infinite,
        lifted=one.lifted + other.lifted,
        error=one.error + other.error + EPS * (8.0 + len(distances)),
    )


def _refined(law: _Mean, spacing: float) -> _Mean:
    """The same law on a grid that is some times twice as fine."""
    times = round(law.spacing / spacing)
    if times == 1:
        return law
    masses = np.zeros(times * (len(law.masses) - 1) + 1)
    masses[::times] = law.masses
    return replace(law, spacing=law.spacing / times, start=law.start * times, masses=masses)


def _fine(law: _Mean, size: int) -> _Mean:
    """The same law without the ends that nobody hears of, on as fine a grid as there are points for."""
    points = _points(law.spacing, law.start, len(law.masses))
    p = law.masses * np.exp(points)
    first = int(np.searchsorted(np.cumsum(law.masses), _UNHEARD))
    last = len(p) - 1 - int(np.searchsorted(np.cumsum(p[::-1]), _UNHEARD))
    masses = law.masses[first : last + 1].copy()
    masses[0] += law.masses[:first].sum()
    masses[-1] += (beyond := law.masses[last + 1 :].sum())
    law = replace(
        law,
        start=law.start + first,
        masses=masses,
        lifted=law.lifted + float(law.masses[:first].sum()),
        infinite=law.infinite + max(0.0, float(p[last + 1 :].sum() - beyond * math.exp(points[last]))),
    )
    return _refined(law, law.spacing / 2 ** max(0, math.floor(math.log2(size / len(masses)) + 0.5)))
