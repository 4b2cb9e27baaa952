"""Events as an auditor reads them from a ledger's rows: fields and ranges are those that ``accountant.events`` states.

They are written down a second time on purpose, so that no fault of the accountant's is the auditor's, too.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, dataclass_transform

from accountant.verify.reading import BundleError, Json, canonical, number, quoted, rows, table, text, whole


class Adjacency(StrEnum):
    """Neighbouring data sets: what the presence of one unit may change."""

    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Basic:
    """A kind of event, a frozen dataclass; a ledger's rows name it by its class' name in small letters with hyphens."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


class Gaussian(Basic):
    """A sum that all clients enter, with noise of so many sensitivities."""

    sample_rate = 1.0
    noise_multiplier: float


class PoissonSampledGaussian(Basic):
    """A sum that each client enters by a secret coin."""

    sample_rate: float
    noise_multiplier: float


class FixedSizeSampledGaussian(Basic):
    """A sum over a secret subset of so many clients."""

    n_clients: int
    sample_size: int
    noise_multiplier: float

    @property
    def sample_rate(self) -> float:
        """Share of the clients that take part."""
        return self.sample_size / self.n_clients


class TruncatedPoissonSampledGaussian(Basic):
    """A sum that each client enters by a secret coin, cut to so many."""

    n_clients: int
    sample_rate: float
    batch_size: int
    noise_multiplier: float


class RandomAllocationGaussian(Basic):
    """Sums of so many rounds, of which each client enters some at secret times."""

    n_rounds: int
    participations: int
    noise_multiplier: float


class MixtureOfGaussians(Basic):
    """A value that moves by a secret length."""

    noise_multiplier: float
    sensitivities: tuple[float, ...]
    chances: tuple[float, ...]


class ZeroConcentrated(Basic):
    """A release of which the divergences alone are known."""

    rho: float
    xi: float


class Laplace(Basic):
    """A sum with Laplace noise of so many sensitivities."""

    scale_multiplier: float


class PoissonSampledLaplace(Basic):
    """A sum that each client enters by a secret coin, with Laplace noise."""

    sample_rate: float
    scale_multiplier: float


class BestOfRandomRuns(Basic):
    """The best of a secret random number of runs."""

    run: Composed
    eta: float
    gamma: float


class NonPrivate(Basic):
    """A release without any guarantee."""


class Unknown(Basic):
    """A kind of release that this check has never heard of: nothing can be computed of it."""

    kind: str


@dataclass(frozen=True, kw_only=True)
class Composed:
    """Several events on the same data, each so many times.

    Attributes:
        parts: Pairs of an event and its count; empty where nothing was released.
    """

    parts: tuple[tuple[Basic, int], ...] = ()


def composed(paid: Mapping[str, int]) -> Composed:
    """Read events with counts, each written as JSON.

    Raises:
        BundleError: If a field is missing, too much or out of range.

    Example:
        >>> composed({'{"type": "laplace", "scale_multiplier": 2}': 3})
        Composed(parts=((Laplace(scale_multiplier=2.0), 3),))
    """
    return Composed(parts=tuple((_basic(json.loads(event)), count) for event, count in sorted(paid.items())))


def parts_of(event: object) -> Counter[str]:
    """Count the basic events that an event consists of, each as canonical JSON.

    Raises:
        BundleError: If it is no event.
    """
    if text(table(event, "event").get("type"), "type of an event") != "composed":
        return Counter({canonical(event).decode(): 1})
    found: Counter[str] = Counter()
    for part, count in rows(table(event, "event", ("type", "parts"))["parts"], "parts"):
        times = counted(count, "count of an event")
        found.update({name: times * n for name, n in parts_of(part).items()})
    return found


def clients_of(event: Json) -> Iterator[int]:
    """Give the numbers of clients from which a basic event, or a run inside of it, draws a fixed number."""
    if event["type"] not in _KINDS:
        return
    if "n_clients" in event:
        yield counted(event["n_clients"], "n_clients")
    if "run" in event:
        for part in parts_of(event["run"]):
            yield from clients_of(json.loads(part))


def counted(value: object, name: str) -> int:
    """A whole number from 1 on."""
    if (found := whole(value, name)) < 1:
        raise BundleError(f"{name} is 0")
    return found


def _basic(content: Json) -> Basic:
    kind = content["type"]
    made = _KINDS.get(kind, Unknown)
    if made is Unknown:
        return Unknown(kind=kind)
    names = list(made.__annotations__)
    table(content, f"event {kind}", ("type", *names))
    given = {name: _field(name, content[name]) for name in names}
    for name, bound in _AT_MOST.items():
        if name in given and given[name] > given[bound]:
            raise BundleError(f"event {kind}: {name} is {given[name]}, over {bound}, {given[bound]}")
    if made is MixtureOfGaussians and len(given["sensitivities"]) != len(given["chances"]):
        raise BundleError(f"event {kind}: there is not one chance for every length")
    return made(**given)


def _field(name: str, value: object) -> Any:  # noqa: ANN401 (fields are of several types)
    if name == "run":
        return composed(parts_of(value))
    if name in _LISTS:
        return _LISTS[name](tuple(number(each, name) for each in rows(value, name)))
    if name in _COUNTS:
        return counted(value, name)
    low, high, least_is_in = _RANGES.get(name, _POSITIVE)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise BundleError(f"{name} of an event is {quoted(value)}, out of [{low:g}, {high:g}]")
    if value == low and not least_is_in:
        raise BundleError(f"{name} of an event is {quoted(value)}, which it has to be above")
    return float(value)


def _rising(lengths: tuple[float, ...]) -> tuple[float, ...]:
    if not lengths or lengths[-1] <= 0 or any(before >= after for before, after in pairwise(lengths)):
        raise BundleError(f"sensitivities of an event do not rise: {quoted(lengths)}")
    return lengths


def _summing_to_one(chances: tuple[float, ...]) -> tuple[float, ...]:
    if min(chances, default=0.0) <= 0 or not math.isclose(math.fsum(chances), 1.0, rel_tol=1e-9):
        raise BundleError(f"chances of an event do not sum to 1: {quoted(chances)}")
    return chances


_KINDS = {re.sub("(?<!^)(?=[A-Z])", "-", kind.__name__).lower(): kind for kind in Basic.__subclasses__()}
_POSITIVE = (0.0, sys.float_info.max, False)
_RANGES = {
    "sample_rate": (0.0, 1.0, False),
    "xi": (0.0, sys.float_info.max, True),
    "eta": (-1.0, sys.float_info.max, False),
    "gamma": (0.0, math.nextafter(1.0, 0.0), False),
}
_LISTS = {"sensitivities": _rising, "chances": _summing_to_one}
_COUNTS = ("n_clients", "sample_size", "batch_size", "n_rounds", "participations")
_AT_MOST = {"sample_size": "n_clients", "participations": "n_rounds"}
