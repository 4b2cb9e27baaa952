"""A ledger's two tables in one SQLite file, or in memory.

Writes are serialised by ``BEGIN IMMEDIATE`` and durable when ``transaction`` is left
(write-ahead log, ``synchronous=FULL``; both are asserted). Every storage error becomes a
``LedgerError``: nothing is retried behind the caller's back and nothing is repaired.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accountant.errors import LedgerError
from accountant.ledger.file import (
    BUSY_SECONDS,
    Identity,
    failing_closed,
    initialise,
    read_identity,
    require_own_header,
    set_durable,
    sync_folder,
)

# Connections inherited over a fork are kept, unused: closing one could touch the parent's file.
_inherited: list[sqlite3.Connection] = []


class SqliteTables:
    """Tables of an open file (or, with ``place=None``, of a private database in memory)."""

    def __init__(self, place: Path | None, connection: sqlite3.Connection) -> None:
        self.place = place
        self._connection = connection
        self._process = os.getpid()

    @classmethod
    def in_memory(cls, identity: Identity) -> SqliteTables:
        """New, empty tables of this process alone."""
        connection = sqlite3.connect(":memory:", isolation_level=None)
        initialise(connection, identity)
        return cls(None, connection)

    @staticmethod
    def make(path: Path, identity: Identity) -> None:
        """Make a new, empty file, which appears under its name complete or not at all.

        Raises:
            LedgerError: If something stands there already, or cannot be written.
        """
        draft = path.with_name(f".{path.name}.{identity.ledger_id}.new")
        try:
            with failing_closed(path):
                connection = sqlite3.connect(draft, isolation_level=None)
                try:
                    set_durable(connection, draft)
                    initialise(connection, identity)
                finally:
                    connection.close()
                os.link(draft, path)
                sync_folder(path.parent)
        except FileExistsError:
            raise LedgerError(f"{path} exists already; open it or name another file") from None
        finally:
            draft.unlink(missing_ok=True)

    @classmethod
    def read_only(cls, path: Path) -> SqliteTables:
        """Tables of an existing file that cannot be written to."""
        require_own_header(path)
        with failing_closed(path):
            return cls(path, sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None))

    @classmethod
    def writable(cls, path: Path) -> SqliteTables:
        """Tables of an existing file."""
        return cls(path, _connected(path))

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection of this process; a forked child gets one of its own."""
        if os.getpid() != self._process:
            _inherited.append(self._connection)
            self._connection, self._process = _connected(self.place), os.getpid()
        return self._connection

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Exclusive for writing; committed and flushed to disk when left without an error."""
        with failing_closed(self.place):
            connection = self.connection
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """One state of the file for several reads."""
        with failing_closed(self.place):
            connection = self.connection
            connection.execute("BEGIN")
            try:
                yield
            finally:
                connection.execute("COMMIT")

    def identity(self) -> Identity:
        """Read the ledger's identity, and that the file holds nothing beside a ledger."""
        with failing_closed(self.place):
            return read_identity(self.connection, self.place)

    def damage(self) -> str | None:
        """Name what SQLite finds wrong with the file, or None."""
        report = self.connection.execute("PRAGMA integrity_check").fetchone()[0]
        return None if report == "ok" else f"SQLite reports damage ({report})"

    def insert(self, table: str, values: tuple[object, ...]) -> None:
        """Add a row inside a ``transaction``."""
        self.connection.execute(f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?)", values)  # noqa: S608 (a literal name)

    def select(self, table: str, clause: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        """Read rows; ``clause`` has ``?`` for every value."""
        with failing_closed(self.place):
            return self.connection.execute(
                f"SELECT sequence, release_id, body, previous, digest FROM {table} {clause}",  # noqa: S608 (both literal)
                values,
            ).fetchall()

    def close(self) -> None:
        """Close the connection of this process."""
        if os.getpid() == self._process:
            self._connection.close()


def _connected(path: Path | None) -> sqlite3.Connection:
    if path is None:
        raise LedgerError("a ledger in memory cannot be used by a forked process; give it a file")
    with failing_closed(path):
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=BUSY_SECONDS
        )
        set_durable(connection, path)
    return connection
