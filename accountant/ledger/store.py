"""Durable, hash-chained storage of a ledger, over tables in an SQLite file or in PostgreSQL.

Two append-only tables of one shape, ``charges`` and ``releases``. Every row carries the
digest of its predecessor and its own, SHA-256 over predecessor, position, key and body;
the first predecessor is the digest of the ledger's identity and policy. A row can
therefore be neither edited nor removed from the middle unnoticed. A commit log, one line per
committed row, against which a lost tail is noticed, stands beside the file, or, of a
database, with everybody who uses it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from accountant.errors import LedgerError
from accountant.ledger.address import PostgresAddress, place_of
from accountant.ledger.chain import Identity, Row, row_digest
from accountant.ledger.commit_log import CommitLog
from accountant.ledger.sqlite import SqliteTables, failing_closed

Place: TypeAlias = Path | PostgresAddress
Table: TypeAlias = Literal["charges", "releases"]
TABLES: tuple[Table, ...] = ("charges", "releases")


class Tables(Protocol):
    """Where rows are kept: every error of storage is a ``LedgerError``, and a forked process has its own connection."""

    def transaction(self) -> AbstractContextManager[None]:
        """Exclusive for writing; committed and durable when left without an error."""

    def snapshot(self) -> AbstractContextManager[None]:
        """One state for several reads."""

    def identity(self) -> Identity:
        """Read the ledger's identity, and that nothing stands beside it that could change what the tables say."""

    def damage(self) -> str | None:
        """Name what storage itself finds wrong, or None."""

    def insert(self, table: str, values: tuple[object, ...]) -> None:
        """Add a row inside a ``transaction``."""

    def select(self, table: str, clause: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        """Read rows; ``clause`` has ``?`` for every value."""

    def close(self) -> None:
        """Close the connection of this process."""


class Store:
    """An open ledger (with ``place=None``, a private one in memory)."""

    def __init__(self, place: Place | None, tables: Tables, identity: Identity, commit_log: CommitLog | None) -> None:
        self.place = place
        self.identity = identity
        self.tables = tables
        self._commit_log = commit_log

    @classmethod
    def create(cls, place: Place | str | None, policy: str) -> Store:
        """A new, empty ledger; a file appears under its name complete or not at all.

        Raises:
            LedgerError: If something stands there already, or cannot be written, or it is a database.
        """
        identity = Identity(ledger_id=secrets.token_hex(16), policy=policy)
        if place is None:
            return cls(None, SqliteTables.in_memory(identity), identity, None)
        place = place_of(place)
        if isinstance(place, PostgresAddress):
            raise LedgerError(
                f"{place}: a ledger in a database is made by its owner, with `privbo ledger make RUN.toml --owner URL`"
            )
        if CommitLog.of(place).exists():
            raise LedgerError(f"{CommitLog.of(place).path} remembers a ledger that {place} no longer is; restore it")
        SqliteTables.make(place, identity)
        return cls.open(place)

    @classmethod
    def open(cls, place: Place | str, *, recovering: bool = False) -> Store:
        """An existing ledger, verified first without write access.

        Args:
            place: Its file, or the address of its database.
            recovering: Take one of which the commit log remembers more, to pay for what was lost.

        Raises:
            LedgerError: If it is missing, foreign, corrupt or cut off.
        """
        place = place_of(place)
        commit_log = place.commit_log if isinstance(place, PostgresAddress) else CommitLog.of(place)
        tables = _reading(place)
        with ExitStack() as reading:
            reading.callback(tables.close)
            store = cls(place, tables, tables.identity(), commit_log)
            if (problem := store.problem(heed_commit_log=not recovering)) is not None:
                raise LedgerError(f"{place} is refused: {problem}; restore it from a copy, it was not changed")
            if not isinstance(place, Path):
                reading.pop_all()
        if isinstance(place, Path):
            store.tables = SqliteTables.writable(place)
        # It stands before the first charge, so from then on a missing one is a lost one.
        with failing_closed(place):
            commit_log.create()
        if commit_log.is_own:
            # The last rows that others committed: who opens a ledger notices later that they are gone.
            for table in TABLES:
                if (last := store.last(table)) is not None:
                    store.log_commit(table, last)
        return store

    @property
    def commit_log_path(self) -> Path | None:
        """The commit log's file."""
        return None if self._commit_log is None else self._commit_log.path

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Exclusive for writing; committed and durable when left without an error.

        Raises:
            LedgerError: If storage fails, or this is no longer the ledger that was opened.
        """
        with self.tables.transaction():
            if self.tables.identity() != self.identity:
                raise LedgerError(
                    f"{self.place} is another ledger than the one opened, or its policy changed; reopen it"
                )
            yield

    def append(self, table: Table, release_id: str, body: bytes) -> Row:
        """Add a row inside a ``transaction``; call ``log_commit`` after it is committed."""
        last = self.last(table)
        sequence = 1 if last is None else last.sequence + 1
        previous = self.identity.genesis(table) if last is None else last.digest
        digest = row_digest(previous, sequence, release_id, body)
        self.tables.insert(table, (sequence, release_id, body, previous, digest))
        return Row(sequence=sequence, release_id=release_id, body=body, previous=previous, digest=digest)

    def log_commit(self, what: Table | Literal["recovered"], row: Row) -> None:
        """Note beside the ledger that ``row`` was committed, or makes good what was logged and lost."""
        if self._commit_log is not None:
            with failing_closed(self.place):
                self._commit_log.append(what, row.sequence, row.digest)

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
        return [_require_row(table, row) for row in self.tables.select(table, clause, values)]

    def lost(self) -> list[tuple[str, int, str]]:
        """Rows that the commit log remembers and the ledger does not hold: table, sequence and digest."""
        if self._commit_log is None:
            return []
        with failing_closed(self.place):
            logged = self._commit_log.read()
        with self.tables.snapshot():
            return self._commit_log.lost(logged, _digests(self._chains()))

    def _chains(self) -> dict[Table, list[Row]]:
        return {table: self.rows_after(table, 0, self.identity.genesis(table)) for table in TABLES}

    def problem(self, *, heed_commit_log: bool = True) -> str | None:
        """Check the whole ledger and name what is wrong, or None."""
        try:
            # The commit log is read before the chains, so that what others commit meanwhile is never missed.
            with failing_closed(self.place):
                logged = None if self._commit_log is None else self._commit_log.read()
            with self.tables.snapshot():
                if (damage := self.tables.damage()) is not None:
                    return damage
                if self.tables.identity() != self.identity:
                    return "its identity or policy was changed"
                chains = self._chains()
        except LedgerError as error:
            return str(error)
        charged = {row.release_id for row in chains["charges"]}
        unpaid = [row.release_id for row in chains["releases"] if row.release_id not in charged]
        if unpaid:
            return f"release {unpaid[0]!r} was stored without a charge"
        if self._commit_log is None or not heed_commit_log:
            return None
        return self._commit_log.problem(logged, _digests(chains))

    def close(self) -> None:
        """Close the connection of this process."""
        self.tables.close()


def _reading(place: Place) -> Tables:
    if isinstance(place, Path):
        return SqliteTables.read_only(place)
    from accountant.ledger.postgres import PostgresTables  # and with it psycopg

    return PostgresTables(place)


def _digests(chains: Mapping[Table, Sequence[Row]]) -> dict[str, list[str]]:
    return {table: [row.digest for row in rows] for table, rows in chains.items()}


def _require_row(table: Table, values: tuple[Any, ...]) -> Row:
    row = Row(**dict(zip(Row.__dataclass_fields__, values, strict=True)))
    typed = all(isinstance(value, kind) for value, kind in zip(values, (int, str, bytes, str, str), strict=True))
    if typed and row.is_sound:
        return row
    raise LedgerError(f"{table} row {row.sequence!r} does not match its digest; restore the ledger from a copy")
