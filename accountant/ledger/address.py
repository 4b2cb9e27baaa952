"""Addresses of ledgers: a file, or a database with the witness that its user keeps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from accountant.errors import LedgerError
from accountant.ledger.witness import Witness

_SCHEMES = ("postgresql://", "postgres://")
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_HERE = ("", "localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class PostgresAddress:
    """A ledger in PostgreSQL: ``postgresql://ROLE@HOST/DATABASE?witness=FILE``.

    Attributes:
        text: As it was written.
        url: For the database's own client: without what is only ours, and encrypted where it leaves the machine.
        role: Name of the role that appends.
        ledger: Name of the ledger in its database, a schema of its own; ``ledger=NAME`` in the address.
        witness: File of this user that remembers what was committed; ``witness=FILE`` in the address.
    """

    text: str
    url: str
    role: str
    ledger: str
    witness: Witness

    def __str__(self) -> str:
        return self.text


def is_postgres(text: str) -> bool:
    """Tell whether a text is the address of a database.

    Example:
        >>> is_postgres("postgresql://privbo@db.example/wards?witness=wards.witness"), is_postgres("ward-3.sqlite")
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
    return _postgres(given) if is_postgres(given) else Path(given)


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


def encrypted(url: str) -> str:
    """Demand a verified, encrypted connection wherever one leaves the machine.

    Raises:
        LedgerError: If the address asks for less.
    """
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    named = query.get("host", unquote(parts.netloc.rpartition("@")[2])).split(",")
    hosts = [re.sub(r"^\[(.*)\](:\d*)?$|:\d*$", r"\1", host) for host in [*named, query.get("hostaddr", "")]]
    if all(map(is_here, hosts)):
        return url
    if query.setdefault("sslmode", "verify-full") != "verify-full":
        raise LedgerError(
            f"{url}: sslmode={query['sslmode']!r}; a ledger is reached over a network by 'verify-full' only"
        )
    return parts._replace(query=urlencode(query, quote_via=quote)).geturl()


def _postgres(text: str) -> PostgresAddress:
    parts = urlsplit(text)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    ledger, witness, role = query.pop("ledger", "privbo"), query.pop("witness", ""), query.get("user", parts.username)
    if parts.password is not None or "password" in query:
        raise LedgerError("the address of a ledger holds a password, and addresses are public; put it into ~/.pgpass")
    if not witness or not role:
        raise LedgerError(
            f"{text} names no {'role' if witness else 'witness'}; write postgresql://ROLE@HOST/DATABASE?witness=FILE, "
            "where FILE is yours and stays: it notices a database that was set back"
        )
    if not _NAME.fullmatch(ledger):
        raise LedgerError(f"ledger={ledger!r} is no plain name of small letters, digits and underscores")
    return PostgresAddress(
        text=text,
        url=encrypted(parts._replace(query=urlencode(query, quote_via=quote)).geturl()),
        role=unquote(role),
        ledger=ledger,
        witness=Witness(Path(witness), is_own=True),
    )
