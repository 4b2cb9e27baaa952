"""Public schedules and the design of distributed exploration.

Who explores which part of the space, how much every client counts for every part, and
how often clients act on what was shared: all fixed before the run, so that weights, and
with them the price of every release, are constants.

Exploring starts, the first points of every client, are spread over the space for each of them: those of a Sobol
sequence, scrambled by a public stream for every client anew. The first two lie in different halves of every
coordinate, the first four in different quarters. Clients' points must not be one sequence that is cut up: its
neighbours are as far apart in every client, so that a first release would compare points at one distance only and say
little of what clients have in common.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import Field

from privbo.algorithms.thompson.streams import Stream, client_streams, public_words
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, IntArray, Setting
from privbo.protocol.settings import Sequence, settings
from privbo.protocol.space import Categorical, Int, Parameter, Space, Value

_DRAWS = 4096  # among which one keeps the constraints, of which at least a hundredth do
_TRIES = 100  # random points that may replace one a client has already


@settings(table="algorithm.exploration")
class Exploration:
    """Schedule of how often a client trusts itself: ``p_t = 1 - scale / t^power``, at t = 1, 2, ...

    The papers' schedules are power 1/2, 1 and 2 at scale 1; scale 0 is local Thompson
    sampling.

    Attributes:
        power: At least 0; 0 keeps the probability constant.
        scale: Between 0 and 1.

    Raises:
        ConfigurationError: If a number is out of its range.

    Example:
        >>> import privbo as pb
        >>> [pb.Exploration(power=1.0).own_probability(t) for t in (1, 2, 4)]
        [0.0, 0.5, 0.75]
    """

    power: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.5
    scale: Annotated[float, Field(ge=0, le=1)] = 1.0

    def own_probability(self, iteration: int) -> float:
        """p_t, the probability of acting on the client's own posterior; iterations count from 1."""
        return 1.0 - self.scale * math.exp(-self.power * math.log(iteration))


Form: TypeAlias = Literal["softmax", "linear", "square"]
Schedule: TypeAlias = Literal["real", "synthetic", "constant"]
Steps: TypeAlias = Annotated[int, Field(ge=0)]
_STEPS: dict[Schedule, tuple[int, int]] = {"real": (10, 30), "synthetic": (5, 5)}
_RANGES: dict[Form, tuple[float, float]] = {"softmax": (0.0, 50.0), "linear": (1.0, 1e6), "square": (1.0, 1e3)}


@settings(table="algorithm.weighting")
class Weighting:
    """Extra weight of a region's own clients in that region's sum, and how it fades (the paper's appendix B).

    The ratio of a region's own clients to the others follows a concentration ``a_t`` that is
    held, falls linearly to 1 and stays there (uniform weights). The softmax form
    is, in the paper's words, indicator times a plus one over temperature ``a / (a_t - 1)``.

    Attributes:
        sharpness: a: 15 in the paper, 9 in its "weights 1", 1000 in "weights 2" (linear),
            40 in "weights 3" (square).
        form: Ratio ``exp(a_t - 1)`` with a_t from a + 1 down (``"softmax"``), ``a_t``
            (``"linear"``) or ``a_t^2`` (``"square"``), both with a_t from a down.
        schedule: The paper's: ``"real"`` holds 10 iterations and decays over 30,
            ``"synthetic"`` 5 and 5, ``"constant"`` never decays (non-adaptive weights).
        hold: Iterations at full concentration, instead of the schedule's.
        decay: Iterations of linear decay, both ends included, instead of the schedule's.

    Raises:
        ConfigurationError: If a number is out of its range or a step is named together with
            ``"constant"``.

    Example:
        >>> import privbo as pb
        >>> weighting = pb.Weighting(form="linear", sharpness=9.0, schedule="synthetic")
        >>> [weighting.ratio(t) for t in (1, 8, 10)]
        [9.0, 5.0, 1.0]
    """

    sharpness: float = 15.0
    form: Form = "softmax"
    schedule: Schedule = "real"
    hold: Steps | None = None
    decay: Steps | None = None

    def __post_init__(self) -> None:
        low, high = _RANGES[self.form]
        if not low <= self.sharpness <= high:
            raise ConfigurationError(
                f"weighting.sharpness={self.sharpness!r} must lie in [{low:g}, {high:g}] for form={self.form!r}"
            )
        if self.schedule == "constant" and not self.hold is self.decay is None:
            raise ConfigurationError(
                f"weighting.hold={self.hold} and weighting.decay={self.decay} have no meaning with "
                "schedule='constant'; drop them"
            )

    def concentration(self, iteration: int) -> float:
        """a_t; iterations count from 1."""
        top = self.sharpness + 1.0 if self.form == "softmax" else self.sharpness
        if self.schedule == "constant":
            return top
        steps = _STEPS[self.schedule]
        hold = steps[0] if self.hold is None else self.hold
        decay = steps[1] if self.decay is None else self.decay
        if iteration <= hold:
            return top
        if iteration - hold >= decay:
            return 1.0
        return top - (top - 1.0) * (iteration - hold - 1) / (decay - 1)

    def ratio(self, iteration: int) -> float:
        """Weight of a region's own client over that of another, at least 1."""
        concentration = self.concentration(iteration)
        if self.form == "softmax":
            return math.exp(concentration - 1.0)
        return concentration if self.form == "linear" else concentration**2

    def weights(self, iteration: int, assignment: IntArray, n_regions: int) -> FloatArray:
        """Weights ``(n_regions, n_clients)``; every region's sum to one over the clients."""
        inside = assignment[None, :] == np.arange(n_regions)[:, None]
        raw = np.where(inside, 1.0, 1.0 / self.ratio(iteration))
        return np.asarray(raw / raw.sum(axis=1, keepdims=True))


