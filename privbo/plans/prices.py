"""What a report says of epsilon: by accountant, by delta, by release, and in plain words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from accountant.disjoint import Combine
from accountant.epsilon import epsilon_table
from accountant.events import Adjacency, Composed, Event, compose, is_non_private, parts
from accountant.filters import Filter, fixed_order_filter, gaussian_filter, quote
from accountant.ledger import Budget, Entry
from accountant.tight import numerical
from privbo.plans.privacy import default_delta, paper_delta

_STOPS = 40
_CURVE_POINTS = 25
_FALSE_ALARMS = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5)

Table = dict[str, float | None]


def finite(value: float) -> float | None:
    """JSON form of an epsilon: None where it is infinite."""
    return value if math.isfinite(value) else None


def table(event: Event, delta: float, adjacency: Adjacency) -> Table:
    """Epsilon by accountant, None where it is infinite."""
    return {name: finite(value) for name, value in epsilon_table(event, delta, adjacency=adjacency).items()}


def smallest(values: Mapping[str, float | None]) -> float | None:
    """The smallest bound; None if all are infinite."""
    return min((value for value in values.values() if value is not None), default=None)


def price(event: Event, *, delta: float, n_clients: int, adjacency: Adjacency) -> list[dict[str, Any]]:
    """Epsilon by accountant at the run's delta, at min(1e-5, 1/(10 N)) and at N^-1.1; each delta once."""
    deltas = {"this run": delta, "default": default_delta(n_clients), "paper": paper_delta(n_clients)}
    return [{"label": label, "delta": at, "epsilon": table(event, at, adjacency)} for label, at in _once(deltas)]


def _once(deltas: Mapping[str, float]) -> list[tuple[str, float]]:
    kept: list[tuple[str, float]] = []
    for label, delta in deltas.items():
        if not any(math.isclose(delta, other) for _, other in kept):
            kept.append((label, delta))
    return kept


def interval(event: Event, delta: float, adjacency: Adjacency) -> dict[str, Any]:
    """The tight accountant's certified bounds."""
    found = numerical.epsilon_interval(event, delta, adjacency=adjacency)
    return {"lower": finite(found.lower), "upper": finite(found.upper), "method": found.method}


def cumulative(
    events: Sequence[Event], delta: float, adjacency: Adjacency, *, combine: Combine = compose
) -> list[Table]:
    """Epsilon after releases 1, 2, ... by accountant; at most 40 points, the last always among them."""
    step = max(1, math.ceil(len(events) / _STOPS))
    stops = sorted({1, *range(step, len(events) + 1, step), len(events)} if events else ())
    return [{"releases": stop, **table(combine(events[:stop]), delta, adjacency)} for stop in stops]


def after_each(points: Sequence[Table], count: int) -> list[float | None]:
    """Epsilon after each of ``count`` releases: that of the next computed point, which is at least as large."""
    found: list[float | None] = []
    for point in points:
        stop = int(point["releases"] or 0)
        best = smallest({name: value for name, value in point.items() if name != "releases"})
        found += [best] * (stop - len(found))
    return found[:count]


def guarantee(
    entries: Sequence[Entry],
    *,
    plan: Event,
    delta: float,
    adjacency: Adjacency,
    budget: Budget | None,
    combine: Combine = compose,
) -> dict[str, Any]:
    """What holds whatever was adaptive, beside the reading as if nothing had been.

    ``followed`` asks that the charges stand at the plan's positions 0, 1, 2, ... and
    that none occurs more often than planned.
    """
    made = combine(entry.event for entry in entries)
    found = quote(
        made,
        delta,
        adjacency=adjacency,
        plan=plan,
        followed=_followed(entries, made, plan),
        admitted_by=_filter(budget, adjacency),
    )
    reading = found.as_if_non_adaptive
    private = all(entry.noise_source in ("secure", "exact") for entry in entries)
    return {
        "guaranteed": finite(found.guaranteed) if private else None,
        "because": found.because if private else "nothing: the noise was seeded or absent, so nobody is protected",
        "as_if_non_adaptive": None if reading is None else finite(reading),
    }


def _followed(entries: Sequence[Entry], made: Composed, plan: Event) -> bool:
    planned = dict(parts(plan))
    in_order = [entry.plan_position for entry in entries] == list(range(len(entries)))
    return in_order and all(count <= planned.get(event, 0) for event, count in parts(made))


def _filter(budget: Budget | None, adjacency: Adjacency) -> Filter | None:
    if budget is None or budget.rule == "planned":
        return None
    if budget.rule == "gaussian":
        return gaussian_filter(epsilon=budget.epsilon, delta=budget.delta)
    return fixed_order_filter(epsilon=budget.epsilon, delta=budget.delta, adjacency=adjacency)


def curve(event: Event, delta: float, adjacency: Adjacency) -> list[dict[str, float]]:
    """Certified bounds of delta at epsilons from 0 to well beyond the quoted one; empty if it is infinite."""
    if is_non_private(event):
        return []
    quoted = numerical.epsilon(event, min(delta, 1e-6), adjacency=adjacency)
    top = max(1.2 * quoted, 0.1)
    rows = []
    for step in range(_CURVE_POINTS):
        # Squares put more points near zero, where the attacker's best guess is decided.
        epsilon = top * (step / (_CURVE_POINTS - 1)) ** 2
        found = numerical.delta_interval(event, epsilon, adjacency=adjacency)
        rows.append({"epsilon": epsilon, "delta_lower": max(0.0, found.lower), "delta_upper": found.upper})
    return rows


def attacker(points: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """What a guess about one unit improves to, at most, from the privacy curve.

    With (epsilon, delta) for every point, a test with false alarm rate a catches at most
    min over points of delta + e^epsilon a and of 1 - e^-epsilon (1 - delta - a) (Wasserman and
    Zhou 2010; Dong, Roth and Su 2019, equation 5). With even odds the best guess is right with
    probability (1 + delta(0)) / 2.
    """
    if not points:
        return {"right_guess": None, "caught": []}
    return {
        "right_guess": 0.5 + 0.5 * min(1.0, points[0]["delta_upper"]),
        "caught": [{"false_alarms": a, "caught": _power(points, a)} for a in _FALSE_ALARMS],
    }


def _power(points: Sequence[Mapping[str, float]], alarms: float) -> float:
    bounds = [1.0]
    for point in points:
        epsilon, delta = point["epsilon"], point["delta_upper"]
        bounds.append(delta + math.exp(min(epsilon, 700.0)) * alarms)
        bounds.append(1.0 - math.exp(-epsilon) * max(0.0, 1.0 - delta - alarms))
    return min(bounds)
