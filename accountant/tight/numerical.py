"""The tight accountant: certified lower and upper epsilon (or delta) of a whole composition.

Each release becomes two lattice releases, one that dominates its pair and one that tests
it (``accountant.tight.lattice``); their sums come from one tilted FFT each (``accountant.tight.fourier``). Upper:

    delta(epsilon) <= sum over k h > epsilon of (1 - exp(epsilon - k h)) P_upper(k) + slack

and lower, over thresholds m: delta(epsilon) >= P(S >= m) - exp(epsilon) Q(S >= m) - slack. The
slack holds truncation, aliasing and rounding, so ``lower <= truth <= upper`` is a statement
about the computed doubles. All releases at rate 1 are merged into one exact Gaussian, and
a composition of nothing else is answered in closed form. Both directions of the adjacency
are computed; each bound is the larger of the two.

Where a setting is out of range (a loss beyond ``MAX_LOSS``, more than ``MAX_POINTS`` lattice
points) the answer is the Rényi bound and says so in ``method``.

Longer than 300 lines: both ends of epsilon and of delta are put together in one place.

Example:
    >>> from accountant import PoissonSampledGaussian, numerical, repeat
    >>> rounds = repeat(PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=2.0), 40)
    >>> round(numerical.epsilon(rounds, 1e-5, adjacency=Adjacency.ZERO_OUT), 2)
    3.96
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Final, Literal

from scipy.special import ndtri

from accountant import gaussian_dp, renyi
from accountant.checks import trivial_delta, trivial_epsilon
from accountant.events import Adjacency, Basic, BestOfRandomRuns, Event, Gaussian, parts
from accountant.tight.bounds import Place, lower_delta, lower_epsilon, lower_sums, upper_delta, upper_epsilon, upper_sum
from accountant.tight.pairs import Pair, pairs_of
from accountant.tight.steering import Rough, rough, spacing_for, tilt_for_delta, tilt_for_epsilon, window_for

MAX_LOSS: Final = 500.0
MAX_POINTS: Final = 2**21
PROMISED_WIDTH: Final = (0.005, 0.002)  # of every numerical interval: relative, or absolute
_SOUGHT_WIDTH: Final = (0.001, 1e-5)
_TRUNCATED: Final = 1e-6  # share of delta spent on losses counted as infinite
_ATTEMPTS: Final = 7
_MAX_STEP_TILT: Final = 20.0  # tilt over one lattice step: beyond, a bounded loss is all edge
_ENOUGH_POINTS: Final = 2**17  # beyond it a promised width is not narrowed further

Method = Literal["closed-form", "numerical", "renyi"]


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Certified bounds: ``lower <= truth <= upper``; quote ``upper``.

    Attributes:
        lower: Lower end; 0 where only a Rényi bound is known.
        upper: Upper end, the number to quote.
        method: "closed-form", "numerical" (both ends certified) or "renyi" (an upper bound only).

    Example:
        >>> Interval(lower=1.0, upper=1.5, method="numerical").to_dict()
        {'lower': 1.0, 'upper': 1.5, 'method': 'numerical'}
    """

    lower: float
    upper: float
    method: Method

    def to_dict(self) -> dict[str, float | str]:
        """Plain values, for JSON."""
        return asdict(self)


_Direction = tuple[tuple[Pair, int], ...]


class _OutOfRangeError(Exception):
    """This setting is answered by the Rényi accountant."""


def epsilon(event: Event, delta: float, *, adjacency: Adjacency) -> float:
    """The certified upper epsilon at ``delta``."""
    return epsilon_interval(event, delta, adjacency=adjacency).upper


def quick_epsilon(event: Event, delta: float, *, adjacency: Adjacency) -> float:
    """An upper epsilon at ``delta`` without a lower end to judge it by; steers searches, quote ``epsilon``."""
    trivial = trivial_epsilon(event, delta, adjacency)
    if trivial is not None:
        return trivial
    if gaussian_dp.is_exact(event):
        return gaussian_dp.epsilon(event, delta, adjacency=adjacency)
    upper = 0.0
    try:
        for pairs in _directions(event, adjacency):
            reach = _reach(pairs, delta)
            if _ceiling(pairs, reach) > upper:
                moments = _rough(pairs, reach)
                place = _place(pairs, moments, *_start(moments, delta), reach)
                upper = max(upper, upper_epsilon(upper_sum(place), delta) if _affordable(place) else math.inf)
    except _OutOfRangeError:
        upper = math.inf
    return upper if math.isfinite(upper) else epsilon(event, delta, adjacency=adjacency)


