"""One ledger file: digests from the bytes up, what its header may not say, and how every failure of storage ends."""

import gc
import hashlib
import os
import resource
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest

from accountant import gaussian_dp
from accountant.errors import BudgetExceeded, LedgerError
from accountant.events import to_dict
from accountant.ledger import Budget, Ledger
from accountant.ledger.chain import Identity, Row, row_digest, sha256_of
from accountant.ledger.durable import CommitLog, sync_folder
from accountant.ledger.store import Store, set_durable
from accountant.wording import upper_text
from tests.accountant.builders import charge, gaussian, policy
from tests.accountant.lives import altered, entry, forged

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture
def path(tmp_path) -> Path:
    path = tmp_path / "ledger.sqlite"
    Ledger.create(path, policy()).close()
    return path


def prefixed(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(bytes(7) + bytes([len(part)]) + part for part in parts)).hexdigest()


def test_digests_are_those_of_length_prefixed_parts() -> None:
    assert sha256_of("ab", b"c") == prefixed(b"ab", b"c") != sha256_of("a", b"bc")
    identity = Identity(ledger_id="abc", policy="{}")
    for table in ("charges", "releases"):
        assert identity.genesis(table) == prefixed(b"privbo-ledger-1", table.encode(), b"abc", b"{}")
    assert row_digest("before", 12, "r/0", b"body") == prefixed(b"before", b"12", b"r/0", b"body")


def test_a_connection_is_durable_and_trusts_no_schema(path: Path) -> None:
    def settings(connection) -> list:
        names = ("journal_mode", "synchronous", "fullfsync", "trusted_schema")
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        set_durable(connection, path)
        assert settings(connection) == ["wal", 2, 1, 0]
    store = Store.open(path)
    assert settings(store.tables.connection) == ["wal", 2, 1, 0]
    # Another writer may hold the lock for as long as a price takes; SQLite's own patience is 5 s.
    assert store.tables.connection.execute("PRAGMA busy_timeout").fetchone() == (60_000,)
    store.close()


def test_storage_that_answers_with_less_is_closed_and_refused(path: Path) -> None:
    class Hasty(sqlite3.Connection):
        def execute(self, statement, *values):  # a build that was told to flush less, and does
            return super().execute(statement.replace("=FULL", "=NORMAL"), *values)

    connection = sqlite3.connect(path, isolation_level=None, factory=Hasty)
    with pytest.raises(LedgerError, match="synchronous=1 instead of wal, 2"):
        set_durable(connection, path)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


def test_a_new_name_is_flushed_with_its_folder(tmp_path, monkeypatch) -> None:
    flushed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append((descriptor, os.fstat(descriptor).st_ino)))
    Ledger.create(tmp_path / "new", policy()).close()
    ((descriptor, folder),) = flushed
    assert folder == tmp_path.stat().st_ino
    sync_folder(tmp_path)
    # Nothing stays open: the lowest free number is given out again.
    assert flushed[1] == (descriptor, folder)


# --- the chain ------------------------------------------------------------------------------


def charged(path: Path, n: int = 2) -> None:
    with Ledger.open(path) as ledger:
        for index in range(n):
            charge(ledger, f"r/{index}")
            ledger.store_release(f"r/{index}", b"noise")


def test_every_committed_row_is_logged_once(path: Path) -> None:
    assert CommitLog.of(path).read() == ""
    charged(path)
    store = Store.open(path)
    assert len(store.identity.ledger_id) == 32
    rows = {table: store.rows_after(table, 0, store.identity.genesis(table)) for table in ("charges", "releases")}
    store.close()
    lines = [(table, rows[table][i].sequence, rows[table][i].digest) for i in range(2) for table in rows]
    assert CommitLog.of(path).read() == text_of(*lines)


