"""Finitely many disjoint sets of outputs, called cells, with certified masses under the laws of two neighbours.

A union of cells is a test whatever the cells are, so a lower end needs no more than their masses: those under P
rounded down, those under Q rounded up. Outputs in no cell belong to no test. Cells of a number with Gaussian or
Laplace noise are intervals between doubles; which doubles decides how good the test is, never whether it holds.

A tail is computed with a relative error of at most EPS (16 + 4 t^2), t its place in units of the noise: the place is
rounded by 2 EPS, which moves a normal tail by t^2 + 2 times that, and erfc and exp err by a few units of the last
place. A mass is a difference of two tails on the side where they are small, and both errors are booked.

Sums. Masses of the sum of many whole numbers under two laws: from below under P, from above under Q.
A release's cells get whole labels, and releases are told apart by the sum of theirs. A label is a name: how it was
rounded decides how good the test is, never whether it holds. The law of the sum is one tilted FFT: masses m_k become
m_k exp(tau k) / M, M their sum, so that what is rare becomes usual; several tilts look at several places, and every
place takes the best of their bounds. Booked are, for n numbers of one law and a transform of N points:

- A coefficient errs by at most u = 16 EPS log2 N, as its terms add up to 1 and each passes log2 N butterflies. Its
  n-th power errs by at most n u (|c| + u)^(n-1), and by 8 EPS n relative to itself. The transform back adds u times
  the mean of what it transforms. All is bounded by the computed coefficients.
- What lies outside of the window of N numbers is folded into it. This raises masses, so under Q it is safe; under P
  Chernoff's bound of all that lies there is taken off every mass.
- Logarithms and exponentials of the masses and of M err by n EPS times their size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Parts = Sequence[tuple[float, float]]
"""A mixture's parts: weights and centers."""
Tail: TypeAlias = Callable[[FloatArray], FloatArray]

EPS = float(np.finfo(np.float64).eps)
TINY = 1e-300
_EDGES = 4096  # edges of one release
REACH = 20.0  # standard deviations beyond the outermost centers
_UNHEARD = 40.0  # a normal tail is less than any double there, a Laplace tail's error grows no more than linearly
_MOST_CELLS = 8192  # of a release in a composition
ComplexArray = npt.NDArray[np.complex128]

_LARGEST = 2**18  # points of one transform
_FEWEST = 2**14
_ROUNDED = 0.15  # of a release's standard deviation, that a label may span
_OUTSIDE = 36.0  # minus the log of the tilted mass that is sought outside of the window
_SHARES = 2.0 ** np.arange(-6.0, 7.0)
_FARTHEST = 2.0**50  # labels and their sums stay below it
_FAR = 600.0  # logarithms of masses below minus this are not exponentiated


