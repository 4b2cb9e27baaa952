"""Privacy events: mechanisms described so completely that an accountant can be written from them alone.

Every event speaks of the worst pair of output distributions that two adjacent data
sets can produce. ``noise_multiplier`` is always the noise's standard deviation divided
by the L2 sensitivity *under the stated adjacency and sampler* (``accountant.sensitivity``
has the rules), so distances below are in units of that sensitivity and the noise has
standard deviation z = ``noise_multiplier``.

Adjacency is no part of an event: a ledger states it once for all its events.

Longer than 300 lines: every event, its checks and its stored form stand together.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final, TypeAlias

from accountant.errors import EventError

Json: TypeAlias = dict[str, Any]
"""A JSON object; at (de)serialisation only."""


class Adjacency(StrEnum):
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

    @classmethod
    def _missing_(cls, value: object) -> Adjacency:
        raise EventError(f"adjacency={value!r} is unknown; use one of {', '.join(cls)}")


class Unit(StrEnum):
    """Unit of privacy, whose presence is hidden; costs of different units never add up.

    Example:
        >>> [unit.value for unit in Unit]
        ['client', 'record', 'reward']
    """

    CLIENT = "client"
    RECORD = "record"
    REWARD = "reward"


def _as_float(event: object, name: str, low: float, high: float) -> None:
    """Turn a field into a float inside (low, high]; infinity is refused."""
    value = getattr(event, name)
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise EventError(f"{type(event).__name__}.{name} must be a number, got {value!r}") from error
    if isinstance(value, bool) or not (math.isfinite(number) and low < number <= high):
        raise EventError(f"{type(event).__name__}.{name} must lie in ({low:g}, {high:g}], got {value!r}")
    object.__setattr__(event, name, number)


def _as_floats(event: object, name: str) -> tuple[float, ...]:
    """Turn a field into a tuple of floats."""
    try:
        numbers = tuple(float(value) for value in getattr(event, name))
    except (TypeError, ValueError) as error:
        raise EventError(f"{type(event).__name__}.{name} must be numbers, got {getattr(event, name)!r}") from error
    object.__setattr__(event, name, numbers)
    return numbers


def _as_positive_int(owner: str, name: str, value: object) -> int:
    """An exact integer of at least 1."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # index itself refuses what is no integer
    except TypeError as error:
        raise EventError(f"{owner}.{name} must be an integer, got {value!r}") from error
    if isinstance(value, bool) or number < 1:
        raise EventError(f"{owner}.{name} must be at least 1, got {value!r}")
    return number


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """A vector query answered with Gaussian noise in every coordinate; everybody takes part.

    The worst pair is N(0, z^2) against N(1, z^2), under every adjacency.

    Proof: docs/proofs/gaussian-sum.md.

    Attributes:
        noise_multiplier: z, noise standard deviation over L2 sensitivity; positive.

    Example:
        >>> from accountant import gaussian_dp
        >>> event = Gaussian(noise_multiplier=2.0)
        >>> round(gaussian_dp.epsilon(event, 1e-5, adjacency=Adjacency.ZERO_OUT), 3)
        1.993
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        _as_float(self, "noise_multiplier", 0.0, math.inf)


@dataclass(frozen=True, kw_only=True)
class PoissonSampledGaussian:
    """Every unit joins independently with probability q, in secret; then a Gaussian sum.

    The sum must not be divided by the realised number of participants. Worst pairs:

    - add-or-remove-one and zero-out: (1-q) N(0, z^2) + q N(1, z^2) against N(0, z^2), in
      both directions;
    - replace-one (sensitivity 2C, so each contribution has norm at most 1/2):
      (1-q) N(0, z^2) + q N(1/2, z^2) against (1-q) N(0, z^2) + q N(-1/2, z^2).

    Proof: docs/proofs/poisson.md.

    Attributes:
        sample_rate: q in (0, 1].
        noise_multiplier: z, noise standard deviation over L2 sensitivity; positive.

    Example:
        >>> PoissonSampledGaussian(sample_rate=1.5, noise_multiplier=1.0)
        Traceback (most recent call last):
        accountant.errors.EventError: PoissonSampledGaussian.sample_rate must lie in (0, 1], got 1.5
    """

    sample_rate: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        _as_float(self, "sample_rate", 0.0, 1.0)
        _as_float(self, "noise_multiplier", 0.0, math.inf)


@dataclass(frozen=True, kw_only=True)
class FixedSizeSampledGaussian:
    """Exactly ``sample_size`` of ``n_clients`` units take part, drawn uniformly, in secret.

    Without unit n another unit takes the slot, so the noise multiplier is relative to
    the shift *between two occupants of one slot* (``replace-one`` sensitivity), under
    zero-out as well. Undefined under add-or-remove-one, where n_clients itself differs.
    What is known of the pair is its profile: with q = sample_size / n_clients,
    H_{1+q(g-1)}(P || Q) <= q * H_g(N(1, z^2) || N(0, z^2)) for g >= 1, in both directions
    (Balle, Barthe, Gaboardi 2018, Theorem 10).

    Proof: docs/proofs/fixed-size.md.

    Attributes:
        n_clients: Number of units the sample is drawn from; public.
        sample_size: Number of units drawn, 1 to ``n_clients``.
        noise_multiplier: z, noise standard deviation over that sensitivity; positive.

    Example:
        >>> FixedSizeSampledGaussian(n_clients=40, sample_size=10, noise_multiplier=1.0).sample_rate
        0.25
    """

    n_clients: int
    sample_size: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        owner = type(self).__name__
        for name in ("n_clients", "sample_size"):
            object.__setattr__(self, name, _as_positive_int(owner, name, getattr(self, name)))
        if self.sample_size > self.n_clients:
            raise EventError(f"{owner}.sample_size must be at most n_clients={self.n_clients}, got {self.sample_size}")
        _as_float(self, "noise_multiplier", 0.0, math.inf)

    @property
    def sample_rate(self) -> float:
        """q, the chance that one given unit is drawn."""
        return self.sample_size / self.n_clients


@dataclass(frozen=True, kw_only=True)
class TruncatedPoissonSampledGaussian:
    """Every unit joins with probability q, in secret; of more than B a uniform B stay; then a Gaussian sum.

    A bounded batch: no release has more than ``batch_size`` participants. The sum must not be divided by the realised
    number of participants. The noise multiplier is relative to the *Poisson* sensitivity (one contribution, or twice
    that under replace-one). What dominates is, with t the chance that at least B of the other N - 1 units
    join and q_T the chance of staying in such a batch (``accountant.truncation``),

    - with probability 1 - t a Poisson sample at rate q: fewer than B others joined, so nobody is cut and the others'
      coins are independent of our unit's;
    - with probability t a full batch in which our unit is with chance q_T, and another in its place where it is not,
      so that two contributions move (``accountant.truncation`` has the pair of every adjacency).

    Which of the two it is depends on the others' coins alone, hence has the same law in both data sets; telling it
    only helps the adversary (joint convexity). Of the
    pair that dominates the upper end of an interval is taken; the lower end is what data sets attain in which all
    others contribute zero, a Poisson sample at the chance of being in the batch (``accountant.attained``). Where
    samples are often cut both ends lie far apart, because others that oppose the unit show whether it took a place:
    40 releases at N = 40, q = 1/4, z = 2, delta = 1e-5 under zero-out cost 3.95 to 4.01 with B = 16 and 3.79 to 4.43
    with B = 12.

    Proof: docs/proofs/truncated-poisson.md.

    Attributes:
        n_clients: N, number of units that toss coins, of the larger data set under add-or-remove-one.
        sample_rate: q in (0, 1].
        batch_size: B, the largest number of participants, at least 1; at N or above nobody is ever cut.
        noise_multiplier: z, noise standard deviation over that sensitivity; positive.

    Example:
        >>> from accountant import numerical
        >>> bounded = TruncatedPoissonSampledGaussian(
        ...     n_clients=1000, sample_rate=0.05, batch_size=80, noise_multiplier=1.0
        ... )
        >>> poisson = PoissonSampledGaussian(sample_rate=0.05, noise_multiplier=1.0)
        >>> prices = [numerical.epsilon(event, 1e-5, adjacency=Adjacency.ZERO_OUT) for event in (bounded, poisson)]
        >>> 1.0 <= prices[0] / prices[1] < 1.01
        True
    """

    n_clients: int
    sample_rate: float
    batch_size: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        owner = type(self).__name__
        for name in ("n_clients", "batch_size"):
            object.__setattr__(self, name, _as_positive_int(owner, name, getattr(self, name)))
        _as_float(self, "sample_rate", 0.0, 1.0)
        _as_float(self, "noise_multiplier", 0.0, math.inf)


@dataclass(frozen=True, kw_only=True)
class RandomAllocationGaussian:
    """A whole run of Gaussian sums: every unit takes part in exactly k of T rounds, at secret random times.

    Every unit's set of rounds is a uniform k-subset, drawn once before the first round, independently of all others';
    also called balls in bins (k = 1). It is one event for all T releases, each a sum that must not be divided by the
    realised number of participants; later queries may depend on earlier answers. The worst pair, exact, is the
    uniform mixture over k-subsets S of N(1_S, z^2 I) against N(0, z^2 I), both directions: given S, what the run
    answers is made round by round from 1_S and noise alone, along the direction that the unit contributes, whatever
    that depends on. It holds under add-or-remove-one and zero-out, where the others' rounds do not depend on the
    unit; under replace-one nothing is stated.

    For k > 1 it is priced as k independent allocations of one, each of T // k rounds or one more, an upper bound
    (``accountant.allocation`` has the proof); these have a dominating pair (``accountant.tight.allotted``). The lower
    end of an interval is the price of the sum over all rounds, a Gaussian of multiplier z sqrt(T) / k.

    Proof: docs/proofs/random-allocation.md.

    Attributes:
        n_rounds: T, number of releases.
        participations: k, 1 to ``n_rounds``.
        noise_multiplier: z, noise standard deviation of one release over one contribution's sensitivity; positive.

    Example:
        >>> from accountant import renyi
        >>> event = RandomAllocationGaussian(n_rounds=100, participations=1, noise_multiplier=1.0)
        >>> openly = Gaussian(noise_multiplier=1.0)
        >>> prices = [renyi.epsilon(one, 1e-5, adjacency=Adjacency.ZERO_OUT) for one in (event, openly)]
        >>> prices[0] < 0.7 * prices[1]
        True
    """

    n_rounds: int
    participations: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        owner = type(self).__name__
        for name in ("n_rounds", "participations"):
            object.__setattr__(self, name, _as_positive_int(owner, name, getattr(self, name)))
        if self.participations > self.n_rounds:
            raise EventError(
                f"{owner}.participations must be at most n_rounds={self.n_rounds}, got {self.participations}"
            )
        _as_float(self, "noise_multiplier", 0.0, math.inf)

    @property
    def sample_rate(self) -> float:
        """Chance that one given unit is in one given release: k / T."""
        return self.participations / self.n_rounds


@dataclass(frozen=True, kw_only=True)
class MixtureOfGaussians:
    """A Gaussian sum that one unit, or a group of them, moves by a length drawn in secret.

    The worst pair is the mixture of N(c_j, z^2) with chances p_j against N(0, z^2), both directions
    (``accountant.group`` has the proof for vectors, and makes this event for a group in a Poisson sample). It is
    stated under add-or-remove-one and zero-out.

    Proof: docs/proofs/groups.md.

    Attributes:
        noise_multiplier: z, the noise's standard deviation in the unit of the lengths; positive.
        sensitivities: c_j, lengths of at least 0 that rise; the last is positive.
        chances: p_j, positive, one for every length; they sum to 1.

    Example:
        >>> from accountant import numerical
        >>> two = MixtureOfGaussians(noise_multiplier=2.0, sensitivities=(0.0, 1.0), chances=(0.75, 0.25))
        >>> one = PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=2.0)
        >>> prices = [numerical.epsilon(repeat(event, 40), 1e-5, adjacency=Adjacency.ZERO_OUT) for event in (two, one)]
        >>> abs(prices[0] - prices[1]) < 1e-6
        True
    """

    noise_multiplier: float
    sensitivities: tuple[float, ...]
    chances: tuple[float, ...]

    def __post_init__(self) -> None:
        _as_float(self, "noise_multiplier", 0.0, math.inf)
        lengths, chances = (_as_floats(self, name) for name in ("sensitivities", "chances"))
        rising = all(low < high for low, high in itertools.pairwise((-math.ulp(0.0), *lengths)))
        if not (lengths and rising and 0.0 < lengths[-1] < math.inf):
            raise EventError(f"MixtureOfGaussians.sensitivities must rise from at least 0, got {lengths!r}")
        one = len(chances) == len(lengths) and min(chances) > 0.0 and abs(math.fsum(chances) - 1.0) <= 1e-14
        if not one:
            raise EventError(
                f"MixtureOfGaussians.chances must be positive, one for each length, and sum to 1, got {chances!r}"
            )


@dataclass(frozen=True, kw_only=True)
class ZeroConcentrated:
    """A mechanism of which a bound of Rényi divergences is all that is known: at most xi + rho a at every order a > 1.

    So-called (xi, rho)-zCDP (Bun and Steinke 2016), for mechanisms that are no event here, such as discrete noise. It
    is priced through its Rényi curve: a certified upper end, and no lower one. What is done to the mechanism's input, a
    sample for instance, is not described by it.

    Proof: docs/proofs/zero-concentrated.md.

    Attributes:
        rho: Positive; 1 / (2 z^2) for Gaussian noise, continuous or discrete.
        xi: At least 0.

    Example:
        >>> from accountant import renyi
        >>> foreign, gaussian = ZeroConcentrated(rho=0.125), Gaussian(noise_multiplier=2.0)
        >>> prices = [renyi.epsilon(event, 1e-5, adjacency=Adjacency.ZERO_OUT) for event in (foreign, gaussian)]
        >>> prices[0] == prices[1]
        True
    """

    rho: float
    xi: float = 0.0

    def __post_init__(self) -> None:
        _as_float(self, "rho", 0.0, math.inf)
        _as_float(self, "xi", -math.ulp(0.0), math.inf)


@dataclass(frozen=True, kw_only=True)
class Laplace:
    """A query answered with Laplace noise in every coordinate; everybody takes part.

    The worst pair is Laplace(0, b) against Laplace(1, b), under every adjacency.

    Proof: docs/proofs/laplace.md.

    Attributes:
        scale_multiplier: b, noise scale over L1 sensitivity under the stated adjacency.

    Example:
        >>> from accountant import numerical
        >>> event = Laplace(scale_multiplier=2.0)
        >>> 0.499 < numerical.epsilon(event, 1e-9, adjacency=Adjacency.ZERO_OUT) < 0.501
        True
    """

    scale_multiplier: float

    def __post_init__(self) -> None:
        _as_float(self, "scale_multiplier", 0.0, math.inf)


@dataclass(frozen=True, kw_only=True)
class PoissonSampledLaplace:
    """Every unit joins independently with probability q, in secret; then a sum with Laplace noise in every coordinate.

    The sum must not be divided by the realised number of participants. Worst pairs, exact (``accountant.tight.laplace``
    has the proof; for queries of a number also Zhu, Dong, Wang 2022, Theorem 11):

    - add-or-remove-one and zero-out: (1-q) Laplace(0, b) + q Laplace(1, b) against Laplace(0, b), in
      both directions;
    - replace-one (sensitivity 2C, so each contribution has L1 norm at most 1/2):
      (1-q) Laplace(0, b) + q Laplace(1/2, b) against (1-q) Laplace(0, b) + q Laplace(-1/2, b).

    Proof: docs/proofs/laplace.md.

    Attributes:
        sample_rate: q in (0, 1].
        scale_multiplier: b, noise scale over L1 sensitivity under the stated adjacency.

    Example:
        >>> from accountant import numerical
        >>> event = PoissonSampledLaplace(sample_rate=0.1, scale_multiplier=2.0)
        >>> round(numerical.epsilon(event, 1e-9, adjacency=Adjacency.ZERO_OUT), 3)  # log(1 + 0.1 (exp(1/2) - 1))
        0.063
    """

    sample_rate: float
    scale_multiplier: float

    def __post_init__(self) -> None:
        _as_float(self, "sample_rate", 0.0, 1.0)
        _as_float(self, "scale_multiplier", 0.0, math.inf)


@dataclass(frozen=True, kw_only=True)
class NonPrivate:
    """A release without any guarantee; its epsilon is infinite under every accountant.

    Proof: docs/proofs/plans.md.

    Example:
        >>> from accountant import moments
        >>> moments.epsilon(NonPrivate(), 1e-5, adjacency=Adjacency.ZERO_OUT)
        inf
    """


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
        _as_float(self, "eta", -1.0, math.inf)
        _as_float(self, "gamma", 0.0, math.nextafter(1.0, 0.0))


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
            _as_positive_int("Composed", "count", count)
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
        times = _as_positive_int("compose", "count", times)
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
