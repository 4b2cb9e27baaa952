"""Both ends of one direction of a composition, computed ever more finely until they are close.

A first place comes from rough moments (``Rough``, a coarse quadrature of each pair's loss by ``Pair.nodes``): they
choose tilt, spacing and window, and decide speed, never correctness. What is computed there carries its own
certificate and says where to look next. Whatever was computed stays valid, so every look can only narrow the interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
from scipy import fft
from scipy.special import ndtri

from accountant.mechanisms.pair import FloatArray, Pair
from accountant.tight.bounds import (
    Place,
    lower_delta,
    lower_epsilon,
    lower_sums,
    lower_tests,
    upper_delta,
    upper_epsilon,
    upper_sum,
)
from accountant.tight.fourier import Window
from accountant.tight.lattice import Extent

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
_OUTSIDE_LOG = 23.0  # -log of the tilted mass allowed outside the window; delta is at least 1e-3 of all
_USUAL_TILT = 1e4  # beyond it that much less is allowed: delta is to all as 1 to the tilt
_CAPPINGS = 12
_USUAL = 0.99
_UNHEARD = 1e-13  # tilted mass of all releases that may be lifted
_USUAL_TILTS = 18  # powers of four that are always tried
_SHARES = 2.0 ** np.arange(-7.0, 9.0)  # multiples of the natural extra tilt that are tried

_CURVE_LOOKS: Final = (1e-3, 0.03, 0.15, 0.4, 0.7, 1.0)  # shares of the largest epsilon at which a curve is looked at
_LEAST_SHARE: Final = 0.1  # of a curve's least delta, which truncation is measured against

Direction: TypeAlias = tuple[tuple[Pair, int], ...]
Tests: TypeAlias = tuple[FloatArray, FloatArray]
"""False-alarm rates, rounded up, and success rates, rounded down."""


@dataclass(frozen=True, kw_only=True)
class Rough:
    """Coarse loss distributions of all parts over ``reach`` standard deviations: losses, log masses, counts.

    Losses and log masses have the shape ``(parts, nodes)``.
    """

    pairs: Direction
    reach: float
    loss: FloatArray
    log_mass: FloatArray
    counts: FloatArray

    def log_mgf(self, theta: float) -> float:
        """Log of E exp(theta L) of the whole composition."""
        terms = self.log_mass + theta * self.loss
        peaks = terms.max(axis=1, keepdims=True)
        return float(self.counts @ (np.log(np.exp(terms - peaks).sum(axis=1)) + peaks[:, 0]))

    def clipped(self, cap: float | FloatArray, bottom: float | FloatArray = -math.inf) -> Rough:
        """The same with every single loss above ``cap`` moved there, and every one below ``bottom``."""
        return replace(self, loss=np.clip(self.loss, bottom, cap))

    def cap(self, epsilon: float) -> float:
        """A loss beyond which no single release need be told apart, where ``epsilon`` is asked for.

        One that large exceeds epsilon whatever all others lose, but for a few in a thousand: a lattice that ends
        there is as good as an endless one, and tilts well however rare large losses are.
        """
        level = max(epsilon, self._typical())
        mean, variance = self.clipped(level, -level).tilted_moments(0.0)
        return 1.1 * epsilon + max(0.0, -mean) + 4.0 * math.sqrt(variance)

    def _typical(self) -> float:
        """Standard deviation of the whole, each release's largest losses, a hundredth of all, clipped."""
        size = np.abs(self.loss)
        order = np.argsort(size, axis=1)
        below = np.cumsum(np.take_along_axis(self._weights(0.0), order, axis=1), axis=1)
        ranks = np.minimum(np.sum(below < _USUAL, axis=1), size.shape[1] - 1)
        level = np.take_along_axis(size, order, axis=1)[np.arange(len(ranks)), ranks][:, None]
        return math.sqrt(self.clipped(level, -level).tilted_moments(0.0)[1])

    def bottom(self, theta: float) -> float:
        """A loss to which all below it may be lifted: even there it has no tilted mass to speak of."""
        order = np.argsort(self.loss, axis=1)
        loss, log_mass = (np.take_along_axis(values, order, axis=1) for values in (self.loss, self.log_mass))
        below = np.cumsum(np.exp(log_mass), axis=1)
        terms = log_mass + theta * loss
        peaks = terms.max(axis=1, keepdims=True)
        total = np.exp(terms - peaks).sum(axis=1, keepdims=True)
        lifted = below * np.exp(np.minimum(theta * loss - peaks, 700.0)) / total
        first = np.argmax(lifted * self.counts[:, None] > _UNHEARD, axis=1)
        return float(loss[np.arange(len(first)), first].min())

    def tilted_moments(self, theta: float) -> tuple[float, float]:
        """Mean and variance of the tilted sum."""
        weight = self._weights(theta)
        mean = (weight * self.loss).sum(axis=1)
        variance = (weight * np.square(self.loss - mean[:, None])).sum(axis=1)
        return float(self.counts @ mean), float(self.counts @ variance)

    def added_variance(self, theta: float, spacing: float) -> float:
        """Variance that both lattices together add to the tilted sum."""
        size = np.abs(self.loss)
        per_release = np.minimum(spacing**2 / 6.0, size * spacing) + np.minimum(spacing**2 / 12.0, size**2)
        return float(self.counts @ (self._weights(theta) * per_release).sum(axis=1))

    def _weights(self, theta: float) -> FloatArray:
        terms = self.log_mass + theta * self.loss
        weight = np.exp(terms - terms.max(axis=1, keepdims=True))
        return np.asarray(weight / weight.sum(axis=1, keepdims=True), dtype=np.float64)