def assign_regions(n_clients: int, n_regions: int) -> IntArray:
    """Public assignment of clients to regions, equal shares up to one: number modulo regions."""
    return np.arange(n_clients, dtype=np.int64) % n_regions


@settings(table="algorithm.cuts")
class Cut:
    """Places where one parameter's range is cut into regions.

    Attributes:
        parameter: Its name in the space.
        at: Values of the parameter, increasing (choices: in their listed order), none of
            them the first; a region begins with each.

    Example:
        >>> import privbo as pb
        >>> algorithm = pb.DPFTSDE(n_regions=3, cuts=[pb.Cut(parameter="x", at=[0.2, 0.5])])
        >>> algorithm.cuts[0].at
        (0.2, 0.5)
    """

    parameter: str
    at: Sequence[Value]


@dataclass(frozen=True, kw_only=True)
class Regions:
    """Hyper-rectangles that tile the unit cube: a grid with its own cuts per coordinate.

    Attributes:
        edges: Per coordinate the edges of its intervals, from 0 to 1.
    """

    edges: tuple[tuple[float, ...], ...]

    @staticmethod
    def of(n_regions: int, space: Space) -> Regions:
        """Tile with ``n_regions`` boxes of equal volume: prime factors, largest first, over the coordinates in turn.

        Four regions in the plane are its quadrants. Coordinates that cannot be cut so that
        every interval holds a value are passed over.

        Raises:
            ConfigurationError: If no coordinate can carry a factor.
        """
        splits = [1] * space.n_dims
        for turn, factor in enumerate(_prime_factors(n_regions)):
            order = [(turn + i) % space.n_dims for i in range(space.n_dims)]
            usable = [i for i in order if _all_hold_a_value(space, i, _even(splits[i] * factor))]
            if not usable:
                raise ConfigurationError(
                    f"n_regions={n_regions}: no parameter has values in all of {factor} more intervals; "
                    "use fewer regions"
                )
            splits[usable[0]] *= factor
        return Regions(edges=tuple(_even(count) for count in splits))

    @staticmethod
    def cut(cuts: Iterable[Cut], space: Space) -> Regions:
        """The grid made by explicit cuts; parameters that are not named stay whole.

        Raises:
            ConfigurationError: If a name is unknown or named twice, or an interval is
                empty or holds no value.
        """
        names = list(space.parameters)
        edges = [_even(1)] * space.n_dims
        for cut in cuts:
            if cut.parameter not in names:
                raise ConfigurationError(f"cuts: {cut.parameter!r} is no parameter; there are {names}")
            index = names.index(cut.parameter)
            if len(edges[index]) > 2 or not cut.at:
                raise ConfigurationError(f"cuts: give {cut.parameter!r} once, with at least one value")
            inner = [_beginning(space.parameters[cut.parameter], value) for value in cut.at]
            edges[index] = (0.0, *inner, 1.0)
            rising = all(a < b for a, b in itertools.pairwise(edges[index]))
            if not rising or not _all_hold_a_value(space, index, edges[index]):
                raise ConfigurationError(
                    f"cuts: {cut.parameter!r} at {list(cut.at)} must rise strictly inside its range, "
                    "with a value in every interval"
                )
        return Regions(edges=tuple(edges))

    @property
    def splits(self) -> tuple[int, ...]:
        """Number of intervals per coordinate."""
        return tuple(len(edges) - 1 for edges in self.edges)

    @property
    def count(self) -> int:
        """P, the number of regions."""
        return math.prod(self.splits)

    def index(self, units: FloatArray) -> IntArray:
        """Region of every point ``(..., n_dims)``."""
        cells = [np.searchsorted(edges[1:-1], units[..., i], side="right") for i, edges in enumerate(self.edges)]
        return np.asarray(np.ravel_multi_index(tuple(cells), self.splits), dtype=np.int64)

    def sample(
        self, homes: IntArray, count: int, space: Space, draw: Callable[[IntArray, int], FloatArray]
    ) -> FloatArray:
        """Random canonical points of every client's region, ``(n, count, n_dims)``.

        Rounding to canonical values can leave the box, so the first points of a client's draws that stay are taken.

        Args:
            homes: Region of every client, ``(n,)``.
            count: Points of each.
            space: The search space.
            draw: Gives some clients' first draws from [0, 1), so many, ``(k, many)``.
        """
        corner = np.unravel_index(homes, self.splits)
        edges = [np.array(one) for one in self.edges]
        low = np.stack([one[i] for one, i in zip(edges, corner, strict=True)], axis=-1)[:, None]
        high = np.stack([one[i + 1] for one, i in zip(edges, corner, strict=True)], axis=-1)[:, None]
        points, short, tried = np.empty((len(homes), count, space.n_dims)), np.arange(len(homes)), 4 * count
        while len(short):
            units = draw(short, tried * space.n_dims).reshape(len(short), tried, space.n_dims)
            drawn = space.snap(low[short] + units * (high - low)[short])
            stays = (self.index(drawn) == homes[short, None]) & space.allows(drawn)
            order = np.argsort(~stays, axis=1, kind="stable")[:, :count]
            points[short] = np.take_along_axis(drawn, order[..., None], axis=1)
            short, tried = short[stays.sum(axis=1) < count], 2 * tried
        return points


