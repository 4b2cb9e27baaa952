"""Certified bounds of one direction, read from its lattice sums.

Every bound here takes ``UpperSum`` or ``LowerSums`` and returns a number that holds for the computed doubles:
upper bounds add, lower bounds subtract, all slack that the sums report.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from accountant.mechanisms.pair import EPS, FloatArray, Pair
from accountant.tight.fourier import TiltedSum, Window, tilted_sum
from accountant.tight.lattice import Cells, Extent, lower_cells, upper_cells

_BLOCK = 64
_LOG_ROUNDING = 1e-12  # of an exponential and of the logarithms in its exponent


@dataclass(frozen=True, kw_only=True)
class Place:
    """Place at which one direction is computed: pairs and counts, tilt, spacing, window, extent of one lattice.

    With ``outside`` every sum fits the window to itself: cells of the lower lattice stand for other losses than their
    own, and a million releases drift away from where they were expected.
    """

    pairs: Sequence[tuple[Pair, int]]
    theta: float
    spacing: float
    window: Window
    extent: Extent
    outside: float | None = None

    def total(self, cells: Sequence[Cells]) -> TiltedSum:
        """The tilted sum of these cells, in a window of their own about this place."""
        return tilted_sum(cells, spacing=self.spacing, theta=self.theta, window=self.window, outside=self.outside)


@dataclass(frozen=True, kw_only=True)
class UpperSum:
    """Source of upper bounds: the dominating lattice sum and what it left out."""

    place: Place
    total: TiltedSum
    infinite: float


@dataclass(frozen=True, kw_only=True)
class LowerSums:
    """Source of lower bounds: the test's P-masses, and its Q-masses times exp(loss)."""

    place: Place
    p: TiltedSum
    q: TiltedSum


def upper_sum(place: Place) -> UpperSum:
    """The sum of dominating lattice releases."""
    parts = [upper_cells(pair, count, spacing=place.spacing, extent=place.extent) for pair, count in place.pairs]
    return UpperSum(
        place=place,
        total=place.total([part.cells for part in parts]),
        infinite=sum(part.infinite for part in parts),
    )


def lower_sums(place: Place) -> LowerSums:
    """The sums of testing lattice releases."""
    parts = [lower_cells(pair, count, spacing=place.spacing, extent=place.extent) for pair, count in place.pairs]
    p = place.total([part.p for part in parts])
    q = tilted_sum([part.q_scaled for part in parts], spacing=place.spacing, theta=place.theta, window=p.window)
    return LowerSums(place=place, p=p, q=q)


@dataclass(frozen=True, kw_only=True)
class _Tails:
    """Tail sums at some lattice points m of a window, in the unit of each point.

    The unit at m is exp(log_unit[m]) = exp(log_scale - theta m h), the weight of tilted
    mass there; so nothing over- or underflows. ``mass`` is the sum of p(k) over k >= m,
    ``discounted`` of p(k) exp(-(k - m) h), and ``excess`` what the second lacks of the first, summed by itself: where
    losses are tiny it is far less than a rounding of either. ``slack`` bounds the errors of the first two,
    ``excess_slack`` those of the third, ``own`` is the rounding of each, relative to itself.
    """

    loss: FloatArray
    log_unit: FloatArray
    mass: FloatArray
    discounted: FloatArray
    excess: FloatArray
    slack: FloatArray
    excess_slack: FloatArray
    own: float