@dataclass(frozen=True, kw_only=True)
class Masses:
    """Bounds of the masses of some cells under one law.

    Attributes:
        least: They are at least this.
        most: They are at most this.
    """

    least: FloatArray
    most: FloatArray


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Disjoint sets of outputs.

    Attributes:
        p: Positive masses, at most those under P.
        q: Positive masses, at least those under Q.
    """

    p: FloatArray
    q: FloatArray

    @property
    def losses(self) -> FloatArray:
        """Log ratios of the masses, by which tests are ordered."""
        return np.log(self.p) - np.log(self.q)

    def epsilon(self, delta: float) -> float:
        """An epsilon that some test shows at ``delta``: log((P(A) - delta) / Q(A))."""
        p, q = self.tests()
        shown = p > delta * (1.0 + 4.0 * EPS)
        if not np.any(shown):
            return 0.0
        found = float(np.max(np.log(p[shown] - delta * (1.0 + 4.0 * EPS)) - np.log(q[shown])))
        return max(0.0, found - 4.0 * EPS * (-2.0 * math.log(TINY) + abs(found)))  # of two logarithms

    def delta(self, epsilon: float) -> float:
        """A delta that some test shows at ``epsilon``: P(A) - exp(epsilon) Q(A)."""
        if not len(self.p):
            return 0.0
        p, q = self.tests()
        logs = np.minimum(epsilon * (1.0 + 4.0 * EPS) + np.log(q), 1.0)
        return max(0.0, float(np.max(p - np.exp(logs) * (1.0 + 1e-12))) * (1.0 - 1e-12))

    def merged(self) -> Cells:
        """Not so many cells: those of about one loss are made one."""
        if len(self.p) <= _MOST_CELLS:
            return self
        order = np.argsort(self.losses)
        starts = np.arange(0, len(order), math.ceil(len(order) / _MOST_CELLS))
        rounding = EPS * len(order) / len(starts)
        p, q = (np.add.reduceat(values[order], starts) for values in (self.p, self.q))
        return Cells(p=p * (1.0 - 2.0 * rounding), q=q * (1.0 + 2.0 * rounding))

    def tests(self) -> tuple[FloatArray, FloatArray]:
        """Masses of all cells of at least each loss."""
        order = np.argsort(-self.losses)
        rounding = 2.0 * EPS * len(order)
        return np.cumsum(self.p[order]) * (1.0 - rounding), np.cumsum(self.q[order]) * (1.0 + rounding)


def cells(p: Masses, q: Masses) -> Cells:
    """The cells that P certainly meets."""
    met = p.least > 0.0
    return Cells(p=p.least[met], q=np.maximum(q.most[met], TINY))


def edges_of(*laws: Parts, reach: float) -> FloatArray:
    """Edges of cells, from below the outermost centers to beyond them.

    A Gaussian's reach ``REACH`` standard deviations further; of Laplace noise the loss is constant there.
    """
    centers = [center for parts in laws for _, center in parts]
    return np.linspace(min(centers) - reach, max(centers) + reach, _EDGES)


def normal_tail(t: FloatArray) -> FloatArray:
    """P(N(0, 1) > t) for t >= 0, by the standard library."""
    return np.fromiter(map(math.erfc, (t / math.sqrt(2.0)).tolist()), dtype=np.float64, count=len(t)) / 2.0


def laplace_tail(t: FloatArray) -> FloatArray:
    """P(Laplace(0, 1) > t) for t >= 0."""
    return np.asarray(0.5 * np.exp(-t), dtype=np.float64)


def masses_of(parts: Parts, scale: float, edges: FloatArray, tail: Tail = normal_tail) -> Masses:
    """Masses below the first edge, between all edges, and beyond the last, of a mixture of laws with such a tail."""
    each = [_between(tail, center, scale, edges) for _, center in parts]
    weights = [weight for weight, _ in parts]
    rounding = EPS * (4.0 + 2.0 * len(weights))
    least = sum((w * one.least for w, one in zip(weights, each, strict=True)), np.zeros_like(each[0].least))
    most = sum((w * one.most for w, one in zip(weights, each, strict=True)), np.zeros_like(each[0].most))
    return Masses(
        least=np.maximum(least * (1.0 - rounding) - TINY, 0.0),
        most=most * (1.0 + rounding) + TINY,  # the tail that underflowed is smaller than this
    )


def _between(tail: Tail, center: float, scale: float, edges: FloatArray) -> Masses:
    t = (edges - center) / scale
    small = tail(np.abs(t))
    above, below = np.where(t >= 0.0, small, 1.0 - small), np.where(t >= 0.0, 1.0 - small, small)
    error = EPS * (16.0 + 4.0 * np.square(np.minimum(np.abs(t), _UNHEARD)))
    above, below = np.concatenate([[1.0], above, [0.0]]), np.concatenate([[0.0], below, [1.0]])
    error = np.concatenate([[0.0], error, [0.0]])
    right = np.concatenate([[False], t >= 0.0])
    mass = np.where(right, above[:-1] - above[1:], np.diff(below))
    slack = np.where(
        right, error[:-1] * above[:-1] + error[1:] * above[1:], error[:-1] * below[:-1] + error[1:] * below[1:]
    )
    return Masses(least=mass - slack, most=mass + slack)


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Scores of one release's cells and their masses, and how many such releases there are."""

    scores: FloatArray
    masses: FloatArray
    count: int


Law: TypeAlias = Sequence[Scored]
"""Independent releases; the law of the sum of their scores."""


def cumulant(law: Law, tau: float) -> float:
    """Log of the tilted total mass."""
    return sum(one.count * _cumulant(one, tau) for one in law)


def moments(law: Law, tau: float) -> tuple[float, float]:
    """Mean and variance of the tilted sum."""
    mean = variance = 0.0
    for one in law:
        logs = np.log(one.masses) + tau * one.scores
        weight = np.exp(logs - logs.max())
        weight /= weight.sum()
        center = float(weight @ one.scores)
        mean += one.count * center
        variance += one.count * float(weight @ np.square(one.scores - center))
    return mean, variance


