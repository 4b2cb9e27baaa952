"""Formulas and names that several tests hold the accountant against."""

from __future__ import annotations

import math

from dp_accounting import NeighboringRelation
from scipy.special import ndtr

from accountant.events import Adjacency
from accountant.tight.numerical import Interval


def neighboring_relation(adjacency: Adjacency) -> NeighboringRelation:
    """dp-accounting's name of our adjacency."""
    names = {Adjacency.ADD_OR_REMOVE_ONE: "ADD_OR_REMOVE_ONE", Adjacency.ZERO_OUT: "REPLACE_SPECIAL"}
    return NeighboringRelation[names.get(adjacency, "REPLACE_ONE")]


def fixed_size_profile(q: float, z: float, gamma: float) -> float:
    """q H_g(N(1, z^2) || N(0, z^2)) at gamma = 1 + q (g - 1), gamma >= 1 (Balle, Barthe, Gaboardi 2018, Theorem 10)."""
    log_g = math.log1p((gamma - 1.0) / q)
    above, below = ndtr(0.5 / z - log_g * z), ndtr(-0.5 / z - log_g * z)
    return float(q * max(0.0, above - math.exp(log_g) * below))


def interval_problems(found: Interval, low: float | None, high: float | None, absolute: float) -> list[str]:
    """Everything that is wrong with an interval, given another library's optimistic and pessimistic epsilon."""
    checks = {
        "no interval": 0.0 <= found.lower <= found.upper < math.inf,
        "wide": found.upper - found.lower <= max(0.005 * found.upper, absolute),
        "upper below the optimistic value": low is None or found.upper >= low * (1 - 1e-9),
        "lower above the pessimistic value": high is None or found.lower <= high * (1 + 1e-9),
        "upper more than 1 % above the pessimistic value": high is None
        or found.upper <= max(1.01 * high, high + absolute),
    }
    return [words for words, holds in checks.items() if not holds]
