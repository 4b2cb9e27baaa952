"""Convex sets that optimisers project onto; their diameters enter the rates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray


class ConvexSet(Protocol):
    """Set in which an arm's point lies."""

    @property
    def diameter(self) -> float:
        """Largest distance of two of its points; infinity if unbounded."""
        ...

    def project(self, x: FloatArray) -> FloatArray:
        """The nearest point of the set, ``(n_dims,)``."""
        ...


@dataclass(frozen=True, kw_only=True)
class Box:
    """All points of ``[low, high]^n_dims``.

    Raises:
        ConfigurationError: If the bounds do not increase.
    """

    low: float
    high: float
    n_dims: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigurationError(f"low={self.low!r} must be below high={self.high!r}, both finite")

    @property
    def diameter(self) -> float:
        """The diagonal."""
        return (self.high - self.low) * math.sqrt(self.n_dims)

    def project(self, x: FloatArray) -> FloatArray:
        """The nearest point of the box."""
        return np.minimum(np.maximum(x, self.low), self.high)


def require_positive(**values: float) -> None:
    """Refuse a constant of a function class that is not finite and positive."""
    for name, value in values.items():
        if isinstance(value, bool) or not (math.isfinite(value) and value > 0):
            raise ConfigurationError(f"{name}={value!r} must be a finite number > 0")
