"""The figures of a report: which numbers stand in which figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from accountant.wording import upper_text
from privbo.plans.prices import Caught, CumulativePrice, CurvePoint, finite
from privbo.reports.figure import Axis, Figure, Series
from privbo.reports.parts import Released
from privbo.runs.record import ActiveNodes

_BLOCKS = 250


def epsilon_by_release(
    points: Sequence[CumulativePrice], delta: float, accountants: Sequence[str] | None = None
) -> Figure:
    """Draw epsilon against the number of releases, one line per accountant: all of them unless some are named."""
    names = [name for name in (points[0].epsilon if points else {}) if accountants is None or name in accountants]
    lines = [
        Series(label=name, x=[p.releases for p in points], y=[p.epsilon[name] for p in points], colour=index)
        for index, name in enumerate(names)
        if min(p.epsilon[name] for p in points) < math.inf
    ]
    return Figure(
        series=lines,
        x=Axis(label="releases", integers=True),
        y=Axis(label=f"epsilon at delta = {upper_text(delta)}", from_zero=True),
    )


def delta_epsilon(curve: Sequence[CurvePoint], epsilon: float, delta: float) -> Figure:
    """Draw the whole privacy curve, certified upper and lower delta at every epsilon, and the quoted point."""
    seen = [p for p in curve if p.delta_upper > 0]
    x = [p.epsilon for p in seen]
    series = (
        Series(label="upper bound", x=x, y=[p.delta_upper for p in seen]),
        Series(label="lower bound", x=x, y=[p.delta_lower or None for p in seen], colour=4, kind="line"),
        Series(label="quoted", x=[epsilon], y=[delta], colour=1, kind="points"),
    )
    return Figure(series=series, x=Axis(label="epsilon"), y=Axis(label="delta", log=True))


def trade_off(points: Sequence[Caught]) -> Figure:
    """Draw what an attacker can catch at most against what it falsely accuses."""
    x = [p.false_alarms for p in points]
    series = (
        Series(label="upper bound", x=x, y=[p.caught for p in points]),
        Series(label="random guessing", x=x, y=x, colour=6, dash=1, kind="line"),
    )
    return Figure(
        series=series,
        x=Axis(label="false accusations", log=True, percent=True),
        y=Axis(label="caught at most", percent=True),
    )


def release_norms(releases: Sequence[Released]) -> Figure:
    """Draw the norm of every release and the norm that its noise alone has on average."""
    releases = _extremes(releases)
    x = [row.round for row in releases]
    series = (
        Series(label="released, noise included", x=x, y=[row.norm for row in releases]),
        Series(label="noise alone, expected", x=x, y=[row.noise_norm for row in releases], colour=1, kind="line"),
    )
    return Figure(
        series=series, x=Axis(label="round", integers=True), y=Axis(label="norm of the release", from_zero=True)
    )


def _extremes(releases: Sequence[Released]) -> Sequence[Released]:
    """The releases of largest and of smallest norm of every block, of as many blocks as a screen can tell apart."""
    size = math.ceil(len(releases) / _BLOCKS)
    if size <= 2:
        return releases
    blocks = [releases[begin : begin + size] for begin in range(0, len(releases), size)]
    ends = [{row.round: row for row in (f(block, key=lambda row: row.norm) for f in (min, max))} for block in blocks]
    return [few[at] for few in ends for at in sorted(few)]


def active_nodes(rows: Sequence[ActiveNodes]) -> Figure:
    """Draw the nodes still active at every depth that was announced."""
    drawn = Series(label="active nodes", x=[r.depth for r in rows], y=[r.nodes for r in rows], kind="bars")
    return Figure(series=(drawn,), x=Axis(label="depth", integers=True), y=Axis(label="active nodes", integers=True))


def best_scores(curves: Mapping[str, Sequence[float]]) -> Figure:
    """PRIVATE: draw the mean best score over clients against rounds, one line per arm."""
    series = [
        Series(label=name, x=range(len(curve)), y=list(map(finite, curve)), colour=index, kind="line")
        for index, (name, curve) in enumerate(curves.items())
    ]
    return Figure(series=series, x=Axis(label="round", integers=True), y=Axis(label="mean best score over clients"))
