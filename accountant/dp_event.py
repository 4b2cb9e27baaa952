"""Exchange with ``dp_accounting.DpEvent`` (optional extra ``dpevent``), so that another library can check a ledger.

Conventions differ. dp-accounting's noise multiplier is relative to the norm of one
contribution; ours is relative to the sensitivity under the stated adjacency. Under
replace-one, and for fixed-size sampling under any adjacency, that sensitivity is twice the
contribution, so theirs is twice ours. Zero-out is their ``REPLACE_SPECIAL``. Their Rényi
accountant (0.6.0) forgets that factor 2 for replace-one and fixed-size sampling: do not check
such ledgers with it. Their privacy-loss distribution of the replace-one Gaussian is right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from accountant.errors import EventError
from accountant.events import (
    Adjacency,
    Basic,
    BestOfRandomRuns,
    Event,
    FixedSizeSampledGaussian,
    Gaussian,
    Laplace,
    NonPrivate,
    PoissonSampledGaussian,
    check_adjacency,
    compose,
    parts,
)
from accountant.selection import TruncatedNegativeBinomial

if TYPE_CHECKING:
    from dp_accounting import DpEvent, NeighboringRelation

_RELATIONS: Final = {
    Adjacency.ADD_OR_REMOVE_ONE: "ADD_OR_REMOVE_ONE",
    Adjacency.ZERO_OUT: "REPLACE_SPECIAL",
    Adjacency.REPLACE_ONE: "REPLACE_ONE",
}


def neighboring_relation(adjacency: Adjacency) -> NeighboringRelation:
    """Their name of our adjacency."""
    from dp_accounting import NeighboringRelation

    return NeighboringRelation[_RELATIONS[Adjacency(adjacency)]]


def to_dp_event(event: Event, *, adjacency: Adjacency) -> DpEvent:
    """``event`` as dp-accounting says it.

    Raises:
        EventError: ``event`` is unknown or unsound under ``adjacency``.
    """
    import dp_accounting as dp

    check_adjacency(event, adjacency)
    rows = [dp.SelfComposedDpEvent(_one_to(part, adjacency), count) for part, count in parts(event)]
    return dp.ComposedDpEvent(rows) if rows else dp.NoOpDpEvent()


def dp_event_expression(event: Event, *, adjacency: Adjacency) -> str:
    """``to_dp_event`` as a Python expression over their classes; needs no dp-accounting.

    Raises:
        EventError: ``event`` is unknown or unsound under ``adjacency``.
    """
    check_adjacency(event, adjacency)
    rows = [f"SelfComposedDpEvent(event={_words(part, adjacency)}, count={count})" for part, count in parts(event)]
    return f"ComposedDpEvent(events=[{', '.join(rows)}])" if rows else "NoOpDpEvent()"


def _words(part: Basic, adjacency: Adjacency) -> str:
    factor = _factor(adjacency)
    match part:
        case Gaussian(noise_multiplier=z):
            return f"GaussianDpEvent(noise_multiplier={factor * z!r})"
        case PoissonSampledGaussian(sample_rate=q, noise_multiplier=z):
            inner = f"GaussianDpEvent(noise_multiplier={factor * z!r})"
            return f"PoissonSampledDpEvent(sampling_probability={q!r}, event={inner})"
        case FixedSizeSampledGaussian(n_clients=n, sample_size=m, noise_multiplier=z):
            inner = f"GaussianDpEvent(noise_multiplier={2.0 * z!r})"
            return f"SampledWithoutReplacementDpEvent(source_dataset_size={n}, sample_size={m}, event={inner})"
        case Laplace(scale_multiplier=b):
            return f"LaplaceDpEvent(noise_multiplier={factor * b!r})"
        case BestOfRandomRuns(run=run, eta=eta):
            inner = dp_event_expression(run, adjacency=adjacency)
            return f"RepeatAndSelectDpEvent(event={inner}, mean={_mean(part)!r}, shape={eta!r})"
        case NonPrivate():
            return "NonPrivateDpEvent()"


def _one_to(part: Basic, adjacency: Adjacency) -> DpEvent:
    import dp_accounting as dp

    factor = _factor(adjacency)
    match part:
        case Gaussian(noise_multiplier=z):
            return dp.GaussianDpEvent(factor * z)
        case PoissonSampledGaussian(sample_rate=q, noise_multiplier=z):
            return dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(factor * z))
        case FixedSizeSampledGaussian(n_clients=n, sample_size=m, noise_multiplier=z):
            return dp.SampledWithoutReplacementDpEvent(n, m, dp.GaussianDpEvent(2.0 * z))
        case Laplace(scale_multiplier=b):
            return dp.LaplaceDpEvent(factor * b)
        case BestOfRandomRuns(run=run, eta=eta):
            from dp_accounting.dp_event import RepeatAndSelectDpEvent  # not among the package's own names

            return RepeatAndSelectDpEvent(to_dp_event(run, adjacency=adjacency), _mean(part), eta)
        case NonPrivate():
            return dp.NonPrivateDpEvent()


def from_dp_event(event: DpEvent, *, adjacency: Adjacency) -> Event:
    """Our form of a dp-accounting event.

    Raises:
        EventError: It holds an event this package has no sound accountant for.
    """
    found = compose(_pieces(event, Adjacency(adjacency)))
    check_adjacency(found, adjacency)
    return found


def _pieces(event: DpEvent, adjacency: Adjacency) -> list[tuple[Event, int]]:
    import dp_accounting as dp

    match event:
        case dp.NoOpDpEvent():
            return []
        case dp.ComposedDpEvent():
            return [piece for one in event.events for piece in _pieces(one, adjacency)]
        case dp.SelfComposedDpEvent():
            inner = compose(_pieces(event.event, adjacency))
            return [(inner, event.count)] if event.count and inner.parts else []
    return [(_one_from(event, adjacency), 1)]


def _one_from(event: DpEvent, adjacency: Adjacency) -> Basic:
    import dp_accounting as dp

    factor = _factor(adjacency)
    match event:
        case dp.NonPrivateDpEvent():
            return NonPrivate()
        case dp.GaussianDpEvent():
            return Gaussian(noise_multiplier=event.noise_multiplier / factor)
        case dp.LaplaceDpEvent():
            return Laplace(scale_multiplier=event.noise_multiplier / factor)
        case dp.PoissonSampledDpEvent(event=dp.GaussianDpEvent()):
            return PoissonSampledGaussian(
                sample_rate=event.sampling_probability, noise_multiplier=event.event.noise_multiplier / factor
            )
        case dp.SampledWithoutReplacementDpEvent(event=dp.GaussianDpEvent()):
            return FixedSizeSampledGaussian(
                n_clients=event.source_dataset_size,
                sample_size=event.sample_size,
                noise_multiplier=event.event.noise_multiplier / 2.0,
            )
    raise EventError(f"no sound accountant here for dp-accounting's {event!r}")


def _mean(event: BestOfRandomRuns) -> float:
    return TruncatedNegativeBinomial(eta=event.eta, gamma=event.gamma).mean


def _factor(adjacency: Adjacency) -> float:
    """Sensitivity under the adjacency over the norm of one contribution."""
    return 2.0 if Adjacency(adjacency) is Adjacency.REPLACE_ONE else 1.0
