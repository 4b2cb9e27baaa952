"""Events, bounds, intervals and accountants in words, a line each, for reports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from accountant.events import Event, FixedSizeSampledGaussian, parts
from accountant.verify.text import at_least, at_most

if TYPE_CHECKING:
    from accountant.tight.numerical import Interval

_LISTED = 4  # noise multipliers of one plan
_FOUND = {
    "closed-form": "in closed form",
    "numerical": "by certified bounds",
    "renyi": "the upper one is Rényi's bound",
}


def upper_text(value: float | None, digits: int = 4) -> str:
    """Write an upper bound with so many significant digits, rounded up so that it stays one.

    Example:
        >>> upper_text(3.2500238), upper_text(2.9999999998), upper_text(None)
        ('3.251', '3', '-')
    """
    return "-" if value is None else at_most(value, digits)


def counted(number: int, noun: str) -> str:
    """Write a number of things whose plural ends in s.

    Example:
        >>> counted(1, "release"), counted(1200, "release")
        ('1 release', '1,200 releases')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def interval_text(interval: Interval, event: Event) -> str:
    """Say in one line what the ends of the tight accountant's interval are ends of; numbers to six digits.

    Example:
        >>> from accountant import epsilon_interval, FixedSizeSampledGaussian
        >>> event = FixedSizeSampledGaussian(n_clients=40, sample_size=10, noise_multiplier=2.0)
        >>> words = interval_text(epsilon_interval(event, 1e-5, adjacency="replace-one"), event)
        >>> words.endswith("(by certified bounds); the mechanism itself may cost less")
        True
    """
    upper = upper_text(interval.upper, 6)
    between = f"lies between {at_least(interval.lower, 6)} and {upper}"
    if interval.method == "renyi" and interval.lower == 0.0:
        return f"epsilon is at most {upper} by Rényi's bound alone; no lower end is known"
    how = _FOUND[interval.method]
    if not interval.is_tight:
        how += f"; the ends lie {1.0 - interval.lower / interval.upper:.2g} of the upper one apart"
    if any(isinstance(part, FixedSizeSampledGaussian) and part.sample_rate < 1.0 for part, _ in parts(event)):
        return (
            f"epsilon of the pair that dominates sampling without replacement {between} ({how}); "
            "the mechanism itself may cost less"
        )
    return f"the true epsilon {between} ({how})"


def accountant_text(name: str, *tables: Mapping[str, float]) -> str:
    """Name an accountant of ``epsilon_table``, and say where its number is another's.

    Example:
        >>> accountant_text("tight", {"renyi": 2.0, "tight": 2.0})
        'tight (the Rényi bound)'
        >>> accountant_text("tight", {"renyi": 2.0, "tight": 1.0})
        'tight'
    """
    pairs = [(table["tight"], table["renyi"]) for table in tables if {"tight", "renyi"} <= table.keys()]
    fell_back = any(0.0 < tight == looser < math.inf for tight, looser in pairs)
    return "tight (the Rényi bound)" if name == "tight" and fell_back else name


def noise_multipliers(event: Event) -> tuple[float, ...]:
    """Give the noise multipliers of an event's releases in ascending order, each once.

    Example:
        >>> from accountant import Gaussian, compose
        >>> noise_multipliers(compose([Gaussian(noise_multiplier=2.5), Gaussian(noise_multiplier=1.75)]))
        (1.75, 2.5)
    """
    found = {each for part, _ in parts(event) if (each := getattr(part, "noise_multiplier", None)) is not None}
    return tuple(sorted(found))


def multipliers_text(of: Event | Sequence[float]) -> str:
    """List noise multipliers, or those of an event's releases, to four digits; the ends where they are more than four.

    Example:
        >>> from accountant import Gaussian, compose
        >>> multipliers_text(compose([Gaussian(noise_multiplier=1.75), Gaussian(noise_multiplier=2.5)]))
        '1.75, 2.5'
    """
    multipliers = of if isinstance(of, Sequence) else noise_multipliers(of)
    texts = list(dict.fromkeys(f"{each:.4g}" for each in multipliers))
    return "none" if not texts else ", ".join(texts) if len(texts) <= _LISTED else f"{texts[0]} to {texts[-1]}"


def event_text(event: Event) -> str:
    """Say in one line what a release was; numbers to four digits.

    Args:
        event: A basic event or a composition.

    Example:
        >>> from accountant import PoissonSampledGaussian
        >>> event_text(PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=1.0))
        'Poisson-sampled Gaussian, rate 0.25, multiplier 1'
    """
    return event.text
