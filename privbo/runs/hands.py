"""Hands of a run: this thread, threads, processes, Dask's or Ray's workers. Chosen by settings, never by what is seen.

| executor | where clients are worked on |
|---|---|
| ``"serial"`` | in the caller's thread |
| ``"threads"`` | in threads of this process: for objectives that wait, or that let go of Python's lock |
| ``"processes"`` | in processes of this machine, which live as long as the run |
| ``"dask:HOST:PORT"``, or a ``dask.distributed.Client`` | in one actor on each of a Dask cluster's workers |
| ``"ray"``, ``"ray:ADDRESS"`` | in Ray actors |
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Literal, NoReturn, Protocol, cast

from privbo.protocol.errors import ConfigurationError
from privbo.runs.crew import LostWorkerError
from privbo.runs.worker import Job, News, Outcome, RemoteWorker, Task, Tell

_WAIT = 1.0  # seconds until a worker that has nothing to tell says so
_START = "import sys; from privbo.runs.hands import serve; serve(int(sys.argv[1]))"


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


class ProcessPlace:
    """A worker process of this machine, which ends when this one does.

    Args:
        job: What it works on.
        quiet: Whether what compiled code writes to the terminal is dropped.
    """

    def __init__(self, job: Job, *, quiet: bool) -> None:
        import cloudpickle

        ours, theirs = socket.socketpair()
        limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(job.spec.threads))
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 (this interpreter, our own module)
                [sys.executable, "-c", _START, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if quiet else None,
                stderr=subprocess.DEVNULL if quiet else None,
                env={**os.environ, **limits, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._connection = Connection(ours.detach())
        self._pickled = cloudpickle.dumps
        self._answer(self._pickled(job))

    def call(self, name: str, *given: object) -> object:
        """Call a method of the worker."""
        return self._answer(self._pickled((name, given)))

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        self._connection.close()

    def _answer(self, question: bytes) -> object:
        import pickle

        self._connection.send_bytes(question)
        kind, found = pickle.loads(self._connection.recv_bytes())  # noqa: S301 (our own process, over a private socket)
        if kind == "error":
            raise ConfigurationError(f"a worker process can't begin: {found}")
        return found


def serve(descriptor: int) -> NoReturn:
    """Be a worker process: answer calls until whoever started this one is gone."""
    import pickle

    import cloudpickle

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the operator's is whoever's that started it
    connection, printed = Connection(descriptor), io.StringIO()
    sys.stdout = sys.stderr = printed  # handed on with a task's news, and shown where the operator wants it
    try:
        try:
            job = pickle.loads(connection.recv_bytes())  # noqa: S301 (from the process that started this one)
            worker = RemoteWorker(job, printed)
        except Exception as error:
            connection.send_bytes(cloudpickle.dumps(("error", f"{type(error).__name__}: {error}")))
            os._exit(1)
        connection.send_bytes(cloudpickle.dumps(("begun", None)))
        while True:
            name, given = pickle.loads(connection.recv_bytes())  # noqa: S301 (the same)
            connection.send_bytes(cloudpickle.dumps(("done", getattr(worker, name)(*given))))
    except (EOFError, OSError):
        os._exit(0)  # a task may be running in its thread


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


class RayPlace:
    """A worker that is a Ray actor.

    Args:
        job: What it works on.
    """

    def __init__(self, job: Job) -> None:
        self._ray: Any = importlib.import_module("ray")
        self._actor = self._ray.remote(RemoteWorker).remote(job)

    def call(self, name: str, *given: object) -> object:
        """Call a method of the actor."""
        return self._ray.get(getattr(self._actor, name).remote(*given))

    def end(self) -> None:
        """End the actor."""
        self._ray.kill(self._actor)


Kind = Literal["serial", "threads", "processes", "dask", "ray"]


def kind_of(executor: object) -> Kind:
    """Name the kind of an executor.

    Raises:
        ConfigurationError: If it is none.
    """
    if isinstance(executor, str):
        kind = executor.partition(":")[0]
        if executor in ("serial", "threads", "processes", "ray") or (kind in ("dask", "ray") and executor != "dask"):
            return cast("Kind", kind)
    elif type(executor).__module__.partition(".")[0] == "distributed":
        return "dask"
    raise ConfigurationError(
        f"executor={executor!r}: input should be 'serial', 'threads', 'processes', 'dask:HOST:PORT', 'ray', "
        "'ray:ADDRESS', or a dask.distributed.Client"
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
        case "ray":
            n_workers = _ray(str(executor))
            return [partial(RayPlace, job)] * (jobs or n_workers)
        case _:
            if sys.platform == "win32":
                raise ConfigurationError("executor='processes' needs Unix; use 'threads', or a Dask client")
            return [partial(ProcessPlace, job, quiet=quiet)] * count


def n_jobs(jobs: int | None) -> int:
    """Number of workers on this machine: what was asked for, else one per processor that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return jobs or (len(affinity(0)) if affinity is not None else os.cpu_count() or 1)


def _dask(executor: object) -> Any:  # noqa: ANN401 (untyped library)
    if not isinstance(executor, str):
        return executor
    return _library("distributed", "dask").Client(executor.partition(":")[2], set_as_default=False)


def _workers(client: Any) -> list[str]:  # noqa: ANN401 (untyped library)
    """Addresses of a Dask cluster's workers."""
    return sorted(client.scheduler_info(n_workers=-1)["workers"])


def _ray(executor: str) -> int:
    ray = _library("ray", "ray")
    if not ray.is_initialized():
        ray.init(address=executor.partition(":")[2] or None)
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def _library(name: str, extra: str) -> Any:  # noqa: ANN401 (untyped library)
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigurationError(f"executor={extra!r} needs {name}: pip install 'privbo[{extra}]'") from None
