"""Server, sites and guardians killed with -9 at any moment: no round has two noises, and nothing left unpaid.

All parties are one process here, which dies just after one of them has written something. ``PRIVBO_KILLS`` says how
often.
"""

from __future__ import annotations

import os
import random
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from accountant.errors import LedgerError
from accountant.ledger import Ledger
from accountant.verify.auditor import verify_bundle
from privbo.door.shares import NoisySum, joined
from privbo.reports.bundle import write_bundle
from tests.deployment.federations import Federation
from tests.deployment.reading import releases
from tests.guardians.test_flower import NAMES, guarded
from tests.runs.test_kills import ended, forked

KILLS = int(os.environ.get("PRIVBO_KILLS", "100"))
WATCHED = (
    "server/run/ledger.sqlite-wal",
    "server/run/guardians.jsonl",
    "server/run/history.jsonl",
    "server/run/private/transport.jsonl",
    *(f"{site}/kept/*/sent/*.npz" for site in ("north", "west")),
    *(f"{name}/kept/*/{file}" for name in NAMES for file in ("ledger.sqlite-wal", "rounds/*.json", "rounds/*.npz")),
)


def age(root: Path, pattern: str) -> list[tuple[str, int, int]]:
    found = []
    for path in sorted(root.glob(pattern)):
        with suppress(OSError):
            stat = path.stat()
            found.append((path.name, stat.st_mtime_ns, stat.st_size))
    return found


def killed(federation: Federation, dice: random.Random) -> bool:
    """Plays on in a process of its own and kills it just after something was written; False if it ended before."""
    pattern = dice.choice(WATCHED)
    before = age(federation.root, pattern)
    process = forked(federation.play)
    while process.exitcode is None and age(federation.root, pattern) == before:
        process.join(0.001)
    process.join(dice.choice([0.0, 0.0, 0.002, 0.01, 0.05]))
    if process.exitcode is None:
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        return True
    return not ended(process)


def standing(federation: Federation) -> dict[str, bytes]:
    """Everything that may have left: guardians' answers and statements, sites' ciphertexts, the server's releases."""
    found = {}
    ledgers = [*federation.root.glob("guardian*/kept/*/ledger.sqlite"), federation.run.ledger_path]
    for path in ledgers:
        with suppress(LedgerError), Ledger.open(path) as book:
            charged = {entry.release_id for entry in book.entries()}
            for row in book.release_rows():
                assert row.release_id in charged
                found[f"{path}: {row.release_id}"] = row.body
    for pattern in ("*/kept/*/sent/*.npz", "guardian*/kept/*/rounds/*.json"):
        found |= {str(path): path.read_bytes() for path in federation.root.glob(pattern)}
    return found


@pytest.mark.slow
def test_a_hundred_kills_leave_one_noise_to_every_round_and_none_unpaid(tmp_path: Path) -> None:
    dice, done, run, outputs = random.Random(22), 0, 0, 0
    while done < KILLS:
        federation = guarded(tmp_path / f"run-{run}", seed=None)
        seen: dict[str, bytes] = {}
        while killed(federation, dice) if done < KILLS else not ended(forked(federation.play)):
            done += 1
            now = standing(federation)
            assert {name: now.get(name) for name in seen} == seen  # what left once is there, the same
            seen = now
        final = standing(federation)
        assert {name: final.get(name) for name in seen} == seen
        check(federation)
        outputs += len(final)
        run += 1
    assert outputs > 10 * run


def check(federation: Federation) -> None:
    """Every release of the server is the sum of answers that each guardian has charged, and stored, once."""
    books = [Ledger.open(path) for path in sorted(federation.root.glob("guardian*/kept/federated-*/ledger.sqlite"))]
    with Ledger.open(federation.run.ledger_path) as server:
        for entry, release in zip(server.entries(), releases(federation), strict=True):
            parts = []
            for book in books:
                assert [each.event for each in book.entries() if each.release_id == entry.release_id] == [entry.event]
                parts.append(NoisySum.decode(book.stored_release(entry.release_id) or b""))
            total = joined([part.total for part in parts]).astype(float)
            scale = total / release.values.ravel()
            assert scale.max() == pytest.approx(
                scale.min(), rel=1e-12
            )  # the grid's step, and nothing else, between them
    for book in books:
        assert len(book.entries()) == len(book.release_rows())
        book.close()
    found = verify_bundle(write_bundle(federation.run.path).path)  # no signature of a release was lost
    assert found.verified, found.problems
