"""Tables over several panels of a study, or over places and series of one, as Markdown.

``across`` has arms down and panels along (the other way round where there are more panels than arms), one column of
the study's tables in every cell; ``places`` has a panel's ``x`` down and its series along.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence

from experiments.study import Panel
from experiments.summary import Row, Rows, zeroed
from experiments.table import fields_of, text_of
from privbo.protocol.errors import ConfigurationError

EMPTY = "-"


def across(panels: Sequence[tuple[Panel, Rows]], asked: str) -> str:
    """Give ``HEADS | ARMS | PANELS``: heads, labels and titles are divided by semicolons, the last two are patterns.

    Several heads stand in one cell, divided as they were asked for.

    Raises:
        ConfigurationError: If it names nothing that is there.
    """
    heads, arms, titles = (_words(part) for part in (*asked.split("|"), "*", "*")[:3])
    found = [(panel, rows) for panel, rows in panels if _one_of(panel.title, titles)]
    labels = [label for label in dict.fromkeys(label for _, rows in found for label in rows) if _one_of(label, arms)]
    cells = {
        (label, panel.title): text
        for panel, rows in found
        for label in labels
        if label in rows and (text := _cell(panel, rows, label, heads)) != EMPTY
    }
    along = [panel.title for panel, _ in found if any((label, panel.title) in cells for label in labels)]
    if not cells:
        raise ConfigurationError(f"across {asked!r} names no arm with such a column; look at the study's columns")
    if len(along) > len(labels):
        return _grid(along, labels, {(title, label): text for (label, title), text in cells.items()})
    return _grid(labels, along, cells)


def places(panel: Panel, rows: Rows, heads: str) -> str:
    """Give a panel's series along and its places down."""
    shown = {(f"{row.x:g}", row.series): row for row in rows.values() if row.x is not None and row.series}
    cells = {key: _cell(panel, rows, row.label, _words(heads)) for key, row in shown.items()}
    return _grid(list(dict.fromkeys(x for x, _ in cells)), list(dict.fromkeys(series for _, series in cells)), cells)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(";")]


def _one_of(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _cell(panel: Panel, rows: Rows, label: str, heads: Sequence[str]) -> str:
    row: Row = rows[label]
    fields = fields_of(row, panel.measure, zeroed(label, rows, panel))
    texts = [text_of(panel.columns[head], fields) for head in heads if head in panel.columns]
    return "; ".join(text for text in texts if text != EMPTY) or EMPTY


def _grid(down: Sequence[str], along: Sequence[str], cells: Mapping[tuple[str, str], str]) -> str:
    lines = ["| | " + " | ".join(along) + " |", "|---" * (len(along) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(cells.get((name, head), EMPTY) for head in along) + " |" for name in down]
    return "\n".join(lines)
