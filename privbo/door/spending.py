"""Spending a whole plan at once: what is handed to a worker can't be drawn for the same payment again."""

from __future__ import annotations

from accountant.events import Event, compose
from accountant.ledger import Ledger
from accountant.ledger.reservation import Declaration


def spend_plan(ledger: Ledger, declared: Declaration) -> None:
    """Charge all slots of a reserved plan, durably; nothing the second time.

    Raises:
        LedgerError: If some of them were spent in another way, or storage fails.
    """
    each = [event for event, count in declared.events for _ in range(count)]
    together: list[Event] = each if ledger.policy.disjoint else [compose(declared.slots.items())]
    for index, event in enumerate(together):
        ledger.charge(f"{declared.run}/{index}", event, run=declared.run, noise_source=declared.noise_source)
