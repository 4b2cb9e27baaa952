"""Arms of F-LCB and its rivals: resumable optimisations.

An arm is a pure state machine of four calls (init, step, value, rate).
``experiments.baselines.neural`` makes one of a torch model and a torch optimiser.
"""

from __future__ import annotations

from typing import Any, Protocol


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
