"""DP-FTS-DE with many clients in one process: CPU seconds and memory, door and ledger included.

Synthetic clients on a finite space whose models know their kernel. Every size is run in a process of its own:
``python -m benchmarks.many CLIENTS ROUNDS``. The sizes are those up to ``PRIVBO_SCALE_CLIENTS``, 10,000 by default.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np

import privbo as pb
from benchmarks._rows import Row, least, timed
from benchmarks._scale_run import largest
from benchmarks.thompson import of_draws
from privbo.protocol.messages import FloatArray, IntArray
from privbo.protocol.processes import limited_threads

SIZES = {1_000: 40, 10_000: 40, 100_000: 40, 1_000_000: 10}  # rounds by clients
MEMORY = {100_000: 2.5, 1_000_000: 6.0}  # GiB at most
SECONDS, FLAT = 150e-6, 1.5  # per client and round; times those of the smallest size


def rows() -> Iterator[Row]:
    """Give every size's seconds per client and round, whether they stay level, and memory where it has a bar."""
    first, most = None, int(os.environ.get("PRIVBO_SCALE_CLIENTS", "10000"))
    for n_clients, rounds in SIZES.items():
        if n_clients > most:
            break
        command = [sys.executable, "-m", "benchmarks.many", str(n_clients), str(rounds)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 (ours)
        found = json.loads(done.stdout)
        each, run = found["seconds"] / n_clients / rounds, f"{n_clients:,} clients, {rounds} rounds"
        name = f"DP-FTS-DE: {run} on a finite space, M=100, no fits, {found['seconds']:,.0f} s; per client and round"
        flops, moved = (total / rounds for total in of_draws(range(2, rounds + 2)))  # every client sends one a round
        yield Row(name, each, "the bar", SECONDS, kind="bar", least=least(flops=flops, bytes_moved=moved))
        first = first or each
        if n_clients > min(SIZES):
            bar = f"the bar, {FLAT} times that of {min(SIZES):,}"
            yield Row(f"DP-FTS-DE: {run}, per client and round", each, bar, FLAT * first, kind="bar")
        if n_clients in MEMORY:
            bar, gib = f"the bar of {MEMORY[n_clients]:g} GiB", 2**30 / 1e9
            held = found["mib"] / 1024 * gib
            yield Row(f"DP-FTS-DE: {run}, memory", held, bar, MEMORY[n_clients] * gib, kind="bar", unit="GB")


def main(n_clients: int, rounds: int) -> None:
    """Make one run and print its CPU seconds and the MiB that it held at most."""
    curve = np.sin(np.linspace(0.0, 40.0, 1000)) + np.linspace(0.0, 1.0, 1000)
    generator = np.random.default_rng(0)

    def objective(clients: IntArray, units: FloatArray) -> FloatArray:
        noise = 0.1 * generator.standard_normal(len(clients))
        return np.asarray(curve[np.minimum((1000 * units[:, 0]).astype(np.int64), 999)] + noise)

    prior = pb.Prior(median=0.03, spread=0.5, low=1e-3, high=1.0)
    own = pb.OwnModel(kernel="se", draw="exact", refit_every=0, n_candidates=1000, lengthscale=prior)
    algorithm = pb.DPFTSDE(n_regions=1, n_init=2, lengthscale=0.03, own=own)
    problem = pb.Problem(space={"x": pb.Int(0, 999)}, batch_objective=objective, n_clients=n_clients)
    privacy = pb.Privacy(noise_multiplier=1.0, sample_rate=0.25, noise="simulation")
    first = dataclasses.replace(problem, n_clients=1_000)
    with limited_threads(1):
        pb.run(first, algorithm, privacy=privacy, rounds=2, seed=0)  # imports, and what is compiled
        seconds, _ = timed(lambda: pb.run(problem, algorithm, privacy=privacy, rounds=rounds, seed=0))
    sys.stdout.write(json.dumps({"seconds": seconds, "mib": largest()}) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