class _Running:
    """Tail sums of a window, kept where its blocks of ``_BLOCK`` points begin, and at its end.

    Attributes:
        tilt: Decay over one lattice step of the weights of the mass.
        discount: The same of the discounted mass.
    """

    def __init__(self, total: TiltedSum, place: Place) -> None:
        self.total, self.place = total, place
        self.tilt, self.discount = place.theta * place.spacing, (place.theta + 1.0) * place.spacing
        padded = np.append(total.tilted, np.zeros(-len(total.tilted) % _BLOCK)).reshape(-1, _BLOCK)
        step, inside = place.spacing, np.arange(_BLOCK)
        self.mass, self.discounted = (
            _of_blocks(padded @ np.exp(-rate * inside), rate) for rate in (self.tilt, self.discount)
        )
        # exp(-theta x) (1 - exp(-x)) at x = y + z is the sum of that at z, discounted by y, and of the weight of z
        beyond = math.exp(-_BLOCK * self.tilt) * -math.expm1(-_BLOCK * step) * self.mass[1:]
        weights = np.exp(-self.tilt * inside) * -np.expm1(-step * inside)
        self.excess = _of_blocks(padded @ weights + beyond, self.discount)

    def at_blocks(self) -> _Tails:
        """The tails at the beginnings of all blocks."""
        points = np.arange(len(self.mass) - 1, dtype=np.float64) * _BLOCK
        return self._tails(points, self.mass[:-1], self.discounted[:-1], self.excess[:-1])

    def within(self, begin: int, end: int) -> _Tails:
        """The tails at all points of the blocks from ``begin`` on, before ``end``."""
        begin, end = max(0, begin), min(end, len(self.mass) - 1)
        values = self.total.tilted[begin * _BLOCK : end * _BLOCK]
        mass = _discounted_tail(values, self.tilt, float(self.mass[end]))
        discounted = _discounted_tail(values, self.discount, float(self.discounted[end]))
        beyond = math.exp(-self.tilt) * -math.expm1(-self.place.spacing) * np.append(mass[1:], self.mass[end])
        excess = _discounted_tail(beyond, self.discount, float(self.excess[end]))
        return self._tails(np.arange(len(values), dtype=np.float64) + begin * _BLOCK, mass, discounted, excess)

    def _tails(self, points: FloatArray, mass: FloatArray, discounted: FloatArray, excess: FloatArray) -> _Tails:
        total, theta = self.total, self.place.theta
        loss = self.place.spacing * (total.window.start + points)
        # a sum of positive terms loses eps a step within a block, and a little with every block that is carried on;
        # the unit's exponent a few eps of its size
        largest = self.place.spacing * max(abs(total.window.start), abs(total.window.start + total.window.size))
        steps = _steps(self.tilt, total.window.size) + _steps(self.discount, total.window.size)
        own = total.relative + 4.0 * EPS * (steps + abs(total.log_scale) + theta * largest)
        # an error of each point, or of all in the l1 or l2 norm, enters a tail with weights exp(-theta (k - m) h)
        left = total.window.size - points
        every, square = (np.minimum(left, -1.0 / math.expm1(-times * self.tilt)) for times in (1.0, 2.0))
        # and an excess with those times 1 - exp(-(k - m) h), which are nowhere above ``most``
        most = math.exp(theta * math.log(theta / (theta + 1.0))) / (theta + 1.0)
        every_excess = np.minimum(left * most, every)
        return _Tails(
            loss=loss,
            log_unit=total.log_scale - theta * loss,
            mass=mass,
            discounted=discounted,
            excess=excess,
            slack=total.outside + total.each * every + total.spread * np.sqrt(square) + own * mass,
            excess_slack=total.outside * most
            + total.each * every_excess
            + total.spread * np.sqrt(most * every_excess)
            + own * excess,
            own=own,
        )


def _steps(rate: float, size: int) -> float:
    """Roundings of a sum over so many points by ``_of_blocks`` and ``_discounted_tail``, one relative eps each."""
    blocks = size / _BLOCK
    carried = max(1.0, min(blocks, 30.0 / (rate * _BLOCK)))
    return 2.0 * _BLOCK + carried + 4.0 * blocks / carried + 100.0


def _of_blocks(sums: FloatArray, rate: float) -> FloatArray:
    """Discounted tails at the beginning of every block from the sums within blocks, and 0 at their end."""
    return np.append(_discounted_tail(sums, rate * _BLOCK), 0.0)


def _discounted_tail(values: FloatArray, rate: float, carry: float = 0.0) -> FloatArray:
    """y[m] = sum over k >= m of values[k] exp(-rate (k - m)), ``carry`` being at the end; block by block from there."""
    out = np.empty_like(values)
    block = max(1, min(len(values), int(30.0 / rate)))
    decay = np.exp(-rate * np.arange(block + 1))
    for end in range(len(values), 0, -block):
        begin = max(0, end - block)
        fall = decay[: end - begin]
        part = np.cumsum((values[begin:end] * fall)[::-1])[::-1]
        out[begin:end] = (part + carry * decay[end - begin]) / fall
        carry = float(out[begin])
    return out


def upper_epsilon(sums: UpperSum, delta: float) -> float:
    """Epsilon that certainly suffices at ``delta``; infinite where these sums prove nothing."""
    allowed = delta - sums.infinite
    if allowed <= 0.0:
        return math.inf

    def excess(tails: _Tails) -> tuple[FloatArray, FloatArray]:
        """The allowed delta at every point, in its unit, and by how much it is exceeded there."""
        target = np.exp(np.minimum(math.log(allowed) - tails.log_unit, 700.0))
        return target, tails.excess + tails.excess_slack - target

    running = _Running(sums.total, sums.place)
    enough = np.nonzero(excess(running.at_blocks())[1] <= 0.0)[0]
    block = int(enough[0]) if len(enough) else len(running.mass) - 1
    tails = running.within(block - 1, block + 1)
    target, above = excess(tails)
    enough = np.nonzero(above <= 0.0)[0]
    if len(enough) == 0:
        return math.inf
    index = int(enough[0])
    high = float(tails.loss[index])
    if index == 0:  # the window begins beyond epsilon: only its own begin is proved
        return _rounded_up(high)
    # between the previous point and this one delta = excess + (1 - exp(eps - loss)) discounted + slack,
    # with the slack of the previous point, whose unit is the larger one
    slack = float(tails.excess_slack[index - 1]) * math.exp(running.tilt)
    left = float(target[index]) - float(tails.excess[index]) - slack
    low = float(tails.loss[index - 1])
    rest = float(tails.discounted[index]) * (1.0 + tails.own)
    # nothing beyond: then this point itself is needed
    value = high if rest == 0.0 else low if left >= rest else high + math.log1p(-left / rest)
    return _rounded_up(min(max(value, low), high))


