"""Epsilon by accountant, by delta, by release and against whom, and what it means for an attacker.

Every price is an upper bound; an infinite one is ``math.inf`` (JSON has null for it).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from accountant.curve import LARGEST, LEAST, Tradeoff, of_deltas, of_event
from accountant.errors import BudgetExceeded
from accountant.events import (
    SLACK,
    Adjacency,
    Event,
    compose,
    is_non_private,
    most_expensive,
    of_noises,
    of_one_run,
    of_seen_samples,
    parts,
)
from accountant.filters import Quote, quote
from accountant.ledger import Budget, Entry, Ledger, LedgerPolicy
from accountant.ledger.book import Declaration
from accountant.ledger.pricing import Total, filter_under, odometer, odometer_delta, total
from accountant.tight.numerical import epsilon_table
from accountant.wording import upper_text
from privbo.plans.privacy import AGAINST, Against, NoPrivacy, Privacy, default_delta, safe_delta, unknown_noises
from privbo.protocol.settings import JsonObject


@dataclass(frozen=True, kw_only=True)
class Spending:
    """Cost of something that is about to be charged.

    Attributes:
        what: What is charged, in words.
        price: Epsilon of it alone.
        total: Of everything that was charged for the same people, with it.
        spent: Of the ledger's bound, with it, by the ledger's own rule; None without a bound.
        budget: The ledger's bound, or None.
    """

    what: str
    price: float
    total: Total
    spent: float | None = None
    budget: Budget | None = None

    @property
    def words(self) -> str:
        """The price and the new total, in a line; under a bound what is spent of it, as reports quote the bound."""
        at = f"at delta {upper_text(self.total.delta)}"
        comes = f"comes to epsilon {upper_text(self.total.epsilon)} {at} ({self.total.rule})"
        if self.budget is not None and self.spent is not None:
            spent = f"epsilon {upper_text(self.spent)} at delta {upper_text(self.budget.delta)}"
            comes = f"comes to {spent}, of its bound {upper_text(self.budget.epsilon)} (rule {self.budget.rule!r})"
        return (
            f"{self.what}: this charges epsilon {upper_text(self.price)} {at}; with it the total on this ledger {comes}"
        )


Agree: TypeAlias = Callable[[Spending], None]
"""Called with a cost before it is charged; what it raises prevents the charge."""


def spending(
    ledger: Ledger,
    delta: float,
    what: str,
    *,
    declared: Sequence[Declaration] = (),
    charges: Mapping[str, Event] | None = None,
) -> Spending:
    """Price plans and single charges on top of a ledger, and refuse what it would refuse, before a client is asked.

    Args:
        ledger: Where they would be charged.
        delta: Where both numbers are quoted.
        what: What is charged, in words.
        declared: Reservations that would be made.
        charges: By run, a charge outside of plans, with secure noise.

    Raises:
        BudgetExceeded: If the ledger's budget is too small.
        LedgerError: If something does not belong on this ledger.
    """
    book, single = ledger.book(), dict(charges or {})
    counted = [pair for one in declared for pair in one.events] + [(event, 1) for event in single.values()]
    # A recovery is never refused: what it pays for has happened.
    further: list[tuple[str, Event, str]] = [
        (one.run, book.combined(one.events), one.noise_source) for one in declared if one.kind == "plan"
    ]
    further += [(run, event, "secure") for run, event in single.items()]
    try:
        spent = ledger.consider(further).projected if further else None
    except BudgetExceeded as error:
        raise BudgetExceeded(f"{what}: {error}") from None
    return Spending(
        what=what,
        price=min(epsilon_table(book.combined(counted), delta, adjacency=book.policy.adjacency).values()),
        total=total(book.projected(declared, single), delta),
        spent=spent,
        budget=book.policy.budget,
    )


_STOPS = 40
_CURVE_POINTS = 256

Epsilons: TypeAlias = Mapping[str, float]  # by accountant


@dataclass(frozen=True, kw_only=True)
class PriceColumn:
    """Epsilon of a plan at one delta.

    Attributes:
        label: Which delta this is: ``"this run"`` or ``"default"`` (min(1e-5, 1/(10 N))).
        delta: The probability that is added to epsilon's bound, in (0, 1).
        epsilon: Upper bounds on epsilon by accountant.
    """

    label: str
    delta: float
    epsilon: Epsilons

    @property
    def smallest(self) -> float:
        """The smallest of the bounds, which is the one to quote."""
        return min(self.epsilon.values())


@dataclass(frozen=True, kw_only=True)
class CumulativePrice:
    """Epsilon of a run's first releases.

    Attributes:
        releases: How many releases are counted, at least 1.
        epsilon: Upper bounds on epsilon by accountant.
    """

    releases: int
    epsilon: Epsilons

    def to_dict(self) -> JsonObject:
        """Give number and bounds as one flat object."""
        return {"releases": self.releases} | {name: finite(value) for name, value in self.epsilon.items()}


def finite(value: float) -> float | None:
    """Give an epsilon in the form JSON has for it: None where it is infinite."""
    return value if math.isfinite(value) else None


def price(
    event: Event, *, delta: float, n_clients: int, adjacency: Adjacency, recovered: bool = False
) -> tuple[PriceColumn, ...]:
    """Price a plan at the run's delta and at min(1e-5, 1/(10 N)); each delta once, the headline's first.

    Plan and recoveries of a ``recovered`` run are priced by an odometer alone.

    Example:
        >>> from accountant import Adjacency, Gaussian
        >>> found = price(Gaussian(noise_multiplier=4.0), delta=1e-5, n_clients=40, adjacency=Adjacency.ZERO_OUT)
        >>> [column.label for column in found], round(found[0].smallest, 3)
        (['this run'], 0.926)
    """
    deltas = {"this run": delta, "default": default_delta(n_clients)}
    kept: dict[str, float] = {}
    for label, at in sorted(deltas.items(), key=lambda column: column[1] != safe_delta(delta, n_clients)):
        if not any(math.isclose(at, other) for other in kept.values()):
            kept[label] = at
    return tuple(
        PriceColumn(label=label, delta=at, epsilon=run_table(event, at, adjacency=adjacency, recovered=recovered))
        for label, at in kept.items()
    )


def run_table(event: Event, delta: float, *, adjacency: Adjacency, recovered: bool) -> Epsilons:
    """Bound epsilon of a run by every accountant that is valid for it."""
    if recovered:
        return {"odometer": odometer([event], delta, adjacency=adjacency)}
    return epsilon_table(event, delta, adjacency=adjacency)


def _together(events: Iterable[Event], policy: LedgerPolicy) -> Event:
    return most_expensive(events) if policy.disjoint else of_one_run(events)


def cumulative(events: Sequence[Event], policy: LedgerPolicy, delta: float) -> tuple[CumulativePrice, ...]:
    """Price the first 1, 2, ... releases; at most 42 points, the last release always among them."""
    step = max(1, math.ceil(len(events) / _STOPS))
    stops = sorted({1, *range(step, len(events) + 1, step), len(events)} if events else ())
    made = {stop: _together(events[:stop], policy) for stop in stops}
    return tuple(
        CumulativePrice(releases=stop, epsilon=epsilon_table(event, delta, adjacency=policy.adjacency))
        for stop, event in made.items()
    )


def after_each(points: Sequence[CumulativePrice], count: int) -> list[float]:
    """Bound epsilon after each of ``count`` releases by that of the next computed point, which is at least as large."""
    found: list[float] = []
    for point in points:
        found += [min(point.epsilon.values())] * (point.releases - len(found))
    return found[:count]


def guarantee(
    entries: Sequence[Entry], policy: LedgerPolicy, *, plan: Event, delta: float, recovered: bool = False
) -> Quote:
    """Find the epsilon guaranteed under adaptive choices, and the epsilon if nothing was adaptive.

    A ``recovered`` run, whose ``plan`` is plan and recoveries together, has an odometer's. Else the
    plan counts as followed if the charges stand at its positions 0, 1, 2, ... and none occurs
    more often than planned.
    """
    made, planned = _together((entry.event for entry in entries), policy), dict(parts(plan))
    in_order = [entry.plan_position for entry in entries] == list(range(len(entries)))
    found = quote(
        made,
        delta,
        adjacency=policy.adjacency,
        plan=plan,
        followed=in_order and all(count <= planned.get(event, 0) for event, count in parts(made)),
        admitted_by=filter_under(policy.budget, policy.adjacency),
    )
    if recovered:
        found = Quote(
            guaranteed=odometer([plan], delta, adjacency=policy.adjacency),
            because="an odometer over the plan and all further charges: recovered or published",
            as_if_non_adaptive=None,
        )
    if all(entry.noise_source in ("secure", "exact") for entry in entries):
        return found
    nothing = "nothing: the noise was seeded or absent, so no client is protected"
    return replace(found, guaranteed=math.inf, because=nothing)


def attacker(event: Event, adjacency: Adjacency, *, recovered: bool = False) -> Tradeoff:
    """Bound what an attacker gains from a run; of a ``recovered`` one an odometer's curve does.

    Example:
        >>> from accountant import Adjacency, Gaussian
        >>> found = attacker(Gaussian(noise_multiplier=2.0), Adjacency.ZERO_OUT)
        >>> round(1.0 - found.bayes_risk(0.5), 3), round(found.attack_success(0.01), 3)
        (0.599, 0.034)
    """
    if not recovered or is_non_private(event):
        return of_event(event, adjacency=adjacency)
    epsilons = np.linspace(0.0, min(odometer([event], LEAST, adjacency=adjacency), LARGEST), _CURVE_POINTS)
    deltas = [odometer_delta([event], epsilon, adjacency=adjacency) for epsilon in epsilons.tolist()]
    return of_deltas(epsilons, np.array(deltas))


_WHO: Mapping[Against | Literal["readers", "traffic"], str] = {
    "coalition": "the server with all guardians but one",
    "guardian": "one guardian",
    "outsiders": "the server alone, other clients and readers of broadcasts",
    "readers": "readers of broadcasts, other clients among them",
    "traffic": "observers who see which clients are asked or send: the network, the channel's operators",
}
SERVER = (
    "the operator of the aggregating server sees every client's vector and has to be trusted with it; epsilon holds "
    "against readers of what is published, other clients among them"
)
SITES = (
    "no party has to be trusted with a site's sums: each site adds its own noise before anything leaves it, and alone "
    "knows how many of its records' scores were clipped; where one process plays all sites, its operator sees every sum"
)


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """Cost of a run against an observer who knows some of the guardians' noises, or sees which clients are asked.

    Attributes:
        against: Who it is, as ``privacy.against`` names it; ``"readers"`` and ``"traffic"`` of an anonymous channel.
        who: The same in words.
        unknown: Number of noises that it does not know.
        epsilon: Upper bound.
        delta: Where it is quoted.
    """

    against: Against | Literal["readers", "traffic"]
    who: str
    unknown: int
    epsilon: float
    delta: float

    @property
    def words(self) -> str:
        """The price in words."""
        return (
            f"against {self.who}: epsilon {upper_text(self.epsilon)} at delta {upper_text(self.delta)} ({self.aside})"
        )

    @property
    def aside(self) -> str:
        """The reason why the price is no higher."""
        if self.against in ("readers", "traffic"):
            return f"the sample is {'secret' if self.against == 'readers' else 'seen'}"
        return "1 unknown noise" if self.unknown == 1 else f"{self.unknown} unknown noises"


def exposures(privacy: Privacy | NoPrivacy, event: Event, delta: float) -> tuple[Exposure, ...]:
    """Price a run against those who know more than what is broadcast; empty where there are none.

    With guardians: the server with all of them but one, one guardian, and outsiders. Where only sampled clients send
    over an anonymous channel: who reads what is broadcast, and who sees the traffic nevertheless.

    Args:
        privacy: What was asked for.
        event: What was charged.
        delta: Where to quote.

    Example:
        >>> from accountant import Gaussian
        >>> privacy = Privacy(epsilon=2.0, trust="guardians", guardians=3)
        >>> found = exposures(privacy, Gaussian(noise_multiplier=4.0), 1e-5)
        >>> [(each.against, round(each.epsilon, 3)) for each in found]
        [('coalition', 0.926), ('guardian', 0.634), ('outsiders', 0.508)]
    """
    known: list[tuple[Against | Literal["readers", "traffic"], int, Event, float]] = []
    if privacy.channel == "anonymous" and (seen := of_seen_samples(event)) != compose([event]):
        known = [("readers", 1, event, delta), ("traffic", 1, seen, delta)]
    for against in AGAINST if privacy.trust == "guardians" else ():
        unknown = unknown_noises(against, privacy.n_noises)
        seen = of_noises(event, counted=privacy.n_counted, unknown=unknown)
        known.append((against, unknown, seen, delta if unknown == privacy.n_counted else delta * (1.0 - SLACK)))
    return tuple(
        Exposure(
            against=against,
            who=_WHO[against],
            unknown=unknown,
            epsilon=min(epsilon_table(seen, at, adjacency=privacy.adjacency).values()),
            delta=delta,
        )
        for against, unknown, seen, at in known
    )


def trust_text(privacy: Privacy | NoPrivacy) -> str:
    """Say who has to be trusted with a client's vector."""
    if privacy.trust == "server":
        return SERVER
    if privacy.trust == "sites":
        return SITES
    return (
        f"no party has to be trusted with a vector, as long as one of {privacy.n_noises} guardians is honest: each "
        "holds a share that says nothing, and adds noise of its own; the server carries ciphertexts"
    )


def trust_lines(trust: str, exposures: Iterable[Exposure]) -> list[str]:
    """List the parties that have to be trusted with a vector, and the run's cost against all others."""
    return [f"trust: {trust}", *(f"  {each.words}" for each in exposures)]
