"""Addresses of ledgers: a file, or a database with the commit log that its user keeps.

An address stands in configurations and in runs' files, so others may have written it. It says where a database answers
and as whom, and nothing of how the connection is made: that is this user's to say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from accountant.errors import LedgerError
from accountant.ledger.durable import CommitLog

_SCHEMES = ("postgresql://", "postgres://")
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:,]*))(?::(?P<port>[0-9]*))?")
_HERE = ("", "localhost", "127.0.0.1", "::1")
_SOCKET = ("host", "port")
_OWN = ("commits", "ledger")


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a database answers, and as whom: all that an address says of a connection; "" is this user's default.

    Attributes:
        host: Name, address, or folder of a socket.
        port: In digits.
        database: Its name.
        role: Name of the role.
    """

    host: str
    port: str
    database: str
    role: str


@dataclass(frozen=True, kw_only=True)
class PostgresAddress:
    """A ledger in PostgreSQL: ``postgresql://ROLE@HOST/DATABASE?commits=FILE``.

    Attributes:
        text: As it was written.
        endpoint: Where its database answers, and the role that appends.
        ledger: Name of the ledger in its database, a schema of its own; ``ledger=NAME`` in the address.
        commit_log: File of this user that remembers what was committed; ``commits=FILE`` in the address.
    """

    text: str
    endpoint: Endpoint
    ledger: str
    commit_log: CommitLog

    def __str__(self) -> str:
        return self.text


def is_postgres(text: str) -> bool:
    """Tell whether a text is the address of a database.

    Example:
        >>> is_postgres("postgresql://privbo@db.example/wards?commits=wards.commits"), is_postgres("ward-3.sqlite")
        (True, False)
    """
    return text.startswith(_SCHEMES)


def place_of(given: Path | PostgresAddress | str) -> Path | PostgresAddress:
    """Read where a ledger is kept.

    Raises:
        LedgerError: If the address of a database lacks something, or holds a secret.
    """
    if not isinstance(given, str):
        return given
    if not is_postgres(given):
        return Path(given)
    endpoint, query = _read(given, _OWN)
    ledger, commits = query.get("ledger", "privbo"), query.get("commits", "")
    if not commits or not endpoint.role:
        raise LedgerError(
            f"{given} names no {'role' if commits else 'commit log'}; write "
            "postgresql://ROLE@HOST/DATABASE?commits=FILE, where FILE is "
            "yours and stays: it notices a database that was set back"
        )
    if not _NAME.fullmatch(ledger):
        raise LedgerError(f"ledger={ledger!r} is no plain name of small letters, digits and underscores")
    log = CommitLog(Path(commits), is_own=True)
    return PostgresAddress(text=given, endpoint=endpoint, ledger=ledger, commit_log=log)


def stands(place: Path | PostgresAddress) -> bool:
    """Tell whether a ledger may be there: a database is always taken to hold one, and says itself where it does not."""
    return isinstance(place, PostgresAddress) or place.exists()


def is_here(host: str) -> bool:
    """Tell whether a host, its address, or its socket's folder is on this machine; "" is the database's own default.

    Example:
        >>> is_here("127.0.0.1"), is_here("/run/postgresql"), is_here("db.example")
        (True, True, False)
    """
    return host in _HERE or host.startswith("/")


def endpoint_of(text: str) -> Endpoint:
    """Read where a database answers and as whom, from an address that names no ledger.

    Raises:
        LedgerError: If the address says more, or holds a secret.
    """
    return _read(text, ())[0]


def _read(text: str, more: tuple[str, ...]) -> tuple[Endpoint, dict[str, str]]:
    """An address' endpoint, and which of ``more`` parameters it has."""
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise LedgerError(f"{text} is no address ({error}); write postgresql://ROLE@HOST:PORT/DATABASE") from None
    login, _, place = parts.netloc.rpartition("@")
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    query = dict(pairs)
    role, colon, _ = login.partition(":")
    if colon or {"password", "passfile"} & set(query):
        raise LedgerError("the address of a ledger holds a password, and addresses are public; put it into ~/.pgpass")
    beyond = sorted(set(query) - {*more, *_SOCKET})
    if beyond or len(query) < len(pairs) or parts.fragment:
        named = ", ".join(beyond) or "a parameter twice, or a fragment"
        raise LedgerError(
            f"{text} names {named}; an address names host, port, database and role, commits and ledger, each once, and "
            "nothing of how the connection is made: an authority goes into PGSSLROOTCERT or ~/.postgresql/root.crt"
        )
    found = _HOST.fullmatch(place)
    host = "" if found is None else unquote(found["six"] or found["name"] or query.get("host", ""))
    port = "" if found is None else found["port"] or query.get("port", "")
    twice = (place and "host" in query) or (":" in place and "port" in query)
    if found is None or twice or "," in host or not re.fullmatch("[0-9]*", port):
        raise LedgerError(f"{text} names no single host and port; write postgresql://ROLE@HOST:PORT/DATABASE")
    here = Endpoint(host=host, port=port, database=unquote(parts.path[1:]), role=unquote(role))
    return here, {name: query[name] for name in more if name in query}
