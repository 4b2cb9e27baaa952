"""Workers of a run in threads, processes or a Dask cluster, and what is done when one is lost. PRIVATE.

| executor | where clients are worked on |
|---|---|
| ``"serial"`` | in the caller's thread |
| ``"threads"`` | in threads of this process: for objectives that wait, or that let go of Python's lock |
| ``"processes"`` | in processes of this machine, which live as long as the run |
| ``"dask:HOST:PORT"``, or a ``dask.distributed.Client`` | in one actor on each of a Dask cluster's workers |
"""

from __future__ import annotations

import io
import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias

from privbo.protocol.errors import ConfigurationError, RunError, needs
from privbo.protocol.problem import Evaluator, Rows
from privbo.protocol.processes import WorkerProcess, limited_loaded_threads, n_jobs, named, portable, start_server
from privbo.runs.clients import Each, LocalWorker, Outcome, Result, WorkerSetup, WorkerTask, require_device
from privbo.runs.spec import Spec
from privbo.runs.states import EvaluationJournal, Group

_WAIT = 1.0  # seconds until a worker that has nothing to report says so
_ATTEMPTS = 4

Message: TypeAlias = Rows | tuple[int, str] | tuple[int, int, int]
"""Evaluations that were made; a client and why it failed, or how many of its scores were clipped."""
OnMessage: TypeAlias = Callable[[Message], None]
Update: TypeAlias = tuple[tuple[Message, ...], str, Outcome | BaseException | None]
"""PRIVATE: messages in order, what was printed, and how the task ended once it did; an error is a program's fault."""


def backend_of(executor: object, spec: Spec) -> str:
    """Name the backend of an executor: ``"serial"``, ``"threads"``, ``"processes"`` or ``"dask"``; starts nothing.

    Raises:
        ConfigurationError: If there is none such, it has nothing to do, or all clients may overrun a round of one.
    """
    backend = executor.partition(":")[0] if isinstance(executor, str) and executor != "dask" else ""
    if type(executor).__module__.partition(".")[0] == "distributed":
        backend = "dask"
    if backend not in ("serial", "threads", "processes", "dask"):
        raise ConfigurationError(
            f"executor={executor!r}: input should be 'serial', 'threads', 'processes', 'dask:HOST:PORT', "
            "or a dask.distributed.Client"
        )
    if backend != "serial" and spec.problem.is_asked:
        raise ConfigurationError(
            f"executor={executor!r}: trials of objective='ask' are evaluated elsewhere already; drop the executor"
        )
    if backend == "serial" and spec.jobs not in (None, 1):
        raise ConfigurationError(f"jobs={spec.jobs}, executor='serial': it has one worker; name another executor")
    if spec.times is not None:
        spec.times.of_one(spec.problem.n_clients)
    return backend


def pool_of(executor: object, spec: Spec, *, quiet: bool = False) -> Callable[..., WorkerPool]:
    """Give what makes the workers that an executor names, of a setup, an evaluator and a journal.

    Args:
        executor: Who works on clients.
        spec: The run.
        quiet: As of ``WorkerPool``.

    Raises:
        ConfigurationError: As of ``backend_of``, and if it does not answer, or the problem or device is not for it.
    """
    backend = backend_of(executor, spec)
    if backend != "dask":  # whose workers are elsewhere
        require_device(spec.device)
    made = partial(WorkerPool, backend, executor, quiet=quiet)
    if backend in ("serial", "threads"):
        return made
    if backend == "processes":
        start_server()  # loads while the run is planned
    import cloudpickle

    try:
        cloudpickle.dumps(spec.problem)
    except Exception as error:
        raise ConfigurationError(
            f"executor={executor!r}: the problem can't be sent to workers ({named(error)}); let it open files and "
            "connections where they are used, or use 'threads'"
        ) from None
    if backend == "dask":
        client = dask_client(executor)  # refused before anything is charged
        if isinstance(executor, str):
            client.close()
    return made


class LostWorkerError(Exception):
    """A worker is gone, or can't be reached any more; another one has taken its place and holds nothing."""


