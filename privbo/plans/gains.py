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
        mean_error, end_error: Their standard errors, over ten seeds.
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
    "GP 2-D, .6": ((200, 2, 0.6), {
        0.5: (0.7, 0.06, 0.86, 0.05),
        1.0: (0.68, 0.06, 0.9, 0.04),
        2.0: (0.64, 0.05, 0.97, 0.07),
        8.0: (0.6, 0.06, 1.05, 0.11),
    }),
    "GP 4-D, .9": ((200, 4, 0.9), {
        0.5: (0.79, 0.03, 0.67, 0.08),
        1.0: (0.69, 0.04, 0.58, 0.09),
        2.0: (0.62, 0.05, 0.52, 0.09),
        8.0: (0.6, 0.04, 0.47, 0.08),
    }),
    "GP 4-D, .6": ((40, 4, 0.6), {
        0.5: (1.0, 0.0, 1.0, 0.0),
        1.0: (0.97, 0.02, 0.96, 0.04),
        2.0: (0.93, 0.02, 0.93, 0.04),
        8.0: (0.89, 0.03, 0.85, 0.03),
    }),
    "GP 1-D, .2": ((40, 1, 0.2), {
        0.5: (1.01, 0.06, 1.0, 0.0),
        1.0: (0.97, 0.05, 0.98, 0.02),
        2.0: (0.98, 0.05, 0.98, 0.02),
        8.0: (1.0, 0.05, 1.06, 0.05),
    }),
    "GP 6-D, .9": ((40, 6, 0.9), {
        0.5: (1.0, 0.03, 1.0, 0.0),
        1.0: (0.86, 0.05, 0.76, 0.06),
        2.0: (0.79, 0.04, 0.7, 0.06),
        8.0: (0.78, 0.05, 0.69, 0.09),
    }),
    "support vector regression": ((60, 3, 0.54), {
        0.5: (0.98, 0.03, 0.95, 0.05),
        1.0: (0.95, 0.03, 0.92, 0.06),
        2.0: (0.92, 0.03, 0.94, 0.08),
        8.0: (0.82, 0.03, 0.83, 0.06),
    }),
    "gradient boosting": ((40, 3, 0.84), {
        0.5: (1.0, 0.0, 1.0, 0.0),
        1.0: (1.03, 0.03, 1.09, 0.08),
        2.0: (1.07, 0.03, 1.25, 0.14),
        8.0: (1.04, 0.03, 1.23, 0.15),
    }),
    "support vectors, mixed": ((40, 3, 0.73), {
        0.5: (1.0, 0.0, 1.15, 0.1),
        1.0: (0.96, 0.05, 1.19, 0.17),
        2.0: (0.86, 0.06, 1.15, 0.14),
        8.0: (0.75, 0.05, 0.91, 0.1),
    }),
    "support vectors, mixed, few": ((12, 3, 0.74), {
        0.5: (1.0, 0.0, 1.08, 0.09),
        1.0: (1.0, 0.0, 1.08, 0.09),
        2.0: (1.0, 0.0, 1.08, 0.09),
        8.0: (0.96, 0.03, 0.98, 0.07),
    }),
    "camel, shifted": ((200, 2, 0.65), {
        0.5: (0.93, 0.02, 0.98, 0.03),
        1.0: (0.81, 0.04, 0.96, 0.02),
        2.0: (0.74, 0.05, 0.96, 0.02),
        8.0: (0.71, 0.04, 0.97, 0.02),
    }),
    "Ackley, shifted": ((40, 2, 0.53), {
        0.5: (1.0, 0.0, 1.0, 0.0),
        1.0: (0.96, 0.02, 0.85, 0.07),
        2.0: (0.79, 0.03, 0.42, 0.08),
        8.0: (0.64, 0.02, 0.34, 0.07),
    }),
    "GP 2-D, .6, many": ((1000, 2, 0.6), {
        0.5: (0.64, 0.06, 0.98, 0.1),
        1.0: (0.63, 0.06, 0.94, 0.08),
        2.0: (0.59, 0.06, 0.97, 0.04),
    }),
    "GP 4-D, .9, many": ((1000, 4, 0.9), {
        0.5: (0.6, 0.04, 0.48, 0.09),
        1.0: (0.64, 0.05, 0.57, 0.06),
        2.0: (0.57, 0.06, 0.52, 0.09),
    }),
    "dosing": ((100, 2, 0.54), {
        0.5: (1.01, 0.06, 1.11, 0.07),
        1.0: (0.91, 0.06, 1.09, 0.07),
        2.0: (0.81, 0.05, 1.0, 0.09),
        8.0: (0.75, 0.06, 1.0, 0.1),
    }),
    "stock": ((40, 2, 0.9), {
        0.5: (1.0, 0.0, 1.0, 0.0),
        1.0: (0.98, 0.04, 1.0, 0.0),
        2.0: (0.94, 0.05, 1.0, 0.0),
        8.0: (0.95, 0.05, 1.0, 0.0),
    }),
    "descent": ((60, 3, 0.86), {
        0.5: (0.94, 0.08, 1.03, 0.13),
        1.0: (0.78, 0.09, 0.82, 0.08),
        2.0: (0.6, 0.05, 0.64, 0.05),
        8.0: (0.44, 0.03, 0.56, 0.05),
    }),
    "alarm, mixed": ((40, 3, 0.81), {
        0.5: (1.0, 0.0, 1.0, 0.0),
        1.0: (0.95, 0.03, 0.99, 0.02),
        2.0: (0.92, 0.08, 0.97, 0.06),
        8.0: (0.89, 0.14, 0.92, 0.06),
    }),
    "service": ((200, 4, 0.8), {
        0.5: (0.5, 0.04, 0.82, 0.06),
        1.0: (0.48, 0.03, 0.79, 0.05),
        2.0: (0.46, 0.03, 0.75, 0.04),
        8.0: (0.48, 0.03, 0.73, 0.04),
    }),
}  # fmt: skip
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
