"""One ledger file: digests from the bytes up, what its header may not say, and how every failure of storage ends."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from pathlib import Path

import pytest

from accountant.errors import LedgerError
from accountant.events import Adjacency, Gaussian, Unit
from accountant.ledger import Ledger, LedgerPolicy
from accountant.ledger import store as store_module
from accountant.ledger.file import (
    Identity,
    failing_closed,
    read_identity,
    require_own_header,
    set_durable,
    sha256_of,
    sync_folder,
)
from accountant.ledger.store import Store, link_digest
from accountant.ledger.witness import Witness

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
    connection.execute("PRAGMA synchronous=OFF")
    set_durable(connection, path)
    settings = ("journal_mode", "synchronous", "fullfsync", "trusted_schema")
    found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in settings]
    connection.close()
    assert found == ["wal", 2, 1, 0]
    with Ledger.open(path) as ledger:
        # Another writer may hold the lock for as long as a price takes; SQLite's own patience is 5 s.
        assert ledger._store.connection.execute("PRAGMA busy_timeout").fetchone() == (60_000,)


def test_storage_that_answers_with_less_is_closed_and_refused(path: Path) -> None:
    class Hasty(sqlite3.Connection):
        def execute(self, statement, *values):  # a build that was told to flush less, and does
            return super().execute(statement.replace("=FULL", "=NORMAL"), *values)

    connection = sqlite3.connect(path, isolation_level=None, factory=Hasty)
    with pytest.raises(LedgerError, match="synchronous=1 instead of wal, 2"):
        set_durable(connection, path)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


def test_a_new_name_is_flushed_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append((descriptor, os.fstat(descriptor).st_ino)))
    Ledger.create(tmp_path / "new", POLICY).close()
    ((descriptor, folder),) = flushed
    assert folder == tmp_path.stat().st_ino
    sync_folder(tmp_path)
    # Nothing stays open: the lowest free number is given out again.
    assert flushed[1] == (descriptor, folder)


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


def test_every_committed_row_is_witnessed_once(path: Path) -> None:
    charged(path)
    store = Store.open(path)
    rows = {table: store.rows_after(table, 0, store.identity.genesis(table)) for table in ("charges", "releases")}
    store.close()
    lines = [f"{table} {row.sequence} {row.digest}" for i in range(2) for table, row in ((t, rows[t][i]) for t in rows)]
    assert Witness.beside(path).read().splitlines() == lines


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
        ("UPDATE charges SET release_id = CAST(release_id AS BLOB)", "charges row 1 does not match its digest"),
        ("UPDATE releases SET previous = CAST(previous AS BLOB)", "releases row 1 does not match its digest"),
        ("DELETE FROM charges WHERE sequence = 1", "charges row 2 does not follow row 0"),
    ],
)
def test_the_row_that_was_changed_is_named(path: Path, statement: str, words: str) -> None:
    charged(path)
    altered(path, statement)
    with pytest.raises(LedgerError, match=f"{path} is refused: {words}"):
        Ledger.open(path)


def test_a_gap_in_the_numbers_is_noticed_however_well_it_is_chained(path: Path) -> None:
    charged(path, 1)
    store = Store.open(path)
    last = store.last("charges")
    digest = link_digest(last.digest, 3, "r/7", last.body)
    store.connection.execute("INSERT INTO charges VALUES (3, 'r/7', ?, ?, ?)", (last.body, last.digest, digest))
    store.close()
    with pytest.raises(LedgerError, match="charges row 3 does not follow row 1"):
        Ledger.open(path)


@pytest.mark.parametrize("table", ["charges", "releases"])
def test_an_index_that_lost_a_release_id_is_noticed(path: Path, table: str) -> None:
    """The rows are whole, but whoever looked for r/1 by its id would not find it, and charge or draw it again."""
    charged(path)
    with sqlite3.connect(path) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        index = f"sqlite_autoindex_{table}_1"
        (page,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (index,)).fetchone()
    connection.close()
    raw = path.read_bytes()
    start = (page - 1) * size
    assert raw[start : start + size].count(b"r/1") == 1
    path.write_bytes(raw[:start] + raw[start : start + size].replace(b"r/1", b"r/9") + raw[start + size :])
    with pytest.raises(LedgerError, match=rf"{path} is refused: SQLite reports damage \(row 2 missing from index"):
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


def test_a_lock_that_is_not_let_go_stops_the_charge_and_nothing_else(path: Path) -> None:
    event = Gaussian(noise_multiplier=9.0)
    other = sqlite3.connect(path, isolation_level=None)
    with Ledger.open(path) as ledger:
        ledger._store.connection.execute("PRAGMA busy_timeout = 1")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match=rf"{path}: storage failed \(database is locked\); nothing was released"):
            ledger.charge("r/0", event, run="r", noise_source="secure")
        other.execute("ROLLBACK")
        other.close()
        assert ledger.entries() == []
        assert not ledger.charge("r/0", event, run="r", noise_source="secure").known


def test_a_look_at_the_whole_file_says_what_failed_and_holds_no_transaction(path, monkeypatch) -> None:
    ledger = Ledger.open(path)
    assert ledger.verify().ok
    assert not ledger._store.connection.in_transaction
    with monkeypatch.context() as patch:
        patch.setattr(Witness, "read", failing)
        assert ledger.verify().problem == (
            f"{path}: storage failed (worn out); nothing was released, mend it and try again"
        )
    ledger.close()
    assert f"{path}: storage failed" in str(ledger.verify().problem)
    with pytest.raises(LedgerError, match="storage failed"):
        ledger.charge("r/0", Gaussian(noise_multiplier=9.0), run="r", noise_source="secure")


def test_a_forked_process_leaves_its_parents_connection_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, here = Store.open(path), os.getpid()
    parents = store.connection
    monkeypatch.setattr(os, "getpid", lambda: here + 1)
    store.close()  # a child that never used it
    assert parents.execute("SELECT 1").fetchone() == (1,)
    assert store.connection is not parents
    assert any(kept is parents for kept in store_module._inherited)  # and never closed by being forgotten
    store.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        store.connection.execute("SELECT 1")
    parents.close()
