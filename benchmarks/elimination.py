"""Eliminations: a large Fed-PNE without its environment, memory of nodes."""

from __future__ import annotations

import math
import time
import tracemalloc
from collections.abc import Iterator

import numpy as np

import privbo as pb
from benchmarks._rows import Row
from privbo.algorithms.elimination.partition import Partition
from privbo.protocol.messages import FloatArray, IntArray

CLIENTS, HORIZON, SECONDS = 10_000, 5000, 2.0


def rows() -> Iterator[Row]:
    """Fed-PNE against its time limit, bytes per node against objects."""
    yield Row(f"Fed-PNE, M={CLIENTS}, T={HORIZON}, environment excluded", _fed_pne(), "the bar", SECONDS, kind="bar")
    yield from _memory()


class _Timed:
    """An environment that knows how long it took."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._generator = np.random.default_rng(0)

    def __call__(self, clients: IntArray, units: FloatArray) -> FloatArray:
        return self.pull(clients, units, np.ones(len(clients), dtype=np.int64))

    def pull(self, clients: IntArray, units: FloatArray, counts: IntArray) -> FloatArray:
        start = time.perf_counter()
        x = units[:, 0] + 0.01 * np.sin(clients)
        means = 0.5 + 0.3 * np.sin(7 * x) + self._generator.normal(0, 0.05, len(x)) / np.sqrt(np.maximum(counts, 1))
        self.seconds += time.perf_counter() - start
        return np.clip(means, 0, 1)


def _fed_pne() -> float:
    """Seconds of a whole private run, door and ledger included, less the environment's."""
    _timed_run(100)  # imports
    return _timed_run(CLIENTS)


def _timed_run(n_clients: int) -> float:
    environment = _Timed()
    problem = pb.Problem(space={"x": pb.Real(0, 1)}, batch_objective=environment, n_clients=n_clients, name="bench")
    privacy = pb.Privacy(noise_multiplier=4.0, noise="simulation")
    start = time.perf_counter()
    pb.run(problem, pb.FedPNE(horizon=HORIZON), privacy=privacy, rounds=20, seed=0)
    return time.perf_counter() - start - environment.seconds


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
        name = f"{count} active nodes, peak bytes per node (in the columns of seconds)"
        yield Row(name, ours, "PyXAB objects", held)
