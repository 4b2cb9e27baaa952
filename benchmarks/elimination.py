"""Eliminations: a large Fed-PNE without its environment, memory of nodes."""

from __future__ import annotations

import math
import time
import tracemalloc
from collections.abc import Iterator

import numpy as np

import privbo as pb
from benchmarks._rows import Row, least
from privbo.algorithms.elimination.settings import Partition
from privbo.protocol.messages import FloatArray, IntArray

CLIENTS, HORIZON, SECONDS = 10_000, 5000, 2.0


def rows() -> Iterator[Row]:
    """Fed-PNE against its time limit, bytes per node against objects."""
    _timed_run(100)  # imports
    seconds, numbers = _timed_run(CLIENTS)
    # Every client's answer of every phase is written, read once to clip it, and read again to sum it.
    limit = least(bytes_moved=3.0 * 8.0 * CLIENTS * numbers)
    name = f"Fed-PNE, M={CLIENTS}, T={HORIZON}, environment excluded"
    yield Row(name, seconds, "the bar", SECONDS, kind="bar", least=limit)
    yield from _memory()


class _Timed:
    """An environment that knows how long it took."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._generator = np.random.default_rng(0)

    def __call__(self, clients: IntArray, units: FloatArray) -> FloatArray:
        return self.pull(clients, units, np.ones(len(clients), dtype=np.int64))

    def pull(self, clients: IntArray, units: FloatArray, counts: IntArray) -> FloatArray:
        start = time.process_time()
        x = units[:, 0] + 0.01 * np.sin(clients)
        means = 0.5 + 0.3 * np.sin(7 * x) + self._generator.normal(0, 0.05, len(x)) / np.sqrt(np.maximum(counts, 1))
        self.seconds += time.process_time() - start
        return np.clip(means, 0, 1)


def _timed_run(n_clients: int) -> tuple[float, int]:
    """Seconds of a whole private run, door and ledger included, less the environment's; numbers released."""
    environment = _Timed()
    problem = pb.Problem(space={"x": pb.Real(0, 1)}, batch_objective=environment, n_clients=n_clients, name="bench")
    privacy = pb.Privacy(noise_multiplier=4.0, noise="simulation")
    start = time.process_time()
    made = pb.run(problem, pb.FedPNE(horizon=HORIZON, release_when="always"), privacy=privacy, rounds=20, seed=0)
    seconds = time.process_time() - start - environment.seconds
    return seconds, sum(release.values.size for release in made.releases)


def _memory() -> Iterator[Row]:
    """Peak bytes per node of children and centres in one dimension, beside PyXAB's node objects."""
    from PyXAB.partition.BinaryPartition import BinaryPartition

    partition = Partition(n_dims=1)
    for count in (10_000, 100_000):
        tracemalloc.start()
        nodes = partition.children(np.arange(count // 2))
        partition.centres(20, nodes)
        ours = tracemalloc.get_traced_memory()[1] / count
        tracemalloc.stop()
        tracemalloc.start()
        peer = BinaryPartition(domain=[[0, 1]])
        for _ in range(int(math.log2(count)) - 1):
            peer.deepen()
        held = tracemalloc.get_traced_memory()[1] / sum(len(layer) for layer in peer.get_node_list())
        tracemalloc.stop()
        yield Row(f"{count} active nodes, peak per node", ours, "PyXAB objects", held, unit="bytes")
