"""Convex sets beside the wheel's box."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

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


@dataclass(frozen=True)
class Everywhere:
    """The whole space."""

    @property
    def diameter(self) -> float:
        """Unbounded."""
        return math.inf

    def project(self, x: FloatArray) -> FloatArray:
        """The point itself."""
        return x


@dataclass(frozen=True, kw_only=True)
class Ball:
    """All points within ``radius`` of ``centre``.

    Raises:
        ConfigurationError: If the radius is not finite and positive.
    """

    centre: FloatArray
    radius: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.radius) and self.radius > 0):
            raise ConfigurationError(f"radius={self.radius!r} must be finite and > 0")

    @property
    def diameter(self) -> float:
        """Twice the radius."""
        return 2.0 * self.radius

    def project(self, x: FloatArray) -> FloatArray:
        """The nearest point of the ball."""
        offset = x - self.centre
        distance = math.sqrt(offset @ offset)
        return x if distance <= self.radius else self.centre + offset * (self.radius / distance)
