"""Ledgers and events as ``dp_accounting.DpEvent``, so that another library can check them.

.. versionadded:: 0.3.0

Conventions differ. dp-accounting's noise multiplier is relative to the norm of one
contribution; ours is relative to the sensitivity under the stated adjacency
(``accountant.sensitivity.contribution_factor`` is between them). Our zero-out is their
``REPLACE_SPECIAL``. Their Rényi accountant (0.6.0) forgets the factor 2 for replace-one and
fixed-size sampling: do not check such ledgers with it. Their privacy-loss distribution of the
replace-one Gaussian is right.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from accountant import events
from accountant.errors import EventError
from accountant.events import Adjacency, Basic, Composed, Event, check_adjacency, compose, parts, repeat
from accountant.mechanisms.basic import DpCall
from accountant.mechanisms.selection import gamma_of
from accountant.sensitivity import contribution_factor

if TYPE_CHECKING:
    from dp_accounting import DpEvent, dp_event


def dp_event_expression(event: Event, *, adjacency: Adjacency) -> str:
    """Write ``event`` as a Python expression over dp-accounting's classes; needs no dp-accounting.

    Raises:
        EventError: ``event`` is unknown or unsound under ``adjacency``.

    Example:
        >>> from accountant.events import Gaussian
        >>> dp_event_expression(Gaussian(noise_multiplier=2.0), adjacency=Adjacency.ZERO_OUT)
        'ComposedDpEvent(events=[SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=1)])'
    """
    if any(isinstance(part, events.RandomAllocationGaussian) for part, _ in parts(event)):
        check_adjacency(event, adjacency)
        return "UnsupportedDpEvent()"  # they have none for it, and their accountants refuse this one
    return repr(_written(event, adjacency))


def to_dp_event(event: Event, *, adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE) -> DpEvent:
    """Make dp-accounting's object for ``event`` (needs the extra ``dpevent``).

    .. versionadded:: 0.3.0

    Raises:
        EventError: ``event`` is unknown or unsound under ``adjacency``.
    """
    return _written(event, adjacency).build()


def _written(event: Event, adjacency: Adjacency) -> DpCall:
    check_adjacency(event, adjacency)
    return compose([event]).dp_event(contribution_factor(adjacency))


def from_dp_event(event: DpEvent, *, adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE) -> Event:
    """Read a dp-accounting event as ours.

    .. versionadded:: 0.3.0

    Besides what ``to_dp_event`` writes these are read: several Gaussian queries on one sample (as one with
    the summed mu^2), a sample of a sample, a mixture of two Gaussians (as a Poisson sample), trees of
    one epoch (as one Gaussian of their depth).

    Raises:
        EventError: Naming the event that this package has no sound accountant for, and why.

    Example:
        >>> from accountant.events import Gaussian
        >>> theirs = to_dp_event(Gaussian(noise_multiplier=2.0), adjacency=Adjacency.ZERO_OUT)
        >>> from_dp_event(theirs, adjacency=Adjacency.ZERO_OUT).parts
        ((Gaussian(noise_multiplier=2.0), 1),)
    """
    found = compose([_read(event, Adjacency(adjacency))])
    check_adjacency(found, adjacency)
    return found


_NOT_HERE = {
    "RandomizedResponseDpEvent": "no event here stands for it",
    "DiscreteLaplaceDpEvent": "it tells more than Laplace noise of the same epsilon, and no event here stands for it",
    "SampledWithReplacementDpEvent": "a unit that is drawn twice counts twice, and no event here stands for that",
    "UnsupportedDpEvent": "it says nothing of the mechanism",
}


def _refused(event: DpEvent, why: str | None = None) -> EventError:
    why = why or _NOT_HERE.get(type(event).__name__, "this version does not know it")
    return EventError(f"no sound accountant here for dp-accounting's {event!r}: {why}")


def _read(event: DpEvent, adjacency: Adjacency) -> Event:  # noqa: C901, PLR0911, PLR0912 - one per kind
    from dp_accounting import dp_event as dp

    factor = contribution_factor(adjacency)
    match event:
        case dp.NoOpDpEvent():
            return Composed()
        case dp.ComposedDpEvent():
            return compose(_read(one, adjacency) for one in event.events)
        case dp.SelfComposedDpEvent():
            return repeat(_read(event.event, adjacency), event.count)
        case dp.PoissonSampledDpEvent():
            return _poisson(event, event.event, event.sampling_probability, adjacency)
        case dp.RepeatAndSelectDpEvent():
            return _selection(event, adjacency)
        case dp.NonPrivateDpEvent():
            return events.NonPrivate()
        case dp.GaussianDpEvent():
            return events.Gaussian(noise_multiplier=event.noise_multiplier / factor)
        case dp.LaplaceDpEvent():
            return events.Laplace(scale_multiplier=event.noise_multiplier / factor)
        case dp.SampledWithoutReplacementDpEvent():
            return events.FixedSizeSampledGaussian(
                n_clients=event.source_dataset_size,
                sample_size=event.sample_size,
                noise_multiplier=_queries_on_one_sample(event, event.event) / 2.0,
            )
        case dp.TruncatedSubsampledGaussianDpEvent():
            return events.TruncatedPoissonSampledGaussian(
                n_clients=event.dataset_size,
                sample_rate=event.sampling_probability,
                batch_size=event.truncated_batch_size,
                noise_multiplier=event.noise_multiplier / factor,
            )
        case dp.ZCDpEvent():
            return events.ZeroConcentrated(rho=event.rho, xi=event.xi)
        case dp.MixtureOfGaussiansDpEvent() if adjacency is not Adjacency.REPLACE_ONE:
            return _mixture(event)
        case dp.SingleEpochTreeAggregationDpEvent() if adjacency is not Adjacency.ADD_OR_REMOVE_ONE:
            # A record is a leaf of one tree and enters every node above it (Kairouz et al. 2021, appendix D).
            steps = event.step_counts if isinstance(event.step_counts, Iterable) else [event.step_counts]
            depth = max(int(count).bit_length() for count in steps)
            return events.Gaussian(noise_multiplier=event.noise_multiplier / math.sqrt(depth) / factor)
        case dp.MixtureOfGaussiansDpEvent() | dp.SingleEpochTreeAggregationDpEvent():
            raise _refused(event, f"it has no meaning under {adjacency}")
    raise _refused(event)


def _poisson(whole: DpEvent, event: DpEvent, rate: float, adjacency: Adjacency) -> Event:
    """Answers of a Poisson sample as events; a sample of a sample is one of their rates' product."""
    from dp_accounting import dp_event as dp

    if rate == 0.0 or not parts(openly := _read(event, adjacency)):
        return Composed()
    if rate == 1.0:
        return openly
    if isinstance(event, dp.PoissonSampledDpEvent):
        return _poisson(whole, event.event, rate * event.sampling_probability, adjacency)
    if isinstance(event, dp.LaplaceDpEvent):
        b = event.noise_multiplier / contribution_factor(adjacency)
        return events.PoissonSampledLaplace(sample_rate=rate, scale_multiplier=b)
    if adjacency is Adjacency.REPLACE_ONE and not isinstance(event, dp.GaussianDpEvent):
        raise _refused(whole, "of several queries on one Poisson sample nothing is proven under replace-one")
    z = _queries_on_one_sample(whole, event) / contribution_factor(adjacency)
    return events.PoissonSampledGaussian(sample_rate=rate, noise_multiplier=z)