def rough(pairs: Direction, reach: float) -> Rough:
    """Coarse distributions of all parts."""
    nodes = [pair.nodes(reach) for pair, _ in pairs]
    width = max(len(loss) for loss, _ in nodes)
    loss = np.zeros((len(nodes), width))
    log_mass = np.full((len(nodes), width), -1e6)
    for row, (values, logs) in enumerate(nodes):
        loss[row, : len(values)], log_mass[row, : len(values)] = values, logs
    counts = np.array([count for _, count in pairs], dtype=np.float64)
    return Rough(pairs=pairs, reach=reach, loss=loss, log_mass=log_mass, counts=counts)


@dataclass(frozen=True, kw_only=True)
class Aim:
    """Epsilon to compute at, with the tilt and the largest single loss for it, and the losses so clipped."""

    epsilon: float
    theta: float
    cap: float
    moments: Rough


def aim_at_delta(moments: Rough, delta: float) -> Aim:
    """The aim at the least epsilon that Chernoff's bound proves at ``delta``; a lower one allows a lower cap."""
    aim, largest = _chernoff(moments, delta, math.inf), float(moments.loss.max())
    for _ in range(_CAPPINGS):
        cap = moments.cap(aim.epsilon)
        if cap >= min(aim.cap, largest):
            break
        before, aim = aim, _chernoff(moments.clipped(cap), delta, cap)
        if aim.epsilon > 0.95 * before.epsilon:
            break
    return aim


def aim_at_epsilon(moments: Rough, epsilon: float) -> Aim:
    """The aim at this epsilon."""
    cap = moments.cap(epsilon)
    clipped = moments.clipped(cap)
    theta = _minimise(lambda tilt: clipped.log_mgf(tilt) - tilt * epsilon)  # Chernoff's
    return Aim(epsilon=epsilon, theta=theta, cap=cap, moments=clipped)


def _chernoff(moments: Rough, delta: float, cap: float) -> Aim:
    """The Chernoff-optimal tilt at ``delta`` and the epsilon it proves, of losses that were clipped to ``cap``."""
    log_inverse = -math.log(delta)
    theta = _minimise(lambda tilt: (moments.log_mgf(tilt) + log_inverse) / tilt)
    return Aim(epsilon=(moments.log_mgf(theta) + log_inverse) / theta, theta=theta, cap=cap, moments=moments)


