"""Where a ledger's rows are kept: what tables in SQLite and in PostgreSQL have in common."""

from __future__ import annotations

import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from accountant.errors import LedgerError
from accountant.ledger.address import PostgresAddress

if TYPE_CHECKING:
    import psycopg

Place: TypeAlias = Path | PostgresAddress


@contextmanager
def failing_closed(place: object, *kinds: type[Exception]) -> Iterator[None]:
    """Turn every error of storage, and those of other ``kinds``, into a ``LedgerError``."""
    caught: tuple[type[Exception], ...] = (sqlite3.Error, OSError, OverflowError, UnicodeError, *kinds)
    try:
        yield
    except FileExistsError:
        raise
    except caught as error:
        where, said = "the ledger in memory" if place is None else place, " ".join(str(error).split())
        known = {"closed database": "closed", "same thread": "another thread's"}
        if state := next((state for words, state in known.items() if words in said), None):
            raise LedgerError(
                f"{where}: this ledger is {state}; privbo.load(FOLDER) of its run, or Ledger.open(PATH), opens it again"
            ) from error
        raise LedgerError(f"{where}: storage failed ({said}); nothing was released, fix it and try again") from error


_Connection = TypeVar("_Connection", sqlite3.Connection, "psycopg.Connection[Any]")

# Connections inherited over a fork are kept, unused: closing one could touch the parent's file, or end the parent's.
_inherited: list[object] = []


class Tables(ABC, Generic[_Connection]):
    """Where rows are kept: every error of storage is a ``LedgerError``, and a forked process has its own connection."""

    def __init__(self, place: Place | None, connection: _Connection | None = None) -> None:
        self.place = place
        self._connection: _Connection = connection or self.connected()
        self._process = os.getpid()

    @property
    def connection(self) -> _Connection:
        """The connection of this process; a forked child gets one of its own, and so does who lost it to a server."""
        if os.getpid() != self._process:
            _inherited.append(self._connection)
        elif not getattr(self._connection, "closed", False):
            return self._connection
        self._connection, self._process = self.connected(), os.getpid()
        return self._connection

    @abstractmethod
    def connected(self) -> _Connection:
        """Make a connection."""

    def damage(self) -> str | None:
        """Name what storage itself finds wrong, or None: a database raises where it does."""
        return None

    def close(self) -> None:
        """Close the connection of this process."""
        if os.getpid() == self._process:
            self._connection.close()
