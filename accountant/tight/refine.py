"""Both ends of one direction of a composition, computed ever more finely until they are close.

A first place comes from rough moments (``accountant.tight.steering``); what is computed there says where to look
next. Whatever was computed stays valid, so every look can only narrow the interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from scipy.special import ndtri

from accountant.mechanisms.pair import Pair
from accountant.tight.bounds import Place, lower_delta, lower_epsilon, lower_sums, upper_delta, upper_epsilon, upper_sum
from accountant.tight.lattice import Extent
from accountant.tight.steering import (
    Aim,
    Rough,
    aim_at_delta,
    aim_at_epsilon,
    outside_log,
    rough,
    spacing_for,
    window_for,
)

MAX_LOSS: Final = 500.0
MAX_POINTS: Final = 2**21
_TRUNCATED: Final = 1e-6  # share of delta spent on losses counted as infinite
_ATTEMPTS: Final = 8
_COARSE: Final = 2.0**-10  # spacing of a first look, in units of the largest loss
_TILT_SHARE: Final = 0.85  # a little less than Chernoff's tilt: rare large losses weigh far less, the rest as much
_FAR: Final = 8.0
_LOOSENED: Final = 16.0  # of a look that may show at once that another direction decides
_MAX_STEP_TILT: Final = 20.0  # tilt over one lattice step: beyond, a bounded loss is all edge
_ENOUGH_POINTS: Final = 2**17  # beyond it a promised width is not narrowed further

Direction: TypeAlias = tuple[tuple[Pair, int], ...]


@dataclass(frozen=True, kw_only=True)
class Width:
    """Width of an interval: relative to its upper end, or absolute."""

    relative: float
    absolute: float

    def of(self, upper: float) -> float:
        """The width allowed at this upper end."""
        return max(self.relative * upper, self.absolute)

    def holds(self, lower: float, upper: float) -> bool:
        """Whether an interval is as narrow as that."""
        return math.isfinite(upper) and upper - lower <= self.of(upper)


PROMISED_EPSILON: Final = Width(relative=0.005, absolute=5e-5)
PROMISED_DELTA: Final = Width(relative=0.02, absolute=0.0)
_SOUGHT_EPSILON: Final = Width(relative=0.001, absolute=1e-5)
_SOUGHT_DELTA: Final = Width(relative=0.01, absolute=0.0)


class OutOfRangeError(Exception):
    """No lattice holds this setting."""


def epsilon_ends(pairs: Direction, delta: float, *, enough: float = 0.0) -> tuple[float, float]:
    """(lower, upper) epsilon of one direction, refined until narrow or below ``enough``.

    Raises:
        OutOfRangeError: Nothing was computed.
    """
    if costs_nothing(pairs, delta):
        return 0.0, 0.0
    reach = reach_for(pairs, delta)
    moments = rough(pairs, reach)
    aim = _first_aim(pairs, moments, delta, reach)
    spacing = spacing_at(aim)
    lower, upper = 0.0, math.inf
    if enough and (found := _look(pairs, aim, delta, reach, _LOOSENED)) <= enough:
        return 0.0, found
    for _ in range(_ATTEMPTS):
        place = place_at(pairs, aim, spacing, reach)
        if not affordable(place):
            spacing *= 4.0
            continue
        upper = min(upper, upper_epsilon(upper_sum(place), delta))
        if upper <= enough:  # another direction decides; this one's lower end is of no use
            break
        if not math.isfinite(upper):
            spacing *= 0.5
            continue
        lower = max(lower, lower_epsilon(lower_sums(place), delta))
        settled = place.window.size > _ENOUGH_POINTS and PROMISED_EPSILON.holds(lower, upper)
        if settled or _SOUGHT_EPSILON.holds(lower, upper):
            break
        # look where the answer is: the first tilt looked where Chernoff's bound put it
        aim = aim_at_epsilon(moments, 0.5 * (lower + upper))
        share = _SOUGHT_EPSILON.of(upper) / (upper - lower)
        spacing *= min(0.7, max(0.1, 0.8 * math.sqrt(share)))
    if not math.isfinite(upper):
        raise OutOfRangeError
    return min(lower, upper), upper


def delta_ends(pairs: Direction, epsilon: float, bound: float, *, enough: float = 0.0) -> tuple[float, float]:
    """(lower, upper) delta of one direction, refined until narrow or below ``enough``; ``bound`` is any upper bound.

    Raises:
        OutOfRangeError: Nothing was computed.
    """
    lower, upper, least = 0.0, min(1.0, bound), 1e-3 * bound
    # where only a loss beyond the reach exceeds epsilon, all that mass is a bound; a longer reach has less of it
    while epsilon >= ceiling(pairs, reach_for(pairs, least)):
        upper = min(upper, least * _TRUNCATED)
        if upper <= enough or least < 1e-250:
            return 0.0, upper
        least *= 1e-20
    tried, spacing = False, 0.0
    for _ in range(_ATTEMPTS):
        reach = reach_for(pairs, least)
        aim = aim_at_epsilon(rough(pairs, reach), epsilon)
        if not spacing:
            spacing = spacing_for(aim.moments, aim.theta, 0.5 * _SOUGHT_DELTA.relative / (aim.theta + 1.0))
        place = place_at(pairs, aim, spacing, reach)
        if not affordable(place):
            spacing *= 4.0
            continue
        tried = True
        upper = min(upper, upper_delta(upper_sum(place), epsilon))
        if upper <= enough:
            break
        lower = max(lower, min(upper, lower_delta(lower_sums(place), epsilon)))
        settled = place.window.size > _ENOUGH_POINTS and PROMISED_DELTA.holds(lower, upper)
        if settled or _SOUGHT_DELTA.holds(lower, upper):
            break
        least = max(lower, 1e-3 * upper)
        spacing *= min(0.7, max(0.1, 0.8 * math.sqrt(_SOUGHT_DELTA.of(upper) / (upper - lower))))
    if not tried:
        raise OutOfRangeError
    return lower, upper


def quick_upper_epsilon(pairs: Direction, delta: float, near: float | None, loosened: float = 1.0) -> float:
    """An upper epsilon of one direction by one look, at ``near`` where given; infinite where it sees nothing.

    Its error is sought to be that of a refined one times ``loosened``, which makes it quicker. Far from ``near``
    Chernoff's value of the rough moments is answered, which is enough to move a search.
    """
    if costs_nothing(pairs, delta):
        return 0.0
    reach = reach_for(pairs, delta)
    moments = rough(pairs, reach)
    if near is not None:
        guess = aim_at_delta(moments, delta).epsilon
        if not near / _FAR < guess < near * _FAR:
            return guess
        found = _look(pairs, aim_at_epsilon(moments, near), delta, reach, loosened)
        if 0.5 * near < found < 2.0 * near:
            return found
    return _look(pairs, _first_aim(pairs, moments, delta, reach), delta, reach, loosened)


def rough_upper_epsilon(pairs: Direction, delta: float) -> float:
    """Chernoff's epsilon of one direction's rough moments; an estimate."""
    return 0.0 if costs_nothing(pairs, delta) else aim_at_delta(rough(pairs, reach_for(pairs, delta)), delta).epsilon


def ceiling(pairs: Direction, reach: float) -> float:
    """The largest loss of the whole composition, up to a negligible share of delta."""
    return sum(count * pair.loss_range(reach)[1] for pair, count in pairs)


def costs_nothing(pairs: Direction, delta: float) -> bool:
    """Whether ``delta`` is at least the sum of all releases' total variations: then epsilon is 0."""
    total = 0.0
    for pair, count in pairs:
        tails = pair.tails(np.zeros(1))
        p, q, error = float(tails.p_above[0]), float(tails.q_above[0]), float(tails.relative_error[0])
        total += count * (p - q + error * (p + q) + pair.loss_error)
        if total > delta:
            return False
    return True