def _rounded_up(epsilon: float) -> float:
    """An epsilon of 0 or more, and what rounding of its point and of a logarithm may have taken off."""
    return max(0.0, epsilon + 4.0 * EPS * (1.0 + abs(epsilon)))


def lower_epsilon(sums: LowerSums, delta: float) -> float:
    """Epsilon that is certainly exceeded or met at ``delta``: some test shows it."""

    def shown(p: _Tails, q: _Tails) -> FloatArray:
        gain = p.mass - p.slack - np.exp(np.minimum(math.log(delta) - p.log_unit, 700.0))
        against = q.discounted + q.slack
        use = (gain > 0.0) & (against > 0.0)  # a tail that underflowed to nothing shows nothing
        ratio = np.log(np.where(use, gain, 1.0)) - np.log(np.where(use, against, 1.0))
        return np.where(use, p.loss + ratio + (p.log_unit - q.log_unit), 0.0)

    return max(0.0, _best_test(sums, shown))


def _best_test(sums: LowerSums, shown: Callable[[_Tails, _Tails], FloatArray]) -> float:
    """The most that a test shows: any threshold is one. Tried are the beginnings of blocks, then all about the best."""
    p, q = _Running(sums.p, sums.place), _Running(sums.q, sums.place)
    best = int(np.argmax(shown(p.at_blocks(), q.at_blocks())))
    return float(np.max(shown(p.within(best - 1, best + 1), q.within(best - 1, best + 1))))


def upper_delta(sums: UpperSum, epsilons: FloatArray) -> FloatArray:
    """Deltas that certainly suffice at ``epsilons``, shape ``(n,)``; 1 where these sums prove nothing."""
    window, spacing = sums.total.window, sums.place.spacing
    shifted = epsilons * (1.0 - 4.0 * EPS)  # points are rounded, too
    point = np.ceil(shifted / spacing) - 1.0  # rounding may leave the product below: the first that is not
    for _ in range(2):
        point += spacing * point < shifted
    index = np.clip(point - window.start, 0.0, window.size).astype(np.int64)
    # where all that could exceed epsilon lies outside of the window
    outside = math.log(max(sums.total.outside, sys.float_info.min)) + sums.total.log_scale + 1e-9
    beyond = np.exp(np.minimum(0.0, outside - sums.place.theta * shifted))
    found = np.where(index == 0, 1.0, np.minimum(1.0, sums.infinite + np.maximum(sys.float_info.min, beyond)))
    inside = np.flatnonzero((index > 0) & (index < window.size))
    if not len(inside):
        return found
    index, shifted = index[inside], shifted[inside]
    begin = (int(index.min()) - 1) // _BLOCK
    running = _Running(sums.total, sums.place)
    tails = running.within(begin, int(index.max()) // _BLOCK + 1)
    index -= begin * _BLOCK
    between = -np.expm1(shifted - tails.loss[index])
    value = tails.excess[index] + between * tails.discounted[index] * (1.0 + tails.own)
    total = value + tails.excess_slack[index - 1] * math.exp(running.tilt)
    total = np.maximum(total, sys.float_info.min)  # a tail that underflowed is smaller than this, not nothing
    found[inside] = sums.infinite + np.exp(np.minimum(0.0, np.log(total) + tails.log_unit[index]))
    return found


def lower_tests(sums: LowerSums) -> tuple[FloatArray, FloatArray]:
    """False-alarm rates, rounded up, and success rates, rounded down, of the tests of all thresholds."""
    p, q = (_Running(one, sums.place) for one in (sums.p, sums.q))
    success, alarms = (one.within(0, len(one.mass)) for one in (p, q))
    least, most = success.mass - success.slack, alarms.discounted + alarms.slack
    use = (least > 0.0) & (most > 0.0)
    log_tpr, log_fpr = (
        np.log(least[use]) + success.log_unit[use],
        np.log(most[use]) + (alarms.log_unit - alarms.loss)[use],
    )
    return np.exp(np.minimum(log_fpr, 0.0) + _LOG_ROUNDING), np.exp(np.minimum(log_tpr, 0.0) - _LOG_ROUNDING)


def lower_delta(sums: LowerSums, epsilon: float) -> float:
    """Delta that some test certainly reaches at ``epsilon``."""

    def log_shown(p: _Tails, q: _Tails) -> FloatArray:
        ratio = np.exp(np.minimum(epsilon - p.loss + q.log_unit - p.log_unit, 700.0))
        values = p.mass - p.slack - ratio * (q.discounted + q.slack)
        return np.where(values > 0.0, np.log(np.maximum(values, sys.float_info.min)) + p.log_unit, -math.inf)

    return math.exp(min(0.0, _best_test(sums, log_shown)))
