"""Bars that the default is held to, on average over families."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from experiments.played import Played
from experiments.worth import Measure


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar that the default is held to, on average over families.

    Attributes:
        epsilon: Of the run, at delta 1e-5.
        clients: Families of at least so many.
        correlation: And of at least so much.
        limits: By measure.
    """

    epsilon: float
    clients: int
    correlation: float
    limits: Mapping[Measure, float]

    def speaks_of(self, family: Played, purposes: Collection[str]) -> bool:
        """Whether a family of one of some purposes is one of those it is about."""
        enough = family.n_clients >= self.clients and family.correlation >= self.correlation
        return enough and family.purpose in purposes


BARS = (
    Bar(epsilon=2.0, clients=40, correlation=0.6, limits={"mean": 0.75, "end": 0.85}),
    Bar(epsilon=1.0, clients=40, correlation=0.6, limits={"mean": 0.82, "end": 0.90}),
    Bar(epsilon=1.0, clients=200, correlation=0.6, limits={"mean": 0.65, "end": 0.65}),
)
NEVER_WORSE = 1.05