def _beginning(parameter: Parameter, value: Value) -> float:
    """Beginning of a value's bin on the unit coordinate; a real number has no bin."""
    middle = parameter.encode(value)
    if isinstance(parameter, Categorical):
        return middle - 0.5 / len(parameter.choices)
    if parameter.step not in (None, 1):
        return middle - 0.5 / parameter.n_values
    if isinstance(parameter, Int) and value != parameter.low:
        return 0.5 * (middle + parameter.encode(int(value) - 1))
    return middle if not isinstance(parameter, Int) else 0.0


def _even(count: int) -> tuple[float, ...]:
    return tuple(i / count for i in range(count + 1))


def _prime_factors(number: int) -> list[int]:
    factors, divisor = [], 2
    while number > 1:
        if number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        else:
            divisor += 1
    return factors[::-1]


def _all_hold_a_value(space: Space, coordinate: int, edges: tuple[float, ...]) -> bool:
    """Whether every interval of a coordinate holds the canonical value nearest its middle."""
    middles = np.full((len(edges) - 1, space.n_dims), 0.5)
    middles[:, coordinate] = (np.array(edges[:-1]) + np.array(edges[1:])) / 2
    snapped = space.snap(middles)[:, coordinate]
    return bool(np.array_equal(np.searchsorted(edges[1:-1], snapped, side="right"), np.arange(len(edges) - 1)))


