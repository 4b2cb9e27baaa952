"""The tight accountant: certified lower and upper epsilon (or delta) of a whole composition.

Each release becomes two lattice releases, one that dominates its pair and one that tests
it (``accountant.tight.lattice``); their sums come from one tilted FFT each (``accountant.tight.fourier``). Upper:

    delta(epsilon) <= sum over k h > epsilon of (1 - exp(epsilon - k h)) P_upper(k) + slack

and lower, over thresholds m: delta(epsilon) >= P(S >= m) - exp(epsilon) Q(S >= m) - slack. The
slack holds truncation, aliasing and rounding, so ``lower <= truth <= upper`` is a statement
about the computed doubles. All releases at rate 1 are merged into one exact Gaussian, and
a composition of nothing else is answered in closed form. Both directions of the adjacency
are computed; each bound is the larger of the two.

Where no lattice holds a setting (a delta below 1e-280, a loss above ``refine.MAX_LOSS``, an event of which only a
Rényi curve is known) the answer is the Rényi bound and says so in ``method``. An upper end that was certified is
never left out: where the interval is wide, or Rényi's bound may be as close, the smaller of both is answered.

Example:
    >>> from accountant import PoissonSampledGaussian, numerical, repeat
    >>> rounds = repeat(PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=2.0), 40)
    >>> round(numerical.epsilon(rounds, 1e-5, adjacency=Adjacency.ZERO_OUT), 2)
    3.96
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from typing import Literal

import numpy as np

from accountant import gaussian_dp, moments, renyi
from accountant.events import Adjacency, Basic, Event, Gaussian, compose, parts, to_dict, trivial_delta, trivial_epsilon
from accountant.mechanisms.pair import FloatArray, Pair
from accountant.tight.refine import (
    PROMISED_EPSILON,
    Direction,
    OutOfRangeError,
    Tests,
    ceiling,
    curve_ends as curve_of,
    delta_ends,
    epsilon_ends,
    quick_upper_epsilon,
    reach_for,
    rough_upper_epsilon,
)
from accountant.verify import events as read
from accountant.verify.lower.ends import lower_delta, lower_epsilon, lower_tests

_SMALL, _LARGE = 1e-3, 100.0  # outside of these the Rényi bound may be as close, and is asked too
_FAILED = (OutOfRangeError, ArithmeticError)  # then the answer is Rényi's
_raising = partial(np.errstate, over="raise", invalid="raise")

Method = Literal["closed-form", "numerical", "renyi"]


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Certified bounds: ``lower <= truth <= upper``; quote ``upper``.

    Attributes:
        lower: Lower end: what a test tells apart of two data sets that the events admit (``accountant.verify.lower``
            names them), or of the pair that stands for the events where two data sets attain it. For sampling of a
            fixed size it is the dominating pair's end, and the mechanism may cost less.
        upper: Upper end, the number to quote.
        method: Where the upper end comes from: "closed-form", "numerical" or "renyi".

    Example:
        >>> Interval(lower=1.0, upper=1.5, method="numerical").to_dict()
        {'lower': 1.0, 'upper': 1.5, 'method': 'numerical'}
    """

    lower: float
    upper: float
    method: Method

    @property
    def is_tight(self) -> bool:
        """Whether the ends of an epsilon are as close as is promised: .5 % of the upper one, or 5e-5."""
        return self.lower == self.upper or PROMISED_EPSILON.holds(self.lower, self.upper)

    def to_dict(self) -> dict[str, float | str]:
        """Plain values, for JSON."""
        return asdict(self)


def epsilon(event: Event, delta: float, *, adjacency: Adjacency) -> float:
    """The certified upper epsilon at ``delta``."""
    return _epsilon_interval(event, delta, adjacency).upper


def quick_epsilon(
    event: Event, delta: float, *, adjacency: Adjacency, near: float | None = None, loosened: float = 1.0
) -> float:
    """An upper epsilon at ``delta`` without a lower end to judge it by; steers searches, quote ``epsilon``.

    Where it says ``near`` which epsilon it is searched for, it is an estimate elsewhere, and the first direction stands
    for both, which is nearly always the dearer one. It is quicker and looser by ``loosened``.
    """
    if (known := _closed_form(event, delta, adjacency)) is not None:
        return known
    upper = 0.0
    try:
        with _raising():
            for pairs in _directions(event, adjacency)[: None if near is None else 1]:
                if ceiling(pairs, reach_for(pairs, delta)) > upper:
                    upper = max(upper, quick_upper_epsilon(pairs, delta, near, loosened))
    except _FAILED:
        upper = math.inf
    return upper if math.isfinite(upper) else epsilon(event, delta, adjacency=adjacency)


