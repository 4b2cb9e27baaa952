"""Payment for the cells of a sweep over private data: by who asked for it, before any of them runs.

Every cell's plan is reserved on the population's ledger by the process that was asked for the
sweep. A worker gets the reservation's row as its receipt and charges nobody: it may stand on
another machine, whose file of the same name would be another ledger. Before a worker gets a
cell, all of the cell's slots are spent, durably. A cell that was handed out and whose folder is
not here may have been drawn elsewhere, so it is paid for again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from accountant.ledger import Ledger, LedgerPolicy
from accountant.ledger.policy import canonical
from accountant.ledger.reservation import Declaration, read_reservation
from accountant.ledger.store import Row, row_digest
from privbo.door.spending import spend_plan
from privbo.plans.plan import Plan
from privbo.plans.shared_ledger import SharedLedger
from privbo.protocol.errors import ConfigurationError
from privbo.runs.opening import open_shared
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
class Payment:
    """A cell's payment.

    Attributes:
        paid: The receipt.
        is_handed_out: Whether a worker has got the cell before.
        hand_out: Spends the cell's slots, before a worker gets it; nothing the second time.
    """

    paid: Paid
    is_handed_out: bool
    hand_out: Callable[[], None]


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


def pay(shared: SharedLedger, run: str, spec: Spec, plan: Plan) -> Payment:
    """Reserve a cell's plan on the population's ledger; one that was reserved before is known and not paid again.

    Raises:
        BudgetExceeded: If the ledger can't hold it; nothing was changed.
        RunError: If the file is another population's ledger.
    """
    with open_shared(shared, plan) as ledger:
        found = ledger.reserve(declared(run, spec, plan))
        row = ledger.book().rows[found.sequence - 1]
        handed = bool(ledger.entries(run))
        return Payment(
            paid=Paid(policy=ledger.policy, row=row),
            is_handed_out=handed,
            hand_out=partial(_hand_out, shared, found.declared),
        )


def _hand_out(shared: SharedLedger, cell: Declaration) -> None:
    with Ledger.open(shared.path) as ledger:
        spend_plan(ledger, cell)
