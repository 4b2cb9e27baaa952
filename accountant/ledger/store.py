"""Durable, hash-chained storage of a ledger in one SQLite file.

Two append-only tables of one shape, ``charges`` and ``releases``. Every row carries the
digest of its predecessor and its own, SHA-256 over predecessor, position, key and body;
the first predecessor is the digest of the ledger's identity and policy. A row can
therefore be neither edited nor removed from the middle unnoticed. Beside the file stands
a witness, one line per committed row, against which a lost tail is noticed.

Writes are serialised by ``BEGIN IMMEDIATE`` and durable when ``transaction`` is left
(write-ahead log, ``synchronous=FULL``; both are asserted). Every storage error becomes a
``LedgerError``: nothing is retried behind the caller's back and nothing is repaired.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from accountant.errors import LedgerError
from accountant.ledger.file import (
    BUSY_SECONDS,
    Identity,
    failing_closed,
    initialise,
    read_identity,
    require_own_header,
    set_durable,
    sha256_of,
    sync_folder,
)
from accountant.ledger.witness import Witness

Table: TypeAlias = Literal["charges", "releases"]
TABLES: tuple[Table, ...] = ("charges", "releases")

# Connections inherited over a fork are kept, unused: closing one could touch the parent's file.
_inherited: list[sqlite3.Connection] = []


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a chain."""

    sequence: int
    release_id: str
    body: bytes
    previous: str
    digest: str


def row_digest(previous: str, sequence: int, release_id: str, body: bytes) -> str:
    """Digest of a row; every part is length-prefixed, so no two rows share their bytes."""
    return sha256_of(previous, str(sequence), release_id, body)


