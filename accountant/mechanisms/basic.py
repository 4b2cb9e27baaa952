"""Event: neighbours, everything that one kind of event says of itself, and composition.

``accountant.events`` has all kinds by name. Every event speaks of the worst pair of output distributions that two
adjacent data sets can produce. ``noise_multiplier`` is always the noise's standard deviation divided by the L2
sensitivity *under the stated adjacency and sampler* (``accountant.sensitivity`` has the rules), so distances are in
units of that sensitivity and the noise has standard deviation z = ``noise_multiplier``.

Adjacency is no part of an event: a ledger states it once for all its events.
"""

from __future__ import annotations

import math
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, dataclass_transform

import numpy as np

from accountant.errors import EventError
from accountant.mechanisms.pair import FloatArray, Pair

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Json: TypeAlias = dict[str, Any]
"""A JSON object; at (de)serialisation only."""


class _Word(StrEnum):
    @classmethod
    def _missing_(cls, value: object) -> Self:
        raise EventError(f"{cls.__name__.lower()}={value!r} is unknown; use one of {', '.join(cls)}")


class Adjacency(_Word):
    """Neighbouring data sets: what the presence of one unit may change.

    ``ADD_OR_REMOVE_ONE``: one unit is present in one data set and absent from the other.
    ``ZERO_OUT``: the number of units is public; one unit's contribution becomes zero.
    ``REPLACE_ONE``: one unit's contribution becomes any other allowed contribution.

    Example:
        >>> Adjacency("zero-out") is Adjacency.ZERO_OUT
        True
    """

    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"


class Unit(_Word):
    """Unit of privacy, whose presence is hidden; costs of different units never add up.

    Example:
        >>> [unit.value for unit in Unit]
        ['client', 'record', 'reward']
    """

    CLIENT = "client"
    RECORD = "record"
    REWARD = "reward"


_RANGES = {
    "sample_rate": (0.0, 1.0),
    "xi": (-math.ulp(0.0), 1e50),
    "eta": (-1.0, 1e50),
    "gamma": (0.0, math.nextafter(1.0, 0.0)),
}
"""Where a field that is a number lies: above the first, up to the second."""
_RANGE = (1e-50, 1e50)  # of every other field: its square times any count is still a number
_MOST = 2**53  # the largest count: every one below is exact as a float
_COUNTS = ("n_clients", "sample_size", "batch_size", "n_rounds", "participations")
_AT_MOST = {"sample_size": "n_clients", "participations": "n_rounds"}


def as_positive_int(owner: str, name: str, value: object) -> int:
    """An exact integer from 1 to 2^53."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # index itself refuses what is no integer
    except TypeError as error:
        raise EventError(f"{owner}.{name} must be an integer, got {value!r}") from error
    if isinstance(value, bool) or not 1 <= number <= _MOST:
        raise EventError(f"{owner}.{name} must be at least 1 and at most 2^53, got {value!r}")
    return number


def _as_number(owner: str, name: str, value: object) -> float:
    """A number inside its field's range."""
    low, high = _RANGES.get(name, _RANGE)
    try:
        number = float(value)  # type: ignore[arg-type]  # float itself refuses what is no number
    except (TypeError, ValueError) as error:
        raise EventError(f"{owner}.{name} must be a number, got {value!r}") from error
    if isinstance(value, bool) or not (math.isfinite(number) and low < number <= high):
        raise EventError(f"{owner}.{name} must lie in ({low:g}, {high:g}], got {value!r}")
    return number


@dataclass(frozen=True, repr=False)
class DpCall:
    """A class of dp-accounting's and its arguments; calls and lists of calls among them.

    Example:
        >>> DpCall("GaussianDpEvent", {"noise_multiplier": 2.0})
        GaussianDpEvent(noise_multiplier=2.0)
    """

    name: str
    arguments: Mapping[str, object]

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.arguments.items())})"

    def build(self) -> DpEvent:
        """Make dp-accounting's object."""
        from dp_accounting import dp_event

        return getattr(dp_event, self.name)(**{key: _built(value) for key, value in self.arguments.items()})


