"""Policies, events, damage and processes that several tests of the accountant share."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

from accountant.events import (
    Adjacency,
    Basic,
    BestOfRandomRuns,
    Composed,
    Event,
    FixedSizeSampledGaussian,
    Gaussian,
    Laplace,
    MixtureOfGaussians,
    NonPrivate,
    PoissonSampledGaussian,
    PoissonSampledLaplace,
    RandomAllocationGaussian,
    TruncatedPoissonSampledGaussian,
    Unit,
    ZeroConcentrated,
    compose,
    repeat,
)
from accountant.ledger import Budget, LedgerPolicy

ROOT = Path(__file__).parents[2]
POISSON = PoissonSampledGaussian(sample_rate=0.3, noise_multiplier=2.0)
# One event of every kind, by its name; those that sample do so from 40 clients.
EXAMPLES: dict[str, Basic] = {
    "gaussian": Gaussian(noise_multiplier=2.0),
    "poisson-sampled-gaussian": POISSON,
    "fixed-size-sampled-gaussian": FixedSizeSampledGaussian(n_clients=40, sample_size=10, noise_multiplier=2.0),
    "truncated-poisson-sampled-gaussian": TruncatedPoissonSampledGaussian(
        n_clients=40, sample_rate=0.25, batch_size=16, noise_multiplier=2.0
    ),
    "random-allocation-gaussian": RandomAllocationGaussian(n_rounds=5, participations=2, noise_multiplier=2.0),
    "mixture-of-gaussians": MixtureOfGaussians(
        noise_multiplier=2.0, sensitivities=(0.0, 1.0, 2.0), chances=(0.5, 0.25, 0.25)
    ),
    "zero-concentrated": ZeroConcentrated(rho=0.125, xi=0.01),
    "laplace": Laplace(scale_multiplier=2.0),
    "poisson-sampled-laplace": PoissonSampledLaplace(sample_rate=0.3, scale_multiplier=2.0),
    "best-of-random-runs": BestOfRandomRuns(run=compose([POISSON]), eta=1.0, gamma=0.25),
    "non-private": NonPrivate(),
}
WORKER = [sys.executable, "-m", "tests.accountant.ledger_worker"]


def environment() -> dict[str, str]:
    """This process' environment as it is by now, for a worker on one thread."""
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def policy(budget: Budget | None = None, **changes: object) -> LedgerPolicy:
    """A policy of 40 clients of which one is zeroed out, changed where asked."""
    plain = {"unit": Unit.CLIENT, "adjacency": Adjacency.ZERO_OUT, "population": "p", "n_clients": 40}
    return LedgerPolicy(**(plain | {"budget": budget} | changes))


def poisson(q: float, z: float, count: int | None = None) -> Event:
    """A Poisson sample with Gaussian noise, or so many of them."""
    event = PoissonSampledGaussian(sample_rate=q, noise_multiplier=z)
    return event if count is None else repeat(event, count)


def plan(q: float, z: float, count: int = 1) -> Composed:
    """So many Poisson samples with Gaussian noise."""
    return repeat(PoissonSampledGaussian(sample_rate=q, noise_multiplier=z), count)


def truncated(n: int, q: float, size: int, z: float) -> TruncatedPoissonSampledGaussian:
    """A Poisson sample of which at most ``size`` stay."""
    return TruncatedPoissonSampledGaussian(n_clients=n, sample_rate=q, batch_size=size, noise_multiplier=z)


def allocated(rounds: int, k: int, z: float) -> RandomAllocationGaussian:
    """``k`` participations of so many rounds."""
    return RandomAllocationGaussian(n_rounds=rounds, participations=k, noise_multiplier=z)


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
