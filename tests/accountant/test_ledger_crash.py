"""The ledger under kill -9, competition, damage and a full disk; each test also runs its planted fault."""

import json
import os
import random
import re
import shutil
import sys

import pytest

from accountant.errors import LedgerError
from accountant.events import to_dict
from accountant.gaussian_dp import epsilon_from_mu
from accountant.ledger import Budget, Ledger
from tests.accountant.builders import charge, gaussian, policy
from tests.accountant.ledger_worker import EVENT
from tests.accountant.lives import WORKER, altered, answered, entry, forged, sent, started, unpaid, work
from tests.system_tools import require_mount_namespace, require_tool


@pytest.fixture
def path(tmp_path):
    return made(tmp_path, None)


def made(folder, budget: Budget | None):
    path = folder / "ledger.sqlite"
    Ledger.create(path, policy(budget)).close()
    return path


@pytest.mark.parametrize(
    ("kills", "charges"), [(60, 60), pytest.param(240, 300, marks=pytest.mark.slow)], ids=["reduced", "full"]
)
def test_killed_processes_leave_nothing_released_and_not_charged(path, kills: int, charges: int) -> None:
    assert work("crash", path, kills, "sound")["kills"] == kills
    assert len(sent(path.with_name("wire"))) >= charges
    assert unpaid(path, path.with_name("wire")) == []


def test_the_control_that_sends_before_the_commit_is_caught(path) -> None:
    work("crash", path, 40, "send-before-commit")
    assert unpaid(path, path.with_name("wire")) != []


def spend(path, mutant: str) -> tuple[int, int]:
    """Charges accepted by four processes together, and charges in the ledger."""
    workers = [started(*WORKER, "race", path, f"w{i}", mutant) for i in range(4)]
    path.with_name("go").touch()
    answers = [json.loads(answered(worker)) for worker in workers]
    with Ledger.open(path) as ledger:
        return sum(answer["accepted"] for answer in answers), len(ledger.entries())


def budget_for(count: int) -> Budget:
    """A budget that holds ``count`` events exactly: mu = sqrt(count) / z."""
    exact = epsilon_from_mu(count**0.5 / EVENT.noise_multiplier, 1e-5)
    return Budget(epsilon=exact * (1 + 1e-9), delta=1e-5, rule="gaussian")


def test_four_processes_spend_exactly_one_budget(tmp_path) -> None:
    assert spend(made(tmp_path, budget_for(60)), "") == (60, 60)


def test_a_check_then_act_mutant_is_caught(tmp_path) -> None:
    assert max(spend(made(tmp_path, budget_for(40)), "check-then-act")) > 40


# --- damage ---------------------------------------------------------------------------------------


def content(path) -> tuple:
    with Ledger.open(path) as ledger:
        ids = [entry.release_id for entry in ledger.entries()]
        stored = [ledger.stored_release(i) for i in ids]
        return ledger.policy, tuple(ledger.entries()), tuple(stored), ledger.verify().ok


def copied(path, folder):
    """The ledger's files as a crash would leave them (the shared memory file is rebuilt anyway)."""
    folder.mkdir()
    for suffix in ("", "-wal", ".commits"):
        if (source := path.with_name(path.name + suffix)).exists():
            shutil.copy(source, folder / source.name)
    return folder / path.name


def filled(folder, *, crashed: bool = False):
    """A ledger of 25 releases, which was closed, or a copy of it before."""
    path = made(folder, Budget(epsilon=50.0, delta=1e-5))
    with Ledger.open(path) as ledger:
        for index in range(25):
            charge(ledger, f"r/{index}", EVENT)
            ledger.store_release(f"r/{index}", os.urandom(16))
        return copied(path, folder / "crashed") if crashed else path