def summed(p: Law, q: Law, delta: float) -> Cells:
    """Cells of the sum of all scores, looked at where a test at ``delta`` has its threshold and above it.

    The same scores must stand in both laws: their cells are the same sets of outputs.
    """
    p, q = _seen(p), _seen(q)
    tilts = [0.0, _chernoff(p, delta)]
    low, high = _ends(p, tilts)
    spread = max(min(math.sqrt(moments(p, tau)[1]) for tau in tilts), 1e-30)
    count = sum(one.count for one in p)
    farthest = sum(one.count * float(np.abs(one.scores).max()) for one in [*p, *q])
    step = max(
        spread * min(_ROUNDED / math.sqrt(count), 20.0 / _FEWEST),
        (high - low) / (0.9 * _LARGEST),
        farthest / _FARTHEST,
    )
    p, q = ([_labelled(one, step, up=up) for one in law] for law, up in ((p, False), (q, True)))
    tilts = [tau * step for tau in tilts]
    low, high = _ends(p, tilts)  # labels are rounded, and many of them may drift
    start, size = math.floor(low) - 2, min(_LARGEST, 2 ** math.ceil(math.log2(high - low + 8.0)))
    under_p = _bounded([tilted_sum(p, tau, start, size) for tau in tilts], lower=True)
    places = [moments(p, tau)[0] for tau in tilts]
    under_q = _bounded(
        [tilted_sum(q, _tilt_to(q, at, tau), start, size) for at, tau in zip(places, tilts, strict=True)]
    )
    seen = under_p > -_FAR
    rounding = 8.0 * EPS * _FAR
    return Cells(
        p=np.exp(under_p[seen]) * (1.0 - rounding),
        q=np.maximum(np.exp(np.minimum(under_q[seen], 0.0)) * (1.0 + rounding), TINY),
    )


@dataclass(frozen=True, kw_only=True)
class TiltedSum:
    """Tilted masses at all places of a window, and bounds of their errors.

    A true mass at place k is values[k] exp(log_scale - tau k), where values err by ``error`` and relatively by
    ``relative``, and hold at most ``folded`` that lies elsewhere.
    """

    start: int
    tau: float
    values: FloatArray
    log_scale: float
    error: float
    relative: float
    folded: float

    def logs(self, *, lower: bool) -> FloatArray:
        """Logs of the masses, from below or from above."""
        at = self.start + np.arange(len(self.values))
        if lower:
            values = np.maximum(self.values - self.error - self.folded, 0.0) * max(0.0, 1.0 - 2.0 * self.relative)
        else:
            values = (np.maximum(self.values, 0.0) + self.error) * math.exp(min(2.0 * self.relative, _FAR))
        with np.errstate(divide="ignore"):
            logs = np.log(values) + self.log_scale - self.tau * at
        size = abs(self.log_scale) + np.abs(self.tau * at) + 750.0
        return np.asarray(logs - 4.0 * EPS * size if lower else logs + 4.0 * EPS * size, dtype=np.float64)


