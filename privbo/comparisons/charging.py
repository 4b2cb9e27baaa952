"""Cells over private data made ready to run: their price agreed to, paid, and handed the receipts they run under."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from accountant.ledger.book import Book
from privbo.comparisons.cells import Cell
from privbo.comparisons.payment import Due, hand_out, is_handed_out, pay, price_of, quoted_at
from privbo.comparisons.results import CellResult
from privbo.comparisons.run_cell import Task, run_private
from privbo.plans.plan import Plan
from privbo.plans.shared_ledger import SharedLedger
from privbo.plans.spending import Agree
from privbo.protocol.errors import ConfigurationError
from privbo.runs.manifest import RunDirectory
from privbo.runs.opening import considered_shared, judged, open_shared, plan_run
from privbo.runs.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Unpaid:
    """A cell's work before it was paid for.

    Attributes:
        task: The work.
    """

    task: Task

    def __call__(self) -> CellResult:
        """Refuse.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError("this cell was not paid for; run the sweep that it belongs to")


def all_paid(shared: SharedLedger, agree: Agree, cells: Sequence[Cell]) -> list[Cell]:
    """Pay, once the price is agreed to, for every cell that will be run: in this process, before the first of them."""
    plans: dict[str, Plan] = {}
    dues: dict[Path, Due] = {}
    ready = list(cells)
    for index, cell in enumerate(cells):
        if isinstance(cell.work, Unpaid):
            ready[index], due = _due(shared, cell, cell.work.task, plans)
            dues[ready[index].path] = due
    if not dues:
        return ready
    first = next(iter(dues.values())).plan
    with considered_shared(shared, first) as ledger:
        book = ledger.book()
        owed = price_of(ledger, tuple(dues.values()), quoted_at(shared, first.safe_delta))
    _require_allowed(tuple(dues.values()), book)
    if owed is not None:
        agree(owed)
    return [_paid(shared, cell, dues[cell.path]) if cell.path in dues else cell for cell in ready]


def _require_allowed(dues: Sequence[Due], book: Book) -> None:
    """Refuse a sweep whose cells together pass their policy.

    Raises:
        PolicyError: With the verdict; nothing was charged.
    """
    so_far = [*book.paid, *book.paid_again]
    for due in dues:
        event = due.plan.event if book.plan_of(due.run) is None else None
        if (decision := judged(due.spec, event, so_far)) is not None:
            decision.require("this policy")
        so_far += [] if event is None else [event]


def _due(shared: SharedLedger, cell: Cell, task: Task, plans: dict[str, Plan]) -> tuple[Cell, Due]:
    """A cell and what it owes; one that may have been drawn where we can't see is named, and so owed, anew."""
    spec = Spec.from_dict(task.table, trusted=True).loaded()
    if cell.label not in plans:  # a setting's cells differ in seeds alone, which no plan depends on
        plans[cell.label] = plan_run(spec)
    plan = plans[cell.label]
    with considered_shared(shared, plan) as ledger:
        book = ledger.book()
    while is_handed_out(book, _run_of(spec, cell)) and not RunDirectory(cell.folder / cell.name).config_path.exists():
        cell = dataclasses.replace(cell, attempt=cell.attempt + 1)
    return cell, Due(run=_run_of(spec, cell), spec=spec, plan=plan)


def _run_of(spec: Spec, cell: Cell) -> str:
    return f"{spec.name}-{cell.name}"


def _paid(shared: SharedLedger, cell: Cell, due: Due) -> Cell:
    """A cell with the receipt that it runs under."""
    with open_shared(shared, due.plan) as ledger:
        paid = pay(ledger, due)
    task = cast("Unpaid", cell.work).task
    work = partial(run_private, task, cell.folder / cell.name, paid)
    return dataclasses.replace(cell, work=work, hand_out=partial(hand_out, shared, due.declared))
