"""Workers of a run in threads, processes or a Dask cluster, and what is done when one is lost. PRIVATE.

| executor | where clients are worked on |
|---|---|
| ``"serial"`` | in the caller's thread, without a pool |
| ``"threads"`` | in threads of this process: for objectives that wait, or that let go of Python's lock |
| ``"processes"`` | in processes of this machine, which live as long as the run |
| ``"dask:HOST:PORT"``, or a ``dask.distributed.Client`` | in one actor on each of a Dask cluster's workers |
"""

from __future__ import annotations

import importlib
import io
import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias, cast

from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.memory import Rows
from privbo.protocol.problem import Evaluator
from privbo.protocol.processes import WorkerProcess, limited_loaded_threads, n_jobs, portable
from privbo.runs.states import EvaluationJournal, Group
from privbo.runs.worker import LocalWorker, Outcome, Result, Work, Worker, WorkerSetup, WorkerTask

_WAIT = 1.0  # seconds until a worker that has nothing to report says so
_ATTEMPTS = 4

Message: TypeAlias = tuple[Literal["evaluated"], Rows] | tuple[Literal["failed"], int, str]
OnMessage: TypeAlias = Callable[[Message], None]


class LostWorkerError(Exception):
    """A worker is gone, or can't be reached any more; another one has taken its place and holds nothing."""


def pool_of(
    backend: str, executor: object, setup: WorkerSetup, evaluate: Evaluator, journal: EvaluationJournal, *, quiet: bool
) -> WorkerPool:
    """Give the workers of an executor other than ``"serial"``.

    Raises:
        ConfigurationError: If it is not installed, or not there.
    """
    jobs, listener = setup.spec.jobs, _Listener(evaluate=evaluate, journal=journal)
    if backend == "threads":
        return WorkerPool(workers=[listener.threaded(setup) for _ in range(n_jobs(jobs))])
    starts: list[Callable[[], WorkerHandle]]
    if backend == "dask":
        client = _dask(executor)
        n_workers = len(_workers(client))
        if isinstance(executor, str):
            client.close()
        starts = [partial(DaskHandle, executor, setup, at) for at in range(jobs or n_workers or 1)]
    else:
        import cloudpickle

        served_there = partial(served, cloudpickle.dumps(setup))
        starts = [partial(WorkerProcess, served_there, threads=setup.spec.threads, quiet=quiet)] * n_jobs(jobs)
    return WorkerPool(workers=[RemoteWorker(start, listener.hear, listener.printed) for start in starts])