def _built(value: object) -> object:
    if isinstance(value, list):
        return [_built(one) for one in value]
    return value.build() if isinstance(value, DpCall) else value


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Basic(ABC):
    """One kind of event: a subclass states its fields, and answers everything that the accountants ask of it.

    Every subclass is a frozen dataclass of these fields, which are given by name.

    Attributes:
        kinds: Every kind by the name that ledgers store: its class' name in lower case with hyphens.
        kind: That name.
        is_attained: Whether two data sets attain the pair. Where it is only an upper bound, the lower end of an
            interval comes from a test (``accountant.verify.lower``).
        noise_multiplier: z, where the noise is Gaussian; there is none elsewhere.
        words: The event in one line, fields in braces.
        sampling: How participants are drawn, likewise; empty where nothing more than ``words`` is to say.
        structured: Fields that are no single number, which the kind checks itself.
        unsound: By adjacency, why the event says nothing sound under it.
    """

    kinds: ClassVar[dict[str, type[Basic]]] = {}
    kind: ClassVar[str]
    is_attained: ClassVar[bool]
    noise_multiplier: float
    words: ClassVar[str]
    sampling: ClassVar[str] = ""
    structured: ClassVar[tuple[str, ...]] = ()
    unsound: ClassVar[Mapping[Adjacency, str]] = {}

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)
        cls.kind = re.sub("(?<!^)(?=[A-Z])", "-", cls.__name__).lower()
        cls.kinds[cls.kind] = cls

    def __post_init__(self) -> None:
        """Hold every field that is a number to its range."""
        owner, fields = type(self).__name__, dict(vars(self))
        for name, value in fields.items():
            if name in _COUNTS:
                object.__setattr__(self, name, as_positive_int(owner, name, value))
            elif name not in self.structured:
                object.__setattr__(self, name, _as_number(owner, name, value))
        for name, bound in _AT_MOST.items():
            if name in fields and fields[name] > fields[bound]:
                raise EventError(f"{owner}.{name} must be at most {bound}={fields[bound]}, got {fields[name]}")

    @property
    def text(self) -> str:
        """The event in one line; numbers to four digits."""
        return self.words.format_map(vars(self))

    @property
    def sampler(self) -> str:
        """How participants are drawn, in one line."""
        return self.sampling.format_map(vars(self)) if self.sampling else self.text

    def pairs(self, adjacency: Adjacency) -> tuple[Pair, ...]:
        """Both directions of the dominating pair; one where it is symmetric, none where only a Rényi curve is known."""
        return ()

    @abstractmethod
    def renyi_curve(self, orders: FloatArray, adjacency: Adjacency) -> FloatArray:
        """Rényi divergence at real orders above 1, shape ``(n,)``, the larger of both directions."""

    def for_group(self, size: int, adjacency: Adjacency) -> Basic | None:
        """The event as it is for ``size`` units together, at least 2; None where nothing tight is proven."""
        return None

    @abstractmethod
    def seen_samples(self) -> tuple[Basic, int]:
        """An event, and how often, that covers this one for an observer who knows who takes part."""

    @abstractmethod
    def dp_event(self, factor: float) -> DpCall:
        """The event as dp-accounting writes it; ``factor`` is the sensitivity over one contribution's norm."""

    @property
    def gaussian_releases(self) -> int:
        """Number of Gaussian releases of all clients, at this multiplier, that cost no less; 0 where there are none."""
        return 0

    @property
    def is_gaussian(self) -> bool:
        """Whether the event is exactly as private as one Gaussian release of all clients."""
        return False

    @property
    def n_releases(self) -> int:
        """Number of releases that the event covers."""
        return 1

    def blocks(self) -> tuple[tuple[Basic, int], ...]:
        """Events with counts that together dominate this one, each with a pair or a Rényi curve of its own."""
        return ((self, 1),)

    def check(self, adjacency: Adjacency) -> None:
        """Refuse an adjacency under which the event says nothing sound."""
        if adjacency in self.unsound:
            raise EventError(f"{self!r} {self.unsound[adjacency]}")


class NonPrivate(Basic):
    """A release without any guarantee; its epsilon is infinite under every accountant.

    Proof: docs/proofs/plans.md.

    Example:
        >>> from accountant import Adjacency, moments
        >>> moments.epsilon(NonPrivate(), 1e-5, adjacency=Adjacency.ZERO_OUT)
        inf
    """

    words = "not private"
    sampling = "none: nothing is protected"
    is_attained = True

    def renyi_curve(self, orders: FloatArray, adjacency: Adjacency) -> FloatArray:
        return np.full_like(orders, math.inf)

    def for_group(self, size: int, adjacency: Adjacency) -> NonPrivate:
        return self

    def seen_samples(self) -> tuple[Basic, int]:
        return self, 1

    def dp_event(self, factor: float) -> DpCall:
        return DpCall("NonPrivateDpEvent", {})


