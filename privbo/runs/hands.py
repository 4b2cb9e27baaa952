"""Hands of a run: this thread, threads, processes, Dask's workers. Chosen by settings, never by what is seen.

| executor | where clients are worked on |
|---|---|
| ``"serial"`` | in the caller's thread |
| ``"threads"`` | in threads of this process: for objectives that wait, or that let go of Python's lock |
| ``"processes"`` | in processes of this machine, which live as long as the run |
| ``"dask:HOST:PORT"``, or a ``dask.distributed.Client`` | in one actor on each of a Dask cluster's workers |
"""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Protocol, cast

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.processes import WorkerProcess, n_jobs
from privbo.runs.crew import LostWorkerError
from privbo.runs.worker import Job, News, Outcome, RemoteWorker, Task, Tell

_WAIT = 1.0  # seconds until a worker that has nothing to tell says so


class Place(Protocol):
    """Where a ``RemoteWorker`` is."""

    def call(self, name: str, *given: object) -> object:
        """Call one of its methods; whatever is raised says that it is lost."""
        ...

    def end(self) -> None:
        """End it at once."""
        ...


class RemoteHand:
    """A worker elsewhere, and the one that takes its place when it is lost.

    Args:
        start: Starts a worker.
        tell: Told of evaluations and failures.
        printed: Told what clients' code has printed.
    """

    def __init__(self, start: Callable[[], Place], tell: Tell, printed: Callable[[str], None]) -> None:
        self._start, self._tell, self._printed = start, tell, printed
        self._place: Place | None = None
        self._ended = False

    def work(self, task: Task) -> Outcome:
        """Have a task carried out."""
        self._call("begin", task)
        while True:
            news = cast("News", self._call("news", _WAIT))
            for told in news.told:
                self._tell(told)
            if news.printed:
                self._printed(news.printed)
            if news.error is not None:
                raise news.error
            if news.outcome is not None:
                return news.outcome

    def end(self) -> None:
        """End the worker; another one is started only if there is a task again."""
        self._ended = True
        if (place := self._place) is not None:
            place.end()

    def _call(self, name: str, *given: object) -> object:
        if self._ended:
            raise LostWorkerError("the run has ended")
        try:
            self._place = self._place or self._start()
            return self._place.call(name, *given)
        except ConfigurationError:
            raise
        except Exception as error:
            if self._place is not None:
                self._place.end()
            self._place = None
            raise LostWorkerError(f"{type(error).__name__}: {error}") from error


def _begun(job: bytes) -> RemoteWorker:
    """Be a worker: what clients' code prints is handed on with a task's news, and shown where the operator wants it."""
    sys.stdout = sys.stderr = printed = io.StringIO()
    return RemoteWorker(pickle.loads(job), printed)  # noqa: S301 (from the process that started this one)


class DaskPlace:
    """A worker that is an actor on one of a Dask cluster's workers.

    Args:
        executor: A client of the cluster, or its address, to which a connection is made and closed again.
        job: What it works on.
        at: Which of the cluster's workers, by number; the next one that lives takes its place.
    """

    def __init__(self, executor: object, job: Job, at: int) -> None:
        self._client, self._is_ours = _dask(executor), isinstance(executor, str)
        alive = _workers(self._client)
        if not alive:
            raise OSError("the Dask cluster has no worker")
        where = [alive[at % len(alive)]]
        self._future = self._client.submit(RemoteWorker, job, actor=True, workers=where, pure=False)
        self._actor = self._future.result()

    def call(self, name: str, *given: object) -> object:
        """Call a method of the actor."""
        return getattr(self._actor, name)(*given).result()

    def end(self) -> None:
        """Let go of the actor, which ends with the last one who knows it."""
        self._future.release()
        if self._is_ours:
            self._client.close()


Kind = Literal["serial", "threads", "processes", "dask"]


def kind_of(executor: object) -> Kind:
    """Name the kind of an executor.

    Raises:
        ConfigurationError: If it is none.
    """
    if isinstance(executor, str):
        if executor in ("serial", "threads", "processes"):
            return cast("Kind", executor)
        if executor.startswith("dask:"):
            return "dask"
    elif type(executor).__module__.partition(".")[0] == "distributed":
        return "dask"
    raise ConfigurationError(
        f"executor={executor!r}: input should be 'serial', 'threads', 'processes', 'dask:HOST:PORT', "
        "or a dask.distributed.Client"
    )


def starts(executor: object, jobs: int | None, job: Job, *, quiet: bool) -> list[Callable[[], Place]]:
    """Give what starts each worker of an executor that has them elsewhere.

    Raises:
        ConfigurationError: If it is not installed, or not there.
    """
    count = n_jobs(jobs)
    match kind_of(executor):
        case "dask":
            client = _dask(executor)
            n_workers = len(_workers(client))
            if isinstance(executor, str):
                client.close()
            return [partial(DaskPlace, executor, job, at) for at in range(jobs or n_workers or 1)]
        case _:
            import cloudpickle

            pickled = cloudpickle.dumps(job)
            return [partial(WorkerProcess, partial(_begun, pickled), threads=job.spec.threads, quiet=quiet)] * count


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
