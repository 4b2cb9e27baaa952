"""Pictures and tables of rows that have a place: a line and a column per series, dashed ones of peers and bars."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Measured: TypeAlias = Mapping[str, str | float]
Lines: TypeAlias = dict[str, dict[float, float]]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Picture of rows.

    Attributes:
        title: Above it and above its table.
        x: Text of the horizontal axis.
        y: Text of the vertical axis.
    """

    title: str
    x: str
    y: str


PICTURES = {
    "workers": Picture(
        title="Forty clients whose evaluation waits .1 s, 22 evaluations each",
        x="workers",
        y="wall seconds, start of workers included",
    ),
    "cost": Picture(
        title="Cost per client and round on two workers",
        x="clients",
        y="CPU seconds per client and round",
    ),
    "memory": Picture(title="Memory of all processes together at most", x="clients", y="GB"),
}


def lines_of(rows: Sequence[Measured]) -> tuple[Lines, Lines]:
    """Give a picture's rows as values by series and x, and those of peers and bars."""
    ours: Lines = {}
    others: Lines = {}
    for row in rows:
        x = float(row["x"])
        ours.setdefault(str(row["series"]), {})[x] = float(row["ours"])
        others.setdefault(str(row["peer"]), {})[x] = float(row["theirs"])
    return _sorted(ours), _sorted(others)


def _sorted(lines: Lines) -> Lines:
    return {name: dict(sorted(line.items())) for name, line in lines.items()}


def table(picture: Picture, rows: Sequence[Measured], shown: Callable[[Measured, str], str]) -> Iterable[Sequence[str]]:
    """Give a picture's table, head first: a line per x, a column per series and per peer.

    Args:
        picture: Which one.
        rows: Its rows.
        shown: Text of the number of a row under a key.
    """
    columns = {str(row[key]): (key, of) for key, of in (("series", "ours"), ("peer", "theirs")) for row in rows}
    yield picture.x, *columns
    for x in sorted({float(row["x"]) for row in rows}):
        at = [row for row in rows if row["x"] == x]
        cells = [[shown(row, of) for row in at if row[key] == name] for name, (key, of) in columns.items()]
        yield f"{x:,.0f}", *(cell[0] if cell else "-" for cell in cells)


def drawn(picture: Picture, rows: Sequence[Measured]) -> bytes:
    """Draw a picture's rows as PNG, on logarithmic axes; the same numbers give the same file."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = figure.subplots()
    ours, others = lines_of(rows)
    for (name, line), marker in zip(ours.items(), "osD^v", strict=False):
        axes.plot(list(line), list(line.values()), f"-{marker}", ms=5, label=name)
    for name, line in others.items():
        axes.plot(list(line), list(line.values()), "k--" if len(others) == 1 else "--", lw=1, label=name)
    axes.set(title=picture.title, xlabel=picture.x, ylabel=picture.y, xscale="log", yscale="log")
    axes.title.set_fontsize("medium")
    places = sorted({x for line in ours.values() for x in line})
    axes.set_xticks(places, [f"{x:,.0f}" for x in places])
    axes.minorticks_off()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    heights = [y for line in (*ours.values(), *others.values()) for y in line.values()]
    axes.set_ylim(min(heights) / 2.0, 2.0 * max(heights))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize="small")
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=80)
    return content.getvalue()
