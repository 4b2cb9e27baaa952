"""Price of everything paid under a budget: its epsilon by the budget's own rule.

An ``Account`` is what a ledger has paid so far; it is added to in the order of the chain, because an
envelope's slots are taken in that order. The rules that stand guard over later choices are caps on one number that
adds up: a charge adds its own, whatever was charged before. A plan and releases that share no unit are composed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, Self

from accountant import gaussian_dp, renyi, tightest
from accountant.envelope import Envelope, Places, free_places
from accountant.errors import LedgerError
from accountant.events import Adjacency, Combine, Composed, Event, compose, most_expensive, parts
from accountant.filters import Filter, fixed_order_filter, gaussian_filter
from accountant.ledger.policy import Budget, LedgerPolicy
from accountant.wording import event_text, upper_text

Price = Callable[[Composed], float]


class Account(Protocol):
    """Everything paid so far, under one rule; never changed."""

    @property
    def epsilon(self) -> float:
        """Its price at the budget's delta; infinite where the rule admits no such event."""
        ...

    def after(self, event: Event) -> Account:
        """The account with ``event`` paid on top."""
        ...

    @property
    def left(self) -> Composed | None:
        """Slots that are still free; None under a rule without slots."""
        ...

    def obstacle(self, event: Event) -> str | None:
        """Why the rule has no price for ``event`` on top, whatever the bound; None if it has one."""
        ...


def opened(policy: LedgerPolicy, budget: Budget) -> Account:
    """The account of a ledger that has paid nothing.

    Raises:
        AccountingError: If the budget is too small for any release.
        LedgerError: If an envelope costs more than its bound, or has no meaning under the policy.
    """
    if budget.rule != "envelope":
        cap = _cap(budget, policy.adjacency)
        if cap is not None and not policy.disjoint:
            return _Added(rule=budget.rule, cap=cap)
        price = price_under(budget, policy.adjacency)
        return _Composed(rule=budget.rule, price=price, combine=most_expensive if policy.disjoint else compose)
    if policy.disjoint:
        raise LedgerError("where releases share no unit the dearest one counts and slots say nothing; drop the rule")
    reserved = Envelope(slots=budget.slots, adjacency=policy.adjacency)
    whole = reserved.epsilon_at(budget.delta)
    if whole > budget.epsilon:
        raise LedgerError(
            f"the slots together cost epsilon {upper_text(whole, 6)} at delta {upper_text(budget.delta)}, over the "
            f"bound {upper_text(budget.epsilon, 6)}; declare fewer, a lower rate, more noise, or a larger epsilon"
        )
    return _Placed(places=free_places(reserved), whole=whole)


def filter_under(budget: Budget | None, adjacency: Adjacency) -> Filter | None:
    """The filter that a budget stands for; None without one, or where a plan makes the bound hold."""
    if budget is None or budget.rule == "planned":
        return None
    if budget.rule == "gaussian":
        return gaussian_filter(epsilon=budget.epsilon, delta=budget.delta)
    if budget.rule == "envelope":
        return Envelope(slots=budget.slots, adjacency=adjacency)
    return fixed_order_filter(epsilon=budget.epsilon, delta=budget.delta, order=budget.order, adjacency=adjacency)


def price_under(budget: Budget, adjacency: Adjacency) -> Price:
    """The price of a composition under a rule that adds up; infinite where the rule admits no such event.

    Raises:
        LedgerError: For an envelope, whose slots are taken one after another.
    """
    if budget.rule == "envelope":
        raise LedgerError("an envelope has no price of a composition alone: which slots are free depends on the order")
    cap = _cap(budget, adjacency)
    if cap is None:
        return lambda event: tightest.epsilon(event, budget.delta, adjacency=adjacency)
    return lambda event: cap.epsilon_of(cap.cost_of(event)) if event.parts else 0.0


@dataclass(frozen=True, kw_only=True)
class _Cap:
    """A number that adds up, and the epsilon that it stands for."""

    cost_of: Callable[[Event], float]
    epsilon_of: Callable[[float], float]


def _cap(budget: Budget, adjacency: Adjacency) -> _Cap | None:
    """The number that a rule caps: a Rényi divergence at its order, or mu^2; None for rules of another kind."""
    if budget.rule == "gaussian":
        return _Cap(
            cost_of=gaussian_dp.mu_squared_at_rate_one,
            epsilon_of=lambda total: gaussian_dp.epsilon_of(total, budget.delta),
        )
    if budget.rule != "renyi":
        return None
    bound = fixed_order_filter(epsilon=budget.epsilon, delta=budget.delta, order=budget.order, adjacency=adjacency)

    def divergence(event: Event) -> float:
        return float(renyi.curve(event, [bound.order], adjacency=adjacency)[0])

    # The filter's bound is epsilon less the conversion's offset, so this is epsilon at its order.
    return _Cap(cost_of=divergence, epsilon_of=lambda total: float(budget.epsilon - bound.bound + total))


def _obstacle(rule: str, event: Event) -> str | None:
    if rule != "gaussian" or gaussian_dp.mu_squared_at_rate_one(event) < math.inf:
        return None
    return (
        f"the ledger's rule 'gaussian' admits Gaussian releases only, not: {event_text(event)}; charge it to a "
        "ledger with the rule 'renyi'"
    )


@dataclass(frozen=True, kw_only=True)
class _Added:
    """An account under a cap: one number, to which a charge adds its own; sums are rounded up."""

    rule: str
    cap: _Cap
    total: float = 0.0
    left: None = None

    @cached_property
    def epsilon(self) -> float:
        return self.cap.epsilon_of(self.total) if self.total else 0.0

    def after(self, event: Event) -> Self:
        if not parts(event):
            return self
        return replace(self, total=math.nextafter(self.total + self.cap.cost_of(event), math.inf))

    def obstacle(self, event: Event) -> str | None:
        return _obstacle(self.rule, event)


@dataclass(frozen=True, kw_only=True)
class _Composed:
    """An account of a plan, or of releases that share no unit: one composition."""

    rule: str
    price: Price
    combine: Combine
    paid: Composed = field(default_factory=Composed)
    left: None = None

    @cached_property
    def epsilon(self) -> float:
        return self.price(self.paid)

    def after(self, event: Event) -> Self:
        return replace(self, paid=self.combine((self.paid, event)))

    def obstacle(self, event: Event) -> str | None:
        return _obstacle(self.rule, event)


@dataclass(frozen=True, kw_only=True)
class _Placed:
    """An account under the rule 'envelope': all slots are paid with the first release."""

    places: Places | None
    whole: float

    @property
    def epsilon(self) -> float:
        if self.places is None:
            return math.inf
        return self.whole if self.places != free_places(self.places.envelope) else 0.0

    def after(self, event: Event) -> Self:
        return replace(self, places=None if self.places is None else self.places.take(event))

    @property
    def left(self) -> Composed:
        if self.places is None:
            return Composed()
        kinds = zip(self.places.envelope.slots, self.places.free, strict=True)
        return compose([(slot, count) for (slot, _), count in kinds if count])

    def obstacle(self, event: Event) -> str | None:
        if self.after(event).places is not None:
            return None
        left = event_text(self.left) or "none"
        return (
            f"no free slots of this ledger's envelope dominate {event_text(event)} (free: {left}); "
            "a slot takes a release of no larger rate and no smaller noise multiplier"
        )
