"""Clients where they are worked on: in this process, a thread, or a process on this or another machine. PRIVATE.

A worker holds the cohorts of some groups of clients. A task is one round of one group; what comes of it is the group's
answers, or their sums, and what has changed in its state. Everything that has to survive is told on the way.
"""

from __future__ import annotations

import io
import pickle
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, cast

import numpy as np

from privbo.door.sums import Partial, Summing
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.evaluator import Evaluator
from privbo.protocol.memory import Memory, Rows
from privbo.protocol.messages import Broadcast, ClientHistory, Cohort, FloatArray, Setting
from privbo.protocol.processes import portable
from privbo.protocol.threads import limited_loaded_threads
from privbo.runs.altered import zeroed
from privbo.runs.asked import Desk
from privbo.runs.attendance import UnreliableCohort
from privbo.runs.each import Snapshot
from privbo.runs.separate import Clients, clients_of
from privbo.runs.spec import Spec
from privbo.runs.states import difference

Group: TypeAlias = tuple[int, int]
"""The first client of a group, and the first behind it."""
_WAIT = 1.0  # seconds until a worker that has nothing to report says so


@dataclass(frozen=True, kw_only=True)
class WorkerSetup:
    """A run, as far as its clients' side needs to know it.

    Attributes:
        spec: The run.
        setting: What both sides are told.
        seed: PRIVATE: of the clients' own randomness.
    """

    spec: Spec
    setting: Setting
    seed: int

    @property
    def client_seconds(self) -> float | None:
        """Seconds of a round that one client's evaluations may take; None without a grid."""
        return None if self.spec.times is None else self.spec.times.of_one(self.spec.problem.n_clients)


@dataclass(frozen=True, kw_only=True)
class WorkerTask:
    """One round of one group, or its history.

    Attributes:
        group: The clients.
        broadcast: What they are shown; None asks for their history.
        dim: Length of the vectors that are asked for.
        summing: SECRET: the sums that are made of them; None hands the vectors on.
        state: What they knew before, where the worker may not hold them; None where they are new.
        known: Evaluations of this round that were made before.
        keeps: Whether changes of the state are wanted.
        stays: Whether the worker goes on holding them.
        isolated: Whether every evaluation has a process of its own, because a worker was lost here.
    """

    group: Group
    broadcast: Broadcast | None
    dim: int = 0
    summing: Summing | None = field(default=None, repr=False)
    state: Snapshot | None = field(default=None, repr=False)
    known: Rows | None = field(default=None, repr=False)
    keeps: bool = True
    stays: bool = True
    isolated: bool = False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """PRIVATE: what came of a task.

    Attributes:
        answers: Vectors ``(n, dim)``, or their sums.
        change: Of the group's state, see ``privbo.runs.states``.
        history: Every evaluation, where that was asked for.
    """

    answers: FloatArray | Partial | None = None
    change: Snapshot = field(default_factory=dict)
    history: ClientHistory | None = None


Message: TypeAlias = tuple[Literal["evaluated"], Rows] | tuple[Literal["failed"], int, str]
OnMessage: TypeAlias = Callable[[Message], None]


class LocalWorker:
    """Groups of clients in one place.

    Args:
        setup: The run.
        evaluate: Calls the clients' objectives.
        on_message: Called with every evaluation, before its client learns of it.
        desk: Where trials are asked and told, where the problem has no objective to call.
    """

    def __init__(
        self, setup: WorkerSetup, evaluate: Evaluator, on_message: OnMessage, desk: Desk | None = None
    ) -> None:
        self._setup, self._evaluate, self._send, self._desk = setup, evaluate, on_message, desk
        self._held: dict[Group, tuple[Clients, Snapshot | None]] = {}

    def work(self, task: WorkerTask) -> Outcome:
        """Play one round of one group."""
        clients, before = self._clients(task)
        if task.broadcast is None:
            return Outcome(history=clients.history())
        evaluate, space = self._evaluate, self._setup.setting.space
        evaluate.renew()
        evaluate.isolated = task.isolated
        evaluate.memory = Memory(clients.clients, space.n_dims, lambda rows: self._send(("evaluated", rows)))
        if task.known is not None:
            evaluate.memory.begin(task.broadcast.round, task.known)
        answers = clients.answer(task.broadcast, task.dim)
        now = _copied(clients.snapshot()) if task.keeps else None
        if task.stays:
            self._held[task.group] = clients, now
        else:
            self._held.pop(task.group, None)
        found = answers if task.summing is None else task.summing(answers)
        return Outcome(answers=found, change={} if now is None else difference(before, now))

    def end(self) -> None:
        """Have nothing to stop: who works here works in the caller's time."""

    def _clients(self, task: WorkerTask) -> tuple[Clients, Snapshot | None]:
        """The clients of a group and the state that is known of them."""
        if task.state is None and task.group in self._held:
            return self._held[task.group]
        setup = self._setup
        made = clients_of(
            setup.spec.played,
            setup.setting,
            clients=np.arange(*task.group),
            evaluate=self._evaluate,
            seed=setup.seed,
            sent=self._sending,
            desk=self._desk,
        )
        if task.state is not None:
            made.restore(_copied(task.state))
        return made, task.state

    def _sending(self, cohort: Cohort) -> Cohort:
        """Clients as they send: under a control, now and then away."""
        spec = self._setup.spec
        sending: Cohort = zeroed(cohort) if spec.control == "zeroed" else cohort
        return sending if spec.attendance is None else UnreliableCohort(cohort=sending, attendance=spec.attendance)


def _copied(state: Snapshot) -> Snapshot:
    """The state in arrays of its own: clients may change theirs in place, and what changed is found by comparing."""
    return {name: np.array(array) for name, array in state.items()}


@dataclass(frozen=True, kw_only=True)
class Update:
    """PRIVATE: what happened in a worker since it was last asked.

    Attributes:
        messages: In order.
        printed: What clients' code has printed.
        outcome: Of the task, once it is over.
        error: A fault of the program that ended it instead.
    """

    messages: tuple[Message, ...] = ()
    printed: str = ""
    outcome: Outcome | None = None
    error: BaseException | None = None


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
            messages = tuple(self._messages)
            self._given = len(messages)
            printed = self._printed.getvalue()
            self._printed.seek(0)
            self._printed.truncate()
            over = self._over
        if isinstance(over, BaseException):
            return Update(messages=messages, printed=printed, error=over)
        return Update(messages=messages, printed=printed, outcome=over)

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


class LostWorkerError(Exception):
    """A worker is gone, or can't be reached any more."""


class Worker(Protocol):
    """Works on tasks, one after the other."""

    def work(self, task: WorkerTask) -> Outcome:
        """Carry a task out.

        Raises:
            LostWorkerError: If whoever did it is gone; another one has taken its place and holds nothing.
        """
        ...

    def end(self) -> None:
        """Stop at once."""
        ...


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
            if update.error is not None:
                raise update.error
            if update.outcome is not None:
                return update.outcome

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
        client_seconds=setup.client_seconds,
        evaluation_seconds=setup.spec.evaluation_seconds,
    )
