"""Public schedules and the design of distributed exploration.

Who explores which part of the space, how much every client counts for every part, and
how often clients act on what was shared: all fixed before the run, so that weights, and
with them the price of every release, are constants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privbo.errors import ConfigurationError
from privbo.protocol import FloatArray, IntArray
from privbo.space import Space


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """How often a client trusts itself: ``p_t = 1 - scale / t^power``, at t = 1, 2, ...

    The papers' schedules are power 1/2, 1 and 2 at scale 1; scale 0 is local Thompson
    sampling.

    Attributes:
        power: At least 0; 0 keeps the probability constant.
        scale: Between 0 and 1.
    """

    power: float = 0.5
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.power) and self.power >= 0):
            raise ConfigurationError(f"exploration.power={self.power!r} must be a finite number >= 0")
        if not 0 <= self.scale <= 1:
            raise ConfigurationError(f"exploration.scale={self.scale!r} must lie in [0, 1]")

    def own_probability(self, iteration: int) -> float:
        """p_t, the probability of acting on the client's own posterior; iterations count from 1."""
        return 1.0 - self.scale * math.exp(-self.power * math.log(iteration))


@dataclass(frozen=True, kw_only=True)
class Weighting:
    """Softmax weights that forget the regions (App. B of the paper).

    A client of a region weighs ``exp(a_t - 1)`` times another's in that region's sum; the
    concentration ``a_t`` stays at ``sharpness + 1`` for ``hold`` iterations and falls
    linearly to 1 (uniform weights) over the next ``decay``. In the paper's words: indicator
    times a plus one, over temperature ``a / (a_t - 1)``.

    Attributes:
        sharpness: a, 15 in the paper.
        hold: Iterations at full concentration (5 synthetic, 10 real in the paper).
        decay: Iterations of linear decay, both ends included (5 synthetic, 30 real).
    """

    sharpness: float = 15.0
    hold: int = 10
    decay: int = 30

    def __post_init__(self) -> None:
        if not 0 <= self.sharpness <= 50:
            raise ConfigurationError(f"weighting.sharpness={self.sharpness!r} must lie in [0, 50]")
        if self.hold < 0 or self.decay < 0:
            raise ConfigurationError(f"weighting: hold={self.hold}, decay={self.decay} must be at least 0")

    def concentration(self, iteration: int) -> float:
        """a_t; iterations count from 1."""
        if iteration <= self.hold:
            return self.sharpness + 1.0
        step = iteration - self.hold
        if step >= self.decay:
            return 1.0
        return self.sharpness + 1.0 - self.sharpness * (step - 1) / (self.decay - 1)

    def weights(self, iteration: int, assignment: IntArray, n_regions: int) -> FloatArray:
        """Weights ``(n_regions, n_clients)``; every region's sum to one over the clients."""
        inside = assignment[None, :] == np.arange(n_regions)[:, None]
        logits = (self.concentration(iteration) - 1.0) * (inside - 1.0)
        raw = np.exp(logits)
        return np.asarray(raw / raw.sum(axis=1, keepdims=True))


def assign_regions(n_clients: int, n_regions: int) -> IntArray:
    """Public assignment of clients to regions, equal shares up to one: number modulo regions."""
    return np.arange(n_clients, dtype=np.int64) % n_regions


@dataclass(frozen=True, kw_only=True)
class Regions:
    """Hyper-rectangles of equal volume that tile the unit cube.

    Attributes:
        splits: Number of equal intervals per coordinate.
    """

    splits: tuple[int, ...]

    @staticmethod
    def of(n_regions: int, space: Space) -> Regions:
        """Tile with ``n_regions`` boxes: prime factors, largest first, over the coordinates in turn.

        Four regions in the plane are its quadrants. Coordinates that cannot be cut so that
        every interval holds a value are passed over.

        Raises:
            ConfigurationError: If no coordinate can carry a factor.
        """
        splits = [1] * space.n_dims
        for turn, factor in enumerate(_prime_factors(n_regions)):
            order = [(turn + i) % space.n_dims for i in range(space.n_dims)]
            usable = [i for i in order if _divisible(space, i, splits[i] * factor)]
            if not usable:
                raise ConfigurationError(
                    f"n_regions={n_regions}: no parameter has values in all of {factor} more intervals; "
                    "use fewer regions"
                )
            splits[usable[0]] *= factor
        return Regions(splits=tuple(splits))

    @property
    def count(self) -> int:
        """P, the number of regions."""
        return math.prod(self.splits)

    def index(self, units: FloatArray) -> IntArray:
        """Region of every point ``(..., n_dims)``."""
        splits = np.array(self.splits)
        cells = np.minimum(np.floor(units * splits), splits - 1).astype(np.int64)
        return np.asarray(np.ravel_multi_index(tuple(np.moveaxis(cells, -1, 0)), self.splits))

    def sample(self, region: int, count: int, space: Space, generator: np.random.Generator) -> FloatArray:
        """``count`` random canonical points of one region, ``(count, n_dims)``."""
        splits = np.array(self.splits)
        corner = np.array(np.unravel_index(region, self.splits))
        found = np.empty((0, space.n_dims))
        while len(found) < count:
            # Rounding to canonical values can leave the box, so points are drawn until enough stay.
            drawn = space.snap((corner + generator.random((4 * count, space.n_dims))) / splits)
            found = np.concatenate([found, drawn[self.index(drawn) == region]])
        return found[:count]


def _prime_factors(number: int) -> list[int]:
    factors, divisor = [], 2
    while number > 1:
        if number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        else:
            divisor += 1
    return factors[::-1]


def _divisible(space: Space, coordinate: int, intervals: int) -> bool:
    """Whether every one of the equal intervals of a coordinate holds a canonical value."""
    middles = np.full((intervals, space.n_dims), 0.5)
    middles[:, coordinate] = (np.arange(intervals) + 0.5) / intervals
    snapped = space.snap(middles)[:, coordinate]
    return bool(np.array_equal(np.minimum(np.floor(snapped * intervals), intervals - 1), np.arange(intervals)))