def test_a_gap_in_the_numbers_is_noticed_however_well_it_is_chained(path: Path) -> None:
    charged(path, 1)
    forged(path, entry(release_id="r/7"), 3, "r/7")
    with pytest.raises(LedgerError, match="charges row 3 does not follow row 1"):
        Ledger.open(path)


@pytest.mark.parametrize("table", ["charges", "releases"])
def test_an_index_that_lost_a_release_id_is_noticed(path: Path, table: str) -> None:
    """The rows are whole, but whoever looked for r/1 by its id would not find it, and charge or draw it again."""
    charged(path)
    with closing(sqlite3.connect(path)) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        index = f"sqlite_autoindex_{table}_1"
        (page,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (index,)).fetchone()
    raw = path.read_bytes()
    start = (page - 1) * size
    assert raw[start : start + size].count(b"r/1") == 1
    path.write_bytes(raw[:start] + raw[start : start + size].replace(b"r/1", b"r/9") + raw[start + size :])
    with pytest.raises(LedgerError, match=rf"{path} is refused: SQLite reports damage \(row 2 missing from index"):
        Ledger.open(path)


# --- storage that fails ---------------------------------------------------------------------


def test_where_the_commit_log_fails_the_file_is_named_and_nothing_else_is_raised(path: Path) -> None:
    commit_log = CommitLog.of(path).path
    commit_log.unlink(missing_ok=True)
    commit_log.mkdir()  # neither made, nor read, nor appended to
    with pytest.raises(LedgerError, match=f"{path}: storage failed"):
        Ledger.open(path)
    commit_log.rmdir()
    with Ledger.open(path) as ledger:
        commit_log.unlink()
        commit_log.mkdir()
        with pytest.raises(LedgerError, match=f"{path}: storage failed"):
            charge(ledger, "r/0")
        assert f"{path}: storage failed" in str(ledger.verify().problem)


def test_a_table_that_is_gone_and_a_folder_that_never_was_are_named(path: Path) -> None:
    with Ledger.open(path) as ledger:
        altered(path, "DROP TABLE releases")
        with pytest.raises(LedgerError, match=rf"{path}: storage failed \(no such table"):
            ledger.stored_release("r/0")
    nowhere = path.parent / "nowhere" / "ledger"
    with pytest.raises(LedgerError, match=f"{nowhere}: storage failed"):
        Ledger.create(nowhere, policy())
    CommitLog.of(path).path.unlink()
    with pytest.raises(LedgerError, match=f"{path} exists already"):
        Ledger.create(path, policy())


def test_a_lock_that_is_not_let_go_stops_the_charge_and_nothing_else(path: Path) -> None:
    other, store = sqlite3.connect(path, isolation_level=None), Store.open(path)
    store.tables.connection.execute("PRAGMA busy_timeout = 1")
    with Ledger(store) as ledger:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match=rf"{path}: storage failed \(database is locked\); nothing was released"):
            charge(ledger, "r/0")
        other.execute("ROLLBACK")
        other.close()
        assert ledger.entries() == []
        assert not charge(ledger, "r/0").known


def test_a_closed_ledger_says_so_and_charges_nothing(path: Path) -> None:
    store = Store.open(path)
    ledger = Ledger(store)
    assert ledger.verify().ok
    assert not store.tables.connection.in_transaction
    ledger.close()
    assert f"{path}: this ledger is closed; privbo.load(FOLDER) of its run, or" in str(ledger.verify().problem)
    with pytest.raises(LedgerError, match="is closed"):
        charge(ledger, "r/0")
    with Ledger.open(path) as again:
        assert again.entries() == []


