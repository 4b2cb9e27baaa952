"""Recorded learning curves as arms."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RecordedArm:
    """A recorded curve as an arm; its state is the number of pulls.

    Attributes:
        losses: Validation loss after every pull.
        test: Test accuracy after every pull.
        scale: g(k) = scale * f(x_1)/sqrt(k), as for live arms.
        reference: In place of f(x_1); None is the paper.
    """

    name: str
    losses: tuple[float, ...]
    test: tuple[float, ...]
    scale: float = 2.0
    reference: float | None = None
    value_stddev: float = 0.0

    def init(self) -> int:
        """No pull."""
        return 0

    def step(self, state: int) -> int:
        """One pull more.

        Raises:
            IndexError: If the curve is not that long.
        """
        if state >= len(self.losses):
            raise IndexError(f"the curve of {self.name!r} has {len(self.losses)} pulls; record a longer one")
        return state + 1

    def value(self, state: int) -> float:
        """The best validation loss so far."""
        return min(self.losses[:state])

    def rate(self, state: int, k: int, delta: float) -> float:  # noqa: ARG002  # a heuristic
        """The heuristic of ``NeuralArm``."""
        return self.scale * (self.losses[0] if self.reference is None else self.reference) / math.sqrt(k)

    @property
    def best_test(self) -> float:
        """Test accuracy where the validation loss is smallest over the whole curve."""
        return self.test[min(range(len(self.losses)), key=lambda i: self.losses[i])]
