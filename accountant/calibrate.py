"""Calibration: any one of noise multiplier, sample rate, rounds, epsilon and delta from the others.

Targets are met from the safe side: the returned parameters cost at most what was asked,
as the same accountant reports it. Searches bracket the answer, then use Brent's method.

Example:
    >>> from accountant import calibrate
    >>> z = calibrate.noise_multiplier(
    ...     lambda z: calibrate.poisson(0.25, z, 40), epsilon=2.0, delta=1e-5, adjacency=Adjacency.ZERO_OUT
    ... )
    >>> round(z, 2)
    3.41
    >>> calibrate.rounds(z, sample_rate=0.25, epsilon=2.0, delta=1e-5, adjacency=Adjacency.ZERO_OUT)
    40
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Final, Protocol

from scipy.optimize import brentq, minimize_scalar

from accountant import gaussian_dp
from accountant.errors import CalibrationError
from accountant.events import Adjacency, Event, PoissonSampledGaussian, check_delta, check_epsilon, repeat
from accountant.tight import numerical

_LOW: Final = 2.0**-6
_HIGH: Final = 2.0**24
_RTOL: Final = 1e-6
_GOOD: Final = 1.0 - 1e-3  # share of a target that a price may leave unspent, if it must
_CLOSE: Final = 1.0 - 8e-4  # if another look finds it
_AIMED: Final = 1.0 - 3e-4
_LOOKS: Final = 5
_LOOSENED: Final = 16.0  # of the ends that a search sees
_ROUGH: Final = 0.05  # of the log multiplier that Chernoff's prices find
_MET: Final = 0.01  # log of a loose price over the target, from which one step remains
_USUAL_SLOPE: Final = -1.5  # of log epsilon in log multiplier
_LEAST_EPSILON: Final = 1e-6
MAX_ROUNDS: Final = 2**40


class EpsilonOf(Protocol):
    """The epsilon of an event at a delta; ``epsilon`` of any accountant module."""

    def __call__(self, event: Event, delta: float, /, *, adjacency: Adjacency) -> float:
        """Epsilon of ``event`` at ``delta``."""


def noise_multiplier(
    plan: Callable[[float], Event],
    *,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    accountant: EpsilonOf = numerical.epsilon,
) -> float:
    """The smallest noise multiplier z at which ``plan(z)`` costs at most ``epsilon``.

    Args:
        plan: The whole schedule as a function of one multiplier; rounds may differ in
            any way, more noise must not cost more.
        epsilon: Target, positive.
        delta: In (0, 1).
        adjacency: The ledger's adjacency.
        accountant: ``epsilon`` of an accountant; the tightest one by default.

    Raises:
        CalibrationError: The plan cannot reach the target with a multiplier below 2^24.
    """
    _check_target(epsilon, delta)

    def cost(log_z: float, by: EpsilonOf = accountant) -> float:
        return by(plan(math.exp(log_z)), delta, adjacency=adjacency)

    dear = accountant is numerical.epsilon and not gaussian_dp.is_exact(plan(1.0))  # a closed form is asked at will
    if dear and (found := _quick(cost, epsilon)) is not None:
        return math.exp(found)
    return math.exp(_solve(cost, epsilon))


def _quick(cost: Callable[[float, EpsilonOf], float], target: float) -> float | None:
    """The log multiplier that a search among ever better prices finds; None if they mislead.

    Chernoff's prices say where to begin, a loose lattice finds where its own price meets the target, and a close one
    corrects it: the error of a loose end hardly changes near the answer. What counts is what the accountant reports.
    """
    loose = functools.partial(numerical.quick_epsilon, near=target, loosened=_LOOSENED)
    close = functools.partial(numerical.quick_epsilon, near=target)
    try:
        here = _solve(lambda log_z: cost(log_z, numerical.rough_epsilon), target, precision=_ROUGH)
    except CalibrationError:  # of a bound that is looser than what is asked
        return None
    if here <= math.log(_LOW):
        return here if cost(here, numerical.epsilon) <= target else None
    best, slope, before = None, _USUAL_SLOPE, None
    looks: tuple[EpsilonOf, ...] = (*[loose] * _LOOKS, close, *[numerical.epsilon] * _LOOKS)
    met = False
    for look in looks:
        if look is loose and met:
            continue
        price = cost(here, look)
        if not 0.0 < price < math.inf:
            break
        if look is numerical.epsilon and _GOOD * target <= price <= target:
            best = here if best is None else min(best, here)
            if price >= _CLOSE * target:
                break
        gap = math.log(price / (_AIMED * target))
        if look is loose:
            if before is not None and before[0] != here:
                slope = min(-0.2, max(-8.0, (gap - before[1]) / (here - before[0])))
            before, met = (here, gap), abs(gap) < _MET
        here = max(math.log(_LOW), here - gap / slope)
    return best


def against_advantage(plan: Callable[[float], Event], *, advantage: float, adjacency: Adjacency) -> float:
    """The smallest noise multiplier at which no attack's success exceeds its false alarms by more than ``advantage``.

    Raises:
        CalibrationError: No multiplier below 2^24 reaches it, or it is not in (0, 1).
    """
    _check_rates(0.0, advantage)
    return math.exp(_solve(lambda log_z: numerical.delta(plan(math.exp(log_z)), 0.0, adjacency=adjacency), advantage))


def against_attack(plan: Callable[[float], Event], *, tpr: float, fpr: float, adjacency: Adjacency) -> float:
    """The smallest noise multiplier at which an attack with false-alarm rate ``fpr`` has success of at most ``tpr``.

    It has where delta + exp(epsilon) fpr <= tpr, or 1 - exp(-epsilon) (1 - delta - fpr) <= tpr, at some epsilon
    (``accountant.curve``): every epsilon asks for some multiplier, and the least of them suffices.

    Raises:
        CalibrationError: No multiplier below 2^24 reaches it, or not 0 < ``fpr`` < ``tpr`` < 1.
    """
    _check_rates(fpr, tpr)

    def log_multiplier(at: float) -> float:
        epsilon = max(abs(at), _LEAST_EPSILON)
        delta = tpr - math.exp(epsilon) * fpr if at > 0.0 else 1.0 - fpr - math.exp(epsilon) * (1.0 - tpr)
        if delta <= 0.0:
            return math.log(_HIGH)
        return math.log(noise_multiplier(plan, epsilon=epsilon, delta=delta, adjacency=adjacency))

    ends = (-math.log((1.0 - fpr) / (1.0 - tpr)), math.log(tpr / fpr))
    least = float(minimize_scalar(log_multiplier, bounds=ends, method="bounded", options={"xatol": 1e-3}).fun)
    if least >= math.log(_HIGH):
        raise CalibrationError(
            f"no noise multiplier below {_HIGH:g} is found that keeps an attack's success at {tpr!r} with "
            f"{fpr!r} false alarms; let the two differ by more"
        )
    return math.exp(least)


def _check_rates(low: float, high: float) -> None:
    if not 0.0 <= low < high < 1.0:
        raise CalibrationError(
            f"an attack's rates must lie in (0, 1), its success {high!r} above its false alarms {low!r}"
        )


def sample_rate(
    noise_multiplier: float,
    *,
    rounds: int,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    accountant: EpsilonOf = numerical.epsilon,
) -> float:
    """The largest Poisson sample rate at which ``rounds`` releases cost at most ``epsilon``; 1 if all do.

    Raises:
        CalibrationError: Even a rate of 1e-9 costs more.
    """
    _check_target(epsilon, delta)

    @functools.cache
    def cost(negative_log_q: float) -> float:
        q = min(1.0, math.exp(-negative_log_q))
        return accountant(poisson(q, noise_multiplier, rounds), delta, adjacency=adjacency)

    if cost(0.0) <= epsilon:
        return 1.0
    high = math.log(1e9)
    if cost(high) > epsilon:
        raise CalibrationError(
            f"no sample rate above 1e-9 keeps {rounds} rounds at noise multiplier {noise_multiplier:g} "
            f"within epsilon={epsilon:g} at delta={delta:g}; use more noise or fewer rounds"
        )
    return math.exp(-_decreasing_root(cost, 0.0, high, epsilon))


def rounds(
    noise_multiplier: float,
    *,
    sample_rate: float,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    accountant: EpsilonOf = numerical.epsilon,
) -> int:
    """The largest number of rounds that costs at most ``epsilon``; 0 if not even one does."""
    _check_target(epsilon, delta)

    def affordable(count: int) -> bool:
        event = poisson(sample_rate, noise_multiplier, count)
        return accountant(event, delta, adjacency=adjacency) <= epsilon

    found = largest_count(affordable, MAX_ROUNDS)
    if found >= MAX_ROUNDS:
        raise CalibrationError(f"more than {MAX_ROUNDS} rounds stay within epsilon={epsilon:g}")
    return found


def largest_count(fits: Callable[[int], bool], most: int) -> int:
    """The largest number that fits, where all smaller ones fit, too; not looked for beyond twice ``most``."""
    low, high = 0, 1
    while high <= most and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def poisson(sample_rate: float, noise_multiplier: float, rounds: int) -> Event:
    """The homogeneous plan: ``rounds`` Poisson-sampled Gaussian releases, alike."""
    return repeat(PoissonSampledGaussian(sample_rate=sample_rate, noise_multiplier=noise_multiplier), rounds)


def epsilon(noise_multiplier: float, *, sample_rate: float, rounds: int, delta: float, adjacency: Adjacency) -> float:
    """Epsilon of the homogeneous plan at ``delta``, by the tightest accountant."""
    return numerical.epsilon(poisson(sample_rate, noise_multiplier, rounds), delta, adjacency=adjacency)


def delta(noise_multiplier: float, *, sample_rate: float, rounds: int, epsilon: float, adjacency: Adjacency) -> float:
    """Delta of the homogeneous plan at ``epsilon``, by the tightest accountant."""
    return numerical.delta(poisson(sample_rate, noise_multiplier, rounds), epsilon, adjacency=adjacency)


def _check_target(epsilon: float, delta: float) -> None:
    check_delta(delta)
    check_epsilon(epsilon)
    if not 0.0 < epsilon < math.inf:
        raise CalibrationError(f"a target epsilon must be positive and finite, got {epsilon!r}")


def _solve(cost: Callable[[float], float], target: float, *, precision: float = _RTOL) -> float:
    """The log multiplier at which a falling ``cost`` meets ``target`` from below.

    log cost is nearly straight in log z, so steps along it bracket the answer tightly;
    Brent's method then works inside the bracket.
    """
    known = functools.cache(cost)
    here, slope = 0.0, -1.5
    low, high = -math.inf, math.inf
    while not (low > -math.inf and high < math.inf):
        value = known(here)
        low, high = (max(low, here), high) if value > target else (low, min(high, here))
        if here <= math.log(_LOW) and value <= target:
            return here
        if here >= math.log(_HIGH) and value > target:
            raise CalibrationError(
                f"no noise multiplier below {_HIGH:g} reaches epsilon={target:g}; the plan has a part whose "
                "cost does not fall with the noise, or too many rounds"
            )
        side = 1.0 if value > target else -1.0
        step = math.log(value / target) / -slope if 0.0 < value < math.inf else 2.0 * side
        # a little beyond the predicted place, so that the next point lies on the other side
        step += side * (0.01 + 0.1 * abs(step))
        there = min(max(here + min(max(step, -3.0), 3.0), math.log(_LOW)), math.log(_HIGH))
        ahead = known(there)
        if 0.0 < ahead < math.inf and 0.0 < value < math.inf and ahead != value and there != here:
            slope = min(-0.3, math.log(ahead / value) / (there - here))
        here = there
    return _decreasing_root(known, low, high, target, precision)


def _decreasing_root(
    cost: Callable[[float], float], low: float, high: float, target: float, precision: float = _RTOL
) -> float:
    """The x in [low, high] with cost(x) <= target, as small as Brent finds it; cost(high) <= target holds."""

    def gap(x: float) -> float:
        value = cost(x)
        return 50.0 if value == math.inf else math.log(max(value, 1e-12 * target) / target)

    if gap(low) <= 0.0:
        return low
    if gap(high) >= 0.0:
        return high
    root = float(brentq(gap, low, high, xtol=precision, rtol=1e-12))
    step = 0.5 * precision
    while cost(root) > target:
        root, step = root + step, 2.0 * step
        if root >= high:
            return high
    return root
