"""Price of a publication beside a run, and the total with it, before anything is charged."""

from __future__ import annotations

from dataclasses import dataclass

from accountant.events import Event
from accountant.ledger.total import odometer
from accountant.tightest import epsilon_table
from privbo.runs.record import Record


@dataclass(frozen=True, kw_only=True)
class Spending:
    """Cost of something that is about to be charged.

    Attributes:
        price: Epsilon of it alone.
        total: Epsilon of everything that was paid for the same people, with it.
        delta: Of both.
    """

    price: float
    total: float
    delta: float

    @property
    def words(self) -> str:
        """The price and the new total in a line."""
        return (
            f"this charges epsilon {self.price:.4g} at delta {self.delta:.3g}; with it everything paid on this ledger "
            f"comes to epsilon {self.total:.4g} at delta {self.delta:.3g}"
        )


def spending(record: Record, event: Event) -> Spending:
    """Price an event beside a run, at the delta of headlines.

    What is published later may be chosen after earlier outputs, so an odometer gives the total.
    """
    adjacency, delta = record.plan.adjacency, record.plan.safe_delta
    return Spending(
        price=min(epsilon_table(event, delta, adjacency=adjacency).values()),
        total=odometer([record.ledger.committed(), event], delta, adjacency=adjacency),
        delta=delta,
    )
