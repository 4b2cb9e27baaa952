"""The public history of a run as a table, for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.plain import fields_of, frame_of
from privbo.reports.data import report
from privbo.reports.report import Report
from privbo.runs.record import Record

if TYPE_CHECKING:
    import pandas as pd


def history_rows(found: Report) -> list[dict[str, object]]:
    """List a run's releases: charge, price so far, and the norm of what was released."""
    made = {f"{found.run}/{row.round}": row for row in found.utility.releases}
    charged = ("sequence", "release", "noise_multiplier", "sample_rate", "cumulative_epsilon", "noise_source", "digest")
    return [
        {name: getattr(entry, name) for name in charged}
        | {"delta": found.delta}
        | (fields_of(made[entry.release]) if entry.release in made else {})
        for entry in found.entries
    ]


def history(record: Record) -> pd.DataFrame:
    """Give a run's public history as a frame, one row per release.

    Raises:
        ConfigurationError: If pandas is not installed.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda c, params: params["x"], n_clients=3)
        >>> privacy = pb.Privacy(noise_multiplier=4.0, noise="simulation")
        >>> record = pb.run(problem, pb.FederatedFLCB(), privacy=privacy, rounds=2, seed=0)
        >>> history(record)["sequence"].tolist()
        [2, 3]
    """
    return frame_of(history_rows(report(record)))


def write_parquet(record: Record, path: Path) -> Path:
    """Write the history as Parquet; returns its path.

    Raises:
        ConfigurationError: If pandas or pyarrow is not installed.
    """
    frame = history(record)
    try:
        frame.to_parquet(path)
    except ImportError:
        raise ConfigurationError("Parquet needs pyarrow; install privbo[tables]") from None
    return path
