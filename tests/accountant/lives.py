"""What a ledger answers in a life of one, what others do to its file, and processes that use it."""

import json
import math
import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from accountant.errors import LedgerError, PrivacyError
from accountant.events import compose, repeat
from accountant.gaussian_dp import epsilon_from_mu
from accountant.ledger import Budget, Ledger
from tests.accountant.builders import EVENT, charge, declared, gaussian, policy

ROOT = Path(__file__).parents[2]
WORKER = [sys.executable, "-m", "tests.accountant.ledger_worker"]


def environment() -> dict[str, str]:
    """This process' environment as it is by now, for a worker on one thread."""
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


# Three charges and a plan of two fit, of which "life" consists; one release of multiplier 1 does not.
BOUND = policy(Budget(epsilon=1.0, delta=1e-5, rule="gaussian"))
PAYLOAD = bytes(range(256))


def life(ledger: Ledger) -> None:
    """Charges, refusals, a stored release and a plan, as every ledger under ``BOUND`` answers them, wherever it is."""
    receipts = [charge(ledger, f"r/{index}") for index in range(3)]
    assert [(found.sequence, found.release_id, found.known) for found in receipts] == [
        (index + 1, f"r/{index}", False) for index in range(3)
    ]
    assert charge(ledger, "r/1") == replace(receipts[1], known=True)
    for words, act in {
        "give the new release an id of its own": lambda: charge(ledger, "r/1", gaussian(1.0)),
        "nothing was charged": lambda: charge(ledger, "r/9", gaussian(1.0)),
        "never charged": lambda: ledger.store_release("r/9", b"free"),
    }.items():
        with pytest.raises(PrivacyError, match=words):
            act()
    for _ in range(2):
        ledger.store_release("r/0", PAYLOAD)
    with pytest.raises(LedgerError, match="other bytes; send those"):
        ledger.store_release("r/0", b"other")
    assert (ledger.stored_release("r/0"), ledger.stored_release("r/1")) == (PAYLOAD, None)
    plan = declared("planned", 2, gaussian(30.0))
    assert ledger.reserve(plan).sequence == ledger.reserve(plan).sequence == 4
    assert [entry.digest for entry in ledger.entries()] == [found.head for found in receipts]
    assert (ledger.event(), ledger.committed()) == (repeat(EVENT, 3), compose([(EVENT, 3), (gaussian(30.0), 2)]))
    spent = epsilon_from_mu(math.sqrt(3 / 8.0**2 + 2 / 30.0**2), 1e-5)
    assert spent <= ledger.check(EVENT).spent <= spent * (1 + 1e-6)
    assert (ledger.verify().ok, ledger.verify().n_entries) == (True, 3)


def altered(path: Path, *statements: str) -> None:
    """Change a ledger's file as another program could."""
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def work(*arguments: object, prefix: tuple[str, ...] = ()) -> dict:
    """What a process of ``ledger_worker`` answers."""
    command = [*prefix, *WORKER, *map(str, arguments)]
    done = subprocess.run(
        command, check=False, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def sent(wire: Path) -> list[tuple[str, str]]:
    """What left, release id and bytes, in order; a line cut off by a kill had not left."""
    return [tuple(line.split()[1:]) for line in wire.read_text().split("\n")[:-1] if line.startswith("SENT")]


def unpaid(place: Path | str, wire: Path) -> list[str]:
    """Releases that left without a charge, or with bytes other than the stored ones."""
    with Ledger.open(place) as ledger:
        assert ledger.verify().ok
        charged = [entry.release_id for entry in ledger.entries()]
        assert charged == [f"r/{index}" for index in range(len(charged))]
        return [
            release_id
            for release_id, payload in sent(wire)
            if release_id not in charged or (ledger.stored_release(release_id) or b"").hex() != payload
        ]