class WorkerPool:
    """Workers of the groups of a run; each group has one.

    What they tell is put where it belongs; several of them may speak at once.

    Args:
        backend: Where they are.
        executor: Who has them.
        setup: The run.
        evaluate: Notes failures, and calls the run's callbacks.
        journal: Keeps evaluations.
        quiet: Whether what is written to a worker process's own descriptors is dropped.
        asking: As of ``clients_of``; trials are waited for in the caller's process.

    Raises:
        ConfigurationError: If the backend is not installed, or not there.
    """

    def __init__(
        self,
        backend: str,
        executor: object,
        setup: WorkerSetup,
        evaluate: Evaluator,
        journal: EvaluationJournal,
        *,
        quiet: bool = False,
        asking: Callable[..., Each] | None = None,
    ) -> None:
        self.is_serial = backend == "serial"
        self._evaluate, self._journal, self._lock = evaluate, journal, threading.Lock()
        self._ended: BaseException | None = None
        self._is_over = False
        jobs, starts = setup.spec.jobs, list[Callable[[], WorkerProcess | DaskHandle]]()
        self.workers: Sequence[LocalWorker | RemoteWorker]
        if self.is_serial:
            self.workers = [LocalWorker(setup, evaluate, journal.add, asking)]
            return
        if backend == "threads":
            own = [evaluator_of(setup, self._hear) for _ in range(n_jobs(jobs))]
            for each in own:
                each.on_evaluation, each.stopped = self._moved, evaluate.stopped
            self.workers = [LocalWorker(setup, each, journal.add) for each in own]
            return
        if backend == "dask":
            client = dask_client(executor)
            n_workers = len(_workers(client))
            if isinstance(executor, str):
                client.close()
            starts += [partial(DaskHandle, executor, setup, at) for at in range(jobs or n_workers or 1)]
        else:
            import cloudpickle

            served_there = partial(served, cloudpickle.dumps(setup))
            starts += [partial(WorkerProcess, served_there, threads=setup.spec.threads, quiet=quiet)] * n_jobs(jobs)
        self.workers = [RemoteWorker(start, self._hear, self._print) for start in starts]

    def each(
        self,
        groups: Sequence[Group],
        work: Callable[[Group, LocalWorker | RemoteWorker, bool], Result],
        held: set[Group],
    ) -> list[Result]:
        """Results of all groups in their order, each worker's one after the other.

        Args:
            groups: All of them.
            work: Works on one group by a worker, each evaluation in a process of its own or not.
            held: Groups whose states are in their workers' memory; those of a lost worker are taken out.
        """

        def done(group: Group, start: int) -> Result:
            losses = list[LostWorkerError]()
            while len(losses) < _ATTEMPTS:
                try:
                    return work(group, self.workers[start], len(losses) > 1)
                except LostWorkerError as error:
                    if self._is_over:
                        raise
                    losses.append(error)
                    held.difference_update(groups[start :: len(self.workers)])
            raise RunError(
                f"clients {group[0]} to {group[1] - 1}: {len(losses)} workers were lost one after the other "
                f"({losses[-1]}); resume the run when the machines are well, or with executor='serial'"
            )

        if self.is_serial:
            return [work(group, self.workers[0], False) for group in groups]

        def share(start: int) -> list[Result]:
            return [done(group, start) for group in groups[start :: len(self.workers)]]

        with ThreadPoolExecutor(len(self.workers)) as threads:
            pending = [threads.submit(share, start) for start in range(len(self.workers))]
            try:
                found = [one.result() for one in pending]
            except BaseException:
                self.end()  # else the others are waited for
                raise
        return [found[index % len(self.workers)][index // len(self.workers)] for index in range(len(groups))]

    def end(self) -> None:
        """Stop all workers, for good."""
        self._is_over = True
        for worker in self.workers:
            if isinstance(worker, RemoteWorker):  # another one works in the caller's time
                worker.end()

    def _hear(self, message: Message) -> None:
        """Keep evaluations, note failures, and call the run's callbacks."""
        if isinstance(message, tuple):
            with self._lock:
                if len(message) == 2:
                    self._evaluate.note(*message)
                elif self._evaluate.on_clipped is not None:
                    self._evaluate.on_clipped(*message)
            return
        self._journal.add(message)
        for _ in range(len(message)):
            self._moved()

    def _moved(self) -> None:
        """Call the run's callbacks; where that ends it, every worker ends at its next evaluation."""
        with self._lock:
            if self._ended is not None:
                raise self._ended
            try:
                self._evaluate.moved()
            except BaseException as error:
                self._ended = error
                raise

    def _print(self, text: str) -> None:
        """Print what clients' code has printed elsewhere."""
        with self._lock:
            sys.stdout.write(text)


class ServedWorker:
    """A worker that is asked from elsewhere: a task is begun, and its updates are fetched until it is over.

    Args:
        setup: The run.
        printed: Where clients' code prints to in this process; None where only the worker needs it.
    """

    def __init__(self, setup: WorkerSetup, printed: io.StringIO | None = None) -> None:
        self._changed = threading.Condition()
        self._messages: list[Message] = []
        self._given = 0
        self._printed = io.StringIO() if printed is None else printed
        self._over: Outcome | BaseException | None = None
        self._threads = setup.spec.threads
        self._worker = LocalWorker(setup, evaluator_of(setup, self._send), self._send)

    def begin(self, task: WorkerTask) -> None:
        """Begin a task."""
        self._over = None
        threading.Thread(target=self._work, args=(task,), daemon=True).start()

    def update(self, wait: float) -> Update:
        """Give what happened since, as soon as there is anything, or after so many seconds; what was given is kept."""
        with self._changed:
            del self._messages[: self._given]
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._messages or self._over is not None, wait)
            self._given = len(self._messages)
            printed = self._printed.getvalue()
            self._printed.seek(0)
            self._printed.truncate()
            return tuple(self._messages), printed, self._over

    def _send(self, what: Message) -> None:
        with self._changed:
            self._messages.append(what)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._messages)  # kept: whoever dies now, it is not lost

    def _work(self, task: WorkerTask) -> None:
        found: Outcome | BaseException
        try:
            with limited_loaded_threads(self._threads):
                found = self._worker.work(task)
        except BaseException as error:  # handed on to whoever asked, who raises it
            found = portable(error)
        with self._changed:
            self._over = found
            self._changed.notify_all()


