"""Events: every kind by name, read from what was written, and seen by others than the one who is protected.

An event describes a mechanism so completely that an accountant can be written from it alone
(``accountant.mechanisms.basic`` has the protocol; a new kind is one class in one module of ``accountant.mechanisms``).
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Final, TypeAlias

from accountant.errors import AccountingError, EventError
from accountant.mechanisms.allocation import RandomAllocationGaussian as RandomAllocationGaussian
from accountant.mechanisms.basic import (
    Adjacency as Adjacency,
    Basic as Basic,
    Composed as Composed,
    Event as Event,
    Json as Json,
    NonPrivate as NonPrivate,
    Unit as Unit,
    compose as compose,
    parts as parts,
    to_dict as to_dict,
)
from accountant.mechanisms.gaussian import Gaussian as Gaussian, ZeroConcentrated as ZeroConcentrated
from accountant.mechanisms.laplace import Laplace as Laplace, PoissonSampledLaplace as PoissonSampledLaplace
from accountant.mechanisms.mixture import MixtureOfGaussians as MixtureOfGaussians
from accountant.mechanisms.sampled import (
    FixedSizeSampledGaussian as FixedSizeSampledGaussian,
    PoissonSampledGaussian as PoissonSampledGaussian,
)
from accountant.mechanisms.selection import BestOfRandomRuns as BestOfRandomRuns
from accountant.mechanisms.truncated import TruncatedPoissonSampledGaussian as TruncatedPoissonSampledGaussian

Combine: TypeAlias = Callable[[Iterable[Event]], Composed]
SLACK: Final = 2.0**-40
"""Share of delta and of the multiplier that ``of_noises`` gives up: for the rounding of the noises, and of the root."""


def from_dict(data: Mapping[str, object]) -> Event:
    """The event that ``to_dict`` described.

    Raises:
        EventError: Unknown type, missing or surplus fields, values out of range.

    Example:
        >>> from_dict({"type": "gaussian", "noise_multiplier": 4.0})
        Gaussian(noise_multiplier=4.0)
    """
    content: Json = dict(data)
    name = content.pop("type", None)
    if name == "composed":
        rows = content.pop("parts", None)
        if content or not isinstance(rows, list):
            raise EventError(f"a composed event has 'type' and a list 'parts', got {dict(data)!r}")
        return compose([(from_dict(part), count) for part, count in rows])
    if name not in Basic.kinds:
        raise EventError(f"unknown event type {name!r}; known: {sorted(Basic.kinds)} and 'composed'")
    try:
        return Basic.kinds[name](
            **{key: from_dict(value) if isinstance(value, Mapping) else value for key, value in content.items()}
        )
    except TypeError as error:
        raise EventError(f"event {name!r} cannot be made from the fields {sorted(content)}: {error}") from error


def repeat(event: Event, count: int) -> Composed:
    """``event`` made ``count`` times; zero times is the empty composition.

    Example:
        >>> repeat(Gaussian(noise_multiplier=4.0), 3)
        Composed(parts=((Gaussian(noise_multiplier=4.0), 3),))
    """
    return compose([(event, count)]) if count else Composed()


def whole_number(name: str, value: object, least: int, of: str) -> int:
    """A count of something, as Python's or NumPy's integer.

    Raises:
        AccountingError: It is no integer, or below ``least``.
    """
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]  # refuses the rest
    except TypeError:
        number = -1
    if number < least:
        raise AccountingError(f"{name}={value!r} must be a whole number of {of}, at least {least}")
    return number


def check_adjacency(event: Event, adjacency: Adjacency) -> None:
    """Refuse an event that says nothing sound under ``adjacency``.

    Raises:
        EventError: Fixed-size sampling under add-or-remove-one; random allocation, and a mixture of
            Gaussians, under replace-one.
    """
    for part, _ in parts(event):
        part.check(Adjacency(adjacency))


def is_non_private(event: Event) -> bool:
    """Tell whether any part of ``event`` carries no guarantee at all."""
    return any(isinstance(part, NonPrivate) for part, _ in parts(event))


def trivial_epsilon(event: Event, delta: float, adjacency: Adjacency) -> float | None:
    """The answer for empty (0) and non-private (inf) events, None for all others.

    Raises:
        AccountingError: ``delta`` is not in (0, 1).
        EventError: ``event`` is unknown or unsound under ``adjacency``.
    """
    check_delta(delta)
    check_adjacency(event, adjacency)
    if not parts(event):
        return 0.0
    return math.inf if is_non_private(event) else None


def trivial_delta(event: Event, epsilon: float, adjacency: Adjacency) -> float | None:
    """The answer for empty (0) and non-private (1) events, None for all others.

    Raises:
        AccountingError: ``epsilon`` is negative or no number.
        EventError: ``event`` is unknown or unsound under ``adjacency``.
    """
    check_epsilon(epsilon)
    check_adjacency(event, adjacency)
    if not parts(event) or epsilon == math.inf:
        return 0.0
    return 1.0 if is_non_private(event) else None


def check_delta(delta: float) -> None:
    """Refuse a delta outside (0, 1)."""
    if not (_is_number(delta) and 0.0 < delta < 1.0):
        raise AccountingError(f"delta must lie in (0, 1), got {delta!r}; usual is at most 1/(10 n_clients)")


def check_epsilon(epsilon: float) -> None:
    """Refuse a negative epsilon and NaN."""
    if not (_is_number(epsilon) and epsilon >= 0.0):
        raise AccountingError(f"epsilon must be at least 0, got {epsilon!r}")


def _is_number(value: object) -> bool:
    """Whether a value is one real number: no text, no array, nothing that is missing."""
    return isinstance(value, Real) and not isinstance(value, bool)


def of_group(event: Event, size: int, *, adjacency: Adjacency) -> Event:
    """``event`` as it is for ``size`` units together, as tightly as is proven.

    The neighbours are a data set with all k units and one without any of them (under zero-out: with all k contributions
    set to zero). Gaussian and Laplace noise at full participation: contributions add up to at most k times one, so
    the multiplier is divided by k, exactly, under every adjacency. A Poisson sample: every unit joins independently,
    so with chance Binomial(k, q) of j the sum moves by the lengths of j contributions (``MixtureOfGaussians``, whose
    module has the proof). Samples of a fixed or bounded size and secret rounds are refused: nothing tight is proven
    of them.

    .. versionadded:: 0.3.0

    Args:
        event: Releases, described for one unit.
        size: k, at least 1; 1 is the event itself.
        adjacency: The ledger's adjacency.

    Raises:
        AccountingError: ``size`` is no whole number of at least 1.
        EventError: ``event`` is unknown or unsound under ``adjacency``, or nothing tight is proven of a group.

    Example:
        >>> of_group(Gaussian(noise_multiplier=6.0), 3, adjacency=Adjacency.ZERO_OUT)
        Composed(parts=((Gaussian(noise_multiplier=2.0), 1),))
        >>> sampled = PoissonSampledGaussian(sample_rate=0.5, noise_multiplier=2.0)
        >>> ((pair, _),) = of_group(sampled, 2, adjacency=Adjacency.ZERO_OUT).parts
        >>> pair.sensitivities, pair.chances
        ((0.0, 1.0, 2.0), (0.25, 0.5, 0.25))
    """
    size = whole_number("group", size, 1, "units")
    check_adjacency(event, adjacency)
    if size == 1:
        return event
    together: list[tuple[Event, int]] = []
    for part, count in parts(event):
        if (grown := part.for_group(size, Adjacency(adjacency))) is None:
            words = f"of {size} units together nothing tight is proven for {part!r} under {adjacency}"
            raise EventError(f"{words}; price one unit alone")
        together.append((grown, count))
    return compose(together)


def of_seen_samples(event: Event) -> Composed:
    """Give an event that covers the same releases for an observer who knows their samples.

    Given who takes part, a release is a Gaussian sum of that unit or does not concern it; who takes part depends on
    no unit's data. So a Gaussian of the same multiplier covers it, and k of them an allocation of k releases. Under
    fixed-size sampling the multiplier is stated over a larger shift, so this is an upper bound.

    Proof: docs/proofs/poisson.md.

    Raises:
        EventError: If the event is of no known type.

    Example:
        >>> of_seen_samples(PoissonSampledGaussian(sample_rate=0.1, noise_multiplier=2.0))
        Composed(parts=((Gaussian(noise_multiplier=2.0), 1),))
    """
    return compose([event]).seen_samples()


def of_noises(event: Event, *, counted: int, unknown: int) -> Composed:
    """Give the event of the same releases for an observer who lacks ``unknown`` of the independent noises.

    Guardians of a federation each add a rounded Gaussian of standard deviation s grid units to one sum, s at least
    2^10. An observer who knows none of G noises sees the sum under all of them, one guardian under G - 1, the server
    with G - 1 guardians under one.

    A sum of k rounded Gaussians is no rounded Gaussian. Up to a total variation of 3 k M exp(-s^2 pi^2 / 2) +
    tails, below 2^-1000 here, it is the rounding of one Gaussian of standard deviation s sqrt(k) to which k - 1
    independent uniform numbers of width 1 were added; both are made after the Gaussian, so they cost nothing. What
    is left of delta after ``SLACK`` covers the difference.

    Proof: docs/proofs/guardians.md.

    Args:
        event: Gaussian releases, of all clients or a Poisson sample, as a ledger was charged for them.
        counted: Number of noises that this event counts on.
        unknown: Number of noises that the other one does not know; at least 1.

    Raises:
        EventError: If a part of the event has no such noise, or a number is below 1.

    Example:
        >>> of_noises(Gaussian(noise_multiplier=2.0), counted=1, unknown=4)
        Composed(parts=((Gaussian(noise_multiplier=3.9999999999963...), 1),))
    """
    if min(counted, unknown) < 1:
        raise EventError(f"counted={counted!r}, unknown={unknown!r}: both must be integers >= 1")
    if counted == unknown:
        return compose([event])
    factor = math.sqrt(unknown / counted) * (1.0 - SLACK)
    scaled: list[tuple[Event, int]] = []
    for part, count in parts(event):
        if isinstance(part, NonPrivate):
            scaled.append((part, count))
        elif isinstance(part, Gaussian | PoissonSampledGaussian):
            scaled.append((dataclasses.replace(part, noise_multiplier=part.noise_multiplier * factor), count))
        else:
            raise EventError(f"{part} is no sum of guardians' noises; price it as it is")
    return compose(scaled)


def of_one_run(releases: Iterable[Event | tuple[Event, int]]) -> Composed:
    """Compose the releases of one run, each named by the event that covers it; a part of an event counts whole.

    A random allocation is one event for all of its rounds, and a ledger has a row for each of them, which names it.
    Releases of two runs must not be mixed: each of them has an allocation of its own.

    Example:
        >>> allocated = RandomAllocationGaussian(n_rounds=20, participations=5, noise_multiplier=2.0)
        >>> of_one_run([allocated] * 3) == of_one_run([(allocated, 20)]) == compose([allocated])
        True
    """
    return compose((part, -(-count // part.n_releases)) for part, count in parts(compose(releases)))


def most_expensive(events: Iterable[Event]) -> Composed:
    """One event for many of which every unit enters at most one: the one with the least noise.

    Where no unit enters two releases (every reward is averaged into one release only), one unit meets one event, and
    the worst is the event with the least noise (parallel composition, McSherry 2009). That holds however later
    releases were chosen from earlier ones: what a unit did not enter tells nothing of it. Events are compared by
    their noise multiplier, so only releases that all clients take part in are admitted.

    Raises:
        EventError: If an event is neither Gaussian at rate 1 nor without any guarantee, or
            is itself a composition of several on the same units.
    """
    alone: list[Gaussian | NonPrivate] = []
    for event in events:
        for part, count in (found := parts(event)):
            if not isinstance(part, Gaussian | NonPrivate) or count > 1 or len(found) > 1:
                raise EventError(
                    f"{event} has no price where releases share no unit; only single Gaussian releases without "
                    "sampling do"
                )
            alone.append(part)
    return compose([min(alone, key=lambda one: getattr(one, "noise_multiplier", 0.0))] if alone else [])
