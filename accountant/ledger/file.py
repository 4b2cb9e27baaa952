"""One SQLite file that is a ledger: its header, its identity, its durability.

Everything here fails closed: a file that is not surely a ledger, or storage that does not
surely keep what it is given, raises ``LedgerError`` and is left as it was.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from accountant.errors import LedgerError

APPLICATION_ID = 0x70726976  # "priv", in the file's header
SCHEMA_VERSION = 1
BUSY_SECONDS = 60.0
_SCHEMA = """
CREATE TABLE identity (only INTEGER PRIMARY KEY CHECK (only = 1), ledger_id TEXT NOT NULL, policy TEXT NOT NULL);
CREATE TABLE charges (sequence INTEGER PRIMARY KEY, release_id TEXT NOT NULL UNIQUE, body BLOB NOT NULL,
                      previous TEXT NOT NULL, digest TEXT NOT NULL);
CREATE TABLE releases (sequence INTEGER PRIMARY KEY, release_id TEXT NOT NULL UNIQUE, body BLOB NOT NULL,
                       previous TEXT NOT NULL, digest TEXT NOT NULL);
"""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Identity of a ledger, fixed at creation."""

    ledger_id: str
    policy: str

    def genesis(self, table: str) -> str:
        """The digest before the first row of ``table``."""
        return sha256_of(f"privbo-ledger-{SCHEMA_VERSION}", table, self.ledger_id, self.policy)


def sha256_of(*parts: str | bytes) -> str:
    """SHA-256 over length-prefixed parts, so that no two lists of parts share their bytes."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.hexdigest()


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
        LedgerError: If the file is of another schema or has none, or holds anything beside it.
    """
    _require_schema(connection, path)
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    row = connection.execute("SELECT ledger_id, policy FROM identity").fetchone()
    if version != SCHEMA_VERSION or row is None or not all(isinstance(value, str) for value in row):
        raise LedgerError(f"{path}: schema version {version} or identity is not a ledger's; restore it from a copy")
    return Identity(ledger_id=row[0], policy=row[1])


def _require_schema(connection: sqlite3.Connection, path: Path | None) -> None:
    """Refuse triggers, views, tables and columns that a ledger does not have: they could change what it says."""
    expected, found = _made_of_schema(), _objects(connection)
    if found != expected:
        names = ", ".join(sorted(f"{kind} {name}" for kind, name, *_ in found ^ expected))
        raise LedgerError(f"{path}: its schema was changed ({names}); restore it from a copy")


@cache
def _made_of_schema() -> frozenset[tuple[str, ...]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_SCHEMA)
        return _objects(connection)


def _objects(connection: sqlite3.Connection) -> frozenset[tuple[str, ...]]:
    rows = connection.execute("SELECT type, name, tbl_name, ifnull(sql, '') FROM sqlite_master").fetchall()
    return frozenset(tuple(str(value) for value in row) for row in rows)


def sync_folder(folder: Path) -> None:
    """Make a new name in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
