"""Processes that use a ledger and may be killed at any moment; run by the crash tests.

``crash``: forks a child again and again, lets it release (charge, store, send), kills it
with -9 after a random moment, and leaves behind what was sent. ``race``: charges until the
budget is spent. ``once``: one release, for strace. ``fill``: releases until storage fails.
The mutants do it wrong on purpose: the tests must notice.
"""

import contextlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from accountant.errors import BudgetExceeded, LedgerError
from accountant.events import Gaussian
from accountant.ledger import Ledger
from accountant.ledger.address import place_of

EVENT = Gaussian(noise_multiplier=20.0)


def beside(place, name: str) -> Path:
    """A file beside a ledger, or beside its commit log."""
    return (place if isinstance(place, Path) else place.commit_log.path).with_name(name)


def opened(path: Path) -> int:
    """A file that is appended to, and what is written there stays when its writer is killed."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def send(wire: int, release_id: str, payload: bytes) -> None:
    os.write(wire, f"SENT {release_id} {payload.hex()}\n".encode())


def release(ledger: Ledger, wire: int, release_id: str, *, mutant: str = "") -> None:
    """Charged -> drawn -> stored -> sent; a stored release is sent again as it is."""
    payload = os.urandom(16)
    if mutant == "send-before-commit":
        send(wire, release_id, payload)
    ledger.charge(release_id, EVENT, run="crash", noise_source="secure")
    stored = ledger.stored_release(release_id)
    if stored is None:
        ledger.store_release(release_id, payload)
        stored = ledger.stored_release(release_id)
    assert stored is not None
    if mutant != "send-before-commit":
        send(wire, release_id, stored)


def wait_for_a_moment(dice: random.Random, wire: int) -> None:
    """Sometimes while the child opens the ledger, mostly somewhere inside its next releases."""
    if dice.random() < 0.2:
        time.sleep(dice.uniform(0.0, 0.02))
        return
    releases, sent, start = dice.choice([1, 2, 3]), os.fstat(wire).st_size, time.monotonic()
    # Counted in what was sent, so that a busy machine kills at the same places as an idle one.
    while os.fstat(wire).st_size < sent + releases * 40 and time.monotonic() < start + 10:
        time.sleep(0.0002)
    # Opening takes the longer the more was charged; in so long a child would come to the end of its releases.
    time.sleep(dice.uniform(0.0, min(0.02, 0.5 * (time.monotonic() - start))))


def crash(path, count: str, mutant: str) -> dict[str, int]:
    """Kill a releasing child so many times; every child resumes where the ledger stands."""
    kills = int(count)
    dice, wire = random.Random(kills), opened(beside(path, "wire"))
    for _ in range(kills):
        child = os.fork()
        if child == 0:
            with Ledger.open(path) as ledger:
                # The last round may have been charged, stored or sent only; it is asked for again.
                start = max(0, len(ledger.entries()) - 1)
                for index in range(start, start + 1000):
                    release(ledger, wire, f"r/{index}", mutant=mutant)
            os._exit(1)
        wait_for_a_moment(dice, wire)
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if not os.WIFSIGNALED(status):
            raise SystemExit(f"a child ended by itself with {status}")
    return {"kills": kills}


def race(path, name: str, mutant: str) -> dict[str, int]:
    """Charge until the budget is spent."""
    accepted = 0
    with Ledger.open(path) as ledger:
        if mutant == "check-then-act":
            ledger._is_current = lambda: time.sleep(0.002) or True
        while not beside(path, "go").exists():
            time.sleep(0.001)
        refused = (BudgetExceeded, LedgerError) if mutant else BudgetExceeded
        with contextlib.suppress(refused):
            while True:
                ledger.charge(f"{name}/{accepted}", EVENT, run=name, noise_source="secure")
                accepted += 1
    return {"accepted": accepted}


def once(path, mutant: str) -> dict[str, int]:
    """One release."""
    wire = opened(beside(path, "wire"))
    with Ledger.open(path) as ledger:
        if mutant == "not-synchronous":
            ledger._store.tables.connection.execute("PRAGMA synchronous=OFF")
        os.write(wire, b"OPENED\n")
        ledger.charge("r/0", EVENT, run="r", noise_source="secure")
        os.write(wire, b"CHARGED\n")
        ledger.store_release("r/0", b"noise")
        os.write(wire, b"STORED\n")
    return {}


def fill(path, answers: str) -> dict[str, int]:
    """Release until storage fails; the failure must be a ``LedgerError``."""
    wire, charged = opened(Path(answers)), 0
    with Ledger.open(path) as ledger, contextlib.suppress(LedgerError):
        for index in range(100_000):
            ledger.charge(f"r/{index}", EVENT, run="r", noise_source="secure")
            charged += 1
            payload = os.urandom(2000)
            ledger.store_release(f"r/{index}", payload)
            send(wire, f"r/{index}", payload)
    return {"charged": charged}


def main() -> None:
    """``ledger_worker MODE LEDGER ...``; prints one JSON line."""
    mode, place, *more = sys.argv[1:]
    answer = {"crash": crash, "race": race, "once": once, "fill": fill}[mode](place_of(place), *more)
    print(json.dumps(answer) + "\n", end="", flush=True)  # one write: eight of these share a pipe


if __name__ == "__main__":
    main()
