"""One run by every executor: forty clients whose evaluation waits .1 s, beside the ideal; wall seconds.

Two workers have a bar, 1.15 times the ideal; ``benchmarks.scale`` has more of them. The same run without waiting says
what is not the evaluations': the start of workers, clients' models, messages. Points and releases of every executor
must be those of the serial run, to the last bit.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

import privbo as pb
from benchmarks._rows import Limit, Place, Row
from privbo.protocol.errors import RunError
from privbo.protocol.processes import limited_threads
from privbo.protocol.space import Value

N_CLIENTS, SECONDS, ROUNDS, BAR = 40, 0.1, 20, 1.15


def rows() -> Iterator[Row]:
    """Give the rows of two workers, which make no picture."""
    for row in beside_ideal((2,)):
        yield replace(row, place=None)


def quick(client: int, params: dict[str, Value]) -> float:
    """Give a client's value at once."""
    return -((float(params["x"]) - 0.02 * client) ** 2) + float(np.sin(5.0 * float(params["y"])))


def waiting(client: int, params: dict[str, Value]) -> float:
    """Give the same after a while, spent waiting for something else."""
    time.sleep(SECONDS)
    return quick(client, params)


def beside_ideal(workers: Iterable[int]) -> Iterator[Row]:
    """Give the rows of so many workers each, in threads, processes and on Dask, and whether all of them agree."""
    with limited_threads(1):
        _, whole = _run(quick, "serial", None)
        evaluations, tried = N_CLIENTS * whole.clients.values.shape[1], 0
        for jobs in workers:
            ideal = evaluations * SECONDS / jobs
            for kind in ("threads", "processes", "Dask"):
                with _executor(kind, jobs) as (executor, count):
                    seconds, made = _run(waiting, executor, count)
                _require_same(f"{kind}, {jobs} workers", made, whole)
                tried += 1
                name = f"{N_CLIENTS} clients of {SECONDS} s, {ROUNDS} rounds, {kind}, {jobs} workers"
                yield _row(name, kind, jobs, seconds, ideal)
                if jobs == 2:
                    yield Row(name, seconds, f"the bar, {BAR} times the ideal", BAR * ideal, kind="bar")
            seconds, made = _run(quick, "processes", jobs)
            _require_same(f"processes without waiting, {jobs} workers", made, whole)
            yield _row(
                f"the same without waiting, processes, {jobs} workers", "processes, no waiting", jobs, seconds, ideal
            )
        name = "executors with the serial run's points and releases, to the last bit"
        yield Row(name, tried, "all that were tried", tried, more_is_better=True, kind="bar", unit="runs")


def _row(name: str, series: str, jobs: int, seconds: float, ideal: float) -> Row:
    place = Place(picture="workers", series=series, x=jobs)
    least = Limit(ideal, "the objective") if "no waiting" not in series else None
    return Row(name, seconds, "evaluations alone, shared evenly", ideal, least=least, place=place)


def _run(objective: Callable[..., float], executor: object, jobs: int | None) -> tuple[float, pb.Record]:
    space = {"x": pb.Real(0.0, 1.0), "y": pb.Real(0.0, 1.0)}
    problem = pb.Problem(space=space, objective=objective, n_clients=N_CLIENTS, name="waiting")
    privacy = pb.Privacy(noise_multiplier=2.0, noise="simulation")
    start = time.perf_counter()
    made = pb.run(problem, pb.SharedPrior(), privacy=privacy, rounds=ROUNDS, seed=0, executor=executor, jobs=jobs)
    return time.perf_counter() - start, made


@contextmanager
def _executor(kind: str, jobs: int) -> Iterator[tuple[object, int | None]]:
    """An executor and the number to give it; for Dask a scheduler and worker processes of their own."""
    if kind != "Dask":
        yield kind, jobs
        return
    distributed: Any = importlib.import_module("distributed")
    settings = {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": None}
    # A cluster leaves its workers' settings in this process's environment, and so to all that are started after it.
    with (
        patch.dict(os.environ),
        distributed.LocalCluster(**settings) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client, None


def _require_same(name: str, made: pb.Record, whole: pb.Record) -> None:
    same = all(np.array_equal(a.values, b.values) for a, b in zip(made.releases, whole.releases, strict=True))
    if not same or not np.array_equal(made.clients.units, whole.clients.units):
        raise RunError(f"{name}: points or releases differ from the serial run's")
