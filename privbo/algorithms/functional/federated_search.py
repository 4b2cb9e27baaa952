"""The public state of federated F-LCB: which coordinates are arms, and the search over them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privbo.algorithms.functional.bounds import Bounds
from privbo.algorithms.functional.optimisers import State
from privbo.algorithms.functional.sets import Box
from privbo.algorithms.functional.stochastic import GradientNoise, StochasticAccelerated
from privbo.protocol.messages import FloatArray, IntArray, Setting

if TYPE_CHECKING:
    from privbo.algorithms.functional.federated import FederatedFLCB


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


class Search:
    """F-LCB over gradients and losses that come from outside; a state machine over public data.

    A pull's loss is that of the point before the pull's step, rated with the steps made
    until then; before the first step the rate is gradient bound times diameter.
    """

    def __init__(self, algorithm: FederatedFLCB, setting: Setting) -> None:
        self.arms = algorithm.arms(setting.space)
        n_free, n_arms = len(self.arms.free), len(self.arms.coordinates)
        self._algorithm = algorithm
        self._box = Box(low=0.0, high=1.0, n_dims=n_free)
        self._delta = algorithm.delta_b or 1.0 / (n_arms * setting.rounds**2 + 1.0)
        self._quantile = math.sqrt(2.0 * math.log(2.0 * n_arms * setting.rounds / self._delta))
        start = self._optimiser(0.0).init(np.full(n_free, algorithm.start))
        self.states: list[State] = [start] * n_arms
        self.bounds = Bounds(n_arms, warn=False)

    def _optimiser(self, noise_stddev: float) -> StochasticAccelerated:
        noise = GradientNoise(stddev=noise_stddev, n_dims=self._box.n_dims)
        smoothness = self._algorithm.smoothness
        return StochasticAccelerated(smoothness=smoothness, noise=noise, domain=self._box, rates=self._algorithm.rates)

    @property
    def selected(self) -> int:
        """The arm to pull now; the first one if all were retired."""
        return self.bounds.select() or 0

    def absorb(self, arm: int, gradient: FloatArray, loss: float, *, noise: float, loss_noise: float) -> None:
        """Take one answer: bound the arm's minimum from the loss, then make the step."""
        state, method = self.states[arm], self._optimiser(noise)
        if state.k:
            rate = method.rate(state.k, self._delta)
        else:
            rate = self._algorithm.gradient_bound * self._box.diameter
        self.bounds.observe(arm, loss, rate, loss_noise * self._quantile)
        self.states[arm] = method.step(state, gradient)

    @property
    def best(self) -> FloatArray:
        """The recommended point of the cube, ``(n_dims,)``: of the arm with the smallest current value."""
        arm = self.bounds.best() or 0
        return self.arms.unit(arm, self.states[arm].point)

    @property
    def settled(self) -> bool:
        """Whether the selected arm is within the tolerance: g + 2 widths bounds its distance."""
        arm, tolerance = self.selected, self._algorithm.tolerance
        return tolerance is not None and bool(self.bounds.rate[arm] + 2.0 * self.bounds.width[arm] < tolerance)