@dataclass(kw_only=True)
class WorkerPool:
    """Workers of the groups of a run; each group has one.

    Attributes:
        workers: Who works.
    """

    workers: Sequence[Worker]
    _ended: bool = field(default=False, repr=False)

    def each(self, groups: Sequence[Group], work: Work, held: set[Group]) -> list[Result]:
        """Results of all groups in their order, each worker's one after the other.

        Args:
            groups: All of them.
            work: Works on one group.
            held: Groups whose states are in their workers' memory; those of a lost worker are taken out.
        """

        def share(start: int) -> list[Result]:
            mine = groups[start :: len(self.workers)]
            return [self._done(group, self.workers[start], work, held, mine) for group in mine]

        with ThreadPoolExecutor(len(self.workers)) as threads:
            pending = [threads.submit(share, start) for start in range(len(self.workers))]
            try:
                done = [one.result() for one in pending]
            except BaseException:
                self.end()  # else the others are waited for
                raise
        return [done[index % len(self.workers)][index // len(self.workers)] for index in range(len(groups))]

    def end(self) -> None:
        """Stop all workers, for good."""
        self._ended = True
        for worker in self.workers:
            worker.end()

    def _done(self, group: Group, worker: Worker, work: Work, held: set[Group], mine: Sequence[Group]) -> Result:
        """The result of one group, by another worker where one is lost."""
        losses = list[LostWorkerError]()
        while len(losses) < _ATTEMPTS:
            try:
                return work(group, worker, len(losses) > 1)
            except LostWorkerError as error:
                if self._ended:
                    raise
                losses.append(error)
                held.difference_update(mine)
        raise RunError(
            f"clients {group[0]} to {group[1] - 1}: {len(losses)} workers were lost one after the other "
            f"({losses[-1]}); resume the run when the machines are well, or with executor='serial'"
        )


@dataclass(kw_only=True)
class _Listener:
    """Puts where it belongs what workers tell; several of them may speak at once."""

    evaluate: Evaluator
    journal: EvaluationJournal
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _ended: BaseException | None = field(default=None, repr=False)

    def hear(self, message: Message) -> None:
        """Keep evaluations, note failures, and tell whoever follows the run."""
        if message[0] == "failed":
            with self._lock:
                self.evaluate.note(message[1], message[2])
            return
        self.journal.add(message[1])
        for _ in range(len(message[1])):
            self.moved()

    def moved(self) -> None:
        """Tell whoever follows the run; where that ends it, every worker ends at its next evaluation."""
        with self._lock:
            if self._ended is not None:
                raise self._ended
            try:
                self.evaluate.moved()
            except BaseException as error:
                self._ended = error
                raise

    def printed(self, text: str) -> None:
        """Print what clients' code has printed elsewhere."""
        with self._lock:
            sys.stdout.write(text)

    def threaded(self, setup: WorkerSetup) -> LocalWorker:
        """Give a worker in a thread of this process."""
        own = evaluator_of(setup, self.hear)
        own.on_evaluation, own.stopped = self.moved, self.evaluate.stopped
        return LocalWorker(setup, own, self.journal.add)


@dataclass(frozen=True, kw_only=True)
class Update:
    """PRIVATE: what happened in a worker since it was last asked.

    Attributes:
        messages: In order.
        printed: What clients' code has printed.
        over: Outcome of the task, once it is over, or a fault of the program that ended it instead.
    """

    messages: tuple[Message, ...] = ()
    printed: str = ""
    over: Outcome | BaseException | None = None


class ServedWorker:
    """A worker that is asked from elsewhere: a task is begun, and its updates are fetched until it is over.

    Args:
        setup: The run.
        printed: Where clients' code prints to in this process; None where that is nobody's business but the worker's.
    """

    def __init__(self, setup: WorkerSetup, printed: io.StringIO | None = None) -> None:
        self._changed = threading.Condition()
        self._messages: list[Message] = []
        self._given = 0
        self._printed = io.StringIO() if printed is None else printed
        self._over: Outcome | BaseException | None = None
        self._threads = setup.spec.threads
        self._worker = LocalWorker(setup, evaluator_of(setup, self._send), lambda rows: self._send(("evaluated", rows)))

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
            messages = tuple(self._messages)
            self._given = len(messages)
            printed = self._printed.getvalue()
            self._printed.seek(0)
            self._printed.truncate()
            return Update(messages=messages, printed=printed, over=self._over)

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


class WorkerHandle(Protocol):
    """What a ``ServedWorker`` elsewhere is called by."""

    def call(self, name: str, *given: object) -> object:
        """Call one of its methods; whatever is raised says that it is lost."""
        ...

    def end(self) -> None:
        """End it at once."""
        ...


class RemoteWorker:
    """A worker elsewhere, and the one that takes its place when it is lost.

    Args:
        start: Starts a worker.
        on_message: Called with evaluations and failures.
        on_print: Called with what clients' code has printed.
    """

    def __init__(
        self, start: Callable[[], WorkerHandle], on_message: OnMessage, on_print: Callable[[str], None]
    ) -> None:
        self._start, self._on_message, self._on_print = start, on_message, on_print
        self._handle: WorkerHandle | None = None
        self._ended = False

    def work(self, task: WorkerTask) -> Outcome:
        """Have a task carried out."""
        self._call("begin", task)
        while True:
            update = cast("Update", self._call("update", _WAIT))
            for message in update.messages:
                self._on_message(message)
            if update.printed:
                self._on_print(update.printed)
            if isinstance(update.over, BaseException):
                raise update.over
            if update.over is not None:
                return update.over

    def end(self) -> None:
        """End the worker; another one is started only if there is a task again."""
        self._ended = True
        if (handle := self._handle) is not None:
            handle.end()

    def _call(self, name: str, *given: object) -> object:
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
    """Give the evaluator of a worker, which sends clients' first failures."""
    return setup.spec.problem.evaluator(
        on_failure=lambda client, reason: on_message(("failed", client, reason)),
        client_seconds=setup.spec.client_seconds,
        evaluation_seconds=setup.spec.evaluation_seconds,
    )


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
