"""Payment for the cells of a sweep over private data: by who asked for it, before any of them runs.

Once the price of all that are owed was agreed to, every cell's plan is reserved on the population's
ledger by the process that was asked for the sweep. A worker gets the reservation's row as its receipt
and charges nobody: it may stand on another machine, whose file of the same name would be another
ledger. Before a worker gets a cell, all of the cell's slots are spent, durably. A cell that was handed
out and whose folder is not here may have been drawn elsewhere, so it is paid for again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from accountant.ledger import Ledger, LedgerPolicy
from accountant.ledger.book import Book
from accountant.ledger.policy import canonical
from accountant.ledger.reservation import Declaration, read_reservation
from accountant.ledger.store import Row, row_digest
from privbo.door.spending import spend_plan
from privbo.plans.plan import Plan
from privbo.plans.shared_ledger import SharedLedger
from privbo.plans.spending import Spending, spending
from privbo.protocol.errors import ConfigurationError
from privbo.runs.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Paid:
    """A receipt: the row of the population's ledger that pays for one cell.

    Attributes:
        policy: Of the ledger.
        row: The reservation's row.
    """

    policy: LedgerPolicy
    row: Row

    def require(self, spec: Spec, plan: Plan) -> None:
        """Refuse to run what the row does not pay for.

        Raises:
            ConfigurationError: If the row is another cell's, or no row of a ledger.
        """
        row, found = self.row, read_reservation(self.row, self.policy)
        genuine = row_digest(row.previous, row.sequence, row.release_id, row.body) == row.digest
        if not genuine or found is None or found.declared != declared(found.run, spec, plan):
            raise ConfigurationError(
                f"the receipt (row {row.sequence} of the population's ledger) does not pay for this cell of "
                f"{spec.name!r}; cells run where the sweep that paid for them hands them out"
            )


@dataclass(frozen=True, kw_only=True)
class Due:
    """A cell that is to run, with what it is to be paid by.

    Attributes:
        run: Name of its run on the population's ledger.
        spec: Its run.
        plan: The run's plan.
    """

    run: str
    spec: Spec
    plan: Plan

    @property
    def declared(self) -> Declaration:
        """The plan as the ledger is to hold it."""
        return declared(self.run, self.spec, self.plan)


def declared(run: str, spec: Spec, plan: Plan) -> Declaration:
    """Declare a cell's plan under a run's name."""
    return Declaration(
        run=run,
        events=plan.schedule,
        settings=spec.digest(),
        plan=hashlib.sha256(canonical(plan.to_dict())).hexdigest(),
        delta=plan.delta,
        noise_source=plan.noise_source,
    )


def quoted_at(shared: SharedLedger, safe: float) -> float:
    """Give the delta at which totals of a population's ledger are quoted: the safe one, and at most its own bound's."""
    return min(safe, shared.delta or safe)


def is_handed_out(book: Book, run: str) -> bool:
    """Tell whether a worker has got the cell of a run before."""
    return any(entry.run == run for entry in book.entries)


def price_of(ledger: Ledger, dues: Sequence[Due], delta: float) -> Spending | None:
    """Price what the ledger does not hold yet of cells that are to run; None if all of them are paid.

    Raises:
        BudgetExceeded: If the ledger can't pay all of it.
    """
    book = ledger.book()
    owed = [due.declared for due in dues if book.plan_of(due.run) is None]
    cells = f"{len(owed)} cell{'s' if len(owed) > 1 else ''} over private data"
    return spending(ledger, delta, cells, declared=owed) if owed else None


def pay(ledger: Ledger, due: Due) -> Paid:
    """Reserve a cell's plan on the population's ledger; one that was reserved before is known and not paid again.

    Raises:
        BudgetExceeded: If the ledger can't hold it; nothing was changed.
    """
    found = ledger.reserve(due.declared)
    return Paid(policy=ledger.policy, row=ledger.book().rows[found.sequence - 1])


def hand_out(shared: SharedLedger, cell: Declaration) -> None:
    """Spend a cell's slots before a worker gets it, durably; nothing the second time."""
    with Ledger.open(shared.path) as ledger:
        spend_plan(ledger, cell)
