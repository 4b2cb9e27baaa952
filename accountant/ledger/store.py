"""Durable, hash-chained storage of a ledger, over tables in an SQLite file, in memory, or in PostgreSQL.

Two append-only tables of one shape, ``charges`` and ``releases``. Every row carries the
digest of its predecessor and its own, SHA-256 over predecessor, position, key and body;
the first predecessor is the digest of the ledger's identity and policy. A row can
therefore be neither edited nor removed from the middle unnoticed. A commit log, one line per
committed row, against which a lost tail is noticed, is stored next to the file, or, of a
database, with every user of it.

A file fails closed: one that is not surely a ledger, or storage that does not surely keep
what it is given, raises ``LedgerError`` and is left as it was. Writes are serialised by
``BEGIN IMMEDIATE`` and durable when ``transaction`` is left (write-ahead log,
``synchronous=FULL``; both are asserted). Nothing is retried or repaired unasked.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import astuple, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from accountant.errors import LedgerError
from accountant.ledger.address import PostgresAddress, place_of
from accountant.ledger.chain import BUSY_SECONDS, SCHEMA_VERSION, Identity, Row, row_digest
from accountant.ledger.durable import CommitLog, appearing_whole
from accountant.ledger.tables import Place, Tables, failing_closed

if TYPE_CHECKING:
    from accountant.ledger.postgres import PostgresTables

_TYPES = (int, str, bytes, str, str)  # of a row's columns
APPLICATION_ID = 0x70726976  # "priv", in the file's header
_SCHEMA = """
CREATE TABLE identity (only INTEGER PRIMARY KEY CHECK (only = 1), ledger_id TEXT NOT NULL, policy TEXT NOT NULL);
CREATE TABLE charges (sequence INTEGER PRIMARY KEY, release_id TEXT NOT NULL UNIQUE, body BLOB NOT NULL,
                      previous TEXT NOT NULL, digest TEXT NOT NULL);
CREATE TABLE releases (sequence INTEGER PRIMARY KEY, release_id TEXT NOT NULL UNIQUE, body BLOB NOT NULL,
                       previous TEXT NOT NULL, digest TEXT NOT NULL);
"""


def require_own_header(path: Path) -> None:
    """Refuse a file that is no ledger before SQLite touches it."""
    if not path.is_file():
        raise LedgerError(f"{path} is no file; restore it from a copy, or name another")
    # By SQLite, not by ``open``: closing any descriptor of a file drops the locks that its process has on it.
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    with failing_closed(path), closing(sqlite3.connect(uri, uri=True)) as connection:
        try:
            (found,), (version,) = map(connection.execute, ("PRAGMA application_id", "PRAGMA user_version"))
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_CORRUPT:
                return  # as it may look without its write-ahead log; opening both says what is wrong
            if error.sqlite_errorcode != sqlite3.SQLITE_NOTADB:
                raise
            found = version = (0,)
    if found != (APPLICATION_ID,):
        raise LedgerError(
            f"{path} is not a privbo ledger; it was not changed; name a ledger's file or address, or a run's "
            "directory; privbo verify-bundle checks a bundle"
        )
    if version != (SCHEMA_VERSION,):
        raise LedgerError(f"{path} has schema version {version[0]}, this program reads {SCHEMA_VERSION}; upgrade it")


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


_OBJECTS = "SELECT type, name, tbl_name, ifnull(sql, '') FROM sqlite_master"


@cache
def _made_of_schema() -> frozenset[tuple[str, ...]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_SCHEMA)
        return frozenset(connection.execute(_OBJECTS).fetchall())


Table: TypeAlias = Literal["charges", "releases"]
TABLES: tuple[Table, ...] = get_args(Table)


class SqliteTables(Tables[sqlite3.Connection]):
    """Tables of an open file (or, with ``place=None``, of a private database in memory)."""

    place: Path | None
    _log: int | None = None  # what the write-ahead log's file was when the connection was made

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Exclusive for writing; committed and flushed to disk when left without an error.

        A forked process has no lock on what its parent opened, and SQLite does not know: it would go on writing a log
        that another program has put away as the last one to close the file. So a log that changed is refused.
        """
        with failing_closed(self.place):
            connection = self._free()
            try:
                connection.execute("BEGIN IMMEDIATE")
                self._require_own_log()
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
            connection = self._free()
            try:
                connection.execute("BEGIN")
                yield
            finally:
                if connection.in_transaction:
                    connection.execute("COMMIT")

    def _free(self) -> sqlite3.Connection:
        """The connection, out of a transaction that an interrupt may have left open."""
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")
        return self.connection

    def _require_own_log(self) -> None:
        if self._log != self._log_file():
            raise LedgerError(
                f"{self.place}: another program has put its write-ahead log away; nothing was charged; open the ledger "
                "again"
            )

    def _log_file(self) -> int | None:
        log = Path(f"{self.place}-wal")
        return log.stat().st_ino if log.exists() else None

    def identity(self) -> Identity:
        """Read the ledger's identity.

        Raises:
            LedgerError: If the file is of another schema or has none, or holds anything else: triggers, views,
                tables and columns that a ledger does not have could change what it says.
        """
        with failing_closed(self.place):
            expected, found = _made_of_schema(), frozenset(self.connection.execute(_OBJECTS).fetchall())
            version = self.connection.execute("PRAGMA user_version").fetchone()[0]
            if found != expected:
                names = ", ".join(sorted(f"{kind} {name}" for kind, name, *_ in found ^ expected))
                raise LedgerError(f"{self.place}: its schema was changed ({names}); restore it from a copy")
            row = self.connection.execute("SELECT ledger_id, policy FROM identity").fetchone()
        if version != SCHEMA_VERSION or row is None or not all(isinstance(value, str) for value in row):
            raise LedgerError(
                f"{self.place}: schema version {version} or identity is not a ledger's; restore it from a copy"
            )
        return Identity(ledger_id=row[0], policy=row[1])

    def damage(self) -> str | None:
        """Name what SQLite finds wrong with the file, or None."""
        report = self.connection.execute("PRAGMA integrity_check").fetchone()[0]
        return None if report == "ok" else f"SQLite reports damage ({report})"

    def execute(self, statement: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        """Run a statement, which has ``?`` for every value and ``{ledger}`` before a table, and give its rows."""
        with failing_closed(self.place):
            return self.connection.execute(statement.format(ledger="main"), values).fetchall()

    def connected(self) -> sqlite3.Connection:
        """A connection that may write, durably."""
        if self.place is None:
            raise LedgerError("a ledger in memory cannot be used by a forked process; give it a file")
        with failing_closed(self.place):
            uri = f"{self.place.absolute().as_uri()}?mode=rw"
            connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_SECONDS)
            set_durable(connection, self.place)
            connection.execute(_OBJECTS).fetchall()  # opens the write-ahead log
            self._log = self._log_file()
        return connection


