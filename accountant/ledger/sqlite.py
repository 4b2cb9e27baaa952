"""A ledger's two tables in one SQLite file, or in memory.

Everything here fails closed: a file that is not surely a ledger, or storage that does not
surely keep what it is given, raises ``LedgerError`` and is left as it was. Writes are
serialised by ``BEGIN IMMEDIATE`` and durable when ``transaction`` is left (write-ahead log,
``synchronous=FULL``; both are asserted). Nothing is retried or repaired unasked.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from accountant.errors import LedgerError
from accountant.ledger.chain import SCHEMA_VERSION, Identity
from accountant.ledger.durable import appearing_whole

APPLICATION_ID = 0x70726976  # "priv", in the file's header
BUSY_SECONDS = 60.0
_SCHEMA = """
CREATE TABLE identity (only INTEGER PRIMARY KEY CHECK (only = 1), ledger_id TEXT NOT NULL, policy TEXT NOT NULL);
CREATE TABLE charges (sequence INTEGER PRIMARY KEY, release_id TEXT NOT NULL UNIQUE, body BLOB NOT NULL,
                      previous TEXT NOT NULL, digest TEXT NOT NULL);
CREATE TABLE releases (sequence INTEGER PRIMARY KEY, release_id TEXT NOT NULL UNIQUE, body BLOB NOT NULL,
                       previous TEXT NOT NULL, digest TEXT NOT NULL);
"""


@contextmanager
def failing_closed(path: object) -> Iterator[None]:
    """Turn every error of storage into a ``LedgerError``."""
    try:
        yield
    except FileExistsError:
        raise
    except (sqlite3.Error, OSError, OverflowError, UnicodeError) as error:
        where = "the ledger in memory" if path is None else path
        raise LedgerError(f"{where}: storage failed ({error}); nothing was released, mend it and try again") from error


def require_own_header(path: Path) -> None:
    """Refuse a file that is no ledger before SQLite touches it."""
    if not path.is_file():
        raise LedgerError(f"{path} is no file; create a ledger there or name another")
    with failing_closed(path), path.open("rb") as file:
        header = file.read(100)
    if header[:16] != b"SQLite format 3\x00" or int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise LedgerError(f"{path} is not a privbo ledger; it was not changed")
    version = int.from_bytes(header[60:64], "big")
    if version != SCHEMA_VERSION:
        raise LedgerError(f"{path} has schema version {version}, this program reads {SCHEMA_VERSION}; upgrade it")
    if header[18:20] != b"\x02\x02":
        raise LedgerError(f"{path} is not in write-ahead mode, so another program changed it; restore it from a copy")


def set_durable(connection: sqlite3.Connection, path: Path) -> None:
    """Write-ahead log and full synchronisation, asserted: some file systems silently refuse them."""
    mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA fullfsync=ON")
    connection.execute("PRAGMA trusted_schema=OFF")
    synchronous = connection.execute("PRAGMA synchronous").fetchone()[0]
    if (mode, synchronous) != ("wal", 2):
        connection.close()
        raise LedgerError(
            f"{path}: journal_mode={mode}, synchronous={synchronous} instead of wal, 2 (FULL); "
            "a charge would not be durable, so use a local file system"
        )


def initialise(connection: sqlite3.Connection, identity: Identity) -> None:
    """Write schema and identity into a fresh database."""
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    connection.executescript("BEGIN;" + _SCHEMA + "COMMIT;")
    connection.execute("INSERT INTO identity VALUES (1, ?, ?)", (identity.ledger_id, identity.policy))


def read_identity(connection: sqlite3.Connection, path: Path | None) -> Identity:
    """The identity in the file.

    Raises:
        LedgerError: If the file is of another schema or has none, or holds anything beside it: triggers, views, tables
            and columns that a ledger does not have could change what it says.
    """
    expected, found = _made_of_schema(), _objects(connection)
    if found != expected:
        names = ", ".join(sorted(f"{kind} {name}" for kind, name, *_ in found ^ expected))
        raise LedgerError(f"{path}: its schema was changed ({names}); restore it from a copy")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    row = connection.execute("SELECT ledger_id, policy FROM identity").fetchone()
    if version != SCHEMA_VERSION or row is None or not all(isinstance(value, str) for value in row):
        raise LedgerError(f"{path}: schema version {version} or identity is not a ledger's; restore it from a copy")
    return Identity(ledger_id=row[0], policy=row[1])


@cache
def _made_of_schema() -> frozenset[tuple[str, ...]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_SCHEMA)
        return _objects(connection)


def _objects(connection: sqlite3.Connection) -> frozenset[tuple[str, ...]]:
    rows = connection.execute("SELECT type, name, tbl_name, ifnull(sql, '') FROM sqlite_master").fetchall()
    return frozenset(tuple(str(value) for value in row) for row in rows)


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
        try:
            with (
                failing_closed(path),
                appearing_whole(path) as draft,
                closing(sqlite3.connect(draft, isolation_level=None)) as connection,
            ):
                set_durable(connection, draft)
                initialise(connection, identity)
        except FileExistsError:
            raise LedgerError(f"{path} exists already; open it or name another file") from None

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