@dataclass(frozen=True, kw_only=True)
class Composed:
    """Several events on the same data, each so many times; made by ``compose``.

    Proof: docs/proofs/plans.md.

    Attributes:
        parts: Pairs (event, count), every event basic and present once; empty is a
            release of nothing.

    Example:
        >>> from accountant import Gaussian, repeat
        >>> Composed() == repeat(Gaussian(noise_multiplier=1.0), 0)
        True
    """

    parts: tuple[tuple[Basic, int], ...] = ()

    def __post_init__(self) -> None:
        seen: dict[Basic, int] = {}
        for event, count in self.parts:
            if not isinstance(event, Basic):
                raise EventError(f"Composed.parts holds basic events only, got {event!r}; use compose(...)")
            if event in seen:
                raise EventError(f"Composed.parts names {event!r} twice; use compose(...)")
            seen[event] = as_positive_int("Composed", "count", count)
        object.__setattr__(self, "parts", tuple(seen.items()))

    @property
    def text(self) -> str:
        """All parts in one line."""
        return ", ".join(f"{count} x ({part.text})" for part, count in self.parts)

    @property
    def sampler(self) -> str:
        """How each part draws participants, every way once."""
        return "; ".join(dict.fromkeys(part.sampler for part, _ in self.parts))

    def seen_samples(self) -> Composed:
        """What covers every part for an observer who knows who takes part."""
        covered = [(*part.seen_samples(), count) for part, count in self.parts]
        return compose([(event, times * count) for event, times, count in covered])

    def dp_event(self, factor: float) -> DpCall:
        """The composition as dp-accounting writes it."""
        rows = [DpCall("SelfComposedDpEvent", {"event": part.dp_event(factor), "count": n}) for part, n in self.parts]
        return DpCall("ComposedDpEvent", {"events": rows}) if rows else DpCall("NoOpDpEvent", {})


Event: TypeAlias = Basic | Composed


def parts(event: Event) -> tuple[tuple[Basic, int], ...]:
    """The basic events of ``event`` with their counts.

    Raises:
        EventError: ``event`` is of no known type.
    """
    if isinstance(event, Composed):
        return event.parts
    if isinstance(event, Basic):
        return ((event, 1),)
    raise EventError(
        f"unknown event {event!r} of type {type(event).__name__}; known: {sorted(Basic.kinds)} and 'composed'"
    )


def compose(events: Iterable[Event | tuple[Event, int]]) -> Composed:
    """One event for many on the same data; equal events are merged, order is forgotten.

    Args:
        events: Events, or pairs (event, how many times); compositions are flattened.

    Raises:
        EventError: An event is unknown, or a count below 1.

    Example:
        >>> from accountant import Gaussian
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
    found = counts.items()  # most are of one event
    return Composed(parts=tuple(found if len(found) < 2 else sorted(found, key=lambda pair: _place(pair[0]))))


def _place(event: Basic) -> tuple[object, ...]:
    """Place of an event in a composition: by kind, then field by field."""
    values = vars(event).values()
    if any(isinstance(value, Composed) for value in values):
        return (event.kind, repr(to_dict(event)))
    return (event.kind, *values)


def to_dict(event: Event) -> Json:
    """The canonical form of an event: JSON-able, floats exact, equal events equal dicts.

    Example:
        >>> from accountant import Gaussian
        >>> to_dict(Gaussian(noise_multiplier=4.0))
        {'type': 'gaussian', 'noise_multiplier': 4.0}
    """
    if isinstance(event, Composed):
        rows = [[to_dict(part), count] for part, count in compose([event]).parts]
        return {"type": "composed", "parts": rows}
    (basic, _), *_ = parts(event)
    return {"type": basic.kind, **{name: _plain(value) for name, value in vars(basic).items()}}


def _plain(value: object) -> object:
    if isinstance(value, Composed):
        return to_dict(value)
    return list(value) if isinstance(value, tuple) else value