def tilted_sum(law: Law, tau: float, start: int, size: int) -> TiltedSum:
    """The law of the sum, tilted by ``tau``, in a window of so many numbers, a power of two."""
    product = np.ones(size // 2 + 1, dtype=np.complex128)
    log_most, lost = np.zeros(len(product)), np.zeros(len(product))
    log_scale = relative = 0.0
    unit = 16.0 * EPS * math.log2(size)
    for one in law:
        logs = np.log(one.masses) + tau * one.scores
        own = _cumulant(one, tau)
        place = one.scores.astype(np.int64) % size
        folded = np.bincount(place, np.exp(logs - own), minlength=size)
        coefficients = np.fft.rfft(folded)
        most = np.abs(coefficients) * (1.0 + 4.0 * EPS) + unit
        product = product * _power(coefficients, one.count)
        log_most += one.count * np.log(most)
        lost += one.count * (unit / most + 8.0 * EPS)
        log_scale += one.count * own
        reach = float(np.abs(np.log(one.masses)).max() + np.abs(tau * one.scores).max())
        alike = float(np.bincount(place).max())  # labels that one place of the window stands for
        relative += one.count * EPS * (32.0 + 4.0 * reach + 2.0 * abs(own) + 4.0 * alike)
    error = TINY + 4.0 * float(np.sum(np.exp(log_most) * lost + unit * np.abs(product))) / size
    values = np.roll(np.fft.irfft(product, size), -(start % size))
    return TiltedSum(
        start=start,
        tau=tau,
        values=values,
        log_scale=log_scale,
        error=error,
        relative=relative,
        folded=_outside(law, tau, start, start + size - 1),
    )


def _bounded(sums: Sequence[TiltedSum], *, lower: bool = False) -> FloatArray:
    """The best bound at every place."""
    every = [one.logs(lower=lower) for one in sums]
    return np.asarray(np.max(every, axis=0) if lower else np.min(every, axis=0), dtype=np.float64)


def _power(base: ComplexArray, exponent: int) -> ComplexArray:
    """By squaring: it errs by no more than ``exponent`` products."""
    out = np.ones_like(base)
    while exponent:
        if exponent & 1:
            out = out * base
        exponent >>= 1
        if exponent:
            base = base * base
    return out


def _cumulant(one: Scored, tau: float) -> float:
    logs = np.log(one.masses) + tau * one.scores
    peak = float(logs.max())
    return peak + math.log(float(np.exp(logs - peak).sum()))


def _seen(law: Law) -> list[Scored]:
    """Without cells that have no mass."""
    return [
        Scored(scores=one.scores[one.masses > 0.0], masses=one.masses[one.masses > 0.0], count=one.count) for one in law
    ]


def _labelled(one: Scored, step: float, *, up: bool) -> Scored:
    """Whole labels, and cells of one label made one."""
    labels, own = np.unique(np.rint(one.scores / step), return_inverse=True)
    rounding = EPS * (2.0 + float(np.bincount(own).max()))
    masses = np.asarray(np.bincount(own, one.masses), dtype=np.float64)
    return Scored(scores=labels, masses=masses * (1.0 + rounding if up else 1.0 - rounding), count=one.count)


def _outside(law: Law, tau: float, first: int, last: int) -> float:
    """Most of the tilted mass that lies outside of a window, by Chernoff."""
    natural = _natural(law, tau)
    base = cumulant(law, tau)
    above = min(cumulant(law, tau + t) - base - t * (last + 1) for t in natural * _SHARES)
    below = min(cumulant(law, tau - t) - base + t * (first - 1) for t in natural * _SHARES)
    # cumulants are rounded, far less than by log 2
    return 2.0 * (math.exp(min(above, 0.0)) + math.exp(min(below, 0.0)))


def _ends(law: Law, tilts: Sequence[float]) -> tuple[float, float]:
    """Ends of a window beyond which the sum has next to no mass, tilted by any of these."""
    lows, highs = [], []
    for tau in tilts:
        base, further = cumulant(law, tau), _natural(law, tau) * _SHARES
        highs.append(min((cumulant(law, tau + t) - base + _OUTSIDE) / t for t in further))
        lows.append(max((base - _OUTSIDE - cumulant(law, tau - t)) / t for t in further))
    return float(min(lows)), float(max(highs))


def _natural(law: Law, tau: float) -> float:
    """A tilt by which the sum moves as far as its window reaches."""
    return math.sqrt(2.0 * _OUTSIDE / max(moments(law, tau)[1], 1e-60))


def _chernoff(law: Law, chance: float) -> float:
    """The tilt of Chernoff's bound of the place beyond which the sum lies with this chance."""
    spread = math.sqrt(max(moments(law, 0.0)[1], 1e-60))

    def place(tau: float) -> float:
        return (cumulant(law, tau) - math.log(chance)) / tau

    grid = np.geomspace(1e-2, 1e4, 40) / spread
    best = int(np.argmin([place(float(tau)) for tau in grid]))
    near = np.geomspace(grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)], 12)
    return float(min(near, key=lambda tau: place(float(tau))))


def _tilt_to(law: Law, place: float, guess: float) -> float:
    """The tilt at which the sum's mean is about there."""
    first = 1.0 / math.sqrt(max(moments(law, guess)[1], 1e-60))
    ends = [guess, guess]
    for side, sign in ((0, -1.0), (1, 1.0)):
        step = first
        while sign * (place - moments(law, ends[side])[0]) > 0.0 and step < 1e3 * first:
            ends[side] += sign * step
            step *= 2.0
    low, high = ends
    for _ in range(30):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if moments(law, middle)[0] < place else (low, middle)
    return 0.5 * (low + high)
