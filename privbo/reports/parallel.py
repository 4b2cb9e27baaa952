"""Parallel coordinates as static SVG: a line per trial over parameters and value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from privbo.reports.svg import PLOT, TOP, WIDTH, pixel


@dataclass(frozen=True, kw_only=True)
class Axis:
    """An axis of parallel coordinates: its name, and its ends in words."""

    name: str
    low: str
    high: str


def parallel(axes: Sequence[Axis], rows: Sequence[Sequence[float]]) -> Markup:
    """Draw parallel coordinates: a line per row of unit values, the best quarter by the last axis in front.

    Example:
        >>> drawn = parallel([Axis(name="x", low="0", high="1"), Axis(name="value", low="0", high="9")], [[0.5, 1.0]])
        >>> drawn.count('class="line"')
        1
    """
    room = (WIDTH - 60) / max(len(axes) - 1, 1)
    xs = [30 + room * k for k in range(len(axes))]
    ordered = sorted(rows, key=lambda row: row[-1])
    first = len(ordered) - max(1, len(ordered) // 4)
    lines = []
    for place, row in enumerate(ordered):
        path = "L".join(f"{pixel(x)} {pixel(TOP + PLOT * (1 - u))}" for x, u in zip(xs, row, strict=True))
        kind, opacity = ("s1", 0.9) if place >= first else ("s6", 0.35)
        lines.append(
            Markup('<g class="{}" style="opacity:{}"><path class="line" d="M{}"/></g>').format(kind, opacity, path)
        )
    frames = [
        Markup(
            '<path class="axis" d="M{0} {1}v{2}"/><text x="{0}" y="12" text-anchor="middle">{3}</text>'
            '<text x="{0}" y="{4}" text-anchor="middle">{5}</text><text x="{0}" y="23" text-anchor="middle">{6}</text>'
        ).format(pixel(x), TOP, PLOT, axis.name[:14], TOP + PLOT + 14, axis.low[:9], axis.high[:9])
        for x, axis in zip(xs, axes, strict=True)
    ]
    label = f"{len(rows)} trials over {', '.join(axis.name for axis in axes)}; the best quarter stands in front."
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, TOP + PLOT + 20, label, Markup("").join([*lines, *frames])
    )
