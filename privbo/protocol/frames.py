"""Rows as a pandas frame; pandas is an extra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from privbo.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    import pandas as pd


def frame_of(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One line per row.

    Raises:
        ConfigurationError: If pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise ConfigurationError("tables as frames need pandas; install privbo[tables]") from None
    return pd.DataFrame(rows)