def in_a_child(work) -> int:
    """The exit code of a forked process: 0 if ``work()`` held."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if work() else 1)
        except BaseException:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_process_charges_over_a_connection_of_its_own(path: Path) -> None:
    with Ledger.open(path) as ledger:
        charge(ledger, "r/0")

        def child() -> bool:
            charge(ledger, "r/1")
            ledger.close()
            return [entry.release_id for entry in ledger.entries()] == ["r/0", "r/1"]

        assert in_a_child(child) == 2  # closed for the child ...
        charge(ledger, "r/2")  # ... and open for its parent
        assert [entry.release_id for entry in ledger.entries()] == ["r/0", "r/1", "r/2"]
        assert in_a_child(lambda: ledger.close() or True) == 0  # one that never used it
        assert ledger.verify().ok


_LOOK = "import sys; from accountant.ledger import Ledger; Ledger.open(sys.argv[1]).close()"


def test_a_look_from_another_program_takes_nothing_from_one_that_opened_the_ledger_twice(path: Path) -> None:
    with Ledger.open(path) as ledger:
        Ledger.open(path).close()
        for sequence in (1, 2):
            subprocess.run([sys.executable, "-c", _LOOK, str(path)], check=True)
            charge(ledger, f"r/{sequence}")
    with Ledger.open(path) as ledger:
        assert [entry.release_id for entry in ledger.entries()] == ["r/1", "r/2"]


def test_a_log_that_another_program_has_put_away_takes_no_charge(path: Path) -> None:
    """As where a descriptor that a library closed, or a fork, has cost a program its locks."""
    ledger = Ledger.open(path)
    with path.open("rb"):  # planted
        pass
    subprocess.run([sys.executable, "-c", _LOOK, str(path)], check=True)
    with pytest.raises(LedgerError, match="put its write-ahead log away; nothing was charged; open the ledger again"):
        charge(ledger, "r/0")
    ledger.close()
    with Ledger.open(path) as ledger:
        assert ledger.entries() == []
        charge(ledger, "r/0")


def test_a_transaction_that_an_interrupt_left_open_is_no_hindrance(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger._store.tables.connection.execute("BEGIN IMMEDIATE")
        assert charge(ledger, "r/0").sequence == 1
        assert [entry.release_id for entry in ledger.entries()] == ["r/0"]


def test_a_folder_that_cannot_be_written_is_named(path: Path) -> None:
    with mock.patch("os.access", return_value=False), pytest.raises(LedgerError, match="copy the folder"):
        Ledger.open(path)


def test_a_forked_process_cannot_use_a_ledger_in_memory() -> None:
    with Ledger.create(None, policy()) as ledger:
        assert in_a_child(lambda: "forked" in str(ledger.verify().problem)) == 0
        assert in_a_child(ledger.entries) == 2
        assert ledger.entries() == []


@pytest.mark.parametrize("lost_races", [0, 1])
def test_a_schema_that_was_added_to_stops_every_write_and_changes_nothing(path: Path, lost_races: int) -> None:
    """A trigger could alter what is inserted, or make it fail after the row was written."""
    broken = "CREATE TRIGGER worn_out AFTER INSERT ON {} BEGIN SELECT RAISE(FAIL, 'worn out'); END"
    with Ledger.open(path) as ledger:
        ledger.lost_races, head = lost_races, ledger.head
        for table, ask in (
            ("charges", lambda: charge(ledger, "r/0")),
            ("releases", lambda: ledger.store_release("r/0", b"noise")),
        ):
            altered(path, broken.format(table))
            with pytest.raises(LedgerError, match=r"schema was changed \(trigger worn_out\)"):
                ask()
            altered(path, "DROP TRIGGER worn_out")
            if table == "charges":
                assert (ledger.entries(), ledger.head) == ([], head)
                assert ask().sequence == 1
        assert ledger.stored_release("r/0") is None
        assert ledger.verify().ok


@pytest.mark.parametrize("body", [b"not json", b"[]", b"{}", entry(event={"type": "noise"}), entry(unit="planet")])
def test_a_charge_that_cannot_be_read_is_a_problem_not_a_free_release(path, body):
    with Ledger.open(path) as ledger:
        forged(path, body)
        assert not ledger.verify().ok
        with pytest.raises(LedgerError, match="cannot be read"):
            ledger.entries()
    with pytest.raises(LedgerError, match="cannot be read"):
        Ledger.open(path)


def test_a_ledger_that_holds_more_than_its_budget_is_a_problem(tmp_path):
    path = tmp_path / "ledger"
    Ledger.create(path, policy(Budget(epsilon=1.0, delta=1e-5))).close()
    forged(path, entry(event=to_dict(gaussian(0.5))))
    with Ledger.open(path) as ledger:
        found = ledger.verify()
        assert not found.ok
        exact = gaussian_dp.epsilon_from_mu(2.0, 1e-5)
        assert found.problem.startswith(f"what was charged comes to epsilon {upper_text(exact, 6)}")
        with pytest.raises(BudgetExceeded):
            charge(ledger, "r/1", gaussian(1e6))


def test_a_last_charge_that_was_written_anew_is_noticed_by_whoever_saw_it(path):
    with Ledger.open(path) as ledger:
        charge(ledger, "r/0")
        altered(path, "DELETE FROM charges")
        forged(path, entry(time="2020-01-01T00:00:00"))
        with pytest.raises(LedgerError, match="charge 1 was seen and is gone"):
            ledger.entries()
        with pytest.raises(LedgerError, match="charge 1 was seen and is gone"):
            charge(ledger, "r/1")


def test_a_file_that_became_another_ledger_is_noticed_before_it_is_charged(path):
    with Ledger.open(path) as ledger:
        altered(path, "UPDATE identity SET ledger_id = 'another'")
        with pytest.raises(LedgerError, match="another ledger"):
            charge(ledger, "r/0")
        assert "identity" in (ledger.verify().problem or "")


def test_a_policy_that_cannot_be_read_is_refused(path):
    altered(path, "UPDATE identity SET policy = '[]'")
    with pytest.raises(LedgerError, match="policy cannot be read"):
        Ledger.open(path)


# ---- the commit log alone: what is written, what a crash may leave of it, and what it says of a chain

DIGESTS = ["a" * 64, "0123456789abcdef" * 4, "b" * 64]


def chains(charges=(), releases=()):
    rows = {"charges": charges, "releases": releases}
    return {table: [Row(n, "", b"", "", one) for n, one in enumerate(digests, 1)] for table, digests in rows.items()}


def text_of(*rows):
    return "".join(f"{table} {sequence} {digest}\n" for table, sequence, digest in rows)


def open_descriptors():
    gc.collect()  # what earlier tests left would be closed in between
    return len(list(Path("/proc/self/fd").iterdir()))


def test_every_append_adds_one_line_to_a_file_of_its_own(tmp_path):
    before = open_descriptors()
    commit_log = CommitLog.of(tmp_path / "ledger.db")
    assert commit_log.path == tmp_path / "ledger.db.commits"
    assert commit_log.read() is None
    mask = os.umask(0)
    try:
        commit_log.append("charges", 1, DIGESTS[0])  # makes the file if somebody took it away
    finally:
        os.umask(mask)
    commit_log.append("releases", 1, DIGESTS[1])
    commit_log.append("charges", 2, DIGESTS[2])
    wanted = text_of(("charges", 1, DIGESTS[0]), ("releases", 1, DIGESTS[1]), ("charges", 2, DIGESTS[2]))
    assert commit_log.read() == wanted
    assert stat.S_IMODE(commit_log.path.stat().st_mode) == 0o644
    assert open_descriptors() == before


@pytest.mark.parametrize("left", [1, 6, 7, 8, 9, 10, 40, 73, 74])
def test_after_a_cut_line_the_next_one_stands_alone(tmp_path, left):
    commit_log = CommitLog(tmp_path / "w")
    whole = text_of(("charges", 1, DIGESTS[0]), ("charges", 2, DIGESTS[1]))
    line = len(whole) // 2
    commit_log.path.write_text(whole[: line + left])
    commit_log.append("charges", 2, DIGESTS[1])
    assert commit_log.read() == whole[: line + left] + "\n" + whole[line:]
    assert commit_log.problem(commit_log.read(), chains(DIGESTS[:2])) is None
    assert commit_log.problem(commit_log.read(), chains(DIGESTS[:1])) == (
        "charges row 2 was committed and is gone: the tail was lost"
    )


@pytest.mark.parametrize("room", [1, 3, 73])
def test_a_line_that_does_not_fit_on_the_disk_is_an_error_that_names_the_file(tmp_path, room):
    """The limit on a file's size cuts a write short, as a full disk does; the line has 75 bytes."""
    commit_log, before = CommitLog(tmp_path / "w"), open_descriptors()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)  # Python ignores the signal that comes with it
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(OSError, match=f"{commit_log.path}: the disk is full"):
            commit_log.append("charges", 1, DIGESTS[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert open_descriptors() == before
    assert commit_log.path.stat().st_size == room
    assert commit_log.problem(commit_log.read(), chains()) is None  # what is left of the line says nothing


def test_what_a_chain_lacks_is_said():
    commit_log = CommitLog.of(Path("/nowhere/ledger"))
    both = text_of(("charges", 1, DIGESTS[0]), ("charges", 2, DIGESTS[1]), ("releases", 1, DIGESTS[2]))
    whole = chains(DIGESTS[:2], DIGESTS[2:])
    assert commit_log.problem(both, whole) is None
    assert commit_log.problem("", whole) is None  # it may lag behind
    assert commit_log.problem(both[:74], whole) is None
    assert commit_log.problem(None, chains()) is None
    for some in (chains(DIGESTS[:1]), chains((), DIGESTS[:1])):
        problem = commit_log.problem(None, some)
        assert problem == "its commit log ledger.commits is missing (a ledger is moved together with it)"
    gone = "was committed and is gone: the tail was lost"
    assert commit_log.problem(both, chains(DIGESTS[:2])) == f"releases row 1 {gone}"
    assert commit_log.problem(both, chains(DIGESTS[:1], DIGESTS[2:])) == f"charges row 2 {gone}"
    other = "is not the one that was committed"
    assert commit_log.problem(both, chains([DIGESTS[0], DIGESTS[2]], DIGESTS[2:])) == f"charges row 2 {other}"
    assert commit_log.problem(both, chains([DIGESTS[1]] * 2, DIGESTS[2:])) == f"charges row 1 {other}"
    # a cut or damaged line hides nothing that follows
    assert commit_log.problem("char\n" + both, chains()) == f"charges row 1 {gone}"


WHOLE = "charges 1 " + DIGESTS[0]
DAMAGED = [WHOLE[:at] + "~" + rest for at in range(0, len(WHOLE), 3) for rest in ("", WHOLE[at + 1 :])]


@pytest.mark.parametrize(
    "line",
    [*DAMAGED, WHOLE + "0", WHOLE + " ", " " + WHOLE, WHOLE[:10] + "A" * 64, "charges 0 " + DIGESTS[0], "\ufffd"],
)
def test_a_line_that_no_crash_leaves_is_damage(tmp_path, line):
    commit_log = CommitLog(tmp_path / "w")
    assert commit_log.problem(line + "\n", chains(DIGESTS)) == "its commit log w holds a damaged line"
    commit_log.path.write_bytes(line.encode("latin-1", errors="replace").replace(b"?", b"\xff") + b"\n")
    assert "damaged line" in (commit_log.problem(commit_log.read(), chains(DIGESTS)) or "")


@pytest.mark.parametrize("table", ["charges", "releases"])
def test_every_beginning_of_a_line_may_be_what_a_crash_left(table):
    line = f"{table} 123 {DIGESTS[1]}"
    commit_log = CommitLog(Path("w"))
    for length in range(len(line)):
        assert commit_log.problem(line[:length], chains()) is None
    assert commit_log.problem(line, chains()) is not None
