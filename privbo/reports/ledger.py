"""A run's ledger as types: its charges with their total, and the outcome of a verification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from accountant.disjoint import combination
from privbo.plans import prices
from privbo.plans.prices import Epsilons
from privbo.protocol.plain import notebook_table
from privbo.reports.data import ledger_state, rows
from privbo.reports.parts import LedgerState, ReleaseRow
from privbo.runs.record import Record


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
        delta: Where epsilon is quoted, in (0, 1).
    """

    run: str
    releases: int
    planned_releases: int
    ledger: LedgerState
    entries: tuple[ReleaseRow, ...]
    epsilon: Epsilons
    delta: float

    def _repr_html_(self) -> str:
        """Show the ledger's state and the charges in a notebook."""
        return notebook_table(f"{self.run}: {self.ledger.text}", {row.release: row.text for row in self.entries})


@dataclass(frozen=True, kw_only=True)
class LedgerCheck:
    """Outcome of verifying a run's ledger against what its history has seen.

    Attributes:
        run: Identifier of the run.
        verified: Whether chain, witness and receipts agree.
        problem: The first disagreement, or None.
        head: Chain hash of the last entry.
        entries: Number of entries of all runs on the ledger.
        receipts: Number of heads that the run's history has seen.
    """

    run: str
    verified: bool
    problem: str | None
    head: str
    entries: int
    receipts: int


def ledger_view(record: Record) -> LedgerView:
    """List a run's charges with the price of its plan."""
    plan, ledger = record.plan, record.ledger
    entries, combine = ledger.entries(record.run_id), combination(disjoint=ledger.policy.disjoint)
    points = prices.cumulative([entry.event for entry in entries], plan.delta, plan.adjacency, combine=combine)
    return LedgerView(
        run=record.run_id,
        releases=len(entries),
        planned_releases=plan.releases,
        ledger=ledger_state(ledger),
        entries=rows(entries, points),
        epsilon=plan.epsilon(),
        delta=plan.delta,
    )


def check_ledger(record: Record, receipts: Sequence[tuple[int, str]]) -> LedgerCheck:
    """Read a run's whole ledger again and hold it against receipts (sequence and head of a charge)."""
    state = record.ledger.verify(receipts)
    return LedgerCheck(
        run=record.run_id,
        verified=state.ok,
        problem=state.problem,
        head=state.head,
        entries=state.n_entries,
        receipts=len(receipts),
    )
