"""Events in words, a line each, for reports."""

from __future__ import annotations

from accountant.events import (
    Basic,
    BestOfRandomRuns,
    Event,
    FixedSizeSampledGaussian,
    Gaussian,
    Laplace,
    NonPrivate,
    PoissonSampledGaussian,
    PoissonSampledLaplace,
    parts,
)


def event_text(event: Event) -> str:
    """Say in one line what a release was; numbers to four digits.

    Args:
        event: A basic event or a composition.

    Raises:
        EventError: ``event`` is of no known type.

    Example:
        >>> event_text(PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=1.0))
        'Poisson-sampled Gaussian, rate 0.25, multiplier 1'
    """
    if isinstance(event, Basic):
        return _basic(event)
    return ", ".join(f"{count} x ({_basic(part)})" for part, count in parts(event))


def _basic(event: Basic) -> str:  # noqa: PLR0911 - one return per kind of event
    match event:
        case Gaussian(noise_multiplier=z):
            return f"Gaussian, multiplier {z:.4g}"
        case PoissonSampledGaussian(sample_rate=q, noise_multiplier=z):
            return f"Poisson-sampled Gaussian, rate {q:.4g}, multiplier {z:.4g}"
        case FixedSizeSampledGaussian(n_clients=n, sample_size=m, noise_multiplier=z):
            return f"fixed-size-sampled Gaussian, {m} of {n}, multiplier {z:.4g}"
        case Laplace(scale_multiplier=b):
            return f"Laplace, scale multiplier {b:.4g}"
        case PoissonSampledLaplace(sample_rate=q, scale_multiplier=b):
            return f"Poisson-sampled Laplace, rate {q:.4g}, scale multiplier {b:.4g}"
        case BestOfRandomRuns(run=run):
            return f"best of a secret random number of runs, one run: {event_text(run)}"
        case NonPrivate():
            return "not private"
