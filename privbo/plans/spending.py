"""Price of what is about to be charged beside a run's plan, and the total with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from accountant.events import Event
from accountant.ledger.book import Book
from accountant.ledger.reservation import Declaration
from accountant.ledger.total import Total, total
from accountant.tightest import epsilon_table
from accountant.wording import upper_text


@dataclass(frozen=True, kw_only=True)
class Spending:
    """Cost of something that is about to be charged.

    Attributes:
        what: What is charged, in words.
        price: Epsilon of it alone.
        total: Of everything that was paid for the same people, with it.
    """

    what: str
    price: float
    total: Total

    @property
    def words(self) -> str:
        """The price and the new total at one delta, in a line."""
        at = f"at delta {upper_text(self.total.delta)}"
        return (
            f"{self.what}: this charges epsilon {upper_text(self.price)} {at}; with it everything paid on this ledger "
            f"comes to epsilon {upper_text(self.total.epsilon)} {at} ({self.total.rule})"
        )


Agree: TypeAlias = Callable[[Spending], None]
"""Called with a price before it is charged; what it raises keeps everybody from paying."""


def agree_to_all(_: Spending) -> None:
    """Pay whatever it costs: for callers who have named what is charged themselves."""


def spending(
    book: Book,
    delta: float,
    what: str,
    *,
    declared: Sequence[Declaration] = (),
    charges: Mapping[str, Event] | None = None,
) -> Spending:
    """Price plans and single charges on top of a ledger, by the rule that its total will be quoted with afterwards.

    Args:
        book: Of the ledger as it stands.
        delta: Where both numbers are quoted.
        what: What is charged, in words.
        declared: Reservations that would be made.
        charges: By run, a charge outside of plans.
    """
    counted = [pair for one in declared for pair in one.events] + [(event, 1) for event in (charges or {}).values()]
    return Spending(
        what=what,
        price=min(epsilon_table(book.combined(counted), delta, adjacency=book.policy.adjacency).values()),
        total=total(book.projected(declared, charges), delta),
    )
