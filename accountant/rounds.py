"""Events that pay for several releases at once: how many, and what the releases of one run come to.

A random allocation is one event for all of its rounds. A ledger has a row for each of its releases nevertheless, in the
order in which they were made; every row names the whole event, whose price was paid with the run's plan.
"""

from __future__ import annotations

from collections.abc import Iterable

from accountant.events import Basic, Composed, Event, RandomAllocationGaussian, compose, parts


def releases_of(event: Basic) -> int:
    """Give the number of releases that ``event`` pays for.

    Example:
        >>> releases_of(RandomAllocationGaussian(n_rounds=20, participations=5, noise_multiplier=2.0))
        20
    """
    return event.n_rounds if isinstance(event, RandomAllocationGaussian) else 1


def of_one_run(releases: Iterable[Event | tuple[Event, int]]) -> Composed:
    """Compose the releases of one run, each named by the event that pays for it; a part of an event counts whole.

    Releases of two runs must not be mixed: each of them has an allocation of its own.

    Example:
        >>> allocated = RandomAllocationGaussian(n_rounds=20, participations=5, noise_multiplier=2.0)
        >>> of_one_run([allocated] * 3) == of_one_run([(allocated, 20)]) == compose([allocated])
        True
    """
    return compose((part, -(-count // releases_of(part))) for part, count in parts(compose(releases)))
