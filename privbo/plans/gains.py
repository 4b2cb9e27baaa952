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
        mean_error, end_error: Their standard errors, over two seeds.
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
    "GP 2-D, .9": ((40, 2, 0.9), {1.0: (0.82, 0.18, 0.93, 0.09), 2.0: (0.57, 0.05, 0.47, 0.13)}),
    "kernel ridge": ((40, 2, 0.85), {1.0: (0.86, 0.02, 1.09, 0.1), 2.0: (0.79, 0.04, 1.06, 0.02)}),
    "GP 4-D, .6": ((40, 4, 0.6), {1.0: (0.94, 0.05, 0.9, 0.08), 2.0: (0.94, 0.02, 0.95, 0.07)}),
    "GP 6-D, .9": ((40, 6, 0.9), {1.0: (0.98, 0.06, 1.0, 0.0), 2.0: (0.88, 0.12, 0.94, 0.15)}),
    "support vector regression": ((60, 3, 0.51), {1.0: (0.83, 0.02, 0.74, 0.11), 2.0: (0.79, 0.06, 0.75, 0.19)}),
    "support vectors, mixed": ((40, 3, 0.73), {1.0: (0.97, 0.08, 1.42, 0.44), 2.0: (0.91, 0.06, 1.26, 0.21)}),
    "Ackley, shifted": ((40, 2, 0.54), {1.0: (0.94, 0.22, 0.46, 0.34), 2.0: (0.73, 0.01, 0.37, 0.17)}),
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