class RemoteWorker:
    """A ``ServedWorker`` elsewhere, and the one that takes its place when it is lost.

    Args:
        start: Starts a worker; whatever calls of its methods raise says that it is lost.
        on_message: Called with evaluations and failures.
        on_print: Called with what clients' code has printed.
    """

    def __init__(
        self, start: Callable[[], WorkerProcess | DaskHandle], on_message: OnMessage, on_print: Callable[[str], None]
    ) -> None:
        self._start, self._on_message, self._on_print = start, on_message, on_print
        self._handle: WorkerProcess | DaskHandle | None = None
        self._ended = False

    def work(self, task: WorkerTask) -> Outcome:
        """Have a task carried out."""
        self._call("begin", task)
        while True:
            messages, printed, over = self._call("update", _WAIT)
            for message in messages:
                self._on_message(message)
            if printed:
                self._on_print(printed)
            if isinstance(over, BaseException):
                raise over
            if over is not None:
                found: Outcome = over
                return found

    def end(self) -> None:
        """End the worker; another one is started only if there is a task again."""
        self._ended = True
        if (handle := self._handle) is not None:
            handle.end()

    def _call(self, name: str, *given: object) -> Any:  # noqa: ANN401 (whatever the method returns)
        if self._ended:
            raise LostWorkerError("the run has ended")
        try:
            self._handle = self._handle or self._start()
            return self._handle.call(name, *given)
        except ConfigurationError:
            raise
        except Exception as error:
            if self._handle is not None:
                self._handle.end()
            self._handle = None
            raise LostWorkerError(f"{type(error).__name__}: {error}") from error


def served(setup: bytes) -> ServedWorker:
    """Be a worker: what clients' code prints comes with a task's updates, and is shown where the operator wants it."""
    sys.stdout = sys.stderr = printed = io.StringIO()
    return ServedWorker(pickle.loads(setup), printed)  # noqa: S301 (from the process that started this one)


def evaluator_of(setup: WorkerSetup, on_message: OnMessage) -> Evaluator:
    """Give the evaluator of a worker, which sends clients' first failures and clipped scores."""
    return setup.spec.evaluator(
        on_failure=lambda client, reason: on_message((client, reason)),
        on_clipped=lambda client, clipped, scored: on_message((client, clipped, scored)),
    )


class DaskHandle:
    """A worker that is an actor on one of a Dask cluster's workers.

    Args:
        executor: A client of the cluster, or its address, to which a connection is made and closed again.
        setup: What it works on.
        at: Which of the cluster's workers, by number; the next one that lives takes its place.
    """

    def __init__(self, executor: object, setup: WorkerSetup, at: int) -> None:
        self._client, self._is_ours = dask_client(executor), isinstance(executor, str)
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


def dask_client(executor: object) -> Any:  # noqa: ANN401 (untyped library)
    """Give an executor's client, connected where it is text.

    Raises:
        ConfigurationError: If Dask is not installed, or nothing answers there.
    """
    if not isinstance(executor, str):
        if getattr(executor, "status", None) != "running":
            raise ConfigurationError(f"executor={executor!r} is no dask.distributed.Client that runs; make one anew")
        return executor
    with needs("Dask", "dask"):
        from distributed import Client
    try:
        return Client(executor.partition(":")[2], set_as_default=False, timeout="10s")  # type: ignore[no-untyped-call]  # Dask has no types
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{executor!r} does not answer ({error}); start a scheduler there, or drop it"
        ) from None


def _workers(client: Any) -> list[str]:  # noqa: ANN401 (untyped library)
    """Addresses of a Dask cluster's workers."""
    return sorted(client.scheduler_info(n_workers=-1)["workers"])