def reach_for(pairs: Direction, delta: float) -> float:
    """Standard deviations at which all truncated mass together is a small share of ``delta``."""
    releases = sum(count for _, count in pairs)
    mass = delta * _TRUNCATED / releases
    if mass < 1e-290:
        raise OutOfRangeError
    return float(-ndtri(mass))


def spacing_at(aim: Aim, loosened: float = 1.0) -> float:
    """A spacing that usually suffices."""
    return spacing_for(aim.moments, aim.theta, 0.6 * loosened * _SOUGHT_EPSILON.of(aim.epsilon))


def place_at(pairs: Direction, aim: Aim, spacing: float, reach: float) -> Place:
    """Everything that says where to compute.

    Raises:
        OutOfRangeError: A single loss is too large to be exponentiated.
    """
    tilt = min(_TILT_SHARE * aim.theta, _MAX_STEP_TILT / spacing)
    extent = Extent(t=reach, bottom=aim.moments.bottom(tilt) - spacing, cap=aim.cap)
    if not all(max(-low, high) < MAX_LOSS for low, high in (extent.of(pair) for pair, _ in pairs)):
        raise OutOfRangeError
    window = window_for(aim.moments, tilt, spacing)
    return Place(pairs=pairs, theta=tilt, spacing=spacing, window=window, extent=extent, outside=outside_log(tilt))


def affordable(place: Place) -> bool:
    """Whether a place has few enough points for one transform, and few enough cells."""
    ends = [place.extent.of(pair) for pair, _ in place.pairs]
    cells = sum(high - low for low, high in ends) / place.spacing
    return place.window.size <= MAX_POINTS and cells <= 8 * MAX_POINTS


def _first_aim(pairs: Direction, moments: Rough, delta: float, reach: float) -> Aim:
    """The aim at Chernoff's epsilon; where single losses are capped that may be far off, and a coarse lattice looks."""
    aim = aim_at_delta(moments, delta)
    if aim.cap == math.inf:
        return aim
    place = place_at(pairs, aim, _COARSE * aim.cap, reach)
    found = upper_epsilon(upper_sum(place), delta) if affordable(place) else math.inf
    return aim_at_epsilon(moments, found) if 0.0 < found < math.inf else aim


def _look(pairs: Direction, aim: Aim, delta: float, reach: float, loosened: float) -> float:
    """An upper epsilon; infinite where it lies outside of the window."""
    place = place_at(pairs, aim, spacing_at(aim, loosened), reach)
    if not affordable(place):
        return math.inf
    sums = upper_sum(place)
    found = upper_epsilon(sums, delta)
    return found if found > place.spacing * sums.total.window.start else math.inf
