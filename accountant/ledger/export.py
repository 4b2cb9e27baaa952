"""A ledger for other programs: JSON lines, CSV, and dp-accounting's DpEvent."""

from __future__ import annotations

import csv
import io
import json
from typing import Literal, TypeAlias

from accountant.dp_event import dp_event_expression
from accountant.errors import LedgerError
from accountant.ledger import Ledger
from accountant.ledger.policy import Entry

Format: TypeAlias = Literal["jsonl", "csv", "dpevent"]
FORMATS: tuple[Format, ...] = ("jsonl", "csv", "dpevent")


def export(ledger: Ledger, format: Format, run: str | None = None) -> str:  # noqa: A002 (the field's word)
    """The charges of one run, or of the whole population, as text.

    Args:
        ledger: An open ledger.
        format: ``"jsonl"``: one entry per line; ``"csv"``: a header and one entry per line,
            the event as JSON in its column; ``"dpevent"``: the composition as a Python
            expression of dp-accounting's event classes.
        run: Name of a run, or None for every charge.

    Raises:
        LedgerError: If the format is unknown.
    """
    if format == "jsonl":
        return "".join(json.dumps(entry.to_dict(), allow_nan=False) + "\n" for entry in ledger.entries(run))
    if format == "csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(Entry.__dataclass_fields__), lineterminator="\n")
        writer.writeheader()
        for row in (entry.to_dict() for entry in ledger.entries(run)):
            writer.writerow(row | {"event": json.dumps(row["event"], sort_keys=True)})
        return text.getvalue()
    if format == "dpevent":
        return dp_event_expression(ledger.event(run), adjacency=ledger.policy.adjacency) + "\n"
    raise LedgerError(f"format {format!r} is none of {', '.join(FORMATS)}")
