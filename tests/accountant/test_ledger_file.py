"""One ledger file: digests from the bytes up, what its header may not say, and how every failure of storage ends."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path

import pytest

from accountant import store as store_module
from accountant.errors import LedgerError
from accountant.events import Adjacency, Gaussian, Unit
from accountant.ledger import Ledger, LedgerPolicy
from accountant.ledger_file import Identity, failing_closed, read_identity, require_own_header, set_durable, sha256_of
from accountant.store import Store, link_digest
from accountant.witness import Witness

POLICY = LedgerPolicy(unit=Unit.CLIENT, adjacency=Adjacency.ZERO_OUT, population="p", n_clients=40)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    Ledger.create(path, POLICY).close()
    return path


def prefixed(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(bytes(7) + bytes([len(part)]) + part for part in parts)).hexdigest()


def test_digests_are_those_of_length_prefixed_parts() -> None:
    assert sha256_of("ab", b"c") == prefixed(b"ab", b"c") != sha256_of("a", b"bc")
    identity = Identity(ledger_id="abc", policy="{}")
    for table in ("charges", "releases"):
        assert identity.genesis(table) == prefixed(b"privbo-ledger-1", table.encode(), b"abc", b"{}")
    assert link_digest("before", 12, "r/0", b"body") == prefixed(b"before", b"12", b"r/0", b"body")


def altered(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()


def test_a_header_that_is_another_programs_is_refused(path: Path) -> None:
    require_own_header(path)
    for statement, words in (
        ("PRAGMA application_id = 7", "not a privbo ledger"),
        (f"PRAGMA user_version = {2**24 + 1}", f"schema version {2**24 + 1}, this program reads 1"),
    ):
        copy = path.with_name("copy")
        copy.write_bytes(path.read_bytes())
        altered(copy, statement)
        with pytest.raises(LedgerError, match=words):
            require_own_header(copy)
    path.write_bytes(b"T" + path.read_bytes()[1:])
    with pytest.raises(LedgerError, match="not a privbo ledger"):
        require_own_header(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger"
    path.touch()

    def refuse(self: Path, mode: str):
        raise PermissionError("no")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(LedgerError, match=f"^{path}: storage failed"):
        require_own_header(path)
    with pytest.raises(LedgerError, match=r"^the ledger in memory: storage failed"), failing_closed(None):
        raise sqlite3.OperationalError("no")


@pytest.mark.parametrize(
    "statement",
    [
        "PRAGMA user_version = 2",
        "DELETE FROM identity",
        "UPDATE identity SET ledger_id = x'6162'",
        "UPDATE identity SET policy = x'7b7d'",
    ],
)
def test_an_identity_that_is_no_ledgers_is_refused(path: Path, statement: str) -> None:
    altered(path, statement)
    connection = sqlite3.connect(path)
    try:
        with pytest.raises(LedgerError, match="identity is not a ledger's"):
            read_identity(connection, path)
    finally:
        connection.close()


def test_a_connection_is_durable_and_trusts_no_schema(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    set_durable(connection, path)
    settings = ("journal_mode", "synchronous", "fullfsync", "trusted_schema")
    found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in settings]
    connection.close()
    assert found == ["wal", 2, 1, 0]
    with Ledger.open(path) as ledger:
        # Another writer may hold the lock for as long as a price takes; SQLite's own patience is 5 s.
        assert ledger._store.connection.execute("PRAGMA busy_timeout").fetchone() == (60_000,)


# --- the chain ------------------------------------------------------------------------------


def charged(path: Path, n: int = 2) -> None:
    with Ledger.open(path) as ledger:
        for index in range(n):
            ledger.charge(f"r/{index}", Gaussian(noise_multiplier=9.0), run="r", noise_source="secure")
            ledger.store_release(f"r/{index}", b"noise")


def test_a_witness_stands_before_the_first_charge(path: Path) -> None:
    assert Witness.beside(path).read() == ""
    store = Store.open(path)
    assert len(store.identity.ledger_id) == 32
    store.close()


def test_whoever_writes_and_whoever_reads_later_see_the_same_chain(path: Path) -> None:
    with Ledger.open(path) as writer:
        start = writer.head
        for index in range(3):
            writer.charge(f"r/{index}", Gaussian(noise_multiplier=9.0), run="r", noise_source="secure")
        seen = writer.entries()
    with Ledger.open(path) as reader:
        assert reader.entries() == seen
    assert [entry.previous for entry in seen] == [start, seen[0].digest, seen[1].digest]


def test_a_release_without_a_charge_is_refused_however_well_it_is_chained(path: Path) -> None:
    charged(path, 1)
    store = Store.open(path)
    last = store.last("releases")
    digest = link_digest(last.digest, 2, "r/7", b"free")
    store.connection.execute("INSERT INTO releases VALUES (2, 'r/7', ?, ?, ?)", (b"free", last.digest, digest))
    store.close()
    with pytest.raises(LedgerError, match="release 'r/7' was stored without a charge"):
        Ledger.open(path)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE charges SET body = x'7b7d' WHERE sequence = 2", "charges row 2 does not match its digest"),
        ("UPDATE releases SET release_id = 'r/9' WHERE sequence = 1", "releases row 1 does not match its digest"),
        ("DELETE FROM charges WHERE sequence = 1", "charges row 2 does not follow row 0"),
    ],
)
def test_the_row_that_was_changed_is_named(path: Path, statement: str, words: str) -> None:
    charged(path)
    altered(path, statement)
    with pytest.raises(LedgerError, match=f"{path} is refused: {words}"):
        Ledger.open(path)


# --- storage that fails ---------------------------------------------------------------------


def failing(*_: object, **__: object) -> None:
    raise OSError("worn out")


def storing(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.charge("r/0", Gaussian(noise_multiplier=9.0), run="r", noise_source="secure")


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (store_module, "read_identity"),
        (store_module, "set_durable"),
        (Witness, "read"),
        (Witness, "create"),
        (Witness, "append"),
    ],
)
def test_wherever_storage_fails_the_file_is_named_and_nothing_else_is_raised(path, owner, name, monkeypatch) -> None:
    monkeypatch.setattr(owner, name, failing)
    with pytest.raises(LedgerError, match=rf"{path}: storage failed \(worn out\)"):
        storing(path)


def test_a_table_that_is_gone_and_a_folder_that_never_was_are_named(path: Path) -> None:
    with Ledger.open(path) as ledger:
        altered(path, "DROP TABLE releases")
        with pytest.raises(LedgerError, match=rf"{path}: storage failed \(no such table"):
            ledger.stored_release("r/0")
    nowhere = path.parent / "nowhere" / "ledger"
    with pytest.raises(LedgerError, match=f"{nowhere}: storage failed"):
        Ledger.create(nowhere, POLICY)
    Witness.beside(path).path.unlink()
    with pytest.raises(LedgerError, match=f"{path} exists already"):
        Ledger.create(path, POLICY)