def rough_epsilon(event: Event, delta: float, *, adjacency: Adjacency) -> float:
    """Epsilon at ``delta`` by Chernoff's bound of one direction's coarse quadrature; says where a search begins."""
    if (known := _closed_form(event, delta, adjacency)) is not None:
        return known
    try:
        with _raising():
            pairs, *_ = _directions(event, adjacency)
            return rough_upper_epsilon(pairs, delta)
    except _FAILED:
        return renyi.epsilon(event, delta, adjacency=adjacency)


def _closed_form(event: Event, delta: float, adjacency: Adjacency) -> float | None:
    """Epsilon where no lattice is needed."""
    trivial = trivial_epsilon(event, delta, adjacency)
    exact = trivial is None and gaussian_dp.is_exact(event)
    return gaussian_dp.epsilon(event, delta, adjacency=adjacency) if exact else trivial


def delta(event: Event, epsilon: float, *, adjacency: Adjacency) -> float:
    """The certified upper delta at ``epsilon``."""
    return _delta_interval(event, epsilon, adjacency).upper


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
    found = _epsilon_interval(event, delta, adjacency)
    if not _needs_a_test(event, found):
        return found
    least = lower_epsilon(_as_read(event), delta, read.Adjacency(adjacency))
    return replace(found, lower=min(found.upper, least))


def _epsilon_interval(event: Event, delta: float, adjacency: Adjacency) -> Interval:
    if (trivial := trivial_epsilon(event, delta, adjacency)) is not None:
        return Interval(lower=trivial, upper=trivial, method="closed-form")
    if gaussian_dp.is_exact(event):
        exact = gaussian_dp.epsilon(event, delta, adjacency=adjacency)
        below = max(0.0, exact * (1.0 - 1e-11) - 1e-13 * (1.0 - math.log(delta)))
        return Interval(lower=below, upper=exact, method="closed-form")
    try:
        with _raising():
            lower, upper = _epsilon_ends(_directions(event, adjacency), delta)
    except _FAILED:
        lower, upper = 0.0, math.inf
    if PROMISED_EPSILON.holds(lower, upper) and _SMALL < upper < _LARGE:
        return Interval(lower=lower, upper=upper, method="numerical")
    bound = renyi.epsilon(event, delta, adjacency=adjacency)
    method: Method = "numerical" if upper <= bound else "renyi"
    return Interval(lower=min(lower, bound), upper=min(upper, bound), method=method)


def delta_interval(event: Event, epsilon: float, *, adjacency: Adjacency) -> Interval:
    """Certified bounds of delta at ``epsilon``.

    Raises:
        AccountingError: ``epsilon`` is negative.
        EventError: ``event`` is unknown or unsound under ``adjacency``.
    """
    found = _delta_interval(event, epsilon, adjacency)
    if not _needs_a_test(event, found):
        return found
    least = lower_delta(_as_read(event), epsilon, read.Adjacency(adjacency), near=found.upper)
    return replace(found, lower=min(found.upper, least))


def _needs_a_test(event: Event, found: Interval) -> bool:
    """Whether the lower end is another's than the pair's: that one is a bound, or no lattice looked at it."""
    return found.method == "renyi" or not all(part.is_attained for part, _ in parts(event))


def _as_read(event: Event) -> read.Composed:
    """The event as an auditor reads it."""
    return read.composed(read.parts_of(to_dict(compose([event]))))


def curve_ends(
    event: Event, epsilons: FloatArray, least: float, *, adjacency: Adjacency
) -> list[tuple[FloatArray, list[Tests]]]:
    """Upper deltas at rising ``epsilons``, and tests, of P against Q and of Q against P; tight from ``least`` on."""
    exact, attained = gaussian_dp.is_exact(event), all(part.is_attained for part, _ in parts(event))
    found: list[tuple[FloatArray, list[Tests]]] = []
    try:
        with _raising():
            directions = [] if exact else _directions(event, adjacency)
            found = [curve_of(pairs, epsilons, least, testing=attained) for pairs in directions]
    except _FAILED:
        pass
    found = [*found, *found][:2]  # one stands for both where the pair is symmetric
    if found and attained:
        return found
    paid, both = _as_read(event), read.Adjacency(adjacency)
    known = [lower_tests(paid, (least, math.sqrt(least)), both, added=added) for added in (False, True)]
    if not found:
        of = gaussian_dp.deltas if exact else renyi.deltas
        found = [(of(event, epsilons, adjacency=adjacency), [])] * 2
    return [(upper, tests) for (upper, _), tests in zip(found, known, strict=True)]


