"""The whole trade-off of an event: what an attacker gains at any false-alarm rate, and delta at any epsilon.

**From above.** A few tilted lattice sums of either direction bound delta at every point of a grid of epsilons. With
delta_P at epsilon for P against Q, and delta_Q for Q against P, a test of Q against P whose false-alarm rate is a
succeeds with a chance of at most delta_P + exp(epsilon) a, and of at most 1 - exp(-epsilon) (1 - delta_Q - a)
(Wasserman and Zhou 2010; Dong, Roth and Su 2019, proposition 2.12). delta is convex in exp(epsilon): between two points
of the grid it lies below the chord.

**From below.** Every threshold of the same lattice is a test, with a false-alarm rate that is rounded up and a success
rate that is rounded down; so is a coin between two tests, and the complement of a test the other way round.

Example:
    >>> import accountant
    >>> curve = accountant.tradeoff(accountant.Gaussian(noise_multiplier=2.0))
    >>> round(curve.attack_success(0.01), 3), round(curve.advantage(), 3), round(1.0 - curve.bayes_risk(0.5), 3)
    (0.034, 0.197, 0.599)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar, cast

import numpy as np

from accountant.errors import AccountingError
from accountant.events import Adjacency, Event, is_non_private
from accountant.mechanisms.pair import FloatArray
from accountant.tight import numerical
from accountant.tight.refine import Tests

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST: Final = 1e-9  # delta, and false-alarm rate, from which on a curve is tight unless asked otherwise
_SHARE: Final = 0.001  # of it down to which deltas are computed: a success rate is bounded by smaller ones
_POINTS: Final = 1536
_TESTS: Final = 512  # of every look
LARGEST: Final = 700.0  # epsilon that is exponentiated
_CHUNK: Final = 512  # values at once
_SAFE: Final = 1e-12  # relative rounding of a few sums and exponentials
_RATES: Final[FloatArray] = np.geomspace(1e-5, 1.0, 101)

Value = TypeVar("Value", float, FloatArray)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Tradeoff:
    """Certified bounds of how well two neighbouring data sets are told apart; make it with ``accountant.tradeoff``.

    Every method takes a number or an array and answers for the worse of both directions: no attack gains more. With
    ``attained`` it gives the other certified end, which some attack reaches.

    .. versionadded:: 0.3.0

    Attributes:
        epsilons: Rising from 0, shape ``(n,)``.
        upper: Upper bounds of delta at each epsilon, of P against Q and of Q against P, shape ``(2, n)``.
        tests: False-alarm and success rates of tests, of P against Q and of Q against P; rising from (0, 0) to (1, 1).

    Example:
        >>> import numpy as np
        >>> from accountant import PoissonSampledGaussian, repeat, tradeoff
        >>> curve = tradeoff(repeat(PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=2.0), 40))
        >>> curve.attack_success(np.array([1e-5, 0.01])).round(4), round(curve.epsilon(1e-5), 2)
        (array([0.0004, 0.0704]), 3.95)
        >>> 0.99 < curve.attack_success(0.01, attained=True) / curve.attack_success(0.01) <= 1.0
        True
    """

    epsilons: FloatArray
    upper: FloatArray
    tests: tuple[Tests, Tests]

    def attack_success(self, fpr: Value, *, group: int = 1, attained: bool = False) -> Value:
        """Share of members that an attack finds if it accuses a share ``fpr`` of those who are none.

        Args:
            fpr: False-alarm rate, in [0, 1].
            group: Number of units whose presence together is in question, by the bound of one, so many times over
                (Dong, Roth and Su 2019, theorem 2.14). ``accountant.tradeoff(event, group=k)`` is tighter where there
                is one.
            attained: Give what a known attack on one unit finds.
        """
        found = _each("fpr", fpr, 0.0, 1.0, self._reached if attained else self._success)
        for _ in range(0 if attained else group - 1):
            found = _each("fpr", found, 0.0, 1.0, self._success)
        return found

    def advantage(self, *, attained: bool = False) -> float:
        """Largest difference of success and false-alarm rate: the total variation."""
        return self.delta(0.0, attained=attained)

    def bayes_risk(self, prior: Value, *, attained: bool = False) -> Value:
        """Share of wrong guesses below which no attack falls if a unit is a member with the chance ``prior``."""

        def risk(chances: FloatArray) -> FloatArray:
            rarer = np.minimum(chances, 1.0 - chances)
            log_odds = np.log1p(-rarer) - np.log(np.maximum(rarer, 1e-300))
            return np.asarray(rarer * (1.0 - self.delta(np.maximum(log_odds, 0.0), attained=attained)))

        return _each("prior", prior, 0.0, 1.0, risk)

    def delta(self, epsilon: Value, *, attained: bool = False) -> Value:
        """Delta at ``epsilon``, at least 0; beyond the last of ``epsilons`` it is the last one's."""
        return _each("epsilon", epsilon, 0.0, math.inf, self._attained_delta if attained else self._delta)

    def epsilon(self, delta: Value, *, attained: bool = False) -> Value:
        """Epsilon at ``delta``; infinite below the least delta that the curve was made for."""
        return _each("delta", delta, 0.0, 1.0, self._attained_epsilon if attained else self._epsilon)

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw success against false alarms, both ends; needs matplotlib."""
        import matplotlib.pyplot as plt

        at = plt.subplots()[1] if axes is None else axes
        at.plot(_RATES, self.attack_success(_RATES), label="no attack finds more")
        at.plot(_RATES, self.attack_success(_RATES, attained=True), linestyle=":", label="an attack finds as many")
        at.plot(_RATES, _RATES, linestyle="--", color="grey", label="guessing")
        at.set(xscale="log", yscale="log", xlabel="false alarms", ylabel="members found")
        at.legend()
        return at

    def to_dict(self) -> dict[str, float | list[float]]:
        """Plain values, for JSON."""
        return {"right_guess": 1.0 - self.bayes_risk(0.5)} | self.points()

    def points(self) -> dict[str, list[float]]:
        """Both ends at some false-alarm rates and epsilons, for pictures."""
        rates, epsilons = _RATES[::5], self.epsilons[:: max(1, len(self.epsilons) // 32)]
        lists = {
            "false_alarms": rates,
            "caught_upper": self.attack_success(rates),
            "caught_lower": self.attack_success(rates, attained=True),
            "epsilon": epsilons,
            "delta_upper": self.delta(epsilons),
            "delta_lower": self.delta(epsilons, attained=True),
        }
        return {name: values.tolist() for name, values in lists.items()}

    def _success(self, rates: FloatArray) -> FloatArray:
        growth, rest = np.exp(self.epsilons)[:, None], -np.expm1(-self.epsilons)[:, None]
        found = np.zeros(len(rates))
        for mine, other in (self.upper, self.upper[::-1]):
            lines = mine[:, None] + growth * rates, (other[:, None] + rates) / growth + rest
            found = np.maximum(found, np.min(lines, axis=(0, 1)))
        return np.asarray(np.minimum(1.0, found * (1.0 + _SAFE)))

    def _reached(self, rates: FloatArray) -> FloatArray:
        reached = [np.interp(rates, fpr, tpr) for fpr, tpr in self.tests]
        return np.asarray(np.maximum(rates, np.max(reached, axis=0) * (1.0 - _SAFE)))

    def _delta(self, epsilons: FloatArray) -> FloatArray:
        points, upper = self.epsilons, np.max(self.upper, axis=0)
        at = np.minimum(epsilons, points[-1])
        index = np.clip(np.searchsorted(points, at, side="right") - 1, 0, len(points) - 2)
        share = np.expm1(at - points[index]) / np.expm1(points[index + 1] - points[index])
        fallen = (upper[index] - upper[index + 1]) * np.minimum(share, 1.0)
        return np.asarray(np.minimum(1.0, upper[index] - fallen * (1.0 - _SAFE)))

    def _attained_delta(self, epsilons: FloatArray) -> FloatArray:
        growth = np.exp(np.minimum(epsilons, LARGEST))
        shown = [np.max(tpr[:, None] - growth * fpr[:, None], axis=0) for fpr, tpr in self.tests]
        return np.where(epsilons <= LARGEST, np.maximum(0.0, np.max(shown, axis=0) * (1.0 - _SAFE) - _SAFE), 0.0)

    def _epsilon(self, deltas: FloatArray) -> FloatArray:
        points, upper = self.epsilons, np.max(self.upper, axis=0)
        index = np.clip(np.searchsorted(-upper, -deltas), 1, len(points) - 1)
        high, low = upper[index - 1], upper[index]
        share = np.clip((high - deltas) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
        found = points[index - 1] + np.log1p(np.expm1(points[index] - points[index - 1]) * share)
        found = np.where(deltas < upper[-1], math.inf, found * (1.0 + _SAFE))
        return np.where(deltas >= upper[0], 0.0, found)

    def _attained_epsilon(self, deltas: FloatArray) -> FloatArray:
        shown = []
        for fpr, tpr in self.tests:
            gain = tpr[:, None] - deltas * (1.0 + _SAFE)
            log_ratio = np.log(np.maximum(gain, 1e-300)) - np.log(np.maximum(fpr, 1e-300))[:, None]
            shown.append(np.max(np.where(gain > 0.0, log_ratio, 0.0), axis=0))
        return np.asarray(np.maximum(0.0, np.max(shown, axis=0) * (1.0 - _SAFE) - _SAFE))


def of_event(event: Event, *, adjacency: Adjacency, least: float = LEAST) -> Tradeoff:
    """The trade-off of ``event``, tight from false-alarm rates and deltas of ``least`` on.

    Raises:
        AccountingError: ``least`` is not in (0, 1).
        EventError: ``event`` is unknown or unsound under ``adjacency``.
    """
    top = numerical.epsilon(event, _SHARE * least, adjacency=adjacency)
    # closest about 0, as one direction's losses may be far smaller than the other's
    points = min(max(top, LEAST), LARGEST) * np.linspace(0.0, 1.0, _POINTS) ** 2
    if is_non_private(event):
        sure = (np.array([0.0, 1e-300, 1.0]), np.array([0.0, 1.0, 1.0]))
        return Tradeoff(epsilons=points, upper=np.ones((2, _POINTS)), tests=(sure, sure))
    ends = numerical.curve_ends(event, points, _SHARE * least, adjacency=adjacency)
    p, q = (_thinned(tests, _SHARE * least) for _, tests in ends)
    upper = np.minimum.accumulate([one for one, _ in ends], axis=1)
    if top <= points[-1]:
        upper[:, -1] = np.minimum(upper[:, -1], _SHARE * least)
    return Tradeoff(epsilons=points, upper=upper, tests=(_best(p, q), _best(q, p)))


def of_deltas(epsilons: FloatArray, deltas: FloatArray) -> Tradeoff:
    """The trade-off that deltas of both directions at rising epsilons allow, where no attack is known."""
    guessing = (np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    upper = np.minimum.accumulate([deltas, deltas], axis=1)
    return Tradeoff(epsilons=epsilons, upper=upper, tests=(guessing, guessing))


def _thinned(tests: list[Tests], least: float) -> Tests:
    """Some tests of every look, their false-alarm rates at about equal ratios; one of them accuses every unit."""
    kept = [(np.ones(1), np.ones(1))]
    for fpr, tpr in tests:
        order = np.argsort(fpr)[tpr[np.argsort(fpr)] > least]
        if len(order):
            logs = np.log(np.maximum(fpr[order], 1e-300))
            places = np.searchsorted(logs, np.linspace(logs[0], logs[-1], _TESTS))
            order = order[np.unique(places.clip(0, len(logs) - 1))]
            kept.append((fpr[order], tpr[order]))
    return np.concatenate([fpr for fpr, _ in kept]), np.concatenate([tpr for _, tpr in kept])


def _best(tests: Tests, exchanged: Tests) -> Tests:
    """The tests, and complements of the exchanged direction's, that no coin between two others is better than."""
    fpr = np.concatenate([tests[0], 1.0 - exchanged[1] + _SAFE])
    tpr = np.concatenate([tests[1], 1.0 - exchanged[0] - _SAFE])
    kept = [(0.0, 0.0)]
    order = np.lexsort((-tpr, fpr))
    for x, y in zip(fpr[order].tolist(), tpr[order].tolist(), strict=True):
        if x > 1.0 or y <= kept[-1][1]:
            continue
        while len(kept) > 1 and _slope(kept[-2], kept[-1]) <= _slope(kept[-1], (x, y)):
            kept.pop()
        kept.append((x, y))
    x, y = np.transpose(kept)
    return x, y


def _slope(low: tuple[float, float], high: tuple[float, float]) -> float:
    return (high[1] - low[1]) / max(high[0] - low[0], 1e-300)


def _each(name: str, values: Value, low: float, high: float, of: Callable[[FloatArray], FloatArray]) -> Value:
    """A function of every value, a chunk at a time; a number for a number."""
    array = np.asarray(values, dtype=np.float64)
    if not np.all((low <= array) & (array <= high)):
        raise AccountingError(f"{name}={values!r} must lie in [{low:g}, {high:g}]")
    few = np.array_split(array.ravel(), max(1, -(-array.size // _CHUNK)))
    found = np.concatenate([of(part) for part in few]).reshape(array.shape)
    return cast("Value", found if array.ndim else float(found))
