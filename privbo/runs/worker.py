"""Clients where they are worked on: in this process, a thread, or a process on this or another machine. PRIVATE.

A worker holds the cohorts of some groups of clients. A task is one round of one group; what comes of it is the group's
answers, or their sums, and what has changed in its state. Everything that has to survive is told on the way.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from privbo.door.partial import Partial, Summing
from privbo.protocol.errors import RunError
from privbo.protocol.evaluator import Evaluator
from privbo.protocol.limited import named
from privbo.protocol.memory import Memory, Rows
from privbo.protocol.messages import Broadcast, ClientHistory, Cohort, FloatArray, Setting
from privbo.protocol.threads import limited_loaded_threads
from privbo.runs.altered import zeroed
from privbo.runs.asked import Desk
from privbo.runs.attendance import UnreliableCohort
from privbo.runs.separate import Clients, Snapshot, clients_of
from privbo.runs.spec import Spec
from privbo.runs.states import difference

Group: TypeAlias = tuple[int, int]
"""The first client of a group, and the first behind it."""


@dataclass(frozen=True, kw_only=True)
class Job:
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
class Task:
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


Told: TypeAlias = tuple[Literal["evaluated"], Rows] | tuple[Literal["failed"], int, str]
Tell: TypeAlias = Callable[[Told], None]


class Worker:
    """Groups of clients in one place.

    Args:
        job: The run.
        evaluate: Calls the clients' objectives.
        tell: Told of every evaluation, before its client learns of it.
        desk: Where trials are asked and told, where the problem has no objective to call.
    """

    def __init__(self, job: Job, evaluate: Evaluator, tell: Tell, desk: Desk | None = None) -> None:
        self._job, self._evaluate, self._tell, self._desk = job, evaluate, tell, desk
        self._held: dict[Group, tuple[Clients, Snapshot | None]] = {}

    def work(self, task: Task) -> Outcome:
        """Play one round of one group."""
        clients, before = self._clients(task)
        if task.broadcast is None:
            return Outcome(history=clients.history())
        evaluate, space = self._evaluate, self._job.setting.space
        evaluate.renew()
        evaluate.isolated = task.isolated
        evaluate.memory = Memory(clients.clients, space.n_dims, lambda rows: self._tell(("evaluated", rows)))
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

    def _clients(self, task: Task) -> tuple[Clients, Snapshot | None]:
        """The clients of a group and the state that is known of them."""
        if task.state is None and task.group in self._held:
            return self._held[task.group]
        job = self._job
        made = clients_of(
            job.spec.played,
            job.setting,
            clients=np.arange(*task.group),
            evaluate=self._evaluate,
            seed=job.seed,
            sent=self._sending,
            desk=self._desk,
        )
        if task.state is not None:
            made.restore(_copied(task.state))
        return made, task.state

    def _sending(self, cohort: Cohort) -> Cohort:
        """Clients as they send: under a control, now and then away."""
        spec = self._job.spec
        sending: Cohort = zeroed(cohort) if spec.control == "zeroed" else cohort
        return sending if spec.attendance is None else UnreliableCohort(cohort=sending, attendance=spec.attendance)


def _copied(state: Snapshot) -> Snapshot:
    """The state in arrays of its own: clients may change theirs in place, and what changed is found by comparing."""
    return {name: np.array(array) for name, array in state.items()}


@dataclass(frozen=True, kw_only=True)
class News:
    """PRIVATE: what happened in a worker since it was last asked.

    Attributes:
        told: In order.
        printed: What clients' code has printed.
        outcome: Of the task, once it is over.
        error: A fault of the program that ended it instead.
    """

    told: tuple[Told, ...] = ()
    printed: str = ""
    outcome: Outcome | None = None
    error: BaseException | None = None


class RemoteWorker:
    """A worker that is asked from elsewhere: a task is begun, and its news are fetched until it is over.

    Args:
        job: The run.
        printed: Where clients' code prints to in this process; None where that is nobody's business but the worker's.
    """

    def __init__(self, job: Job, printed: io.StringIO | None = None) -> None:
        self._changed = threading.Condition()
        self._told: list[Told] = []
        self._printed = io.StringIO() if printed is None else printed
        self._over: Outcome | BaseException | None = None
        self._threads = job.spec.threads
        self._worker = Worker(job, evaluator_of(job, self._tell), self._tell)

    def begin(self, task: Task) -> None:
        """Begin a task."""
        self._over = None
        threading.Thread(target=self._work, args=(task,), daemon=True).start()

    def news(self, wait: float) -> News:
        """Give what happened since, as soon as there is anything, or after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._told or self._over is not None, wait)
            told, self._told = tuple(self._told), []
            self._changed.notify_all()
            printed = self._printed.getvalue()
            self._printed.seek(0)
            self._printed.truncate()
            over = self._over
        if isinstance(over, BaseException):
            return News(told=told, printed=printed, error=over)
        return News(told=told, printed=printed, outcome=over)

    def _tell(self, what: Told) -> None:
        with self._changed:
            self._told.append(what)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._told)  # fetched: if this process dies now, it is not lost

    def _work(self, task: Task) -> None:
        found: Outcome | BaseException
        try:
            with limited_loaded_threads(self._threads):
                found = self._worker.work(task)
        except BaseException as error:  # handed on to whoever asked, who raises it
            found = portable(error)
        with self._changed:
            self._over = found
            self._changed.notify_all()


def portable(error: BaseException) -> BaseException:
    """An error as it can be sent to another process: itself, or its class and text where it can't be sent.

    Example:
        >>> portable(ValueError("too few"))
        ValueError('too few')
    """
    import pickle

    import cloudpickle

    try:
        pickle.loads(cloudpickle.dumps(error))  # noqa: S301 (made in this line)
    except Exception:
        return RunError(named(error))
    return error


def evaluator_of(job: Job, tell: Tell) -> Evaluator:
    """Give the evaluator of a worker, which tells of clients' first failures."""
    return job.spec.problem.evaluator(
        on_failure=lambda client, reason: tell(("failed", client, reason)),
        client_seconds=job.client_seconds,
        evaluation_seconds=job.spec.evaluation_seconds,
    )
