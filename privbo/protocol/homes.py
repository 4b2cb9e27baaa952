"""Names of folders that runs and trainings make for themselves."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path


def today() -> str:
    """Give today's date (UTC); a finer clock would tell how long clients took."""
    return f"{datetime.now(UTC):%Y-%m-%d}"


def fresh_directory(name: str) -> Path:
    """Give ``runs/NAME-DATE-TOKEN``; a time of day in place of the token would tell when an earlier run ended."""
    return Path("runs") / f"{name}-{today().replace('-', '')}-{secrets.token_hex(3)}"
