"""Forms in which clients say what they think of common points: clipped scores, or one ballot."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from privbo.protocol.common import ballot_request, ballots
from privbo.protocol.messages import FloatArray, Request, Setting, UnitName

Ballot: TypeAlias = Literal["single", "graded"]
_UNIT_ROUNDOFF = 2.0**-53


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores clipped to their declared range and centred in it: of norm at most half its width per root of a point.

    Attributes:
        low, high: The range.
    """

    low: float
    high: float

    @property
    def middle(self) -> float:
        """Score that is sent as 0."""
        return 0.5 * (self.low + self.high)

    def vectors(self, values: FloatArray, unit: UnitName) -> FloatArray:
        """PRIVATE: mean centred scores ``(n, k)``; a point that failed has the lowest one, where another worked.

        Where one reward is the unit of privacy, an evaluation that failed counts as 0, so that no reward moves
        another entry than its own, nor its own by more than one evaluation's part.
        """
        known = np.isfinite(values)
        inside = np.where(known, np.clip(np.where(known, values, self.low), self.low, self.high) - self.middle, 0.0)
        if unit == "reward":
            return np.asarray(inside.mean(axis=1))
        worked = known.sum(axis=1)
        means = np.where(worked > 0, inside.sum(axis=1) / np.maximum(worked, 1), self.low - self.middle)
        return np.where(worked.any(axis=1, keepdims=True), means, np.nan)

    def request(self, count: int, total: int, pulls: int, setting: Setting) -> Request:
        """Ask for the mean; every point of the run has the same noise, however many its round has."""
        half, n = 0.5 * (self.high - self.low), setting.n_clients
        by_client = setting.unit == "client"
        rounding = 4 * (pulls + 8) * _UNIT_ROUNDOFF * max(abs(self.low), abs(self.high))
        return Request(
            dim=count,
            clipping_norm=half * math.sqrt(count),
            weights=np.full((1, n), 1.0 / n),
            reward_bound=None if by_client else 2.0 * half / pulls + rounding,
            noise_scale=math.sqrt(total / count) if by_client else 1.0,
        )


@dataclass(frozen=True, kw_only=True)
class Votes:
    """One ballot of norm at most 1 over all points.

    Attributes:
        ballot: ``"single"`` is 1 at the best point; ``"graded"`` has a share for every good one.
    """

    ballot: Ballot

    def vectors(self, values: FloatArray, unit: UnitName) -> FloatArray:  # noqa: ARG002 (the form's)
        """PRIVATE: ballots ``(n, k)`` on the first evaluation of every point; NaN where nothing worked."""
        values = values[:, 0]
        if self.ballot == "graded":
            return ballots(values)
        known = np.isfinite(values)
        best = np.where(known, values, -np.inf).argmax(axis=1)
        return np.where(known.any(axis=1, keepdims=True), np.eye(values.shape[1])[best], np.nan)

    def request(self, count: int, total: int, pulls: int, setting: Setting) -> Request:  # noqa: ARG002 (the form's)
        """Ask for the mean ballot; one reward moves a single vote at most to another point."""
        asked = ballot_request(count, setting.n_clients, 1.0)
        if setting.unit == "client":
            return asked
        return replace(asked, reward_bound=2.0 if self.ballot == "graded" else math.sqrt(2.0))
