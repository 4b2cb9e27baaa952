"""Border checks that every accountant shares."""

from __future__ import annotations

import math
from numbers import Real

from accountant.errors import AccountingError
from accountant.events import Adjacency, Event, check_adjacency, is_non_private, parts


def trivial_epsilon(event: Event, delta: float, adjacency: Adjacency) -> float | None:
    """The answer for empty (0) and non-private (inf) events, None for all others.

    Raises:
        AccountingError: ``delta`` is not in (0, 1).
        EventError: ``event`` is unknown or unsound under ``adjacency``.
    """
    check_delta(delta)
    check_adjacency(event, adjacency)
    if not parts(event):
        return 0.0
    return math.inf if is_non_private(event) else None


def trivial_delta(event: Event, epsilon: float, adjacency: Adjacency) -> float | None:
    """The answer for empty (0) and non-private (1) events, None for all others.

    Raises:
        AccountingError: ``epsilon`` is negative or no number.
        EventError: ``event`` is unknown or unsound under ``adjacency``.
    """
    check_epsilon(epsilon)
    check_adjacency(event, adjacency)
    if not parts(event) or epsilon == math.inf:
        return 0.0
    return 1.0 if is_non_private(event) else None


def check_delta(delta: float) -> None:
    """Refuse a delta outside (0, 1)."""
    if not (_is_number(delta) and 0.0 < delta < 1.0):
        raise AccountingError(f"delta must lie in (0, 1), got {delta!r}; usual is at most 1/(10 n_clients)")


def check_epsilon(epsilon: float) -> None:
    """Refuse a negative epsilon and NaN."""
    if not (_is_number(epsilon) and epsilon >= 0.0):
        raise AccountingError(f"epsilon must be at least 0, got {epsilon!r}")


def _is_number(value: object) -> bool:
    """Whether a value is one real number: no text, no array, nothing that is missing."""
    return isinstance(value, Real) and not isinstance(value, bool)
