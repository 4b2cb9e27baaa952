"""One run on several workers and at many clients; wall seconds, so for a machine that does nothing else.

Rows: forty clients whose evaluation takes .1 s on two workers beside the ideal; the same run by every executor, whose
points must be identical; runs of 1,000 clients to ``PRIVBO_SCALE_CLIENTS`` (100,000 by default; a million take hours)
without fits, with the cost per client and round beside that of 1,000 and the memory beside 6 GB; runs with fits up to a
tenth of that; and a round of the default model at a history of 1,000 beside five times one at 100.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import privbo as pb
from benchmarks._rows import Row, smallest
from privbo.protocol.errors import RunError
from privbo.protocol.space import Value
from privbo.protocol.threads import limited_threads

N_CLIENTS, SECONDS, ROUNDS = 40, 0.1, 20
WORKERS = (2, 4, 8)
MAX_POINTS = 100


def rows() -> Iterator[Row]:
    """Every row of the scale page."""
    with limited_threads(1):
        yield from _executors()
        yield from _histories()
    yield from _clients(fits=False, rounds=12)
    yield from _clients(fits=True, rounds=20)


def _waiting(client: int, params: dict[str, Value]) -> float:
    """An objective that takes its time, most of it waiting for something else."""
    time.sleep(SECONDS)
    return -((float(params["x"]) - 0.02 * client) ** 2) + float(np.sin(5.0 * float(params["y"])))


def _run(executor: object, jobs: int | None) -> tuple[float, pb.Record]:
    space = {"x": pb.Real(0.0, 1.0), "y": pb.Real(0.0, 1.0)}
    problem = pb.Problem(space=space, objective=_waiting, n_clients=N_CLIENTS, name="waiting")
    privacy = pb.Privacy(noise_multiplier=2.0, noise="simulation")
    start = time.perf_counter()
    made = pb.run(problem, pb.SharedPrior(), privacy=privacy, rounds=ROUNDS, seed=0, executor=executor, jobs=jobs)
    return time.perf_counter() - start, made


def _executors() -> Iterator[Row]:
    """The same run by every executor, start of workers included."""
    _, whole = _run("serial", None)
    evaluations = N_CLIENTS * whole.clients.values.shape[1]
    for kind, jobs in [("threads", 2), ("threads", 7), *(("processes", jobs) for jobs in WORKERS)]:
        yield _beside(f"{kind}, {jobs} workers", *_run(kind, jobs), whole, evaluations * SECONDS / jobs)
    for jobs in WORKERS:
        with _cluster(jobs) as client:
            yield _beside(f"Dask, {jobs} workers", *_run(client, None), whole, evaluations * SECONDS / jobs)


@contextmanager
def _cluster(workers: int) -> Iterator[object]:
    """A scheduler and worker processes of their own."""
    distributed: Any = importlib.import_module("distributed")
    settings = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**settings) as cluster, distributed.Client(cluster) as client:
        yield client


def _beside(name: str, seconds: float, made: pb.Record, whole: pb.Record, ideal: float) -> Row:
    same = all(np.array_equal(a.values, b.values) for a, b in zip(made.releases, whole.releases, strict=True))
    if not same or not np.array_equal(made.clients.units, whole.clients.units):
        raise RunError(f"{name}: points or releases differ from the serial run's")
    size = f"{N_CLIENTS} clients of {SECONDS} s, {ROUNDS} rounds"
    return Row(f"{size}, {name}", seconds, "evaluations alone, shared evenly (bar 1 / 1.15)", ideal)


def _histories() -> Iterator[Row]:
    """A round of clients' own models at short and long histories; CPU seconds per client."""
    from privbo.algorithms.thompson.engine import LocalEngine
    from privbo.algorithms.thompson.evaluations import Evaluations
    from privbo.protocol.messages import PlainEvaluate, Setting
    from privbo.protocol.space import Space

    space = Space({"x": pb.Real(0.0, 1.0), "y": pb.Real(0.0, 1.0)})
    clients, rng = np.arange(8), np.random.default_rng(0)
    own = dataclasses.replace(pb.SharedPrior().own, max_points=MAX_POINTS)
    setting = Setting(space=space, n_clients=len(clients), rounds=2000, public_seed=0)

    def at(t: int) -> Callable[[], object]:
        import torch

        evaluate = PlainEvaluate(lambda who, units: np.sin(7.0 * units.sum(axis=1) + who))
        seen = Evaluations(clients, evaluate, space, torch.device("cpu"))
        for round_ in range(t):
            seen.query(rng.random((len(clients), 2)), round_)

        def once() -> object:
            engine = LocalEngine(own, setting, acquisition="log-ei", avoid=True, clients=clients, seed=0)
            return engine.points(seen, t, None)

        return once

    short, long = (smallest(at(t)) / len(clients) for t in (100, 1000))
    name = f"a round with a fit at 1,000 evaluations, max_points={MAX_POINTS}, CPU seconds per client"
    yield Row(name, long, "five times one at 100", 5.0 * short)


def _clients(*, fits: bool, rounds: int) -> Iterator[Row]:
    """Runs of many clients, each in a process of its own, on two workers."""
    most = int(os.environ.get("PRIVBO_SCALE_CLIENTS", "100000")) // (10 if fits else 1)
    first = None
    for n_clients in (10**power for power in range(3, 7) if 10**power <= most):
        arguments = [str(n_clients), str(rounds), "2", "fits" if fits else "none"]
        command = [sys.executable, "-m", "benchmarks._scale_run", *arguments]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)  # noqa: S603 (ours)
        found = json.loads(done.stdout)
        each = found["seconds"] / n_clients / rounds
        first = each if first is None else first
        what = f"{n_clients:,} clients, {rounds} rounds, {'default fits' if fits else 'no fits'}, 2 workers"
        yield Row(f"{what}, seconds per client and round", each, "that of 1,000 (bar 1 / 1.5)", first)
        yield Row(f"{what}, memory in GB", found["mib"] / 953.7, "bar", 6.0)