def delta(event: Event, epsilon: float, *, adjacency: Adjacency) -> float:
    """The certified upper delta at ``epsilon``."""
    return delta_interval(event, epsilon, adjacency=adjacency).upper


def epsilon_interval(event: Event, delta: float, *, adjacency: Adjacency) -> Interval:
    """Certified bounds of epsilon at ``delta``.

    Args:
        event: Everything released.
        delta: In (0, 1).
        adjacency: The ledger's adjacency.

    Raises:
        AccountingError: ``delta`` is not in (0, 1).
        EventError: ``event`` is unknown or unsound under ``adjacency``.

    Example:
        >>> from accountant import PoissonSampledGaussian, repeat
        >>> rounds = repeat(PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=2.0), 40)
        >>> found = epsilon_interval(rounds, 1e-5, adjacency=Adjacency.ZERO_OUT)
        >>> found.upper - found.lower < 0.01 and found.method
        'numerical'
    """
    trivial = trivial_epsilon(event, delta, adjacency)
    if trivial is not None:
        return Interval(lower=trivial, upper=trivial, method="closed-form")
    if gaussian_dp.is_exact(event):
        exact = gaussian_dp.epsilon(event, delta, adjacency=adjacency)
        below = max(0.0, exact * (1.0 - 1e-11) - 1e-13 * (1.0 - math.log(delta)))
        return Interval(lower=below, upper=exact, method="closed-form")
    try:
        return _epsilon_interval(_directions(event, adjacency), delta)
    except _OutOfRangeError:
        bound = renyi.epsilon(event, delta, adjacency=adjacency)
        return Interval(lower=0.0, upper=bound, method="renyi")


def delta_interval(event: Event, epsilon: float, *, adjacency: Adjacency) -> Interval:
    """Certified bounds of delta at ``epsilon``.

    Raises:
        AccountingError: ``epsilon`` is negative.
        EventError: ``event`` is unknown or unsound under ``adjacency``.
    """
    trivial = trivial_delta(event, epsilon, adjacency)
    if trivial is not None:
        return Interval(lower=trivial, upper=trivial, method="closed-form")
    if gaussian_dp.is_exact(event):
        exact = gaussian_dp.delta(event, epsilon, adjacency=adjacency)
        lost = 2.0 * gaussian_dp.relative_error(math.sqrt(gaussian_dp.mu_squared(event) or 0.0), epsilon)
        return Interval(lower=exact * max(0.0, 1.0 - 1e-11 - lost), upper=exact, method="closed-form")
    bound = renyi.delta(event, epsilon, adjacency=adjacency)
    try:
        found = [_delta_of(direction, epsilon, bound) for direction in _directions(event, adjacency)]
    except _OutOfRangeError:
        return Interval(lower=0.0, upper=bound, method="renyi")
    lower, upper = max(low for low, _ in found), max(high for _, high in found)
    return Interval(lower=min(lower, upper), upper=upper, method="numerical")


def _epsilon_interval(directions: Sequence[_Direction], delta: float) -> Interval:
    """The larger of the directions; one that provably stays below another is not refined."""
    lower = upper = 0.0
    for direction in directions:
        ceiling = _ceiling(direction, _reach(direction, delta))
        if ceiling <= upper:
            continue
        low, high = _epsilon_of(direction, delta, enough=upper)
        lower, upper = max(lower, low), max(upper, min(high, ceiling))
    if not _narrow((lower, upper), PROMISED_WIDTH):
        raise _OutOfRangeError
    return Interval(lower=min(lower, upper), upper=upper, method="numerical")


def _ceiling(direction: _Direction, reach: float) -> float:
    """The largest loss of the whole composition, up to a negligible share of delta."""
    return sum(count * pair.loss_range(reach)[1] for pair, count in direction)


def _directions(event: Event, adjacency: Adjacency) -> list[_Direction]:
    """The composition's pairs, once for each direction of the adjacency; rate 1 merged."""
    full, sampled = 0.0, []
    for part, count in parts(event):
        if isinstance(part, BestOfRandomRuns):
            raise _OutOfRangeError  # a Rényi curve is all that is known
        mu_squared = gaussian_dp.mu_squared(part)
        if mu_squared is None:
            sampled.append((part, count))
        else:
            full += count * mu_squared
    if full:  # one exact Gaussian, made of as few equal ones as keep each release's losses small
        count = math.ceil(full / 4.0)
        sampled.append((Gaussian(noise_multiplier=math.sqrt(count / full)), count))
    both = [(_pairs(part, adjacency), count) for part, count in sampled]
    n_directions = max(len(pairs) for pairs, _ in both)
    return [tuple((pairs[min(index, len(pairs) - 1)], count) for pairs, count in both) for index in range(n_directions)]


