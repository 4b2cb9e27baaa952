"""A ledger for other programs: JSON lines, CSV, and dp-accounting's DpEvent."""

from __future__ import annotations

import csv
import io
import json
from typing import Any, Literal, TypeAlias

from accountant.errors import LedgerError
from accountant.events import (
    Adjacency,
    Basic,
    Event,
    FixedSizeSampledGaussian,
    Gaussian,
    Laplace,
    PoissonSampledGaussian,
    parts,
)
from accountant.ledger import Ledger
from accountant.ledger_terms import Entry

Format: TypeAlias = Literal["jsonl", "csv", "dpevent"]
FORMATS: tuple[Format, ...] = ("jsonl", "csv", "dpevent")


def export(ledger: Ledger, format: Format, run: str | None = None) -> str:  # noqa: A002 (the field's word)
    """The charges of one run, or of the whole population, as text.

    Args:
        ledger: An open ledger.
        format: ``"jsonl"``: one entry per line; ``"csv"``: a header and one entry per line,
            the event as JSON in its column; ``"dpevent"``: the composition as a Python
            expression of dp-accounting's event classes.
        run: Name of a run, or None for every charge.

    Raises:
        LedgerError: If the format is unknown, or dp-accounting has no such event.
    """
    if format == "jsonl":
        return "".join(json.dumps(entry.to_dict(), allow_nan=False) + "\n" for entry in ledger.entries(run))
    if format == "csv":
        return _csv(ledger.entries(run))
    if format == "dpevent":
        return dp_event_expression(ledger.event(run), adjacency=ledger.policy.adjacency) + "\n"
    raise LedgerError(f"format {format!r} is none of {', '.join(FORMATS)}")


def _csv(entries: list[Entry]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(Entry.__dataclass_fields__), lineterminator="\n")
    writer.writeheader()
    for entry in entries:
        row = entry.to_dict()
        writer.writerow(row | {"event": json.dumps(row["event"], sort_keys=True)})
    return text.getvalue()


def dp_event_expression(event: Event, *, adjacency: Adjacency) -> str:
    """``event`` in the words of dp-accounting, as an expression over its classes.

    Noise multipliers stay what they are here, relative to the sensitivity under
    ``adjacency``. Account Poisson-sampled events under ``ADD_OR_REMOVE_ONE`` or (for
    zero-out) ``REPLACE_SPECIAL``, fixed-size ones under ``REPLACE_ONE``.

    Raises:
        LedgerError: For Poisson sampling under replace-one, which dp-accounting's
            accountants measure in another unit of sensitivity.
    """
    composed = (f"SelfComposedDpEvent(event={_expression(p, adjacency)}, count={n})" for p, n in parts(event))
    return f"ComposedDpEvent(events=[{', '.join(composed)}])"


def _expression(event: Basic, adjacency: Adjacency) -> str:
    if isinstance(event, Gaussian):
        return f"GaussianDpEvent(noise_multiplier={event.noise_multiplier!r})"
    if isinstance(event, Laplace):
        return f"LaplaceDpEvent(noise_multiplier={event.scale_multiplier!r})"
    if isinstance(event, PoissonSampledGaussian):
        if adjacency is Adjacency.REPLACE_ONE:
            raise LedgerError(
                f"{event} under replace-one has no DpEvent with the same meaning; export JSON lines instead"
            )
        inner = _expression(Gaussian(noise_multiplier=event.noise_multiplier), adjacency)
        return f"PoissonSampledDpEvent(sampling_probability={event.sample_rate!r}, event={inner})"
    if isinstance(event, FixedSizeSampledGaussian):
        inner = _expression(Gaussian(noise_multiplier=event.noise_multiplier), adjacency)
        return (
            f"SampledWithoutReplacementDpEvent(source_dataset_size={event.n_clients}, "
            f"sample_size={event.sample_size}, event={inner})"
        )
    return "NonPrivateDpEvent()"


def dp_event(event: Event, *, adjacency: Adjacency) -> Any:  # noqa: ANN401 (an optional package's type)
    """``event`` as an object of dp-accounting; see ``dp_event_expression``.

    Raises:
        LedgerError: As there, or if dp-accounting is not installed.
    """
    try:
        import dp_accounting as dp
    except ImportError as error:
        raise LedgerError("dp-accounting is not installed; install privbo[dpevent]") from error
    dp_event_expression(event, adjacency=adjacency)
    return dp.ComposedDpEvent(
        events=[dp.SelfComposedDpEvent(event=_object(dp, part), count=n) for part, n in parts(event)]
    )


def _object(dp: Any, event: Basic) -> Any:  # noqa: ANN401 (an optional package's module and types)
    if isinstance(event, Gaussian):
        return dp.GaussianDpEvent(noise_multiplier=event.noise_multiplier)
    if isinstance(event, Laplace):
        return dp.LaplaceDpEvent(noise_multiplier=event.scale_multiplier)
    if isinstance(event, PoissonSampledGaussian):
        return dp.PoissonSampledDpEvent(
            sampling_probability=event.sample_rate, event=dp.GaussianDpEvent(event.noise_multiplier)
        )
    if isinstance(event, FixedSizeSampledGaussian):
        return dp.SampledWithoutReplacementDpEvent(
            source_dataset_size=event.n_clients,
            sample_size=event.sample_size,
            event=dp.GaussianDpEvent(event.noise_multiplier),
        )
    return dp.NonPrivateDpEvent()
