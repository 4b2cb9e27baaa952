"""Price of what is about to be charged beside a run's plan, and the total with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from accountant.errors import BudgetExceeded
from accountant.events import Event
from accountant.ledger import Budget, Ledger
from accountant.ledger.book import Declaration
from accountant.ledger.pricing import Total, total
from accountant.tight.numerical import epsilon_table
from accountant.wording import upper_text


@dataclass(frozen=True, kw_only=True)
class Spending:
    """Cost of something that is about to be charged.

    Attributes:
        what: What is charged, in words.
        price: Epsilon of it alone.
        total: Of everything that was paid for the same people, with it.
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
            f"{self.what}: this charges epsilon {upper_text(self.price)} {at}; with it everything paid on this ledger "
            f"{comes}"
        )


Agree: TypeAlias = Callable[[Spending], None]
"""Called with a price before it is charged; what it raises keeps everybody from paying."""


def agree_to_all(_: Spending) -> None:
    """Pay whatever it costs: for callers who have named what is charged themselves."""


def spending(
    ledger: Ledger,
    delta: float,
    what: str,
    *,
    declared: Sequence[Declaration] = (),
    charges: Mapping[str, Event] | None = None,
) -> Spending:
    """Price plans and single charges on top of a ledger, and refuse what it would refuse, before anybody is asked.

    Args:
        ledger: Where they would be charged.
        delta: Where both numbers are quoted.
        what: What is charged, in words.
        declared: Reservations that would be made.
        charges: By run, a charge outside of plans, with secure noise.

    Raises:
        BudgetExceeded: If the ledger can't pay all of it.
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
        total=total(book.projected(declared, charges), delta),
        spent=spent,
        budget=book.policy.budget,
    )