def _delta_interval(event: Event, epsilon: float, adjacency: Adjacency) -> Interval:
    if (trivial := trivial_delta(event, epsilon, adjacency)) is not None:
        return Interval(lower=trivial, upper=trivial, method="closed-form")
    if gaussian_dp.is_exact(event):
        exact = gaussian_dp.delta(event, epsilon, adjacency=adjacency)
        lost = 2.0 * gaussian_dp.relative_error(math.sqrt(gaussian_dp.mu_squared(event) or 0.0), epsilon)
        return Interval(lower=exact * max(0.0, 1.0 - 1e-11 - lost), upper=exact, method="closed-form")
    bound = renyi.delta(event, epsilon, adjacency=adjacency)
    lower = upper = 0.0
    try:
        with _raising():
            for direction in _directions(event, adjacency):
                low, high = delta_ends(direction, epsilon, bound, enough=lower)
                lower, upper = max(lower, low), max(upper, high)
    except _FAILED:
        return Interval(lower=0.0, upper=bound, method="renyi")
    method: Method = "numerical" if upper < bound or upper <= lower else "renyi"
    return Interval(lower=min(lower, upper), upper=upper, method=method)


def _epsilon_ends(directions: Sequence[Direction], delta: float) -> tuple[float, float]:
    """The larger of the directions; one that provably stays below another is not refined."""
    lower = upper = 0.0
    for direction in directions:
        top = ceiling(direction, reach_for(direction, delta))
        if top <= upper:
            continue
        low, high = epsilon_ends(direction, delta, enough=upper)
        lower, upper = max(lower, low), max(upper, min(high, top))
    return min(lower, upper), upper


def _directions(event: Event, adjacency: Adjacency) -> list[Direction]:
    """The composition's pairs, once for each direction of the adjacency; rate 1 merged."""
    full, sampled = 0.0, []
    for whole, times in parts(event):
        for part, count in whole.blocks():
            mu_squared = gaussian_dp.mu_squared(part)
            if mu_squared is not None:
                full += times * count * mu_squared
            elif _pairs(part, adjacency):
                sampled.append((part, times * count))
            else:
                raise OutOfRangeError  # a Rényi curve is all that is known
    if full:  # one exact Gaussian, made of as few equal ones as keep each release's losses small
        count = math.ceil(full / 4.0)
        sampled.append((Gaussian(noise_multiplier=math.sqrt(count / full)), count))
    both = [(_pairs(part, adjacency), count) for part, count in sampled]
    n_directions = max(len(pairs) for pairs, _ in both)
    return [tuple((pairs[min(index, len(pairs) - 1)], count) for pairs, count in both) for index in range(n_directions)]


@lru_cache(maxsize=4096)
def _pairs(event: Basic, adjacency: Adjacency) -> tuple[Pair, ...]:
    return event.pairs(adjacency)


def epsilon_table(event: Event, delta: float, *, adjacency: Adjacency) -> dict[str, float]:
    """Give epsilon at ``delta`` under every accountant valid for ``event``, loosest first.

    Keys: "moments", "renyi", "tight" and, where it is exact, "gaussian_dp". All are upper
    bounds; "tight" is the certified upper end of ``epsilon_interval``.

    Args:
        event: Everything released.
        delta: In (0, 1).
        adjacency: The ledger's adjacency.

    Raises:
        AccountingError: ``delta`` is not in (0, 1).
        EventError: ``event`` is unknown or unsound under ``adjacency``.

    Example:
        >>> from accountant import Adjacency, PoissonSampledGaussian, repeat
        >>> rounds = repeat(PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=2.0), 40)
        >>> table = epsilon_table(rounds, 1e-5, adjacency=Adjacency.ZERO_OUT)
        >>> {name: round(value, 2) for name, value in table.items()}
        {'moments': 4.99, 'renyi': 4.36, 'tight': 3.96}
    """
    table = {
        "moments": moments.epsilon(event, delta, adjacency=adjacency),
        "renyi": renyi.epsilon(event, delta, adjacency=adjacency),
        "tight": epsilon(event, delta, adjacency=adjacency),
    }
    if gaussian_dp.is_exact(event):
        table["gaussian_dp"] = gaussian_dp.epsilon(event, delta, adjacency=adjacency)
    return table