def first_points(setting: Setting, clients: IntArray, count: int, reach: float = 1.0) -> FloatArray:
    """The first ``count`` canonical points of some clients, ``(n, count, n_dims)``; public.

    A client's points differ from each other as far as the space has so many.

    Args:
        setting: Of the run.
        clients: Which clients.
        count: Points of each.
        reach: Share of every number's range, around its middle, in which points lie; categories are drawn alike.
    """
    space = setting.space
    reaches = np.array([1.0 if isinstance(p, Categorical) else reach for p in space.parameters.values()])
    drawn = _scrambled(setting, clients, count)
    points = space.snap(drawn + (1.0 - reaches) * (0.5 - drawn))
    if space.constraints:
        some = np.flatnonzero(~space.allows(points).all(axis=1))
        streams = client_streams(setting.public_seed, clients[some], 0, Stream.REPLACEMENT)
        for row, generator in zip(some, streams, strict=True):
            for index in np.flatnonzero(~space.allows(points[row])):
                drawn = space.snap(generator.random((_DRAWS, space.n_dims)))
                points[row, index] = drawn[space.allows(drawn)][0]
    if any(parameter.n_values == np.inf for parameter in space.parameters.values()):
        return points  # only of finitely many values can points coincide
    repeats = [(points[:, :index] == points[:, [index]]).all(axis=2).any(axis=1) for index in range(1, count)]
    some = np.flatnonzero(np.any(repeats, axis=0))
    for row, generator in zip(some, client_streams(setting.public_seed, clients[some], 0, Stream.INITIAL), strict=True):
        _spread(points[row], space, generator)
    return points


def _scrambled(setting: Setting, clients: IntArray, count: int) -> FloatArray:
    """A Sobol sequence's first points, scrambled for every client (Owen 1995), ``(n, count, n_dims)``.

    All clients' scrambles are one public stream, level by level and then the last digits; of it only the part from the
    first to the last of these clients is drawn.
    """
    from scipy.stats import qmc  # settings are read without it

    n_dims, levels = setting.space.n_dims, (count - 1).bit_length()
    net = qmc.Sobol(n_dims, scramble=False).random(1 << levels)[:count]
    cells = (net * (1 << levels)).astype(np.int64)
    taken = np.zeros((len(clients), count, n_dims), dtype=np.int64)
    if not len(clients):
        return taken.astype(np.float64)
    low, high = int(clients.min()), int(clients.max()) + 1
    for level in range(levels):
        each, before = n_dims << level, setting.n_clients * n_dims * ((1 << level) - 1)
        flips = _coins(setting.public_seed, before + low * each, (high - low) * each)
        above, digit = cells >> (levels - level), cells >> (levels - level - 1) & 1
        own = flips.reshape(high - low, 1 << level, n_dims)[clients - low]
        taken = 2 * taken + (digit ^ np.take_along_axis(own, np.broadcast_to(above, taken.shape), axis=1))
    each, before = count * n_dims, (setting.n_clients * n_dims * ((1 << levels) - 1) + 1) // 2
    words = public_words(setting.public_seed, Stream.INITIAL, before + low * each, (high - low) * each)
    digits = ((words >> np.uint64(11)) * 2.0**-53).reshape(high - low, count, n_dims)[clients - low]
    return np.asarray((taken + digits) / (1 << levels))


def _coins(seed: int, first: int, count: int) -> IntArray:
    """Fair coins of the public stream, from the ``first`` on: every word of it gives two, its lower half's first."""
    words = public_words(seed, Stream.INITIAL, first // 2, (first % 2 + count + 1) // 2)
    halves = words.astype("<u8").view("<u4")[first % 2 :][:count]
    return (halves >> np.uint32(31)).astype(np.int64)


def _spread(row: FloatArray, space: Space, generator: np.random.Generator) -> None:
    """Replace points that stand before in a client's row by random others."""
    for index in range(1, len(row)):
        for _ in range(_TRIES):
            if not (row[:index] == row[index]).all(axis=1).any():
                break
            drawn = space.snap(generator.random(space.n_dims))
            row[index] = drawn if space.allows(drawn) else row[index]
