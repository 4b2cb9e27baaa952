"""Arms made of a function and a first-order method that minimises it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from experiments.baselines.first_order import Optimiser
from privbo.algorithms.functional.methods import State
from privbo.protocol.messages import FloatArray


class Oracle(Protocol):
    """A function to minimise; both answers may be noisy."""

    def value(self, x: FloatArray) -> float:
        """f(x)."""
        ...

    def gradient(self, x: FloatArray) -> FloatArray:
        """A (sub)gradient at x, ``(n_dims,)``."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class FunctionArm:
    """A function with a method that minimises it.

    Attributes:
        name: Shown in results.
        optimiser: Any first-order method of known rate.
        oracle: The function.
        start: Where the method starts, ``(n_dims,)``.
        value_stddev: Noise of ``oracle.value``.
    """

    name: str
    optimiser: Optimiser
    oracle: Oracle
    start: FloatArray
    value_stddev: float = 0.0

    def init(self) -> State:
        """The method's state at its start."""
        return self.optimiser.init(self.start)

    def step(self, state: State) -> State:
        """One gradient, one step."""
        return self.optimiser.step(state, self.oracle.gradient(state.query))

    def value(self, state: State) -> float:
        """The function at the rated point."""
        return self.oracle.value(state.point)

    def rate(self, state: State, k: int, delta: float) -> float:  # noqa: ARG002  # known beforehand
        """The method's rate."""
        return self.optimiser.rate(k, delta)
