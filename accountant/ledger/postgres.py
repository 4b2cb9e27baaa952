"""A ledger's two tables in PostgreSQL, for runs on several machines.

A transaction is serialisable, waits for its turn, and is on disk when it is left. The role that
appends may do nothing else: who owns the tables could rewrite them, so a role that owns them, or may update, delete or
truncate, is refused, and so are servers that do not flush, and tables that are not as they were made (unlogged,
with triggers, rules, policies or other columns). A password is proven by SCRAM and never sent, and a network is
crossed by TLS that this user's own authority verifies.
What an owner rewrites all the same is noticed by the chains, and what was set back by the commit log.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from accountant.errors import LedgerError
from accountant.ledger.address import Endpoint, PostgresAddress, endpoint_of, is_here
from accountant.ledger.chain import BUSY_SECONDS, SCHEMA_VERSION, Identity
from accountant.ledger.tables import Tables, failing_closed

try:
    import psycopg
    from psycopg import sql
    from psycopg.conninfo import make_conninfo
except ModuleNotFoundError:
    raise LedgerError("a ledger in PostgreSQL needs psycopg; pip install 'privbo[postgres]'") from None

_ROWS = (
    "sequence bigint PRIMARY KEY, release_id text NOT NULL UNIQUE, body bytea NOT NULL, previous text NOT NULL, "
    "digest text NOT NULL"
)
_SCHEMA = (
    "CREATE SCHEMA {ledger}",
    "CREATE TABLE {ledger}.identity (version bigint NOT NULL, ledger_id text NOT NULL, policy text NOT NULL)",
    f"CREATE TABLE {{ledger}}.charges ({_ROWS})",
    f"CREATE TABLE {{ledger}}.releases ({_ROWS})",
    "REVOKE ALL ON ALL TABLES IN SCHEMA {ledger} FROM PUBLIC",
    "GRANT USAGE ON SCHEMA {ledger} TO {role}",
    "GRANT SELECT ON {ledger}.identity TO {role}",
    "GRANT SELECT, INSERT ON {ledger}.charges, {ledger}.releases TO {role}",
)
_PLAIN = "sequence bigint t,release_id text t,body bytea t,previous text t,digest text t"
_EXPECTED = {
    ("charges", "r", "p", _PLAIN, False, True, False),
    ("releases", "r", "p", _PLAIN, False, True, False),
    ("identity", "r", "p", "version bigint t,ledger_id text t,policy text t", False, False, False),
}
_FOUND = """
SELECT c.relname::text, c.relkind::text, c.relpersistence::text,
  (SELECT string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || ' '
     || CASE WHEN a.attnotnull AND a.attgenerated = '' AND a.attidentity = '' AND NOT a.atthasdef THEN 't' ELSE 'f' END,
     ',' ORDER BY a.attnum) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
  c.relhasrules OR c.relhastriggers OR c.relrowsecurity OR c.relispartition
    OR EXISTS (SELECT FROM pg_inherits i WHERE c.oid IN (i.inhparent, i.inhrelid)),
  has_table_privilege(c.oid, 'INSERT'),
  has_table_privilege(c.oid, 'UPDATE, DELETE, TRUNCATE') OR has_any_column_privilege(c.oid, 'UPDATE')
    OR pg_has_role(c.relowner, 'MEMBER')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind NOT IN ('i', 'I', 't')