@pytest.mark.parametrize("crashed", [False, True])
def test_no_bit_flip_is_silent(crashed: bool, tmp_path) -> None:
    path = filled(tmp_path, crashed=crashed)
    # Reading a copy: opening the original would fold its log into it.
    before = content(copied(path, tmp_path / "whole"))
    dice = random.Random(1)
    refused = 0
    for trial in range(200):
        copy = copied(path, tmp_path / f"flip{trial}")
        files = sorted(file for file in copy.parent.iterdir())
        sizes = [file.stat().st_size for file in files]
        (victim,) = dice.choices(files, sizes)
        raw = bytearray(victim.read_bytes())
        raw[dice.randrange(len(raw))] ^= 1 << dice.randrange(8)
        victim.write_bytes(raw)
        images = {file.name: file.read_bytes() for file in files}
        try:
            # A flip in unused space changes nothing that the ledger says; anything else is refused.
            assert content(copy) == before, (trial, victim.name)
        except LedgerError:
            refused += 1
            assert {name: (copy.parent / name).read_bytes() for name in images} == images, victim.name
        shutil.rmtree(copy.parent)
    assert refused > 20


# What another program did to the file, and how the ledger names it.
EDITS = {
    "a row's body": (
        "UPDATE charges SET body = CAST(body || ' ' AS BLOB) WHERE sequence = 9",
        "charges row 9 does not",
    ),
    "a row's id": ("UPDATE charges SET release_id = 'r/900' WHERE sequence = 9", "charges row 9 does not match"),
    "a release's id": ("UPDATE releases SET release_id = 'r/99' WHERE sequence = 1", "releases row 1 does not match"),
    "a digest": ("UPDATE charges SET digest = substr(digest, 2) || '0' WHERE sequence = 9", "charges row 9 does not"),
    "the type of a body": ("UPDATE charges SET body = CAST(body AS TEXT) WHERE sequence = 9", "charges row 9 does"),
    "the type of ids": ("UPDATE charges SET release_id = CAST(release_id AS BLOB)", "charges row 1 does not match"),
    "the type of a link": ("UPDATE releases SET previous = CAST(previous AS BLOB)", "releases row 1 does not match"),
    "stored bytes": ("UPDATE releases SET body = zeroblob(16) WHERE sequence = 9", "releases row 9 does not match"),
    "a lost charge": ("DELETE FROM charges WHERE sequence = 9", "charges row 10 does not follow row 8"),
    "a lost release": ("DELETE FROM releases WHERE sequence = 9", "releases row 10 does not follow row 8"),
    "a lost tail of charges": ("DELETE FROM charges WHERE sequence > 20", "release 'r/20' was stored without a charge"),
    "a lost tail of releases": (
        "DELETE FROM releases WHERE sequence > 20",
        "releases row 21 was committed and is gone",
    ),
    "everything lost": ("DELETE FROM charges", "release 'r/0' was stored without a charge"),
    "the budget": ("UPDATE identity SET policy = replace(policy, '50.0', '99.0')", "row 1"),
    "a policy of another type": ("UPDATE identity SET policy = x'7b7d'", "identity is not a ledger's"),
    "the identity": ("UPDATE identity SET ledger_id = 'another'", "row 1"),
    "an identity of another type": ("UPDATE identity SET ledger_id = x'6162'", "identity is not a ledger's"),
    "no identity": ("DELETE FROM identity", "identity is not a ledger's"),
    "a schema of later": ("PRAGMA user_version = 2", "this program reads 1; upgrade it"),
    "a missing table": ("DROP TABLE releases", "releases"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_no_edit_is_silent(edit: str, tmp_path) -> None:
    path = filled(tmp_path)
    statement, words = EDITS[edit]
    altered(path, statement)
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=words):
        Ledger.open(path)
    assert path.read_bytes() == before


def test_rehashing_the_last_row_is_noticed_by_the_commit_log(tmp_path) -> None:
    path = filled(tmp_path)
    altered(path, "DELETE FROM charges WHERE sequence = 25")
    forged(path, entry(release_id="r/24", event=to_dict(gaussian(900.0))), 25, "r/24")
    with pytest.raises(LedgerError, match="not the one that was committed"):
        Ledger.open(path)


def test_a_receipt_notices_a_lost_tail_even_without_a_commit_log(tmp_path) -> None:
    path = filled(tmp_path)
    with Ledger.open(path) as ledger:
        last = ledger.entries()[-1]
    commit_log = path.with_name(path.name + ".commits")
    kept = [line for line in commit_log.read_text().splitlines() if int(line.split()[1]) < 25]
    commit_log.write_text("\n".join(kept) + "\n")
    altered(path, "DELETE FROM charges WHERE sequence = 25", "DELETE FROM releases WHERE sequence = 25")
    with Ledger.open(path) as ledger:
        found = ledger.verify([(last.sequence, last.digest)])
    assert not found.ok
    assert "tail was lost" in str(found.problem)


def test_a_log_that_was_left_behind_is_noticed(tmp_path) -> None:
    path = filled(tmp_path, crashed=True)
    path.with_name(path.name + "-wal").unlink()
    with pytest.raises(LedgerError):
        Ledger.open(path)


def test_a_missing_commit_log_is_noticed(tmp_path) -> None:
    path = filled(tmp_path)
    path.with_name(path.name + ".commits").unlink()
    with pytest.raises(LedgerError, match="commits"):
        Ledger.open(path)


# --- storage --------------------------------------------------------------------------------------


@pytest.mark.system
def test_a_full_disk_fails_closed_and_loses_nothing(tmp_path) -> None:
    require_mount_namespace()
    script = tmp_path / "full.py"
    script.write_text(FULL_DISK)
    command = ("unshare", "--user", "--map-root-user", "--mount", sys.executable, script, tmp_path / "disk")
    assert answered(started(*command)).split()[-1] == "sound"


FULL_DISK = """
import subprocess, sys
from pathlib import Path
from accountant.ledger import Ledger
from tests.accountant.builders import policy
from tests.accountant.lives import sent, work
disk = Path(sys.argv[1]); disk.mkdir()
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)], check=True)
path, wire = disk / "ledger.sqlite", disk.with_name("wire")
filler = disk / "filler"; filler.write_bytes(bytes(50_000))
Ledger.create(path, policy()).close()
answer = work("fill", path, wire)
assert 3 <= answer["charged"] < 100, answer
filler.unlink()
with Ledger.open(path) as ledger:
    assert ledger.verify().ok
    assert len(ledger.entries()) - answer["charged"] in (0, 1)
    for release_id, payload in sent(wire):
        assert ledger.stored_release(release_id).hex() == payload
    ledger.charge("after", ledger.entries()[0].event, run="r", noise_source="secure")
print("sound")
"""


def flushed_before(trace: str, step: str) -> bool:
    """Whether the log was written and then flushed between the previous step and ``step``."""
    lines = trace.splitlines()
    steps = [i for i, line in enumerate(lines) if re.search(r'write\(.*"(OPENED|CHARGED|STORED)\\n"', line)]
    (end,) = (i for i in steps if f'"{step}' in lines[i])
    begin = max(i for i in steps if i < end)
    between = lines[begin:end]
    writes = [i for i, line in enumerate(between) if "pwrite64" in line and "-wal>" in line]
    flushes = [i for i, line in enumerate(between) if re.search(r"f(data)?sync\(.*-wal>\) += 0", line)]
    return bool(writes) and bool(flushes) and max(flushes) > max(writes)


@pytest.mark.system
@pytest.mark.parametrize("mutant", ["sound", "not-synchronous"])
def test_the_flush_is_seen_before_the_send(path, mutant: str) -> None:
    require_tool("strace")
    log = path.with_name("trace")
    calls = "trace=fdatasync,fsync,write,pwrite64"
    work("once", path, mutant, prefix=("strace", "-f", "-y", "-s", "64", "-e", calls, "-o", str(log)))
    flushed = [flushed_before(log.read_text(), step) for step in ("CHARGED", "STORED")]
    assert flushed == [mutant == "sound"] * 2


def test_opening_beside_a_busy_writer_raises_no_false_alarm(path) -> None:
    writer = started(*WORKER, "fill", path, path.with_name("wire"))
    try:
        seen = []
        while len(seen) < 60 or seen[-1] == 0:
            assert writer.poll() is None
            with Ledger.open(path) as ledger:
                seen.append(len(ledger.entries()))
                assert ledger.verify().ok
    finally:
        writer.kill()
        writer.communicate()
    assert seen == sorted(seen)
    assert seen[-1] > seen[0]
