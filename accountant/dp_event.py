"""Ledgers and events as ``dp_accounting.DpEvent``, so that another library can check them.

Conventions differ. dp-accounting's noise multiplier is relative to the norm of one
contribution; ours is relative to the sensitivity under the stated adjacency
(``accountant.sensitivity.contribution_factor`` is between them). Our zero-out is their
``REPLACE_SPECIAL``. Their Rényi accountant (0.6.0) forgets the factor 2 for replace-one and
fixed-size sampling: do not check such ledgers with it. Their privacy-loss distribution of the
replace-one Gaussian is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from accountant.sensitivity import contribution_factor

if TYPE_CHECKING:
    from dp_accounting import DpEvent


def dp_event_expression(event: Event, *, adjacency: Adjacency) -> str:
    """Write ``event`` as a Python expression over dp-accounting's classes; needs no dp-accounting.

    Raises:
        EventError: ``event`` is unknown or unsound under ``adjacency``.

    Example:
        >>> dp_event_expression(Gaussian(noise_multiplier=2.0), adjacency=Adjacency.ZERO_OUT)
        'ComposedDpEvent(events=[SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=1)])'
    """
    return repr(_whole(event, adjacency))


def to_dp_event(event: Event, *, adjacency: Adjacency) -> DpEvent:
    """Make dp-accounting's object for ``event`` (needs the extra ``dpevent``).

    Raises:
        EventError: ``event`` is unknown or unsound under ``adjacency``.
    """
    return _whole(event, adjacency).build()


@dataclass(frozen=True, repr=False)
class _Call:
    """A class of dp-accounting's and its arguments; calls and lists of calls among them."""

    name: str
    arguments: Mapping[str, object]

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.arguments.items())})"

    def build(self) -> DpEvent:
        from dp_accounting import dp_event

        return getattr(dp_event, self.name)(**{key: _built(value) for key, value in self.arguments.items()})


def _built(value: object) -> object:
    if isinstance(value, list):
        return [_built(one) for one in value]
    return value.build() if isinstance(value, _Call) else value


def _whole(event: Event, adjacency: Adjacency) -> _Call:
    check_adjacency(event, adjacency)
    rows = [
        _Call("SelfComposedDpEvent", {"event": _one(part, adjacency), "count": count}) for part, count in parts(event)
    ]
    return _Call("ComposedDpEvent", {"events": rows}) if rows else _Call("NoOpDpEvent", {})


def _one(part: Basic, adjacency: Adjacency) -> _Call:
    def gaussian(z: float, *, fixed_size: bool = False) -> _Call:
        factor = contribution_factor(adjacency, fixed_size=fixed_size)
        return _Call("GaussianDpEvent", {"noise_multiplier": factor * z})

    match part:
        case Gaussian(noise_multiplier=z):
            return gaussian(z)
        case PoissonSampledGaussian(sample_rate=q, noise_multiplier=z):
            return _Call("PoissonSampledDpEvent", {"sampling_probability": q, "event": gaussian(z)})
        case FixedSizeSampledGaussian(n_clients=n, sample_size=m, noise_multiplier=z):
            sample = {"source_dataset_size": n, "sample_size": m, "event": gaussian(z, fixed_size=True)}
            return _Call("SampledWithoutReplacementDpEvent", sample)
        case Laplace(scale_multiplier=b):
            return _Call("LaplaceDpEvent", {"noise_multiplier": contribution_factor(adjacency) * b})
        case BestOfRandomRuns(run=run, eta=eta, gamma=gamma):
            mean = TruncatedNegativeBinomial(eta=eta, gamma=gamma).mean
            return _Call("RepeatAndSelectDpEvent", {"event": _whole(run, adjacency), "mean": mean, "shape": eta})
        case NonPrivate():
            return _Call("NonPrivateDpEvent", {})


def from_dp_event(event: DpEvent, *, adjacency: Adjacency) -> Event:
    """Read a dp-accounting event as ours.

    Raises:
        EventError: If it holds an event that this package has no sound accountant for.

    Example:
        >>> theirs = to_dp_event(Gaussian(noise_multiplier=2.0), adjacency=Adjacency.ZERO_OUT)
        >>> from_dp_event(theirs, adjacency=Adjacency.ZERO_OUT).parts
        ((Gaussian(noise_multiplier=2.0), 1),)
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

    factor = contribution_factor(adjacency)
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