def _minimise(objective: Callable[[float], float]) -> float:
    """Golden section in log tilt around the best power of four from 4^-8 to 4^10, or to 4^18 where losses are tiny."""
    grid = 4.0 ** np.arange(-8.0, 19.0)
    values: list[float] = []
    for tilt in grid:
        if len(values) > _USUAL_TILTS and values[-1] > values[-2]:
            break
        values.append(objective(float(tilt)))
    grid = grid[: len(values)]
    best = int(np.argmin(values))
    low, high = math.log(grid[max(best - 1, 0)]), math.log(grid[min(best + 1, len(grid) - 1)])
    golden = 0.5 * (math.sqrt(5.0) - 1.0)
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = objective(math.exp(left)), objective(math.exp(right))
    for _ in range(12):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = objective(math.exp(left))
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = objective(math.exp(right))
    return math.exp(0.5 * (low + high))


def spacing_for(aim: Aim, tolerance: float) -> float:
    """The lattice spacing whose added variance moves epsilon by about ``tolerance``."""
    low, high = 1e-9, 1.0
    for _ in range(16):  # the nine decades to 1e-4 relative
        middle = math.sqrt(low * high)
        moved = 0.5 * (aim.theta + 1.0) * aim.moments.added_variance(aim.theta, middle)
        low, high = (middle, high) if moved < tolerance else (low, middle)
    return low


def outside_log(theta: float) -> float:
    """Minus the log of the tilted mass that may lie outside of a window."""
    return _OUTSIDE_LOG + max(0.0, math.log(theta / _USUAL_TILT))


def window_for(moments: Rough, theta: float, spacing: float) -> Window:
    """A window outside which the tilted sum has a mass of about ``exp(-outside_log(theta))``."""
    _, variance = moments.tilted_moments(theta)
    outside = outside_log(theta)
    natural = math.sqrt(2.0 * outside / max(variance, spacing**2))
    base = moments.log_mgf(theta)
    ups = [(moments.log_mgf(theta + t) - base + outside) / t for t in natural * _SHARES]
    downs = [(moments.log_mgf(theta - t) - base + outside) / -t for t in natural * _SHARES]
    up, down = int(np.argmin(ups)), int(np.argmax(downs))
    start = math.floor(downs[down] / spacing) - 4
    size = math.ceil(ups[up] / spacing) + 4 - start
    return Window(
        start=start,
        size=fft.next_fast_len(max(size + size % 2, 16), real=True),
        up=float(natural * _SHARES[up]),
        down=-float(natural * _SHARES[down]),
    )


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
    moments = rough(pairs, reach_for(pairs, delta))
    aim = _first_aim(moments, delta)
    spacing = spacing_at(aim)
    lower, upper = 0.0, math.inf
    if enough and (found := _look(aim, delta, _LOOSENED)) <= enough:
        return 0.0, found
    for _ in range(_ATTEMPTS):
        place = place_at(aim, spacing)
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
        aim = aim_at_epsilon(rough(pairs, reach_for(pairs, least)), epsilon)
        if not spacing:
            spacing = _spacing_of_delta(aim)
        place = place_at(aim, spacing)
        if not affordable(place):
            spacing *= 4.0
            continue
        tried = True
        upper = min(upper, float(upper_delta(upper_sum(place), np.array([epsilon]))[0]))
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


def curve_ends(
    pairs: Direction, epsilons: FloatArray, least: float, *, testing: bool
) -> tuple[FloatArray, list[Tests]]:
    """Upper deltas of one direction at rising ``epsilons``, and tests if any are wanted; by a few looks.

    Raises:
        OutOfRangeError: Nothing was computed.
    """
    reach = reach_for(pairs, _LEAST_SHARE * least)
    moments, upper = rough(pairs, reach), np.ones_like(epsilons)
    tests: list[Tests] = []
    top = min(float(epsilons[-1]), ceiling(pairs, reach))
    # what is lost between two of the epsilons is about what this lattice loses
    finest = top / (4.0 * len(epsilons) * math.sqrt(sum(count for _, count in pairs)))
    for share in _CURVE_LOOKS:
        aim = aim_at_epsilon(moments, share * top)
        place = place_at(aim, max(finest, _spacing_of_delta(aim)))
        if affordable(place):
            upper = np.minimum(upper, upper_delta(upper_sum(place), epsilons))
            tests += [lower_tests(lower_sums(place))] if testing else []
    if np.all(upper == 1.0):
        raise OutOfRangeError
    return upper, tests


