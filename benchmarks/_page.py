"""``python -m benchmarks._page PAGE BENCH.json ...``: the measured part of a page, from files of the benchmarks.

What stands between the two marks of ``docs/speed.md`` or ``docs/scale.md`` is replaced: pictures with their tables, one
table of everything measured with its peers, bars and share of the machine's limit, and, apart from it, what was
recorded elsewhere. A picture is next to the page, as ``PAGE-NAME.png``.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from textwrap import fill

from benchmarks._pictures import PICTURES, Measured, drawn, table

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
_HEADS = {"peer": "peer: its number (ratio)", "bar": "bar (times better)", "recorded": "peer: its number (ratio)"}
_WIDTH = 119
_TIMES = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


def measured(rows: Sequence[Measured], page: Path) -> str:
    """Give the part of a page that the rows make."""
    machine = f"{platform.machine()}, {_cores()}, Python {platform.python_version()}"
    made = "; ".join(sorted({str(row["made"]) for row in rows}))
    parts = [
        fill(f"Measured by {made} on one machine ({machine}); the smaller of as many calls on both sides.", _WIDTH),
        *_pictures(rows, page),
        _table(rows, ("peer", "bar")),
        _table(rows, ("recorded",), "Recorded elsewhere, on another day: no comparison"),
    ]
    return "\n\n".join(part for part in parts if part)


def written(page: str, part: str) -> str:
    """Give a page with its measured part replaced.

    Raises:
        ValueError: If the page has no place for it.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{part}\n\n{END}{after}"


def refresh(page: Path, rows: Sequence[Measured]) -> None:
    """Rewrite a page and draw its pictures."""
    page.write_text(written(page.read_text(), measured(rows, page)))
    for name, found in _by_picture(rows).items():
        _beside_page(page, name).write_bytes(drawn(PICTURES[name], found))


def _pictures(rows: Sequence[Measured], page: Path) -> Iterator[str]:
    for name, found in _by_picture(rows).items():
        picture = PICTURES[name]
        head, *lines = table(picture, found, lambda row, key: _number(row[key], row["unit"]))
        yield "\n".join([f"**{picture.title}**", "", *_lines(head, lines)])
        yield f"![{picture.title}]({_beside_page(page, name).name})"


def _by_picture(rows: Iterable[Measured]) -> dict[str, list[Measured]]:
    found: dict[str, list[Measured]] = {}
    for row in rows:
        if "picture" in row:
            found.setdefault(str(row["picture"]), []).append(row)
    return found


def _beside_page(page: Path, name: str) -> Path:
    return page.with_name(f"{page.stem}-{name}.png")


def _cores() -> str:
    import os

    return f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()} cores"


def _table(rows: Sequence[Measured], kinds: Sequence[str], title: str = "") -> str:
    """One line of a name that no picture shows: ours, all that it is compared with, and the machine's limit."""
    limits = {str(row["name"]): row for row in rows if "limit" in row} if "peer" in kinds else {}
    against = {kind: [row for row in rows if row["kind"] == kind and "picture" not in row] for kind in kinds}
    alone = [row for row in limits.values() if "picture" not in row]
    ours = {str(row["name"]): row for of in (*against.values(), alone) for row in of}
    lines = [
        (
            name,
            _number(row["ours"], row["unit"]),
            *("; ".join(_against(one) for one in of if one["name"] == name) for of in against.values()),
            *([_share(limits.get(name))] if limits else []),
        )
        for name, row in ours.items()
    ]
    heads = ("what", "ours", *(_HEADS[kind] for kind in kinds), *(["share of the machine's limit"] if limits else []))
    used = [column for column, _ in enumerate(heads) if any(line[column] for line in lines)]
    if not lines:
        return ""
    table = _lines([heads[column] for column in used], [[line[column] for column in used] for line in lines])
    return "\n".join([f"**{title}**", "", *table] if title else table)


def _against(row: Measured) -> str:
    """A peer by its name; a bar by how it follows from something measured, where it does."""
    peer = re.sub(r"^the bar(, | of .*|$)", "", str(row["peer"]))
    number = f"{_number(row['theirs'], row['unit'])} ({float(row['ratio']):.3g})"
    return f"{peer}: {number}" if peer else number


def _share(row: Measured | None) -> str:
    return "" if row is None else f"{float(row['of_limit']):.2g}, {row['limited_by']}"


def _lines(head: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    rows = [f"| {' | '.join(cells)} |" for cells in (head, *lines)]
    return [rows[0], "|---" * len(head) + "|", *rows[1:]]


def _number(value: str | float, unit: str | float) -> str:
    number = float(value)
    if unit != "s":
        return f"{number:.3g}" if unit == "share" else f"{number:.3g} {unit}"
    name, size = next((one for one in _TIMES if float(f"{number:.3g}") >= one[1]), _TIMES[-1])
    return f"{number / size:.3g} {name}"


def main() -> None:
    """Rewrite the page."""
    page, *files = map(Path, sys.argv[1:])
    refresh(page, [row for file in files for row in json.loads(file.read_text())])
    sys.stdout.write(f"written: {page}\n")


if __name__ == "__main__":
    main()
