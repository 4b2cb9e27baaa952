"""A ledger for other programs: JSON lines, CSV, and dp-accounting's DpEvent."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import fields
from typing import Literal, TypeAlias

from accountant.dp_event import dp_event_expression
from accountant.errors import LedgerError
from accountant.events import compose
from accountant.ledger import Ledger
from accountant.ledger.book import Declaration, Reservation
from accountant.ledger.policy import Entry

Format: TypeAlias = Literal["jsonl", "csv", "dpevent"]
FORMATS: tuple[Format, ...] = ("jsonl", "csv", "dpevent")
_COLUMNS = list(dict.fromkeys(part.name for kind in (Entry, Declaration) for part in fields(kind)))


def export(ledger: Ledger, format: Format, run: str | None = None) -> str:  # noqa: A002 (the field's word)
    """What one run, with its publications, or the whole population has committed to, as text.

    Args:
        ledger: An open ledger.
        format: ``"jsonl"``: one plan, recovery or charge per line, in the chain's order; a charge has no ``kind``.
            ``"csv"``: a header and the same lines, events as JSON in their columns; ``"dpevent"``: the composition of
            what is committed as a Python expression of dp-accounting's event classes, under a comment.
        run: Name of a run, or None for everything.

    Raises:
        LedgerError: If the format is unknown.
    """
    if format not in FORMATS:
        raise LedgerError(f"format {format!r} is none of {', '.join(FORMATS)}")
    book = ledger.book()
    names = [name for name in book.runs if run is None or name == run or name.startswith(f"{run}-")]
    found = sorted((row for name in names for row in book.runs[name]), key=lambda row: row.sequence)
    lines = [row.to_dict() for row in found]
    if format == "jsonl":
        return "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    if format == "csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=_COLUMNS, lineterminator="\n")
        writer.writeheader()
        for line in lines:
            nested = {name: json.dumps(value, sort_keys=True) for name, value in line.items() if name in _NESTED}
            writer.writerow(line | nested)
        return text.getvalue()
    noises = sorted({line["noise_source"] for line in lines})
    deltas = sorted({row.declared.delta for row in found if isinstance(row, Reservation)})
    event = book.committed if run is None else compose(book.of(name).committed for name in names)
    return (
        f"# noise: {', '.join(noises) or 'none'}{' (seeded: no guarantee)' * ('simulation' in noises)}; delta: "
        f"{', '.join(map(repr, deltas)) or 'not declared'}; adjacency: {ledger.policy.adjacency}\n"
        f"{dp_event_expression(event, adjacency=ledger.policy.adjacency)}\n"
    )


_NESTED = ("event", "events", "lost")