class Store:
    """An open ledger file (or, with ``path=None``, a private one in memory)."""

    def __init__(self, path: Path | None, connection: sqlite3.Connection, identity: Identity) -> None:
        self.path = path
        self.identity = identity
        self._connection = connection
        self._process = os.getpid()
        self._witness = None if path is None else Witness.beside(path)

    @classmethod
    def create(cls, path: Path | None, policy: str) -> Store:
        """A new, empty ledger file; it appears under its name complete or not at all.

        Raises:
            LedgerError: If something stands there already, or cannot be written.
        """
        identity = Identity(ledger_id=secrets.token_hex(16), policy=policy)
        if path is None:
            connection = sqlite3.connect(":memory:", isolation_level=None)
            initialise(connection, identity)
            return cls(None, connection, identity)
        if Witness.beside(path).exists():
            raise LedgerError(f"{Witness.beside(path).path} remembers a ledger that {path} no longer is; restore it")
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
        return cls.open(path)

    @classmethod
    def open(cls, path: Path, *, recovering: bool = False) -> Store:
        """An existing ledger file, verified first without write access.

        Args:
            path: The file.
            recovering: Take a file of which the witness remembers more, to pay for what was lost.

        Raises:
            LedgerError: If it is missing, foreign, corrupt or cut off.
        """
        require_own_header(path)
        with failing_closed(path):
            reader = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
            try:
                store = cls(path, reader, read_identity(reader, path))
                problem = store.problem(heed_witness=not recovering)
            finally:
                reader.close()
        if problem is not None:
            raise LedgerError(f"{path} is refused: {problem}; restore it from a copy, it was not changed")
        store._connection = store._connect()
        if store._witness is not None:
            # It stands before the first charge, so from then on a missing one is a lost one.
            with failing_closed(path):
                store._witness.create()
        return store

    def _connect(self) -> sqlite3.Connection:
        if self.path is None:
            raise LedgerError("a ledger in memory cannot be used by a forked process; give it a file")
        with failing_closed(self.path):
            connection = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=BUSY_SECONDS
            )
            set_durable(connection, self.path)
        return connection

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection of this process; a forked child gets one of its own."""
        if os.getpid() != self._process:
            _inherited.append(self._connection)
            self._connection, self._process = self._connect(), os.getpid()
        return self._connection

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Exclusive for writing; committed and flushed to disk when left without an error.

        Raises:
            LedgerError: If storage fails, or the file is no longer this ledger.
        """
        with failing_closed(self.path):
            connection = self.connection
            connection.execute("BEGIN IMMEDIATE")
            try:
                self._require_identity()
                yield
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _require_identity(self) -> None:
        if read_identity(self.connection, self.path) != self.identity:
            raise LedgerError(f"{self.path} is another ledger than the one opened, or its policy changed; reopen it")

    def append(self, table: Table, release_id: str, body: bytes) -> Row:
        """Add a row inside a ``transaction``; call ``witness`` after it is committed."""
        last = self.last(table)
        sequence = 1 if last is None else last.sequence + 1
        previous = self.identity.genesis(table) if last is None else last.digest
        digest = row_digest(previous, sequence, release_id, body)
        self.connection.execute(
            f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?)",  # noqa: S608 (a literal type)
            (sequence, release_id, body, previous, digest),
        )
        return Row(sequence=sequence, release_id=release_id, body=body, previous=previous, digest=digest)

    def witness(self, table: Table, row: Row) -> None:
        """Note beside the file that ``row`` was committed."""
        if self._witness is not None:
            with failing_closed(self.path):
                self._witness.append(table, row.sequence, row.digest)

    def last(self, table: Table) -> Row | None:
        """The verified last row of a chain, or None if it is empty."""
        rows = self._select(table, "ORDER BY sequence DESC LIMIT 1", ())
        return rows[0] if rows else None

    def find(self, table: Table, release_id: str) -> Row | None:
        """The verified row of a release id, or None."""
        rows = self._select(table, "WHERE release_id = ?", (release_id,))
        return rows[0] if rows else None

    def rows_after(self, table: Table, sequence: int, digest: str) -> list[Row]:
        """All rows after a known one, verified to continue its chain without a gap.

        Raises:
            LedgerError: If they do not.
        """
        rows = self._select(table, "WHERE sequence > ? ORDER BY sequence", (sequence,))
        for row in rows:
            if row.sequence != sequence + 1 or row.previous != digest:
                raise LedgerError(f"{table} row {row.sequence} does not follow row {sequence}; restore the ledger")
            sequence, digest = row.sequence, row.digest
        return rows

    def _select(self, table: Table, clause: str, values: tuple[object, ...]) -> list[Row]:
        with failing_closed(self.path):
            found = self.connection.execute(
                f"SELECT sequence, release_id, body, previous, digest FROM {table} {clause}",  # noqa: S608 (both from here)
                values,
            ).fetchall()
        return [_require_row(table, row) for row in found]

    def lost(self) -> list[tuple[str, int, str]]:
        """Rows that the witness remembers and the file does not hold: table, sequence and digest."""
        if self._witness is None:
            return []
        with failing_closed(self.path):
            witnessed = self._witness.read()
        with self._snapshot():
            return self._witness.lost(witnessed, _digests(self._chains()))

    def note_recovery(self, row: Row) -> None:
        """Note beside the file that ``row`` makes good what the witness remembers and the file lost."""
        if self._witness is not None:
            with failing_closed(self.path):
                self._witness.append("recovered", row.sequence, row.digest)

    def _chains(self) -> dict[Table, list[Row]]:
        return {table: self.rows_after(table, 0, self.identity.genesis(table)) for table in TABLES}

    def problem(self, *, heed_witness: bool = True) -> str | None:
        """Check the whole file and name what is wrong, or None."""
        try:
            # The witness is read before the chains, so that what others commit meanwhile is never missed.
            with failing_closed(self.path):
                witnessed = None if self._witness is None else self._witness.read()
            with self._snapshot() as connection:
                report = connection.execute("PRAGMA integrity_check").fetchone()[0]
                if report != "ok":
                    return f"SQLite reports damage ({report})"
                if read_identity(connection, self.path) != self.identity:
                    return "its identity or policy was changed"
                chains = self._chains()
        except LedgerError as error:
            return str(error)
        charged = {row.release_id for row in chains["charges"]}
        unpaid = [row.release_id for row in chains["releases"] if row.release_id not in charged]
        if unpaid:
            return f"release {unpaid[0]!r} was stored without a charge"
        if self._witness is None or not heed_witness:
            return None
        return self._witness.problem(witnessed, _digests(chains))

    @contextmanager
    def _snapshot(self) -> Iterator[sqlite3.Connection]:
        """One state of the file for several reads."""
        with failing_closed(self.path):
            connection = self.connection
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("COMMIT")

    def close(self) -> None:
        """Close the connection of this process."""
        if os.getpid() == self._process:
            self._connection.close()


def _digests(chains: Mapping[Table, Sequence[Row]]) -> dict[str, list[str]]:
    return {table: [row.digest for row in rows] for table, rows in chains.items()}


def _require_row(table: Table, values: tuple[Any, ...]) -> Row:
    row = Row(**dict(zip(Row.__dataclass_fields__, values, strict=True)))
    typed = all(isinstance(value, kind) for value, kind in zip(values, (int, str, bytes, str, str), strict=True))
    if typed and row_digest(row.previous, row.sequence, row.release_id, row.body) == row.digest:
        return row
    raise LedgerError(f"{table} row {row.sequence!r} does not match its digest; restore the ledger from a copy")
