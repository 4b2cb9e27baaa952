"""Releases of secret samples, for somebody who sees who takes part: no amplification is left."""

from __future__ import annotations

from collections.abc import Iterator

from accountant.events import (
    Basic,
    Composed,
    Event,
    FixedSizeSampledGaussian,
    Gaussian,
    PoissonSampledGaussian,
    RandomAllocationGaussian,
    TruncatedPoissonSampledGaussian,
    compose,
    parts,
)


def of_seen_samples(event: Event) -> Composed:
    """Give an event that covers the same releases for somebody to whom their samples are known.

    Given who takes part, a release is a Gaussian sum of that unit or does not concern it; who takes part depends on
    nobody's data. So a Gaussian of the same multiplier covers it, and k of them an allocation of k releases. Under
    fixed-size sampling the multiplier is stated over a larger shift, so this is an upper bound.

    Proof: docs/proofs/poisson.md.

    Raises:
        EventError: If the event is of no known type.

    Example:
        >>> of_seen_samples(PoissonSampledGaussian(sample_rate=0.1, noise_multiplier=2.0))
        Composed(parts=((Gaussian(noise_multiplier=2.0), 1),))
    """
    return compose(_openly(parts(event)))


def _openly(found: tuple[tuple[Basic, int], ...]) -> Iterator[tuple[Basic, int]]:
    for part, count in found:
        match part:
            case PoissonSampledGaussian() | FixedSizeSampledGaussian() | TruncatedPoissonSampledGaussian():
                yield Gaussian(noise_multiplier=part.noise_multiplier), count
            case RandomAllocationGaussian():
                yield Gaussian(noise_multiplier=part.noise_multiplier), count * part.participations
            case _:
                yield part, count
