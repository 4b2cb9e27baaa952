"""The front door: prices in one flat call, of an event or of equal rounds, and an accountant that adds events up.

Everything here is a certified upper end (``accountant.tight.numerical``), under add-or-remove-one
unless another adjacency is named: the adjacency that Opacus and dp-accounting take for granted. Where an event is
asked for, dp-accounting's ``DpEvent`` is read, too.

Example:
    >>> import accountant
    >>> z = accountant.noise_multiplier(epsilon=2.0, sample_rate=0.25, rounds=40, delta=1e-5)
    >>> round(z, 2), accountant.epsilon(noise_multiplier=z, sample_rate=0.25, rounds=40, delta=1e-5) <= 2.0
    (3.41, True)
    >>> round(accountant.epsilon(accountant.Gaussian(noise_multiplier=2.0), 1e-5), 3)
    1.993
"""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Self, TypeAlias

from accountant import calibrate
from accountant.curve import LEAST, Tradeoff, of_event
from accountant.errors import AccountingError
from accountant.events import Adjacency, Basic, Composed, Event, check_adjacency, compose, of_group, parts, whole_number
from accountant.mechanisms.basic import as_positive_int
from accountant.tight import numerical
from accountant.tight.numerical import Interval

if TYPE_CHECKING:
    from dp_accounting import DpEvent

AnyEvent: TypeAlias = "Event | DpEvent"

_MEANINGS = {
    "noise_multiplier": "the noise's standard deviation over the L2 sensitivity",
    "epsilon": "the most that the rounds together may cost",
    "sample_rate": "the probability with which one unit takes part in a round",
    "tpr": "the largest success rate of an attack",
    "at_fpr": "the attack's false-alarm rate",
    "advantage": "the largest difference of an attack's success and false-alarm rates",
    "least": "the smallest rate at which the curve has to be tight",
}


def epsilon(
    event: AnyEvent | None = None,
    delta: float | None = None,
    *,
    noise_multiplier: float | None = None,
    rounds: int | None = None,
    sample_rate: float = 1.0,
    adjacency: Adjacency | str = Adjacency.ADD_OR_REMOVE_ONE,
    group: int = 1,
) -> float:
    """Epsilon of an event, or of equal rounds of a Poisson-sampled Gaussian sum as in DP-SGD: the certified upper end.

    .. versionadded:: 0.3.0

    Args:
        event: Everything released, ours or dp-accounting's; None for equal rounds, which the next words describe.
        delta: In (0, 1).
        noise_multiplier: z, noise standard deviation over L2 sensitivity, under replace-one twice the clipping norm;
            positive.
        rounds: Number of releases; zero rounds cost nothing.
        sample_rate: q in (0, 1], the probability with which a unit takes part in a round.
        adjacency: Which data sets are neighbours, such as ``"zero-out"``.
        group: Number of units whose presence together is hidden (``accountant.of_group``).

    Raises:
        AccountingError: A value is out of range, or there is an event and rounds, or neither.
        EventError: ``event`` or ``adjacency`` is unknown, or nothing is proven of a group under it.

    Example:
        >>> round(epsilon(noise_multiplier=2.0, sample_rate=0.25, rounds=40, delta=1e-5), 2)
        3.96
    """
    kind = Adjacency(adjacency)
    whole = planned(event, noise_multiplier, rounds, sample_rate, adjacency=kind, group=group)
    if delta is None:
        raise AccountingError("state delta; usual is at most 1/(10 n_clients), or of records 1/(10 n_records)")
    return numerical.epsilon(whole, delta, adjacency=kind)


def epsilon_interval(
    event: AnyEvent, delta: float, *, adjacency: Adjacency | str = Adjacency.ADD_OR_REMOVE_ONE
) -> Interval:
    """Certified bounds of an event's epsilon at ``delta``: ``accountant.numerical.epsilon_interval``.

    Raises:
        AccountingError: ``delta`` is not in (0, 1).
        EventError: ``event`` or ``adjacency`` is unknown.

    .. versionchanged:: 0.3.0 It takes dp-accounting's events.
    """
    kind = Adjacency(adjacency)
    return numerical.epsilon_interval(_known(event, kind), delta, adjacency=kind)


