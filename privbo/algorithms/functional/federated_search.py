"""The search of federated F-LCB over its arms, from gradients and losses that come from outside."""

from __future__ import annotations

import math

import numpy as np

from privbo.algorithms.functional.bounds import Bounds
from privbo.algorithms.functional.sets import Box
from privbo.algorithms.functional.settings import FLCBSettings
from privbo.algorithms.functional.stochastic import GradientNoise, State, StochasticAccelerated
from privbo.protocol.messages import FloatArray, Setting


class Search:
    """F-LCB over gradients and losses that come from outside; a state machine over public data.

    A pull's loss is that of the point before the pull's step, rated with the steps made
    until then; before the first step the rate is gradient bound times diameter.
    """

    def __init__(self, algorithm: FLCBSettings, setting: Setting) -> None:
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
