"""What F-LCB and its rivals pull: resumable optimisations.

An arm is a pure state machine of four calls (init, step, value, rate). ``FunctionArm``
makes one of a first-order method and a function; ``privbo.training.neural`` makes one
of a torch model and a torch optimiser.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from privbo.algorithms.functional.optimisers import Optimiser, State
from privbo.protocol.messages import FloatArray


class Arm(Protocol):
    """One candidate. States are opaque to whoever pulls; two arms may have nothing in common."""

    @property
    def name(self) -> str:
        """Shown in results."""
        ...

    def init(self) -> Any:  # noqa: ANN401  # every arm has a state of its own
        """The state before any step."""
        ...

    def step(self, state: Any) -> Any:  # noqa: ANN401  # the arm's own state
        """One pull's work; may raise ``ArithmeticError`` to say that the arm has failed."""
        ...

    def value(self, state: Any) -> float:  # noqa: ANN401  # the arm's own state
        """The objective (smaller is better) at the point the rate speaks of, perhaps noisy."""
        ...

    def rate(self, state: Any, k: int, delta: float) -> float:  # noqa: ANN401  # the arm's own state
        """g(k, delta): how far the point's objective may lie above the arm's minimum."""
        ...

    @property
    def value_stddev(self) -> float:
        """Standard deviation of ``value``'s (sub-Gaussian) noise; 0 if exact."""
        ...


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
