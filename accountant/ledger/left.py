"""Budget that is left on a ledger, in plain numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from accountant.checks import check_delta
from accountant.errors import LedgerError
from accountant.events import Event, Gaussian, Json, repeat
from accountant.ledger.policy import Budget, LedgerPolicy, Rule
from accountant.verify.text import at_least
from accountant.wording import event_text, upper_text

if TYPE_CHECKING:
    from accountant.ledger.book import Book

_QUIETEST, _STEPS = 1e6, 40  # the largest noise multiplier that is tried; steps of a bisection
_MOST = 1 << 30  # releases


@dataclass(frozen=True, kw_only=True)
class Left:
    """Budget that is left on a ledger; public.

    Attributes:
        delta: Where the epsilons hold.
        spent: Epsilon of everything charged so far, by the ledger's own rule; rounded up.
        bound: Epsilon that all charges together never pass; None on a ledger without a bound.
        rule: What makes the bound hold; None without one.
        noise_multiplier: Smallest noise multiplier of one more Gaussian release that all clients take part in. None if
            the bound admits none, or there is no bound.
        slots: Free slots of an envelope, in words; None under other rules.
        releases: Number of further releases of the event that was asked about; None if none was.
    """

    delta: float
    spent: float
    bound: float | None
    rule: Rule | None
    noise_multiplier: float | None
    slots: str | None = None
    releases: int | None = None

    @property
    def epsilon(self) -> float | None:
        """Difference of bound and spent, at least 0; None without a bound.

        Epsilons do not add up under any rule, so a run that alone costs this difference may or may not fit;
        ``noise_multiplier`` and ``releases`` are exact.
        """
        return None if self.bound is None else max(0.0, self.bound - self.spent)

    def to_dict(self) -> Json:
        """Plain values, with the difference."""
        return asdict(self) | {"epsilon": self.epsilon}

    @property
    def words(self) -> str:
        """The same in a sentence or two."""
        spent, at = upper_text(self.spent), f"at delta {upper_text(self.delta)}"
        if self.bound is None:
            return f"epsilon {spent} spent {at}; this ledger has no bound"
        found = f"epsilon {spent} of {upper_text(self.bound)} spent, {at_least(self.epsilon or 0.0)} left {at}"
        if self.slots is not None:
            found += f"; free slots: {self.slots}"
        elif self.noise_multiplier is None:
            found += "; no further Gaussian release fits"
        else:
            z = upper_text(self.noise_multiplier)
            found += f"; one more Gaussian release of all clients fits from noise multiplier {z} on"
        return found if self.releases is None else f"{found}; of the release asked about {self.releases} more fit"


def left_of(book: Book, delta: float | None, event: Event | None, *, admits: Callable[[Event], bool]) -> Left:
    """Compute what is left under the bound of a ledger with these rows; see ``Ledger.left``.

    Args:
        book: The ledger's rows.
        delta: Where epsilon is quoted; None for the budget's.
        event: A release that is asked about.
        admits: Tells whether the ledger would admit an event now.

    Raises:
        LedgerError: If there is no bound at this delta, or no delta is known.
    """
    from accountant.ledger.pricing import opened
    from accountant.ledger.total import total

    budget = book.policy.budget
    if budget is None:
        if delta is None:
            raise LedgerError("this ledger has no bound and so no delta of its own; name one")
        spent = total(book, delta).epsilon
        return Left(delta=delta, spent=spent, bound=None, rule=None, noise_multiplier=None)
    held = _at(budget, budget.delta if delta is None else delta, book.policy)
    account = opened(book.policy, held)
    for paid in (*book.paid, *book.paid_again):
        account = account.after(paid)
    free = account.left
    return Left(
        delta=held.delta,
        spent=account.epsilon,
        bound=held.epsilon,
        rule=budget.rule,
        noise_multiplier=_loudest(admits) if free is None else None,
        slots=None if free is None else event_text(free) or "none",
        releases=None if event is None else _count(event, admits),
    )


def _at(budget: Budget, delta: float, policy: LedgerPolicy) -> Budget:
    """The bound as it holds at another delta, by the same filter."""
    from accountant.filters import FixedOrderFilter
    from accountant.ledger.pricing import filter_under

    check_delta(delta)
    if delta == budget.delta:
        return budget
    held = filter_under(budget, policy.adjacency)
    if held is None:
        if delta > budget.delta:
            return replace(budget, delta=delta)
        raise LedgerError(
            f"delta={delta:g}: this ledger's bound holds at delta={budget.delta:g} and above; ask for that, or more"
        )
    order = held.order if isinstance(held, FixedOrderFilter) else None
    return replace(budget, epsilon=held.epsilon_at(delta), delta=delta, order=order)


def _loudest(admits: Callable[[Event], bool]) -> float | None:
    """The smallest noise multiplier of a Gaussian release that is admitted, from above; None if none is."""
    high, low = 1.0, 1.0
    while not admits(Gaussian(noise_multiplier=high)):
        if high >= _QUIETEST:
            return None
        low, high = high, 4.0 * high
    while admits(Gaussian(noise_multiplier=low)) and low > 1.0 / _QUIETEST:
        low, high = low / 4.0, low
    for _ in range(_STEPS):
        if high <= low * (1.0 + 1e-6):
            break
        middle = math.sqrt(low * high)
        low, high = (low, middle) if admits(Gaussian(noise_multiplier=middle)) else (middle, high)
    return high


def _count(event: Event, admits: Callable[[Event], bool]) -> int:
    """The largest number of further copies of an event that are admitted together."""
    low, high = 0, 1
    while high <= _MOST and admits(repeat(event, high)):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if admits(repeat(event, middle)) else (low, middle)
    return low
