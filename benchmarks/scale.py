"""One run on many workers, in wall seconds, and one at many clients, in CPU seconds; for a quiet machine.

``python -m benchmarks many scale --out scale.json``, then ``python -m benchmarks._page docs/scale.md scale.json``.
Rows: the run of ``benchmarks.executors`` on 2, 4 and 8 workers; ``SharedPrior`` with 1,000 clients to
``PRIVBO_SCALE_CLIENTS`` (100,000 by default; a million take two hours of processor) without fits, with the cost per
client and round beside that of 1,000 and the memory beside 6 GB; runs with fits up to a tenth of that. DP-FTS-DE at as
many clients is ``benchmarks.many``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

from benchmarks._rows import Kind, Limit, Place, Row, least
from benchmarks._scale_run import FEATURES
from benchmarks.executors import beside_ideal
from benchmarks.histories import round_flops

WORKERS, JOBS = (2, 4, 8), 2
GIGABYTES, FLAT = 6.0, 1.5


def rows() -> Iterator[Row]:
    """Give every row of the scale page."""
    yield from beside_ideal(WORKERS)
    yield from _clients(fits=True, rounds=20)
    yield from _clients(fits=False, rounds=12)  # the longest last: what was measured before it stays


def _clients(*, fits: bool, rounds: int) -> Iterator[Row]:
    """Runs of many clients, each in a process of its own, on two workers."""
    most = int(os.environ.get("PRIVBO_SCALE_CLIENTS", "100000")) // (10 if fits else 1)
    series, first = "default fits" if fits else "no fits", None
    limit = _least(rounds, fits=fits)
    for n_clients in (10**power for power in range(3, 7) if 10**power <= most):
        arguments = [str(n_clients), str(rounds), str(JOBS), "fits" if fits else "none"]
        command = [sys.executable, "-m", "benchmarks._scale_run", *arguments]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)  # noqa: S603 (ours)
        found = json.loads(done.stdout)
        each = found["seconds"] / n_clients / rounds
        kind: Kind = "peer" if first is None else "bar"  # the first one is what the others are held to
        first = each if first is None else first
        size = f"{n_clients:,} clients, {rounds} rounds, {series}"
        bar = f"{FLAT} times that of 1,000, {series}"
        at = Place(picture="cost", series=series, x=n_clients)
        yield Row(f"{size}, per client and round", each, bar, FLAT * first, kind=kind, place=at, least=limit)
        at = Place(picture="memory", series=series, x=n_clients)
        memory = found["mib"] * 2**20 / 1e9
        yield Row(f"{size}, memory", memory, f"{GIGABYTES:g} GB", GIGABYTES, kind="bar", unit="GB", place=at)


def _least(rounds: int, *, fits: bool) -> Limit:
    """A client's round, on average over the run, at the machine's peak."""
    steps = {"shared": FEATURES} if fits else {"shared": FEATURES, "steps": 0}
    return least(flops=sum(round_flops(t, **steps) for t in range(2, rounds + 2)) / rounds)
