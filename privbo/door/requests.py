"""Requests that no release can answer are refused before anything is charged."""

from __future__ import annotations

import math

import numpy as np

from privbo.door.clipping import LARGEST_BOUND, SMALLEST_BOUND
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Request


def require_request(request: Request) -> None:
    """Refuse a request that no release can answer.

    Raises:
        ConfigurationError: If the dimension or the clipping norm is out of range.
    """
    if isinstance(request.dim, bool) or not isinstance(request.dim, (int, np.integer)) or request.dim < 1:
        raise ConfigurationError(f"dim={request.dim!r} must be an integer >= 1")
    require_number("clipping_norm", request.clipping_norm, SMALLEST_BOUND, LARGEST_BOUND)
    if request.reward_bound is not None:
        require_number("reward_bound", request.reward_bound, SMALLEST_BOUND, LARGEST_BOUND)


def require_number(name: str, value: float, low: float, high: float) -> None:
    """Refuse a number that is not finite or out of its range.

    Raises:
        ConfigurationError: Naming the number.
    """
    if isinstance(value, bool) or not math.isfinite(value) or not low <= value <= high:
        raise ConfigurationError(f"{name}={value!r} must be a finite number in [{low:g}, {high:g}]")
