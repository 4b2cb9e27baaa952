"""The public history of a run as a table, for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.frames import frame_of
from privbo.reports.data import report
from privbo.runs.record import Record

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = ("sequence", "release", "noise_multiplier", "sample_rate", "cumulative_epsilon", "noise_source", "digest")


def history_frame(record: Record) -> pd.DataFrame:
    """One row per release: charge, price so far, and the norm of what was released.

    Raises:
        ConfigurationError: If pandas is not installed.
    """
    data = report(record)
    made = {f"{record.run_id}/{row['round']}": row for row in data["utility"]["releases"]}
    rows = [
        {name: entry[name] for name in _COLUMNS} | {"delta": data["delta"]} | made.get(entry["release"], {})
        for entry in data["entries"]
    ]
    return frame_of(rows)


def write_parquet(record: Record, path: Path) -> Path:
    """Write the history as Parquet; returns its path.

    Raises:
        ConfigurationError: If pandas or pyarrow is not installed.
    """
    frame = history_frame(record)
    try:
        frame.to_parquet(path)
    except ImportError:
        raise ConfigurationError("Parquet needs pyarrow; install privbo[tables]") from None
    return path
