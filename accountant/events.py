"""Privacy events: mechanisms described so completely that an accountant can be written from them alone.

Every event speaks of the worst pair of output distributions that two adjacent data
sets can produce. ``noise_multiplier`` is always the noise's standard deviation divided
by the L2 sensitivity *under the stated adjacency and sampler* (``accountant.sensitivity``
has the rules), so distances below are in units of that sensitivity and the noise has
standard deviation z = ``noise_multiplier``.

Adjacency is no part of an event: a ledger states it once for all its events.

The basic ones stand in ``accountant.gaussian_sums`` and ``accountant.other_noises``; here they are composed, written
down and read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, TypeAlias

from accountant.adjacency import Adjacency, Unit
from accountant.errors import EventError
from accountant.fields import as_float, as_positive_int
from accountant.gaussian_sums import (
    FixedSizeSampledGaussian,
    Gaussian,
    MixtureOfGaussians,
    PoissonSampledGaussian,
    RandomAllocationGaussian,
    TruncatedPoissonSampledGaussian,
)
from accountant.other_noises import Laplace, NonPrivate, PoissonSampledLaplace, ZeroConcentrated

__all__ = [
    "Adjacency",
    "Basic",
    "BestOfRandomRuns",
    "Composed",
    "Event",
    "FixedSizeSampledGaussian",
    "Gaussian",
    "Json",
    "Laplace",
    "MixtureOfGaussians",
    "NonPrivate",
    "PoissonSampledGaussian",
    "PoissonSampledLaplace",
    "RandomAllocationGaussian",
    "TruncatedPoissonSampledGaussian",
    "Unit",
    "ZeroConcentrated",
    "check_adjacency",
    "compose",
    "from_dict",
    "is_non_private",
    "parts",
    "repeat",
    "to_dict",
]

Json: TypeAlias = dict[str, Any]
"""A JSON object; at (de)serialisation only."""


@dataclass(frozen=True, kw_only=True)
class BestOfRandomRuns:
    """The best of K runs of one mechanism, released alone; K is secret and random.

    K is truncated negative binomial (``accountant.selection``); which candidate each run
    tries, the runs that are not released, and K itself stay secret.

    Proof: docs/proofs/private-selection.md.

    Attributes:
        run: What one run costs, the score it is judged by included; private itself.
        eta: Shape of K, > -1; 1 is geometric.
        gamma: Success probability in (0, 1); smaller means more runs.

    Example:
        >>> from accountant import renyi
        >>> run = compose([Gaussian(noise_multiplier=4.0)])
        >>> best = BestOfRandomRuns(run=run, eta=1.0, gamma=0.1)
        >>> prices = [renyi.epsilon(event, 1e-5, adjacency=Adjacency.ZERO_OUT) for event in (run, best)]
        >>> prices[0] < prices[1] < 4 * prices[0]
        True
    """

    run: Composed
    eta: float
    gamma: float

    def __post_init__(self) -> None:
        run = compose([self.run])
        if not run.parts or is_non_private(run) or any(isinstance(p, BestOfRandomRuns) for p, _ in run.parts):
            raise EventError(f"BestOfRandomRuns.run must be a private event other than a selection, got {self.run!r}")
        object.__setattr__(self, "run", run)
        as_float(self, "eta", -1.0, math.inf)
        as_float(self, "gamma", 0.0, math.nextafter(1.0, 0.0))


Basic: TypeAlias = (
    Gaussian
    | PoissonSampledGaussian
    | FixedSizeSampledGaussian
    | TruncatedPoissonSampledGaussian
    | RandomAllocationGaussian
    | MixtureOfGaussians
    | ZeroConcentrated
    | Laplace
    | PoissonSampledLaplace
    | BestOfRandomRuns
    | NonPrivate
)


@dataclass(frozen=True, kw_only=True)
class Composed:
    """Several events on the same data, each so many times; made by ``compose``.

    Proof: docs/proofs/plans.md.

    Attributes:
        parts: Pairs (event, count), every event basic and present once; empty is a
            release of nothing.

    Example:
        >>> Composed() == repeat(Gaussian(noise_multiplier=1.0), 0)
        True
    """

    parts: tuple[tuple[Basic, int], ...] = ()

    def __post_init__(self) -> None:
        seen = set()
        for event, count in self.parts:
            if not isinstance(event, Basic):
                raise EventError(f"Composed.parts holds basic events only, got {event!r}; use compose(...)")
            as_positive_int("Composed", "count", count)
            if event in seen:
                raise EventError(f"Composed.parts names {event!r} twice; use compose(...)")
            seen.add(event)


Event: TypeAlias = Basic | Composed

_TYPES: Final[dict[str, type[Basic]]] = {
    "gaussian": Gaussian,
    "poisson-sampled-gaussian": PoissonSampledGaussian,
    "fixed-size-sampled-gaussian": FixedSizeSampledGaussian,
    "truncated-poisson-sampled-gaussian": TruncatedPoissonSampledGaussian,
    "random-allocation-gaussian": RandomAllocationGaussian,
    "mixture-of-gaussians": MixtureOfGaussians,
    "zero-concentrated": ZeroConcentrated,
    "laplace": Laplace,
    "poisson-sampled-laplace": PoissonSampledLaplace,
    "best-of-random-runs": BestOfRandomRuns,
    "non-private": NonPrivate,
}
_NAMES: Final = {kind: name for name, kind in _TYPES.items()}


def parts(event: Event) -> tuple[tuple[Basic, int], ...]:
    """The basic events of ``event`` with their counts.

    Raises:
        EventError: ``event`` is of no known type.
    """
    if isinstance(event, Composed):
        return event.parts
    if isinstance(event, Basic):
        return ((event, 1),)
    raise EventError(f"unknown event {event!r} of type {type(event).__name__}; known: {sorted(_TYPES)} and 'composed'")


def _sort_key(event: Basic) -> tuple[str | float | tuple[float, ...], ...]:
    if isinstance(event, BestOfRandomRuns):
        return (_NAMES[type(event)], repr(to_dict(event)))
    return (_NAMES[type(event)], *(getattr(event, item.name) for item in fields(event)))


def compose(events: Iterable[Event | tuple[Event, int]]) -> Composed:
    """One event for many on the same data; equal events are merged, order is forgotten.

    Args:
        events: Events, or pairs (event, how many times); compositions are flattened.

    Raises:
        EventError: An event is unknown, or a count below 1.

    Example:
        >>> noisy = Gaussian(noise_multiplier=4.0)
        >>> compose([noisy, (noisy, 2)])
        Composed(parts=((Gaussian(noise_multiplier=4.0), 3),))
    """
    counts: dict[Basic, int] = {}
    for item in events:
        event, times = item if isinstance(item, tuple) else (item, 1)
        times = as_positive_int("compose", "count", times)
        for part, count in parts(event):
            counts[part] = counts.get(part, 0) + count * times
    return Composed(parts=tuple(sorted(counts.items(), key=lambda pair: _sort_key(pair[0]))))


def repeat(event: Event, count: int) -> Composed:
    """``event`` made ``count`` times; zero times is the empty composition.

    Example:
        >>> repeat(Gaussian(noise_multiplier=4.0), 3)
        Composed(parts=((Gaussian(noise_multiplier=4.0), 3),))
    """
    return compose([(event, count)]) if count else Composed()


def to_dict(event: Event) -> Json:
    """The canonical form of an event: JSON-able, floats exact, equal events equal dicts.

    Example:
        >>> to_dict(Gaussian(noise_multiplier=4.0))
        {'type': 'gaussian', 'noise_multiplier': 4.0}
    """
    if isinstance(event, Composed):
        rows = [[to_dict(part), count] for part, count in compose([event]).parts]
        return {"type": "composed", "parts": rows}
    (basic, _), *_ = parts(event)
    if isinstance(basic, BestOfRandomRuns):
        return {"type": _NAMES[type(basic)], "run": to_dict(basic.run), "eta": basic.eta, "gamma": basic.gamma}
    values = {item.name: getattr(basic, item.name) for item in fields(basic)}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return {"type": _NAMES[type(basic)], **plain}


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
    if name not in _TYPES:
        raise EventError(f"unknown event type {name!r}; known: {sorted(_TYPES)} and 'composed'")
    if name == "best-of-random-runs" and isinstance(content.get("run"), Mapping):
        content["run"] = from_dict(content["run"])
    try:
        return _TYPES[name](**content)
    except TypeError as error:
        raise EventError(f"event {name!r} cannot be made from the fields {sorted(content)}: {error}") from error


def check_adjacency(event: Event, adjacency: Adjacency) -> None:
    """Refuse an event that says nothing sound under ``adjacency``.

    Raises:
        EventError: Fixed-size sampling under add-or-remove-one; random allocation, and a mixture of
            Gaussians, under replace-one.
    """
    adjacency = Adjacency(adjacency)
    for part, _ in parts(event):
        if isinstance(part, BestOfRandomRuns):
            check_adjacency(part.run, adjacency)
        if isinstance(part, RandomAllocationGaussian | MixtureOfGaussians) and adjacency is Adjacency.REPLACE_ONE:
            raise EventError(f"{part!r} is not stated under replace-one: no pair is proven; state zero-out")
        if isinstance(part, FixedSizeSampledGaussian) and adjacency is Adjacency.ADD_OR_REMOVE_ONE:
            raise EventError(
                f"{part!r} has no meaning under add-or-remove-one: the sample is drawn from a public number "
                "of clients, so neighbours differ in who occupies a slot; state replace-one or zero-out"
            )


def is_non_private(event: Event) -> bool:
    """Tell whether any part of ``event`` carries no guarantee at all."""
    return any(isinstance(part, NonPrivate) for part, _ in parts(event))