def _spacing_of_delta(aim: Aim) -> float:
    """A spacing that usually suffices for a delta."""
    return spacing_for(aim, 0.5 * _SOUGHT_DELTA.relative / (aim.theta + 1.0))


def quick_upper_epsilon(pairs: Direction, delta: float, near: float | None, loosened: float = 1.0) -> float:
    """An upper epsilon of one direction by one look, at ``near`` where given; infinite where it sees nothing.

    Its error is sought to be that of a refined one times ``loosened``, which makes it quicker. Far from ``near``
    Chernoff's value of the rough moments is answered, which is enough to move a search.
    """
    if costs_nothing(pairs, delta):
        return 0.0
    moments = rough(pairs, reach_for(pairs, delta))
    if near is not None:
        guess = aim_at_delta(moments, delta).epsilon
        if not near / _FAR < guess < near * _FAR:
            return guess
        found = _look(aim_at_epsilon(moments, near), delta, loosened)
        if 0.5 * near < found < 2.0 * near:
            return found
    return _look(_first_aim(moments, delta), delta, loosened)


def rough_upper_epsilon(pairs: Direction, delta: float) -> float:
    """Chernoff's epsilon of one direction's rough moments; an estimate."""
    return 0.0 if costs_nothing(pairs, delta) else aim_at_delta(rough(pairs, reach_for(pairs, delta)), delta).epsilon


def ceiling(pairs: Direction, reach: float) -> float:
    """The largest loss of the whole composition, up to a negligible share of delta; rounded up."""
    largest = math.fsum(count * (pair.loss_range(reach)[1] + pair.loss_error) for pair, count in pairs)
    return largest * (1.0 + 2.0**-50)


def costs_nothing(pairs: Direction, delta: float) -> bool:
    """Whether ``delta`` is at least the sum of all releases' total variations: then epsilon is 0."""
    total = 0.0
    for pair, count in pairs:
        tails = pair.tails(np.zeros(1))
        p, q, error = float(tails.p_above[0]), float(tails.q_above[0]), float(tails.relative_error[0])
        total += count * (p - q + error * (p + q) + pair.loss_error)
        if total > delta:  # of thousands of kinds the first tell
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
    return spacing_for(aim, 0.6 * loosened * _SOUGHT_EPSILON.of(aim.epsilon))


def place_at(aim: Aim, spacing: float) -> Place:
    """Everything that says where to compute.

    Raises:
        OutOfRangeError: A single loss is too large to be exponentiated.
    """
    tilt = min(_TILT_SHARE * aim.theta, _MAX_STEP_TILT / spacing)
    pairs, moments = aim.moments.pairs, aim.moments
    extent = Extent(t=moments.reach, bottom=moments.bottom(tilt) - spacing, cap=aim.cap)
    if not all(max(-low, high) < MAX_LOSS for low, high in (extent.of(pair) for pair, _ in pairs)):
        raise OutOfRangeError
    window = window_for(moments, tilt, spacing)
    return Place(pairs=pairs, theta=tilt, spacing=spacing, window=window, extent=extent, outside=outside_log(tilt))


def affordable(place: Place) -> bool:
    """Whether a place has few enough points for one transform, and few enough cells."""
    ends = [place.extent.of(pair) for pair, _ in place.pairs]
    cells = sum(high - low for low, high in ends) / place.spacing
    return place.window.size <= MAX_POINTS and cells <= 8 * MAX_POINTS


def _first_aim(moments: Rough, delta: float) -> Aim:
    """The aim at Chernoff's epsilon; where single losses are capped that may be far off, and a coarse lattice looks."""
    aim = aim_at_delta(moments, delta)
    if aim.cap == math.inf:
        return aim
    place = place_at(aim, _COARSE * aim.cap)
    found = upper_epsilon(upper_sum(place), delta) if affordable(place) else math.inf
    return aim_at_epsilon(moments, found) if 0.0 < found < math.inf else aim


def _look(aim: Aim, delta: float, loosened: float) -> float:
    """An upper epsilon; infinite where it lies outside of the window."""
    place = place_at(aim, spacing_at(aim, loosened))
    if not affordable(place):
        return math.inf
    sums = upper_sum(place)
    found = upper_epsilon(sums, delta)
    return found if found > place.spacing * sums.total.window.start else math.inf
