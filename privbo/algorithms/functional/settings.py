"""Settings of federated F-LCB, and everything that both sides compute from them; nothing here is private."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import Field, Strict

from privbo.algorithms.functional.stochastic import Rates
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, IntArray, Setting
from privbo.protocol.settings import Count, Positive, settings
from privbo.protocol.space import Categorical, Real, Space

Finite: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class Arms:
    """Which coordinate of the cube names the arm, and which are optimised.

    Attributes:
        index: The arm's coordinate, or None.
        free: The others.
        coordinates: Unit coordinate of every arm, ``(K,)``.
        n_dims: Of the space.
    """

    index: int | None
    free: IntArray
    coordinates: FloatArray
    n_dims: int

    def unit(self, arm: int, x: FloatArray) -> FloatArray:
        """The point of the cube, ``(n_dims,)``, for an arm and its free coordinates."""
        unit = np.empty(self.n_dims)
        unit[self.free] = x
        if self.index is not None:
            unit[self.index] = self.coordinates[arm]
        return unit


@settings(table="algorithm")
class FLCBSettings:
    """Settings of federated F-LCB; ``FederatedFLCB`` says what each of them means."""

    type: Literal["f-lcb"] = field(default="f-lcb", repr=False)
    arm: str | None = None
    reward_range: Annotated[tuple[Finite, Finite], Strict(strict=False)] = (0.0, 1.0)
    gradient_bound: Positive = 1.0
    loss_share: Positive = 1.0
    smoothness: Positive = 4.0
    start: Annotated[float, Field(ge=0, le=1)] = 0.5
    difference: Annotated[float, Field(gt=0, le=0.25)] = 1e-3
    delta_b: Annotated[float, Field(gt=0, lt=1)] | None = None
    rates: Rates = "certified"
    tolerance: Positive | None = None
    share: Literal["gradients", "nothing"] = "gradients"
    evaluations: Count | None = None

    def __post_init__(self) -> None:
        low, high = self.reward_range
        if not low < high:
            raise ConfigurationError(f"reward_range={self.reward_range!r} must be increasing; give (lowest, highest)")

    @property
    def centre(self) -> float:
        """The loss that is sent as 0: the middle of its range."""
        return -0.5 * sum(self.reward_range)

    @property
    def loss_scale(self) -> float:
        """w: a loss is sent as w (loss - centre)."""
        low, high = self.reward_range
        return self.loss_share * self.gradient_bound / (0.5 * (high - low))

    @property
    def clipping_norm(self) -> float:
        """S: gradient and loss at their bounds together."""
        return self.gradient_bound * math.sqrt(1.0 + self.loss_share**2)

    def within(self, setting: Setting) -> Setting:
        """Give the run's facts with as many rounds as ``evaluations`` hold.

        A round takes 2 n + 1 evaluations of a client, n being the free parameters; what is announced
        in the end takes one more where something is shared.

        Raises:
            ConfigurationError: If they do not hold one round.
        """
        if self.evaluations is None:
            return setting
        each, last = 2 * len(self.arms(setting.space).free) + 1, int(self.share == "gradients")
        if self.evaluations < each + last:
            raise ConfigurationError(
                f"evaluations={self.evaluations} do not hold one round; give at least {each + last}"
            )
        return setting.at_most((self.evaluations - last) // each)

    def arms(self, space: Space) -> Arms:
        """The arms in a space.

        Raises:
            ConfigurationError: If the named parameter is not there or not categorical, or
                another one is not real.
        """
        names = list(space.parameters)
        if space.constraints:
            raise ConfigurationError(
                f"constraints {list(space.constraints)}: f-lcb's steps know none; use shared-prior or dp-fts-de"
            )
        if self.arm is not None and not isinstance(space.parameters.get(self.arm), Categorical):
            raise ConfigurationError(f"arm={self.arm!r} must name a categorical parameter; the space has {names}")
        index = None if self.arm is None else names.index(self.arm)
        free = [i for i in range(space.n_dims) if i != index]
        for i in free:
            parameter = space.parameters[names[i]]
            if not isinstance(parameter, Real) or parameter.step is not None or parameter.when:
                raise ConfigurationError(
                    f"parameter {names[i]!r} has no gradient everywhere; name it as the arm or make it Real, without "
                    "steps and conditions"
                )
        if not free:
            raise ConfigurationError(f"the space has no real parameter beside the arm {self.arm!r}; add one")
        if index is None:
            coordinates = np.zeros(1)
        else:
            choices = space.parameters[names[index]].choices  # type: ignore[union-attr]  # categorical, see above
            coordinates = (np.arange(len(choices)) + 0.5) / len(choices)
        return Arms(index=index, free=np.array(free, dtype=np.int64), coordinates=coordinates, n_dims=space.n_dims)
