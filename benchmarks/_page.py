"""``python -m benchmarks._page BENCH.json ...``: the measured part of ``docs/speed.md``, from files of the benchmarks.

What stands between the two marks is replaced: measured peers, bars, how far from the machine's limit, and, apart from
all of these, what was recorded elsewhere.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
PAGE = Path(__file__).parents[1] / "docs" / "speed.md"

Measured = Mapping[str, str | float]


def measured(files: Iterable[Path]) -> str:
    """Give the part of the page that the files' rows make."""
    rows: list[Measured] = [row for file in files for row in json.loads(file.read_text())]

    def of(kind: str) -> list[Measured]:
        return [row for row in rows if row["kind"] == kind]

    beside = ("what", "ours", "peer", "peer's", "ratio")
    near = sorted((row for row in _once(rows) if "machine_s" in row), key=lambda row: -float(row["of_machine"]))
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    parts = [
        f"Measured on one machine in one run ({machine}); the smaller of as many calls on both sides.",
        _table("Beside peers", beside, of("peer"), _beside),
        _table("Beside bars", ("what", "ours", "bar", "of", "times below"), of("bar"), _beside),
        _table(
            "How far from the machine's limit",
            ("what", "ours", "at the machine's peak", "share of the peak"),
            near,
            lambda row: (row["name"], _time(row["ours_s"]), _time(row["machine_s"]), f"{float(row['of_machine']):.2g}"),
        ),
        _table("Recorded elsewhere, on another day: no comparison", beside, of("recorded"), _beside),
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


def _once(rows: Iterable[Measured]) -> list[Measured]:
    """One row of every name: the machine's limit does not depend on the peer."""
    return list({row["name"]: row for row in rows}.values())


def _beside(row: Measured) -> tuple[str | float, ...]:
    return row["name"], _time(row["ours_s"]), row["peer"], _time(row["peer_s"]), f"{float(row['ratio']):.3g}"


def _table(
    title: str, head: tuple[str, ...], rows: list[Measured], cells: Callable[[Measured], tuple[str | float, ...]]
) -> str:
    if not rows:
        return ""
    lines = [f"**{title}**", "", _line(head), _line(("---",) * len(head))]
    return "\n".join([*lines, *(_line(cells(row)) for row in rows)])


def _line(cells: Iterable[str | float]) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _time(seconds: str | float) -> str:
    value = float(seconds)
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def main() -> None:
    """Rewrite the page."""
    files = [Path(name) for name in sys.argv[1:]]
    PAGE.write_text(written(PAGE.read_text(), measured(files)))
    sys.stdout.write(f"written: {PAGE}\n")


if __name__ == "__main__":
    main()
