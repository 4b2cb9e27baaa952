"""Events in words, a line each."""

from __future__ import annotations

from accountant.events import (
    BestOfRandomRuns,
    Composed,
    Event,
    FixedSizeSampledGaussian,
    Gaussian,
    NonPrivate,
    PoissonSampledGaussian,
)


def event_text(event: Event) -> str:  # noqa: PLR0911 (one return per kind of event)
    """One line that says what a release was."""
    match event:
        case Gaussian():
            return f"Gaussian, multiplier {event.noise_multiplier:.4g}"
        case PoissonSampledGaussian():
            return f"Poisson-sampled Gaussian, rate {event.sample_rate:.4g}, multiplier {event.noise_multiplier:.4g}"
        case FixedSizeSampledGaussian():
            return (
                f"fixed-size-sampled Gaussian, {event.sample_size} of {event.n_clients}, "
                f"multiplier {event.noise_multiplier:.4g}"
            )
        case BestOfRandomRuns():
            return f"best of a secret random number of runs, one run: {event_text(event.run)}"
        case Composed():
            return ", ".join(f"{count} x ({event_text(part)})" for part, count in event.parts)
        case NonPrivate():
            return "not private"
        case _:
            return str(event)
