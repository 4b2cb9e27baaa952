"""Events that some data sets really attain, for the lower end of what is priced by a bound.

The price of most events is that of a pair of data sets. Where it is a bound, the lower end of an interval must come
from data sets nevertheless: those named here, for every part of a composition the same two.
"""

from __future__ import annotations

import math

from accountant.events import (
    Basic,
    Event,
    Gaussian,
    PoissonSampledGaussian,
    RandomAllocationGaussian,
    TruncatedPoissonSampledGaussian,
    compose,
    parts,
)
from accountant.truncation import shares

_BOUNDED = (RandomAllocationGaussian, TruncatedPoissonSampledGaussian)


def attained(event: Event) -> Event | None:
    """An event that costs no more than ``event`` on its worst data sets; None where its own price is no mere bound.

    Example:
        >>> event = TruncatedPoissonSampledGaussian(
        ...     n_clients=100, sample_rate=0.1, batch_size=40, noise_multiplier=2.0
        ... )
        >>> ((part, _),) = attained(event).parts
        >>> round(part.sample_rate, 6), part.noise_multiplier
        (0.1, 2.0)
    """
    if not any(isinstance(part, _BOUNDED) for part, _ in parts(event)):
        return None
    return compose((_one(part), count) for part, count in parts(event))


def _one(part: Basic) -> Basic:
    if isinstance(part, TruncatedPoissonSampledGaussian):  # all others contribute zero
        return PoissonSampledGaussian(sample_rate=shares(part).least_rate, noise_multiplier=part.noise_multiplier)
    if isinstance(part, RandomAllocationGaussian):  # the same contribution in every round, and all answers added up
        spread = math.sqrt(part.n_rounds) / part.participations
        return Gaussian(noise_multiplier=part.noise_multiplier * spread * (1.0 + 1e-12))
    return part
