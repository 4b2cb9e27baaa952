"""Parallel composition: releases that share no unit cost as much as the dearest of them.

Where no unit enters two releases (every reward is averaged into one release only), one unit
meets one event, and the worst is the event with the least noise (parallel composition,
McSherry 2009). That holds however later releases were chosen from earlier ones: what a
unit did not enter tells nothing of it. Events are compared by their noise
multiplier, so only releases that everybody takes part in are admitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from accountant.errors import EventError
from accountant.events import Composed, Event, Gaussian, NonPrivate, compose, parts
from accountant.rounds import of_one_run

Combine = Callable[[Iterable[Event]], Composed]


def dearest(events: Iterable[Event]) -> Composed:
    """One event for many of which every unit enters at most one.

    Raises:
        EventError: If an event is neither Gaussian at rate 1 nor without any guarantee, or
            is itself a composition of several on the same units.
    """
    alone: list[Gaussian | NonPrivate] = []
    for event in events:
        for part, count in parts(event):
            if not isinstance(part, Gaussian | NonPrivate) or count > 1:
                raise EventError(
                    f"{event} has no price where releases share no unit; only single Gaussian releases without "
                    "sampling do"
                )
            alone.append(part)
    return compose([min(alone, key=_noise)] if alone else [])


def _noise(event: Gaussian | NonPrivate) -> float:
    return event.noise_multiplier if isinstance(event, Gaussian) else 0.0


def combination(*, disjoint: bool) -> Combine:
    """Rule by which charges add up: ``dearest`` where releases share no unit, else ``compose``."""
    return dearest if disjoint else compose


def combination_of_one_run(*, disjoint: bool) -> Combine:
    """Rule by which the releases of one run add up: ``dearest`` where they share no unit, else ``of_one_run``."""
    return dearest if disjoint else of_one_run
