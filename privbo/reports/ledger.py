"""A run's ledger as types: its charges, with their total."""

from __future__ import annotations

from dataclasses import dataclass

from accountant.ledger.pricing import Total, total
from accountant.wording import upper_text
from privbo.plans.prices import Epsilons
from privbo.plans.trust import Exposure
from privbo.protocol.plain import in_two_lines, notebook_table
from privbo.reports.data import cumulative_of, rows
from privbo.reports.parts import ReleaseRow
from privbo.runs.evidence import LedgerCheck
from privbo.runs.record import Record, check_record


@dataclass(frozen=True, kw_only=True)
class LedgerView:
    """A run's charges and the price of its plan.

    Attributes:
        run: Identifier of the run.
        releases: Number of releases charged so far.
        planned_releases: Number of releases in the plan.
        ledger: The ledger's state.
        entries: The run's charges, in order.
        epsilon: Upper bounds on the plan's epsilon by accountant.
        delta: Where epsilon is quoted, in (0, 1): the run's, and at most min(1e-5, 1/(10 N)).
        total: Epsilon of everything the ledger's population has paid, with its rule.
        exposures: The plan's price against whoever knows some of the guardians' noises; empty without guardians.
    """

    run: str
    releases: int
    planned_releases: int
    ledger: LedgerCheck
    entries: tuple[ReleaseRow, ...]
    epsilon: Epsilons
    delta: float
    total: Total
    exposures: tuple[Exposure, ...] = ()

    def __repr__(self) -> str:
        made = f"{self.releases} of {self.planned_releases} planned releases, {self.ledger.text}"
        paid = f"epsilon {upper_text(self.total.epsilon)} at delta {upper_text(self.total.delta)} paid in total"
        return in_two_lines("LedgerView", self.run, made, paid)

    def _repr_html_(self) -> str:
        """Show the ledger's state and the charges in a notebook."""
        return notebook_table(f"{self.run}: {self.ledger.text}", {row.release: row.text for row in self.entries})


def ledger_view(record: Record) -> LedgerView:
    """List a run's charges with the price of its plan."""
    plan, ledger, delta = record.plan, record.ledger, record.plan.safe_delta
    entries = ledger.entries(record.run_id)
    return LedgerView(
        run=record.run_id,
        releases=len(entries),
        planned_releases=plan.releases,
        ledger=check_record(record),
        total=total(ledger.book(), delta),
        entries=rows(entries, cumulative_of(record), record.vote),
        epsilon=plan.epsilon(delta),
        delta=delta,
        exposures=plan.exposures(delta),
    )
