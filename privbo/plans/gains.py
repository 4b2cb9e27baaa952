"""Gains that sharing brought on stored families of problems, for who wonders whether a run is worth its epsilon."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


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
        mean_error, end_error: Their standard errors, over eight seeds.
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


# N, dimensions and correlation; then by epsilon the ratio over all evaluations and at the end, each with its error.
_FOUND = {
    "GP 2-D, .6": ((200, 2, 0.6), {1.0: (0.66, 0.07, 0.91, 0.05), 2.0: (0.63, 0.06, 1.0, 0.08)}),
    "GP 4-D, .9": ((200, 4, 0.9), {1.0: (0.68, 0.05, 0.56, 0.1), 2.0: (0.61, 0.06, 0.51, 0.11)}),
    "GP 4-D, .6": ((40, 4, 0.6), {1.0: (0.99, 0.02, 0.98, 0.05), 2.0: (0.94, 0.03, 0.93, 0.06)}),
    "GP 1-D, .2": ((40, 1, 0.2), {1.0: (1.02, 0.03, 1.0, 0.02), 2.0: (1.03, 0.03, 1.0, 0.02)}),
    "GP 6-D, .9": ((40, 6, 0.9), {1.0: (0.83, 0.06, 0.72, 0.06), 2.0: (0.76, 0.05, 0.66, 0.05)}),
    "support vector regression": ((60, 3, 0.54), {1.0: (0.93, 0.04, 0.9, 0.07), 2.0: (0.89, 0.03, 0.92, 0.09)}),
    "gradient boosting": ((40, 3, 0.84), {1.0: (1.03, 0.04, 1.13, 0.09), 2.0: (1.08, 0.03, 1.35, 0.16)}),
    "support vectors, mixed": ((40, 3, 0.73), {1.0: (0.98, 0.06, 1.09, 0.14), 2.0: (0.85, 0.06, 1.01, 0.12)}),
    "support vectors, mixed, few": ((12, 3, 0.74), {1.0: (1.0, 0.0, 1.05, 0.08), 2.0: (1.0, 0.0, 1.05, 0.08)}),
    "camel, shifted": ((200, 2, 0.65), {1.0: (0.8, 0.04, 0.96, 0.03), 2.0: (0.72, 0.05, 0.96, 0.03)}),
    "Ackley, shifted": ((40, 2, 0.53), {1.0: (0.97, 0.02, 0.88, 0.08), 2.0: (0.8, 0.03, 0.42, 0.09)}),
}
GAINS = tuple(
    Gain(
        family=family, n_clients=n_clients, n_dims=n_dims, correlation=correlation, epsilon=epsilon,
        mean=mean, mean_error=mean_error, end=end, end_error=end_error,
    )
    for family, ((n_clients, n_dims, correlation), found) in _FOUND.items()
    for epsilon, (mean, mean_error, end, end_error) in found.items()
)  # fmt: skip


def gains_near(correlation: float, gains: Iterable[Gain] = GAINS) -> tuple[Gain, ...]:
    """Give the gains by their distance from a correlation, the nearest first.

    Example:
        >>> [gain.family for gain in gains_near(0.7)][0]
        'support vectors, mixed'
    """
    return tuple(sorted(gains, key=lambda gain: abs(gain.correlation - correlation)))
