"""Backends of a run: this thread, threads, processes, Dask's workers. Chosen by settings, never by what is seen.

| executor | where clients are worked on |
|---|---|
| ``"serial"`` | in the caller's thread |
| ``"threads"`` | in threads of this process: for objectives that wait, or that let go of Python's lock |
| ``"processes"`` | in processes of this machine, which live as long as the run |
| ``"dask:HOST:PORT"``, or a ``dask.distributed.Client`` | in one actor on each of a Dask cluster's workers |
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, cast

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.processes import WorkerProcess, n_jobs
from privbo.runs.worker import ServedWorker, WorkerHandle, WorkerSetup, served


class DaskHandle:
    """A worker that is an actor on one of a Dask cluster's workers.

    Args:
        executor: A client of the cluster, or its address, to which a connection is made and closed again.
        setup: What it works on.
        at: Which of the cluster's workers, by number; the next one that lives takes its place.
    """

    def __init__(self, executor: object, setup: WorkerSetup, at: int) -> None:
        self._client, self._is_ours = _dask(executor), isinstance(executor, str)
        alive = _workers(self._client)
        if not alive:
            raise OSError("the Dask cluster has no worker")
        where = [alive[at % len(alive)]]
        self._future = self._client.submit(ServedWorker, setup, actor=True, workers=where, pure=False)
        self._actor = self._future.result()

    def call(self, name: str, *given: object) -> object:
        """Call a method of the actor."""
        return getattr(self._actor, name)(*given).result()

    def end(self) -> None:
        """Let go of the actor, which ends with the last one who knows it."""
        self._future.release()
        if self._is_ours:
            self._client.close()


Backend = Literal["serial", "threads", "processes", "dask"]


def backend_of(executor: object) -> Backend:
    """Name the backend of an executor.

    Raises:
        ConfigurationError: If it is none.
    """
    if isinstance(executor, str):
        if executor in ("serial", "threads", "processes"):
            return cast("Backend", executor)
        if executor.startswith("dask:"):
            return "dask"
    elif type(executor).__module__.partition(".")[0] == "distributed":
        return "dask"
    raise ConfigurationError(
        f"executor={executor!r}: input should be 'serial', 'threads', 'processes', 'dask:HOST:PORT', "
        "or a dask.distributed.Client"
    )


def starts(executor: object, jobs: int | None, setup: WorkerSetup, *, quiet: bool) -> list[Callable[[], WorkerHandle]]:
    """Give what starts each worker of an executor that has them elsewhere.

    Raises:
        ConfigurationError: If it is not installed, or not there.
    """
    count = n_jobs(jobs)
    match backend_of(executor):
        case "dask":
            client = _dask(executor)
            n_workers = len(_workers(client))
            if isinstance(executor, str):
                client.close()
            return [partial(DaskHandle, executor, setup, at) for at in range(jobs or n_workers or 1)]
        case _:
            import cloudpickle

            pickled = cloudpickle.dumps(setup)
            return [partial(WorkerProcess, partial(served, pickled), threads=setup.spec.threads, quiet=quiet)] * count


def _dask(executor: object) -> Any:  # noqa: ANN401 (untyped library)
    if not isinstance(executor, str):
        return executor
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        raise ConfigurationError("executor='dask' needs distributed: pip install 'privbo[dask]'") from None
    return distributed.Client(executor.partition(":")[2], set_as_default=False)


def _workers(client: Any) -> list[str]:  # noqa: ANN401 (untyped library)
    """Addresses of a Dask cluster's workers."""
    return sorted(client.scheduler_info(n_workers=-1)["workers"])
