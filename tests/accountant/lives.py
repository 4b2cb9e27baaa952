"""What a ledger answers in a life of one, what others do to its file, and processes that use it."""

import json
import math
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from accountant.errors import LedgerError, PrivacyError
from accountant.events import compose, repeat, to_dict
from accountant.gaussian_dp import epsilon_from_mu
from accountant.ledger import Budget, Ledger
from accountant.ledger.chain import row_digest
from accountant.ledger.policy import canonical
from accountant.ledger.store import SqliteTables
from tests.accountant.builders import EVENT, POISSON, charge, declared, gaussian, policy

ROOT = Path(__file__).parents[2]
WORKER = [sys.executable, "-m", "tests.accountant.ledger_worker"]


def started(*command: object) -> subprocess.Popen:
    """A process on one thread, in this process' environment as it is by now."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        list(map(str, command)), cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def answered(process: subprocess.Popen) -> str:
    """What a process prints, once it has ended well."""
    out, problems = process.communicate(timeout=300)
    assert process.returncode == 0, problems
    return out


def work(*arguments: object, prefix: tuple[str, ...] = ()) -> dict:
    """What a process of ``ledger_worker`` answers."""
    return json.loads(answered(started(*prefix, *WORKER, *arguments)))


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


def entry(**changes: object) -> bytes:
    """The body of a charge, as the program writes it but for the changes."""
    plain = {
        "release_id": "r/0", "run": "r", "event": to_dict(POISSON), "sampler": "poisson", "noise_source": "secure",
        "plan_position": 0, "time": "2026-01-01T00:00:00",
    }  # fmt: skip
    return canonical(policy().meaning | plain | changes)


def forged(path: Path, body: bytes, sequence: int = 1, release_id: str = "r/0") -> None:
    """Chain a charge to the last one of a file, with a digest that is right."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        previous = SqliteTables(path, connection).identity().genesis("charges")
        for (digest,) in connection.execute("SELECT digest FROM charges ORDER BY sequence"):
            previous = digest
        digest = row_digest(previous, sequence, release_id, body)
        connection.execute("INSERT INTO charges VALUES (?, ?, ?, ?, ?)", (sequence, release_id, body, previous, digest))


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
