"""The commit log alone: what is written, what a crash may leave of it, and what it says of a chain."""

import os
import resource
import signal
import stat
from pathlib import Path

import pytest

from accountant.ledger.chain import Row
from accountant.ledger.durable import CommitLog

DIGESTS = ["a" * 64, "0123456789abcdef" * 4, "b" * 64]


def chains(charges=(), releases=()):
    rows = {"charges": charges, "releases": releases}
    return {table: [Row(n, "", b"", "", one) for n, one in enumerate(digests, 1)] for table, digests in rows.items()}


def text_of(*rows):
    return "".join(f"{table} {sequence} {digest}\n" for table, sequence, digest in rows)


def open_descriptors():
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
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(OSError, match=f"{commit_log.path}: the disk is full"):
            commit_log.append("charges", 1, DIGESTS[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
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


@pytest.mark.parametrize(
    "line",
    [
        "noise",
        "charge 1",
        "charges 0 " + DIGESTS[0],
        "charges 1 " + DIGESTS[0].upper(),
        "charges 1 " + DIGESTS[0] + "0",
        "charges 1 " + DIGESTS[0] + " ",
        "charges x",
        "charges 1 g",
        " charges 1 " + DIGESTS[0],
        "charges 1 " + "a" * 63 + "\ufffd",
        "\ufffd",
        "CHARGES ",
    ],
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
