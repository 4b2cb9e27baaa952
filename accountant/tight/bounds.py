"""Certified bounds of one direction, read from its lattice sums.

Every bound here takes ``UpperSum`` or ``LowerSums`` and returns a number that holds for the computed doubles:
upper bounds add, lower bounds subtract, all slack that the sums report.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from accountant.tight.fourier import TiltedSum, Window, tilted_sum
from accountant.tight.lattice import Cells, Extent, lower_cells, upper_cells
from accountant.tight.pair import EPS, FloatArray, Pair


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
    loss_error: float


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
        loss_error=sum(part.loss_error for part in parts),
    )


def lower_sums(place: Place) -> LowerSums:
    """The sums of testing lattice releases."""
    parts = [lower_cells(pair, count, spacing=place.spacing, extent=place.extent) for pair, count in place.pairs]
    p = place.total([part.p for part in parts])
    q = tilted_sum([part.q_scaled for part in parts], spacing=place.spacing, theta=place.theta, window=p.window)
    return LowerSums(place=place, p=p, q=q)


@dataclass(frozen=True, kw_only=True)
class _Tails:
    """Tail sums at every lattice point m of a window, in the unit of that point.

    The unit at m is exp(log_unit[m]) = exp(log_scale - theta m h), the weight of tilted
    mass there; so nothing over- or underflows. ``mass`` is the sum of p(k) over k >= m,
    ``discounted`` of p(k) exp(-(k - m) h); the slacks bound their errors.
    """

    loss: FloatArray
    log_unit: FloatArray
    mass: FloatArray
    discounted: FloatArray
    slack: FloatArray


def _tails(total: TiltedSum, place: Place) -> _Tails:
    theta, spacing = place.theta, place.spacing
    ks = np.arange(total.window.start, total.window.start + total.window.size, dtype=np.float64)
    loss = spacing * ks
    mass = _discounted_tail(total.tilted, theta * spacing)
    # the running sums lose at most 2 eps a step, the unit's exponent a few eps of its size
    exponent = abs(total.log_scale) + theta * float(np.max(np.abs(loss)))
    own = total.relative + 4.0 * EPS * (total.window.size + exponent)
    # an error of each point, or of all in the l2 norm, enters a tail with weights exp(-theta (k - m) h)
    left = total.window.size - np.arange(total.window.size)
    every, square = (np.minimum(left, -1.0 / math.expm1(-times * theta * spacing)) for times in (1.0, 2.0))
    slack = total.outside + total.each * every + total.spread * np.sqrt(square) + own * mass
    return _Tails(
        loss=loss,
        log_unit=total.log_scale - theta * loss,
        mass=mass,
        discounted=_discounted_tail(total.tilted, (theta + 1.0) * spacing),
        slack=slack,
    )


def _discounted_tail(values: FloatArray, rate: float) -> FloatArray:
    """y[m] = sum over k >= m of values[k] exp(-rate (k - m)), block by block from the end."""
    out = np.empty_like(values)
    block = max(1, min(len(values), int(30.0 / rate)))
    decay = np.exp(-rate * np.arange(block + 1))
    carry = 0.0
    for end in range(len(values), 0, -block):
        begin = max(0, end - block)
        fall = decay[: end - begin]
        part = np.cumsum((values[begin:end] * fall)[::-1])[::-1]
        out[begin:end] = (part + carry * decay[end - begin]) / fall
        carry = float(out[begin])
    return out


def upper_epsilon(sums: UpperSum, delta: float) -> float:
    """Epsilon that certainly suffices at ``delta``; infinite where these sums prove nothing."""
    tails = _tails(sums.total, sums.place)
    allowed = delta - sums.infinite
    if allowed <= 0.0:
        return math.inf
    target = np.exp(np.minimum(math.log(allowed) - tails.log_unit, 700.0))
    enough = np.nonzero(tails.mass - tails.discounted + tails.slack <= target)[0]
    if len(enough) == 0:
        return math.inf
    index = int(enough[0])
    high = float(tails.loss[index])
    if index == 0:  # the window begins beyond epsilon: only its own begin is proved
        return max(0.0, high + sums.loss_error)
    # between the previous point and this one delta = mass - exp(eps - loss) discounted + slack,
    # with the slack of the previous point, whose unit is the larger one
    slack = float(tails.slack[index - 1]) * math.exp(sums.place.theta * sums.place.spacing)
    excess = float(tails.mass[index]) + slack - float(target[index])
    low = float(tails.loss[index - 1])
    rest = float(tails.discounted[index])  # 0 where nothing lies beyond: then this point itself is needed
    value = low if excess <= 0.0 else high if rest == 0.0 else high + math.log(excess / rest)
    return max(0.0, min(max(value, low), high) + sums.loss_error)


def lower_epsilon(sums: LowerSums, delta: float) -> float:
    """Epsilon that is certainly exceeded or met at ``delta``: some test shows it."""
    p = _tails(sums.p, sums.place)
    q = _tails(sums.q, sums.place)
    target = np.exp(np.minimum(math.log(delta) - p.log_unit, 700.0))
    gain = p.mass - p.slack - target
    against = q.discounted + q.slack
    use = (gain > 0.0) & (against > 0.0)  # a tail that underflowed to nothing shows nothing
    if not np.any(use):
        return 0.0
    against = against[use]
    values = p.loss[use] + np.log(gain[use]) - np.log(against) + (p.log_unit - q.log_unit)[use]
    return max(0.0, float(np.max(values)))


def upper_delta(sums: UpperSum, epsilon: float) -> float:
    """Delta that certainly suffices at ``epsilon``; 1 where these sums prove nothing."""
    tails = _tails(sums.total, sums.place)
    shifted = max(0.0, epsilon - sums.loss_error)
    index = int(np.searchsorted(tails.loss, shifted))
    if index == 0:
        return 1.0
    if index == len(tails.loss):  # all that could exceed epsilon lies outside of the window
        outside = math.log(max(sums.total.outside, sys.float_info.min))
        beyond = outside + sums.total.log_scale - sums.place.theta * shifted + 1e-9
        return min(1.0, sums.infinite + max(sys.float_info.min, math.exp(min(0.0, beyond))))
    value = float(tails.mass[index]) - math.exp(shifted - float(tails.loss[index])) * float(tails.discounted[index])
    total = value + float(tails.slack[index - 1]) * math.exp(sums.place.theta * sums.place.spacing)
    total = max(total, sys.float_info.min)  # a tail that underflowed is smaller than this, not nothing
    return sums.infinite + math.exp(min(0.0, math.log(total) + float(tails.log_unit[index])))


def lower_delta(sums: LowerSums, epsilon: float) -> float:
    """Delta that some test certainly reaches at ``epsilon``."""
    p = _tails(sums.p, sums.place)
    q = _tails(sums.q, sums.place)
    ratio = np.exp(np.minimum(epsilon - p.loss + q.log_unit - p.log_unit, 700.0))
    values = p.mass - p.slack - ratio * (q.discounted + q.slack)
    use = values > 0.0
    if not np.any(use):
        return 0.0
    return math.exp(min(0.0, float(np.max(np.log(values[use]) + p.log_unit[use]))))
