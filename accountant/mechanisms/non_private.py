"""A release without any guarantee."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from accountant.mechanisms.basic import Adjacency, Basic, DpCall
from accountant.mechanisms.pair import FloatArray, Pair


@dataclass(frozen=True, kw_only=True)
class NonPrivate(Basic):
    """A release without any guarantee; its epsilon is infinite under every accountant.

    Proof: docs/proofs/plans.md.

    Example:
        >>> from accountant import Adjacency, moments
        >>> moments.epsilon(NonPrivate(), 1e-5, adjacency=Adjacency.ZERO_OUT)
        inf
    """

    words = "not private"
    sampling = "none: nothing is protected"
    is_attained = True

    def pairs(self, adjacency: Adjacency) -> tuple[Pair, ...]:
        return ()

    def renyi_curve(self, orders: FloatArray, adjacency: Adjacency) -> FloatArray:
        return np.full_like(orders, math.inf)

    def for_group(self, size: int, adjacency: Adjacency) -> NonPrivate:
        return self

    def seen_samples(self) -> tuple[Basic, int]:
        return self, 1

    def dp_event(self, factor: float) -> DpCall:
        return DpCall("NonPrivateDpEvent", {})
