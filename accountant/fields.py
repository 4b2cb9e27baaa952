"""Checks of events' fields."""

from __future__ import annotations

import math
import operator

from accountant.errors import EventError


def as_float(event: object, name: str, low: float, high: float) -> None:
    """Turn a field into a float inside (low, high]; infinity is refused."""
    value = getattr(event, name)
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise EventError(f"{type(event).__name__}.{name} must be a number, got {value!r}") from error
    if isinstance(value, bool) or not (math.isfinite(number) and low < number <= high):
        raise EventError(f"{type(event).__name__}.{name} must lie in ({low:g}, {high:g}], got {value!r}")
    object.__setattr__(event, name, number)


def as_floats(event: object, name: str) -> tuple[float, ...]:
    """Turn a field into a tuple of floats."""
    try:
        numbers = tuple(float(value) for value in getattr(event, name))
    except (TypeError, ValueError) as error:
        raise EventError(f"{type(event).__name__}.{name} must be numbers, got {getattr(event, name)!r}") from error
    object.__setattr__(event, name, numbers)
    return numbers


def as_positive_int(owner: str, name: str, value: object) -> int:
    """An exact integer of at least 1."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # index itself refuses what is no integer
    except TypeError as error:
        raise EventError(f"{owner}.{name} must be an integer, got {value!r}") from error
    if isinstance(value, bool) or number < 1:
        raise EventError(f"{owner}.{name} must be at least 1, got {value!r}")
    return number
