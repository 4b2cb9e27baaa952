"""Durable charges against bare SQLite commits; secure noise against numpy's."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np

from accountant.events import Adjacency, PoissonSampledGaussian, Unit
from accountant.ledger import Budget, Ledger, LedgerPolicy
from benchmarks._rows import Row, timed
from privbo.door.noise import SecureNoise

CHARGES, DRAWS, REPEATS = 300, 100_000, 30


def rows() -> Iterator[Row]:
    """Median seconds of one charge, and of one draw."""
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = _charges(Path(folder)), _commits(Path(folder))
    yield Row("ledger: one durable charge", ours, "a bare SQLite commit of one row", theirs)
    noise, numpy = SecureNoise(), np.random.default_rng()
    ours = _median(lambda: noise.gaussian((DRAWS,), 2.0**16), REPEATS) / DRAWS
    theirs = _median(lambda: numpy.normal(0.0, 1.0, DRAWS), REPEATS) / DRAWS
    yield Row("noise: one secure draw of 1e5", ours, "numpy Generator.normal (seeded)", theirs)


def _charges(folder: Path) -> float:
    policy = LedgerPolicy(
        unit=Unit.CLIENT,
        adjacency=Adjacency.ZERO_OUT,
        population="benchmark",
        n_clients=200,
        budget=Budget(epsilon=100.0, delta=1e-5, rule="renyi"),
    )
    event = PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=4.0)
    position = iter(range(CHARGES))
    with Ledger.create(folder / "ledger.sqlite", policy) as ledger:
        return _median(lambda: ledger.charge(f"r/{next(position)}", event, run="r", noise_source="secure"), CHARGES)


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