def epsilon_table(
    event: AnyEvent, delta: float, *, adjacency: Adjacency | str = Adjacency.ADD_OR_REMOVE_ONE
) -> dict[str, float]:
    """Epsilon of an event at ``delta`` under every accountant valid for it: ``accountant.numerical.epsilon_table``.

    Raises:
        AccountingError: ``delta`` is not in (0, 1).
        EventError: ``event`` or ``adjacency`` is unknown.

    .. versionchanged:: 0.3.0 It takes dp-accounting's events.
    """
    kind = Adjacency(adjacency)
    return numerical.epsilon_table(_known(event, kind), delta, adjacency=kind)


def tradeoff(
    event: AnyEvent | None = None,
    *,
    noise_multiplier: float | None = None,
    rounds: int | None = None,
    sample_rate: float = 1.0,
    adjacency: Adjacency | str = Adjacency.ADD_OR_REMOVE_ONE,
    group: int = 1,
    least: float = LEAST,
) -> Tradeoff:
    """Certified trade-off of an event, or of equal rounds: attack success, advantage, Bayes risk, the privacy curve.

    Events compose to one event (``accountant.compose``), which has one trade-off: that is f-DP's composition.

    .. versionadded:: 0.3.0

    Args:
        event: As in ``epsilon``, and so are the words for equal rounds, ``adjacency`` and ``group``.
        noise_multiplier: As there.
        rounds: As there.
        sample_rate: As there.
        adjacency: As there.
        group: As there.
        least: The smallest delta and false-alarm rate at which the curve has to be tight.

    Raises:
        AccountingError: A value is out of range, or there is an event and rounds, or neither.
        EventError: ``event`` or ``adjacency`` is unknown, or nothing is proven of a group under it.

    Example:
        >>> curve = tradeoff(noise_multiplier=2.0, sample_rate=0.25, rounds=40)
        >>> round(curve.attack_success(0.01), 3), round(curve.advantage(), 3)
        (0.07, 0.313)
    """
    kind = Adjacency(adjacency)
    _require("least", least, 1.0)
    whole = planned(event, noise_multiplier, rounds, sample_rate, adjacency=kind, group=group)
    return of_event(whole, adjacency=kind, least=least)


def noise_multiplier(
    *,
    rounds: int,
    epsilon: float | None = None,
    delta: float | None = None,
    tpr: float | None = None,
    at_fpr: float | None = None,
    advantage: float | None = None,
    sample_rate: float = 1.0,
    adjacency: Adjacency | str = Adjacency.ADD_OR_REMOVE_ONE,
    group: int = 1,
) -> float:
    """The smallest noise multiplier at which equal rounds meet a target: name epsilon and delta, or an attack's gain.

    It is the noise's standard deviation over the L2 sensitivity, under replace-one twice the clipping norm.

    .. versionadded:: 0.3.0

    Args:
        rounds: Number of releases, at least one.
        epsilon: Target, positive, at ``delta``.
        delta: In (0, 1).
        tpr: The largest success rate of an attack whose false-alarm rate is ``at_fpr``, between it and 1.
        at_fpr: In (0, 1).
        advantage: The largest difference of success and false-alarm rate, in (0, 1).
        sample_rate: q in (0, 1], the probability with which a unit takes part in a round.
        adjacency: Which data sets are neighbours, such as ``"zero-out"``.
        group: Number of units whose presence together is hidden (``accountant.of_group``).

    Raises:
        AccountingError: A value is out of range.
        CalibrationError: No noise reaches the target.
        EventError: ``adjacency`` is unknown, or nothing is proven of a group under it.

    Example:
        >>> round(noise_multiplier(epsilon=4.0, sample_rate=0.25, rounds=40, delta=1e-5), 2)
        1.98
        >>> round(noise_multiplier(tpr=0.05, at_fpr=0.01, sample_rate=0.25, rounds=40), 2)
        2.47
    """
    count, kind = whole_number("rounds", rounds, 1, "releases"), Adjacency(adjacency)
    plan = partial(_equal_rounds, rounds=count, sample_rate=sample_rate, group=group, adjacency=kind)
    targets = {"epsilon": epsilon, "delta": delta, "tpr": tpr, "at_fpr": at_fpr, "advantage": advantage}
    match {name: value for name, value in targets.items() if value is not None}:
        case {"epsilon": target, "delta": at, **others} if not others:
            _require("epsilon", target)
            return calibrate.noise_multiplier(plan, epsilon=target, delta=at, adjacency=kind)
        case {"tpr": rate, "at_fpr": alarms, **others} if not others:
            _require("tpr", rate, 1.0)
            _require("at_fpr", alarms, 1.0)
            return calibrate.against_attack(plan, tpr=rate, fpr=alarms, adjacency=kind)
        case {"advantage": gain, **others} if not others:
            _require("advantage", gain, 1.0)
            return calibrate.against_advantage(plan, advantage=gain, adjacency=kind)
        case given:
            words = f"got {', '.join(given) or 'none of them'}"
            raise AccountingError(f"name epsilon and delta, or tpr and at_fpr, or advantage; {words}")


