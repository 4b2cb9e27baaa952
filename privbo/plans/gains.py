"""Gains that sharing brought on stored families of problems, to judge whether a run is worth its epsilon."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Regret of the default algorithm over that of the best local engine, on one family of problems.

    Attributes:
        family: Its name on the page ``docs/results/worth.md``, which says how it was measured.
        n_clients: N.
        n_dims: Parameters.
        correlation: Between clients' surfaces.
        epsilon: Of the whole run at delta = 1e-5.
        mean, end: Ratio of regrets, mean over the evaluations and at the end; below 1 sharing helped.
        mean_error, end_error: Their standard errors, over three seeds.
    """

    family: str
    n_clients: int
    n_dims: int
    correlation: float
    epsilon: float
    mean: float
    mean_error: float
    end: float
    end_error: float


with Path(__file__).with_suffix(".csv").open(newline="") as file:
    GAINS = TypeAdapter(tuple[Gain, ...]).validate_python(list(csv.DictReader(file)))


def gains_near(correlation: float) -> tuple[Gain, ...]:
    """Give the gains by their distance from a correlation, the nearest first.

    Example:
        >>> [gain.family for gain in gains_near(0.7)][0]
        'support vectors, mixed'
    """
    return tuple(sorted(GAINS, key=lambda gain: abs(gain.correlation - correlation)))