"""
_DURABLE = {"fsync": "on", "full_page_writes": "on", "server_encoding": "UTF8"}
_SYNCHRONOUS = ("on", "remote_apply")
_SESSION = {
    "application_name": "privbo ledger",
    "require_auth": "scram-sha-256",
    "gssencmode": "disable",
    "connect_timeout": "20",
    "tcp_user_timeout": "60000",  # milliseconds
    "options": "-c search_path=pg_catalog -c idle_in_transaction_session_timeout=600s "
    f"-c lock_timeout={BUSY_SECONDS:.0f}s",
}


def make(address: PostgresAddress, owner: str, policy: str, ledger_id: str) -> None:
    """Make an empty ledger as its database's owner, and let the address' role append to it.

    Args:
        address: Of the ledger; its role has to exist, and not be the owner.
        owner: Address of the same database with a role that may create a schema there.
        policy: The ledger's policy.
        ledger_id: Random name.

    Raises:
        LedgerError: If it stands already, or the owner may not make it.
    """
    names = {"ledger": sql.Identifier(address.ledger), "role": sql.Identifier(address.endpoint.role)}
    with failing_closed(address, psycopg.Error), psycopg.connect(_conninfo(endpoint_of(owner))) as connection:
        _require_verified(connection, address)
        for statement in _SCHEMA:
            connection.execute(sql.SQL(statement).format(**names))
        connection.execute(
            sql.SQL("INSERT INTO {ledger}.identity VALUES (%s, %s, %s)").format(**names),
            (SCHEMA_VERSION, ledger_id, policy),
        )


class PostgresTables(Tables[psycopg.Connection[Any]]):
    """Tables of a ledger in an open database."""

    place: PostgresAddress

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Exclusive for writing; committed and flushed to disk when left without an error."""
        with failing_closed(self.place, psycopg.Error):
            connection = self.connection
            # The snapshot is taken after the turn has come. The isolation guards against those who do not wait.
            turn = hashlib.sha256(f"privbo ledger {self.place.ledger}".encode()).digest()[:8]
            connection.execute("SELECT pg_advisory_lock(%s)", (int.from_bytes(turn, "big", signed=True),))
            try:
                connection.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
                yield
                if connection.execute("COMMIT").statusmessage != "COMMIT":
                    raise LedgerError(f"{self.place}: the database took the transaction back; nothing was released")
            finally:  # a connection that cannot end its transaction and its turn is closed
                try:
                    if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                        connection.execute("ROLLBACK")
                    connection.execute("SELECT pg_advisory_unlock_all()")
                except psycopg.Error:
                    connection.close()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """One state of the database for several reads."""
        with failing_closed(self.place, psycopg.Error):
            connection = self.connection
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                yield
            finally:
                with suppress(psycopg.Error):
                    connection.execute("ROLLBACK")

    def identity(self) -> Identity:
        """Read the ledger's identity, and refuse objects that could change what the tables say."""
        with failing_closed(self.place, psycopg.Error):
            found = set(self.connection.execute(_FOUND, (self.place.ledger,)).fetchall())
            if not found:
                raise LedgerError(
                    f"{self.place} holds no ledger named {self.place.ledger!r} that this role may see; an owner of the "
                    "database makes one with `privbo ledger make RUN.toml --owner URL`"
                )
            if powers := sorted(str(name) for name, *_, may_change in found if may_change):
                raise LedgerError(
                    f"{self.place}: role {self.place.endpoint.role!r} may change or delete what is written "
                    f"({', '.join(powers)}); a ledger is appended to by a role that owns nothing of it and has SELECT "
                    "and INSERT only"
                )
            if found != _EXPECTED:
                names = ", ".join(sorted({str(entry[0]) for entry in found ^ _EXPECTED}))
                raise LedgerError(
                    f"{self.place}: its schema or this role's rights were changed ({names}); restore it from a copy"
                )
            rows = self.execute("SELECT version, ledger_id, policy FROM {ledger}.identity", ())
        if len(rows) != 1 or rows[0][0] != SCHEMA_VERSION:
            raise LedgerError(f"{self.place}: schema version or identity is not a ledger's; restore it from a copy")
        return Identity(ledger_id=rows[0][1], policy=rows[0][2])

    def execute(self, statement: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        """Run a statement, which has ``?`` for every value and ``{ledger}`` before a table, and give its rows."""
        query = sql.SQL(statement.replace("?", "%s")).format(ledger=sql.Identifier(self.place.ledger))
        with failing_closed(self.place, psycopg.Error):
            done = self.connection.execute(query, values)
            return done.fetchall() if done.description else []

    def connected(self) -> psycopg.Connection[Any]:
        """A connection that is verified, and durable."""
        with failing_closed(self.place, psycopg.Error):
            connection = psycopg.connect(_conninfo(self.place.endpoint), autocommit=True)
            try:
                _require_verified(connection, self.place)
                _require_durable(connection, self.place)
            except BaseException:
                connection.close()
                raise
        return connection


def _conninfo(endpoint: Endpoint) -> str:
    given = {"host": endpoint.host, "port": endpoint.port, "dbname": endpoint.database, "user": endpoint.role}
    tls = {} if is_here(endpoint.host) else {"sslmode": "verify-full"}
    # libpq finds this user's own authority itself; without one it is the system's.
    if tls and not ("PGSSLROOTCERT" in os.environ or (Path.home() / ".postgresql" / "root.crt").exists()):
        tls["sslrootcert"] = "system"
    return make_conninfo(**{name: value for name, value in given.items() if value}, **tls, **_SESSION)


def _require_verified(connection: psycopg.Connection[Any], place: PostgresAddress) -> None:
    """Look where the connection leads: the environment, or a service's file, may have sent it elsewhere."""
    info = connection.info
    if not is_here(info.hostaddr) and info.get_parameters().get("sslmode") != "verify-full":
        raise LedgerError(
            f"{place} leads to {info.hostaddr} (by PGHOST, PGHOSTADDR or PGSERVICE); a ledger is reached over a "
            "network by 'verify-full' only: name its host in the address"
        )


def _require_durable(connection: psycopg.Connection[Any], place: PostgresAddress) -> None:
    """Full synchronisation, asserted."""

    def says(name: str) -> str:
        row = connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
        return "" if row is None else str(row[0])

    if says("synchronous_commit") not in _SYNCHRONOUS:
        connection.execute("SET synchronous_commit = on")
    found = {name: says(name) for name in _DURABLE}
    if found != _DURABLE or says("synchronous_commit") not in _SYNCHRONOUS:
        raise LedgerError(f"{place}: the server has {found} instead of {_DURABLE}; a charge would not be durable")