class Accountant:
    """Events on the same data, added up one after another.

    It prices what was charged and refuses nothing: a bound that holds while noise or rate are chosen
    from outputs is a filter's (``accountant.filters``) or a ledger's.

    .. versionadded:: 0.3.0

    Example:
        >>> from accountant import PoissonSampledGaussian
        >>> spent = Accountant().compose(PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=2.0), 40)
        >>> round(spent.epsilon(1e-5), 2), spent.delta(8.0) < 1e-12
        (3.96, True)
    """

    def __init__(self, adjacency: Adjacency | str = Adjacency.ADD_OR_REMOVE_ONE) -> None:
        self.adjacency = Adjacency(adjacency)
        self._counts: Counter[Basic] = Counter()

    @property
    def event(self) -> Composed:
        """Everything added so far."""
        return compose(self._counts.items())

    def compose(self, event: AnyEvent, count: int = 1) -> Self:
        """Add ``event``, ours or dp-accounting's, made ``count`` times; returns this accountant.

        Raises:
            EventError: ``event`` is unknown or unsound under the adjacency, or ``count`` below 1.
        """
        times, known = as_positive_int("compose", "count", count), _known(event, self.adjacency)
        check_adjacency(known, self.adjacency)
        for part, n in parts(known):
            self._counts[part] += times * n
        return self

    def epsilon(self, delta: float) -> float:
        """Epsilon of everything at ``delta``: the certified upper end."""
        return numerical.epsilon(self.event, delta, adjacency=self.adjacency)

    def delta(self, epsilon: float) -> float:
        """Delta of everything at ``epsilon``: the certified upper end."""
        return numerical.delta(self.event, epsilon, adjacency=self.adjacency)

    def tradeoff(self, *, least: float = LEAST) -> Tradeoff:
        """Trade-off of everything, tight from ``least`` on."""
        return tradeoff(self.event, adjacency=self.adjacency, least=least)

    def interval(self, delta: float) -> Interval:
        """Certified bounds of epsilon at ``delta``."""
        return numerical.epsilon_interval(self.event, delta, adjacency=self.adjacency)


def planned(
    event: AnyEvent | None,
    noise_multiplier: float | None,
    rounds: int | None,
    sample_rate: float,
    *,
    adjacency: Adjacency,
    group: int,
) -> Event:
    """The event that a flat call describes: the one it names, or equal rounds."""
    if event is not None and noise_multiplier is None and rounds is None:
        return of_group(_known(event, adjacency), group, adjacency=adjacency)
    if event is not None or noise_multiplier is None or rounds is None:
        raise AccountingError("name either an event, or noise_multiplier and rounds (and sample_rate) of equal rounds")
    count = whole_number("rounds", rounds, 0, "releases")
    return _equal_rounds(noise_multiplier, rounds=count, sample_rate=sample_rate, group=group, adjacency=adjacency)


def _known(event: AnyEvent, adjacency: Adjacency) -> Event:
    """The event, read where it is dp-accounting's."""
    if not type(event).__module__.startswith("dp_accounting"):
        return event  # what is no event is refused where it is priced
    from accountant.dp_event import from_dp_event

    return from_dp_event(event, adjacency=adjacency)


def _equal_rounds(
    noise_multiplier: float, *, sample_rate: float, rounds: int, group: int, adjacency: Adjacency
) -> Event:
    _require("sample_rate", sample_rate, 1.0)
    _require("noise_multiplier", noise_multiplier)
    return of_group(calibrate.poisson(sample_rate, noise_multiplier, rounds), group, adjacency=adjacency)


def _require(name: str, value: float, high: float = math.inf) -> None:
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not (number and 0.0 < value <= high and math.isfinite(value)):
        bound = "positive and finite" if high == math.inf else f"above 0 and at most {high:g}"
        raise AccountingError(f"{name}={value!r} must be {bound}: it is {_MEANINGS[name]}")