def _queries_on_one_sample(whole: DpEvent, event: DpEvent) -> float:
    """The multiplier, over one contribution's norm, of Gaussian queries on the same sample taken together.

    Gaussian queries compose to one, however they follow one another (mu^2 adds up), and sampling
    amplifies whatever is done with the sample.
    """
    from dp_accounting import dp_event as dp

    if isinstance(event, dp.GaussianDpEvent):  # to the last bit
        return float(event.noise_multiplier)
    return 1.0 / math.sqrt(_mu_squared(whole, event))


def _mu_squared(whole: DpEvent, event: DpEvent) -> float:
    from dp_accounting import dp_event as dp

    match event:
        case dp.GaussianDpEvent() if event.noise_multiplier > 0.0:
            return float(event.noise_multiplier) ** -2
        case dp.ComposedDpEvent():
            return sum(_mu_squared(whole, one) for one in event.events)
        case dp.SelfComposedDpEvent():
            return int(event.count) * _mu_squared(whole, event.event)
    raise _refused(whole, f"of samples only those are known that Gaussian queries are asked of, not {event!r}")


def _mixture(event: dp_event.MixtureOfGaussiansDpEvent) -> Basic:
    """Sensitivity 0 or c at random is what a Poisson sample does to one contribution."""
    chances: dict[float, float] = {}
    for shift, chance in zip(event.sensitivities, event.sampling_probs, strict=True):
        if chance:
            chances[abs(shift)] = chances.get(abs(shift), 0.0) + chance
    lengths = sorted(chances)
    moved = [length for length in lengths if length]
    if not moved:
        raise _refused(event, "no sensitivity is positive: it releases nothing")
    if len(moved) == 1:
        rate, z = min(chances[moved[0]], 1.0), event.standard_deviation / moved[0]
        return events.PoissonSampledGaussian(sample_rate=rate, noise_multiplier=z)
    return events.MixtureOfGaussians(
        noise_multiplier=event.standard_deviation,
        sensitivities=tuple(lengths),
        chances=tuple(chances[length] for length in lengths),
    )


def _selection(event: dp_event.RepeatAndSelectDpEvent, adjacency: Adjacency) -> Event:
    run = compose([_read(event.event, adjacency)])
    if not (math.isfinite(event.shape) and event.shape > -1.0 and event.mean >= 1.0):
        raise _refused(event, "the number of runs must be truncated negative binomial, with a mean of at least 1")
    if event.mean == 1.0:  # one run, always
        return run
    return events.BestOfRandomRuns(run=run, eta=event.shape, gamma=gamma_of(event.mean, eta=event.shape))
