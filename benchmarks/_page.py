"""``python -m benchmarks._page PAGE BENCH.json ...``: the measured part of a page, from files of the benchmarks.

What stands between the two marks of ``docs/speed.md`` or ``docs/scale.md`` is replaced: pictures with their tables,
measured peers, bars, how far from the machine's limit, and, apart from all of these, what was recorded elsewhere. A
picture stands beside the page, as ``PAGE-NAME.png``.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks._pictures import PICTURES, Measured, drawn, table

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
SMALL = 0.02  # share of the machine's limit below which a row is only counted
_TIMES = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


def measured(rows: Sequence[Measured], page: Path) -> str:
    """Give the part of a page that the rows make."""
    plain = [row for row in rows if "picture" not in row]
    ratio = "peer: its number (ratio)"
    machine = f"{platform.machine()}, {_cores()}, Python {platform.python_version()}"
    parts = [
        f"Measured on one machine in one run ({machine}); the smaller of as many calls on both sides.",
        *_pictures(rows, page),
        _table("Compared with peers", ratio, _of_kind(plain, "peer")),
        _table("Compared with bars", "bar: its number (times better)", _of_kind(plain, "bar")),
        *_near(rows),
        _table("Recorded elsewhere, on another day: no comparison", ratio, _of_kind(plain, "recorded")),
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


def _once(rows: Iterable[Measured]) -> list[Measured]:
    """One row of every name: the machine's limit does not depend on the peer."""
    return list({row["name"]: row for row in rows}.values())


def _cores() -> str:
    import os

    return f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()} cores"


def _of_kind(rows: Iterable[Measured], kind: str) -> dict[str, list[Measured]]:
    """Rows of a kind by what was measured."""
    found: dict[str, list[Measured]] = {}
    for row in rows:
        if row["kind"] == kind:
            found.setdefault(str(row["name"]), []).append(row)
    return found


def _table(title: str, head: str, found: Mapping[str, Sequence[Measured]]) -> str:
    """One line of a name: ours, and all that it is compared with."""
    lines = [(name, _number(of[0]["ours"], of[0]["unit"]), "; ".join(map(_against, of))) for name, of in found.items()]
    return "\n".join([f"**{title}**", "", *_lines(("what", "ours", head), lines)]) if lines else ""


def _against(row: Measured) -> str:
    peer = str(row["peer"]).removeprefix("the bar, ")
    return f"{peer}: {_number(row['theirs'], row['unit'])} ({float(row['ratio']):.3g})"


def _near(rows: Iterable[Measured]) -> Iterator[str]:
    """The share of the machine's limit that is reached; small shares are counted."""
    near = sorted(_once(row for row in rows if "limit" in row), key=lambda row: -float(row["of_limit"]))
    lines = [
        (str(row["name"]), _number(row["limit"], "s"), str(row["limited_by"]), f"{float(row['of_limit']):.2g}")
        for row in near
        if float(row["of_limit"]) >= SMALL
    ]
    if lines:
        head = ("what", "at the limit", "which is", "share of the limit")
        yield "\n".join(["**How far from the machine's limit**", "", *_lines(head, lines)])
    if small := sum(float(row["of_limit"]) < SMALL for row in near):
        yield f"Rows below {100 * SMALL:g} % of the limit: {small}."


def _lines(head: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    rows = [f"| {' | '.join(cells)} |" for cells in (head, *lines)]
    return [rows[0], "|---" * len(head) + "|", *rows[1:]]


def _number(value: str | float, unit: str | float) -> str:
    number = float(value)
    if unit != "s":
        return f"{number:.3g}" if unit == "share" else f"{number:.3g} {unit}"
    name, size = next((one for one in _TIMES if number >= one[1]), _TIMES[-1])
    return f"{number / size:.3g} {name}"


def main() -> None:
    """Rewrite the page."""
    page, *files = map(Path, sys.argv[1:])
    refresh(page, [row for file in files for row in json.loads(file.read_text())])
    sys.stdout.write(f"written: {page}\n")


if __name__ == "__main__":
    main()
