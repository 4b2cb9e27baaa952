"""Clients where they are worked on: in this process, a thread, or a process on this or another machine. PRIVATE.

A worker holds the cohorts of some groups of clients. A task is one round of one group; its outcome is the group's
answers, or their sums, and the changes of its state. Everything that has to survive is reported on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from privbo.door.sums import Partial, Summing
from privbo.protocol.messages import Arrays, Broadcast, ClientHistory, Cohort, FloatArray, Setting
from privbo.protocol.problem import Evaluator, Memory, Rehearsed, Rows
from privbo.runs.altered import unreliable, zeroed
from privbo.runs.clients import Each, Waiting, answers_of, clients_of
from privbo.runs.spec import Spec
from privbo.runs.states import Group, difference


@dataclass(frozen=True, kw_only=True)
class WorkerSetup:
    """A run, as far as its clients' side needs to know it.

    Attributes:
        spec: The run.
        setting: Public facts of the run.
        seed: PRIVATE: of the clients' own randomness.
    """

    spec: Spec
    setting: Setting
    seed: int


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
        rehearses: Whether clients only make their first evaluation of the round; nothing but that is kept.
    """

    group: Group
    broadcast: Broadcast | None
    dim: int = 0
    summing: Summing | None = field(default=None, repr=False)
    state: Arrays | None = field(default=None, repr=False)
    known: Rows | None = field(default=None, repr=False)
    keeps: bool = True
    stays: bool = True
    isolated: bool = False
    rehearses: bool = False


Result: TypeAlias = FloatArray | Partial | ClientHistory
Outcome: TypeAlias = tuple[Result, Arrays]
"""PRIVATE: vectors ``(n, dim)``, their sums or every evaluation, and the change of the group's state."""


class LocalWorker:
    """Groups of clients in this process.

    Args:
        setup: The run.
        evaluate: Calls the clients' objectives.
        keep: Called with every evaluation, before its client learns of it.
        waiting: Asks for trials, where the problem has no objective to call.
    """

    def __init__(
        self, setup: WorkerSetup, evaluate: Evaluator, keep: Callable[[Rows], None], waiting: Waiting | None = None
    ) -> None:
        self._setup, self._evaluate, self._keep, self._waiting = setup, evaluate, keep, waiting
        self._held: dict[Group, tuple[Cohort | Each, Arrays | None]] = {}

    def work(self, task: WorkerTask) -> Outcome:
        """Play one round of one group."""
        is_held = task.state is None and task.group in self._held
        clients, before = self._held[task.group] if is_held else (self._made(task), task.state)
        if task.broadcast is None:
            return clients.history(), {}
        evaluate = self._evaluate
        evaluate.renew()
        evaluate.isolated, evaluate.rehearses = task.isolated, task.rehearses
        evaluate.memory = Memory(clients.clients, self._setup.setting.space.n_dims, self._keep)
        if task.known is not None:
            evaluate.memory.begin(task.broadcast.round, task.known)
        if task.rehearses:
            with suppress(Rehearsed):
                answers_of(clients, task.broadcast, 0)
            return np.empty((0, 0)), {}
        answers = answers_of(clients, task.broadcast, task.dim)
        now = _copied(clients.snapshot()) if task.keeps else None
        if task.stays:
            self._held[task.group] = clients, now
        else:
            self._held.pop(task.group, None)
        result = answers if task.summing is None else task.summing(answers)
        return result, {} if now is None else difference(before, now)

    def end(self) -> None:
        """Nothing to stop: tasks are done in the caller's time."""

    def _made(self, task: WorkerTask) -> Cohort | Each:
        setup, spec = self._setup, self._setup.spec

        def sent(cohort: Cohort) -> Cohort:
            cohort = zeroed(cohort) if spec.control == "zeroed" else cohort
            return cohort if spec.attendance is None else unreliable(cohort, spec.attendance)

        made = clients_of(
            spec.played,
            setup.setting,
            clients=np.arange(*task.group),
            evaluate=self._evaluate,
            seed=setup.seed,
            sent=sent,
            waiting=self._waiting,
        )
        if task.state is not None:
            made.restore(_copied(task.state))
        return made


def _copied(state: Arrays) -> Arrays:
    """The state in arrays of its own: clients may change theirs in place, and changes are found by comparing."""
    return {name: np.array(array) for name, array in state.items()}