@lru_cache(maxsize=4096)
def _pairs(event: Basic, adjacency: Adjacency) -> tuple[Pair, ...]:
    return pairs_of(event, adjacency)


def clear_caches() -> None:
    """Forget all cached pairs; for measurements."""
    _pairs.cache_clear()


def _reach(pairs: _Direction, delta: float) -> float:
    """Standard deviations at which all truncated mass together is a small share of ``delta``."""
    releases = sum(count for _, count in pairs)
    mass = delta * _TRUNCATED / releases
    if mass < 1e-290:
        raise _OutOfRangeError
    return float(-ndtri(mass))


def _epsilon_of(pairs: _Direction, delta: float, *, enough: float) -> tuple[float, float]:
    """(lower, upper) epsilon of one direction, refined until narrow or below ``enough``."""
    reach = _reach(pairs, delta)
    moments = _rough(pairs, reach)
    theta, spacing = _start(moments, delta)
    lower, upper = 0.0, math.inf
    for _ in range(_ATTEMPTS):
        place = _place(pairs, moments, theta, spacing, reach)
        if not _affordable(place):
            spacing *= 4.0
            continue
        upper = min(upper, upper_epsilon(upper_sum(place), delta))
        if upper <= enough:  # another direction decides; this one's lower end is of no use
            break
        if not math.isfinite(upper):
            spacing *= 0.5
            continue
        lower = max(lower, lower_epsilon(lower_sums(place), delta))
        settled = place.window.size > _ENOUGH_POINTS and _narrow((lower, upper), PROMISED_WIDTH)
        if settled or _narrow((lower, upper), _SOUGHT_WIDTH):
            break
        # look where the answer is: the first tilt looked where Chernoff's bound put it
        theta, _ = tilt_for_epsilon(moments, 0.5 * (lower + upper))
        share = max(_SOUGHT_WIDTH[0] * upper, _SOUGHT_WIDTH[1]) / (upper - lower)
        spacing *= min(0.7, max(0.1, 0.8 * math.sqrt(share)))
    return lower, upper


def _start(moments: Rough, delta: float) -> tuple[float, float]:
    """Tilt and spacing that usually suffice."""
    theta, guess = tilt_for_delta(moments, delta)
    return theta, spacing_for(moments, theta, 0.6 * max(_SOUGHT_WIDTH[0] * guess, _SOUGHT_WIDTH[1]))


def _place(pairs: _Direction, moments: Rough, theta: float, spacing: float, reach: float) -> Place:
    tilt = min(theta, _MAX_STEP_TILT / spacing)
    window = window_for(moments, tilt, spacing)
    return Place(pairs=pairs, theta=tilt, spacing=spacing, window=window, reach=reach)


def _narrow(interval: tuple[float, float], width: tuple[float, float]) -> bool:
    lower, upper = interval
    return math.isfinite(upper) and upper - lower <= max(width[0] * upper, width[1])


def _delta_of(pairs: _Direction, epsilon: float, bound: float) -> tuple[float, float]:
    """(lower, upper) delta of one direction; ``bound`` is any upper bound of it."""
    reach = _reach(pairs, bound * 1e-3)
    if epsilon >= _ceiling(pairs, reach):
        return 0.0, bound * 1e-3 * _TRUNCATED  # only a loss beyond the reach could exceed epsilon
    moments = _rough(pairs, reach)
    theta, _ = tilt_for_epsilon(moments, epsilon)
    spacing = spacing_for(moments, theta, 0.005 / (theta + 1.0))
    place = _place(pairs, moments, theta, spacing, reach)
    if not _affordable(place):
        raise _OutOfRangeError
    return lower_delta(lower_sums(place), epsilon), min(1.0, bound, upper_delta(upper_sum(place), epsilon))


def _rough(pairs: _Direction, reach: float) -> Rough:
    for pair, _ in pairs:
        low, high = pair.loss_range(reach)
        if not max(-low, high) < MAX_LOSS:
            raise _OutOfRangeError
    return rough(pairs, reach)


def _affordable(place: Place) -> bool:
    span = sum(high - low for low, high in (pair.loss_range(place.reach) for pair, _ in place.pairs))
    return place.window.size <= MAX_POINTS and span / place.spacing <= 8 * MAX_POINTS
