"""Durable charges against bare SQLite commits; long ledgers against their bars; secure noise against numpy's.

A long ledger's events all differ, or are all the same, or it holds many runs. It is opened and priced with empty
caches; a charge on top of it is not durable here (it is kept in memory), so that what is timed is arithmetic.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np

from accountant import renyi
from accountant.events import Adjacency, PoissonSampledGaussian, Unit
from accountant.ledger import Budget, Ledger, LedgerPolicy
from accountant.ledger.book import Declaration
from accountant.ledger.store import Store
from benchmarks._rows import TRANSCENDENTAL, Limit, Row, flush_seconds, least, timed
from privbo.door.noise import SecureNoise

CHARGES, DRAWS, REPEATS, EVENTS, RUNS = 300, 100_000, 30, 10_000, 10_000
POLICY = LedgerPolicy(
    unit=Unit.CLIENT,
    adjacency=Adjacency.ZERO_OUT,
    population="benchmark",
    n_clients=200,
    budget=Budget(epsilon=100.0, delta=1e-5, rule="renyi"),
)


def rows() -> Iterator[Row]:
    """Median seconds of one charge, and of one draw."""
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = _charges(Path(folder)), _commits(Path(folder))
        disk = Limit(flush_seconds(), "the disk")
        yield Row("ledger: one durable charge", ours, "a bare SQLite commit of one row", theirs, least=disk)
        yield from _long(Path(folder))
    noise, numpy = SecureNoise(), np.random.default_rng()
    ours = _median(lambda: noise.gaussian((DRAWS,), 2.0**16), REPEATS) / DRAWS
    theirs = _median(lambda: numpy.normal(0.0, 1.0, DRAWS), REPEATS) / DRAWS
    # Twelve bytes of keystream (960 operations for 64 of them) are written and read for a draw of eight; a logarithm, a
    # root and half of a turn.
    bound = least(flops=3.0 * TRANSCENDENTAL + 960.0 * 12.0 / 64.0, bytes_moved=2.0 * 12.0 + 8.0)
    yield Row("noise: one secure draw of 1e5", ours, "numpy Generator.normal (seeded)", theirs, least=bound)


def _charges(folder: Path) -> float:
    event = PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=4.0)
    position = iter(range(CHARGES))
    with Ledger.create(folder / "ledger.sqlite", POLICY) as ledger:
        return _median(lambda: ledger.charge(f"r/{next(position)}", event, run="r", noise_source="secure"), CHARGES)


def _long(folder: Path) -> Iterator[Row]:
    for kind, apart, bar, seconds in (("equal", 0.0, "200 microseconds", 200e-6), ("different", 1e-3, "2 ms", 2e-3)):
        with Ledger.create(None, POLICY) as kept:
            after = [_one_charge(kept, number, apart) for number in range(EVENTS + CHARGES)][EVENTS:]
            opened = _opened(kept, folder / f"{kind}.sqlite")
        name = f"ledger of {EVENTS:,} {kind} events"
        yield Row(f"{name}: open and price", opened, "the bar of 2 s", 2.0, kind="bar")
        yield Row(f"{name}: one more charge, without the disk", median(after), f"the bar of {bar}", seconds, kind="bar")
    with Ledger.create(None, POLICY) as kept:
        charges = [_run(kept, number) for number in range(RUNS)]
        opened = _opened(kept, folder / "runs.sqlite")
    name = f"ledger of {RUNS:,} runs"
    first, last = median(charges[:CHARGES]), median(charges[-CHARGES:])
    yield Row(f"{name}: open and price", opened, "the bar of 2 s", 2.0, kind="bar")
    yield Row(f"{name}: reserve one more and charge its three releases", last, "the same on an empty ledger", first)


def _one_charge(kept: Ledger, number: int, apart: float) -> float:
    event = PoissonSampledGaussian(sample_rate=0.01, noise_multiplier=20.0 + apart * number)
    return timed(lambda: kept.charge(f"r/{number}", event, run="r", noise_source="secure"))[0]


def _run(kept: Ledger, number: int) -> float:
    """Seconds of reserving a run of three releases and of charging them."""
    event, run = PoissonSampledGaussian(sample_rate=0.01, noise_multiplier=40.0), f"run-{number}"
    declared = Declaration(run=run, events=((event, 3),), settings="s", plan="p", delta=1e-5, noise_source="secure")

    def work() -> None:
        kept.reserve(declared)
        for position in range(3):
            kept.charge(f"{run}/{position}", event, run=run, noise_source="secure", plan_position=position)

    return timed(work)[0]


def _opened(kept: Ledger, path: Path) -> float:
    """Seconds of opening a ledger's file with nothing cached, and of pricing one more release."""
    store = Store.create(path, kept.stored_policy)
    with store.transaction():
        for row in kept.book().rows:
            store.append("charges", row.release_id, row.body)
    store.close()
    renyi._cached.cache_clear()

    def work() -> None:
        with Ledger.open(path) as ledger:
            ledger.check(PoissonSampledGaussian(sample_rate=0.01, noise_multiplier=9.0))

    return timed(work)[0]


def _commits(folder: Path) -> float:
    connection = sqlite3.connect(folder / "bare.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, body BLOB)")
    found = _median(lambda: connection.execute("INSERT INTO t (body) VALUES (?)", (bytes(700),)), CHARGES)
    connection.close()
    return found


def _median(work: Callable[[], object], repeats: int) -> float:
    return median(timed(work, clock=time.perf_counter)[0] for _ in range(repeats))