@dataclass(eq=False)
class Store:
    """An open ledger (with ``place=None``, a private one in memory)."""

    place: Place | None
    tables: SqliteTables | PostgresTables
    identity: Identity
    commit_log: CommitLog | None
    verified: list[Row] = field(default_factory=list)  # charges that ``problem`` read last

    @classmethod
    def create(cls, place: Place | str | None, policy: str) -> Store:
        """A new, empty ledger; a file appears under its name complete or not at all.

        Raises:
            LedgerError: If something stands there already, or cannot be written, or it is a database.
        """
        identity = Identity(ledger_id=secrets.token_hex(16), policy=policy)
        if place is None:
            connection = sqlite3.connect(":memory:", isolation_level=None)
            initialise(connection, identity)
            return cls(None, SqliteTables(None, connection), identity, None)
        place = place_of(place)
        if isinstance(place, PostgresAddress):
            raise LedgerError(
                f"{place}: a ledger in a database is made by its owner, with `privbo ledger make RUN.toml --owner URL`"
            )
        if (remembers := CommitLog.of(place).path).exists():
            raise LedgerError(f"{remembers} remembers a ledger that {place} no longer is; restore it")
        try:
            with (
                failing_closed(place),
                appearing_whole(place) as draft,
                closing(sqlite3.connect(draft, isolation_level=None)) as connection,
            ):
                set_durable(connection, draft)
                initialise(connection, identity)
        except FileExistsError:
            raise LedgerError(f"{place} exists already; open it or name another file") from None
        return cls.open(place)

    @classmethod
    def open(cls, place: Place | str, *, recovering: bool = False) -> Store:
        """An existing ledger, verified first without write access.

        Args:
            place: Its file, or the address of its database.
            recovering: Take one of which the commit log remembers more, to charge again what was lost.

        Raises:
            LedgerError: If it is missing, foreign, corrupt or cut off.
        """
        place = place_of(place)
        tables: SqliteTables | PostgresTables
        if isinstance(place, PostgresAddress):
            from accountant.ledger.postgres import PostgresTables  # and with it psycopg

            commit_log, tables = place.commit_log, PostgresTables(place)
        else:
            require_own_header(place)
            commit_log = CommitLog.of(place)
            if not os.access(place.parent, os.W_OK):
                raise LedgerError(
                    f"{place} stands in a folder where you may not write, as who reads a ledger does; copy the folder"
                )
            with failing_closed(place):
                read_only = f"{place.absolute().as_uri()}?mode=ro"
                tables = SqliteTables(place, sqlite3.connect(read_only, uri=True, isolation_level=None))
                if tables.connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
                    tables.close()
                    raise LedgerError(
                        f"{place} is not in write-ahead mode, so another program changed it; restore it from a copy"
                    )
        with ExitStack() as reading:
            reading.callback(tables.close)
            store = cls(place, tables, tables.identity(), commit_log)
            if (problem := store.problem(heed_commit_log=not recovering)) is not None:
                raise LedgerError(f"{place} is refused: {problem}; restore it from a copy, it was not changed")
            if not isinstance(place, Path):
                reading.pop_all()
        if isinstance(place, Path):
            store.tables = SqliteTables(place)
        # It stands before the first charge, so from then on a missing one is a lost one.
        with failing_closed(place):
            commit_log.path.touch(exist_ok=True)
        if commit_log.is_own:
            # The last rows that others committed: who opens a ledger notices later that they are gone.
            for table in TABLES:
                if (last := store.last(table)) is not None:
                    store.log_commit(table, last)
        return store

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
        row = Row(sequence, release_id, body, previous, row_digest(previous, sequence, release_id, body))
        self.tables.execute(f"INSERT INTO {{ledger}}.{table} VALUES (?, ?, ?, ?, ?)", astuple(row))  # noqa: S608 (literal names)
        return row

    def log_commit(self, what: Table | Literal["recovered"], row: Row) -> None:
        """Note in the commit log that ``row`` was committed, or makes good what was logged and lost."""
        if self.commit_log is not None:
            with failing_closed(self.place):
                self.commit_log.append(what, row.sequence, row.digest)

    def last(self, table: Table) -> Row | None:
        """The verified last row of a chain, or None if it is empty."""
        return next(iter(self._select(table, "ORDER BY sequence DESC LIMIT 1")), None)

    def find(self, table: Table, release_id: str) -> Row | None:
        """The verified row of a release id, or None."""
        return next(iter(self._select(table, "WHERE release_id = ?", release_id)), None)

    def rows_after(self, table: Table, sequence: int, digest: str) -> list[Row]:
        """All rows after a known one, verified to continue its chain without a gap.

        Raises:
            LedgerError: If they do not.
        """
        rows = self._select(table, "WHERE sequence > ? ORDER BY sequence", sequence)
        for row in rows:
            if row.sequence != sequence + 1 or row.previous != digest:
                raise LedgerError(f"{table} row {row.sequence} does not follow row {sequence}; restore the ledger")
            sequence, digest = row.sequence, row.digest
        return rows

    def _select(self, table: Table, clause: str, *values: object) -> list[Row]:
        statement = f"SELECT sequence, release_id, body, previous, digest FROM {{ledger}}.{table} {clause}"  # noqa: S608 (literal names)
        found = []
        for row in self.tables.execute(statement, values):
            found.append(Row(*row))
            if not (tuple(map(type, row)) == _TYPES and found[-1].is_sound):
                raise LedgerError(f"{table} row {row[0]!r} does not match its digest; restore the ledger from a copy")
        return found

    def _chains(self) -> dict[str, list[Row]]:
        return {table: self.rows_after(table, 0, self.identity.genesis(table)) for table in TABLES}

    def lost(self) -> list[tuple[str, int, str]]:
        """Rows that the commit log remembers and the ledger does not hold: table, sequence and digest."""
        if self.commit_log is None:
            return []
        with failing_closed(self.place):
            logged = self.commit_log.read()
        with self.tables.snapshot():
            return self.commit_log.lost(logged, self._chains())

    def problem(self, *, heed_commit_log: bool = True) -> str | None:
        """Check the whole ledger and name what is wrong, or None."""
        try:
            # The commit log is read before the chains, so that what others commit meanwhile is never missed.
            with failing_closed(self.place):
                logged = None if self.commit_log is None else self.commit_log.read()
            with self.tables.snapshot():
                if (damage := self.tables.damage()) is not None:
                    return damage
                if self.tables.identity() != self.identity:
                    return "its identity or policy was changed"
                chains = self._chains()
                self.verified = chains["charges"]
        except LedgerError as error:
            return str(error)
        charged = {row.release_id for row in chains["charges"]}
        unpaid = [row.release_id for row in chains["releases"] if row.release_id not in charged]
        if unpaid:
            return f"release {unpaid[0]!r} was stored without a charge"
        if self.commit_log is None or not heed_commit_log:
            return None
        return self.commit_log.problem(logged, chains)

    def close(self) -> None:
        """Close the connection of this process."""
        self.tables.close()
