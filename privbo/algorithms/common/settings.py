"""Settings that every search for a common setting has, and the points it may name; nothing here is private."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import numpy as np
from pydantic import Field, Strict

from privbo.protocol.common import different, spread
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, Setting
from privbo.protocol.settings import Count, settings

Finite: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
Bounds: TypeAlias = Annotated[tuple[Finite, Finite], Strict(strict=False)]
_STREAM = 0xC0  # of public randomness, apart from that of other families
_SPARE = 4  # points per point that is wanted: rounding to values makes some of them equal
_DRAWS = 200  # random points per point that is wanted: at least a hundredth of them keep the constraints


@settings(table="algorithm")
class CommonSettings:
    """Declared scores, budget, and whether anything is shared."""

    reward_range: Bounds = (0.0, 1.0)
    evaluations: Count | None = None
    alone: bool = False

    def __post_init__(self) -> None:
        low, high = self.reward_range
        if not low < high:
            raise ConfigurationError(f"reward_range={self.reward_range!r} must be increasing; give (lowest, highest)")

    @property
    def caveat(self) -> str | None:
        """None: every form of it does what its settings say."""
        return None

    @property
    def is_certified(self) -> bool:
        """False: no statement about the optimum rests on the clipping norm."""
        return False

    def schedule(self, first: int, each: int, setting: Setting, available: float) -> tuple[int, ...]:
        """Give the number of new points in every round: as ``evaluations`` hold and as there are points."""
        wanted = first + each * (setting.rounds - 1)
        left = int(min(wanted, available, wanted if self.evaluations is None else self.evaluations))
        counts = list[int]()
        while left > 0:
            counts.append(min(left, each if counts else first))
            left -= counts[-1]
        return tuple(counts)


def stream(setting: Setting, *place: int) -> np.random.Generator:
    """Give public randomness of a run; ``place`` tells one use from another."""
    return np.random.default_rng([_STREAM, setting.public_seed, *place])


def net(setting: Setting, count: int, *place: int) -> FloatArray:
    """Give different points of a shifted Sobol net, ``(k, n_dims)`` with k <= ``count``.

    Points of a small space come in random order, so that the first of them are no corner of it.
    """
    generator, enough = stream(setting, *place), _SPARE * count
    points = spread(setting.space, enough, generator.random(setting.space.n_dims))
    small = setting.space.grid(enough) is not None
    return np.asarray(points[generator.permutation(len(points))] if small else points)[:count]


def random_points(setting: Setting, count: int) -> FloatArray:
    """Give different random points, ``(k, n_dims)`` with k <= ``count``."""
    space = setting.space
    drawn = space.snap(stream(setting).random((_DRAWS * count + 1000, space.n_dims)))
    return different(drawn[space.allows(drawn)])[:count]
