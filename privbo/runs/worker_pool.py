"""Groups of clients, carried out by one or several workers: what each holds, what it is told, what it leaves. PRIVATE.

How clients are grouped changes no number: a client's choices depend on its own history, its own streams and public
numbers, and sums of groups are integers. Groups are fixed when a run begins; who works on them may change whenever it
is resumed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from privbo.door.sums import Partial, Summing, together
from privbo.protocol.errors import RunError
from privbo.protocol.messages import Ask, ClientHistory, FloatArray
from privbo.runs.each import Snapshot, joined
from privbo.runs.evaluated import EvaluationJournal
from privbo.runs.manifest import RunDirectory
from privbo.runs.states import Stamp, States, applied
from privbo.runs.worker import Group, LostWorkerError, Outcome, Worker, WorkerTask

LARGEST_GROUP = 2**15
RESIDENT = 2**18
_ATTEMPTS = 4


def groups_of(n_clients: int, parts: int) -> list[Group]:
    """Divide clients into ``parts`` groups of nearly one size, and into more where they would be too large."""
    count = min(n_clients, max(parts, -(-n_clients // LARGEST_GROUP)))
    edges = [n_clients * index // count for index in range(count + 1)]
    return list(itertools.pairwise(edges))


@dataclass(kw_only=True)
class StateStore:
    """States of groups, on disk where the run has a directory, else in memory.

    Attributes:
        home: The directory.
        keeps: Whether anything has to be kept at all.
    """

    home: RunDirectory | None
    keeps: bool
    _files: dict[Group, States] = field(default_factory=dict, repr=False)
    _memory: dict[Group, Snapshot] = field(default_factory=dict, repr=False)

    def load(self, group: Group) -> Snapshot | None:
        """Read a group's state; None if it is new."""
        return self._memory.get(group) if self.home is None else self._file(self.home, group).load()

    def keep(self, group: Group, change: Snapshot, stamp: Stamp | None) -> None:
        """Keep what a round has changed; with a directory it is durable when this returns."""
        if self.home is None:
            self._memory[group] = applied(self._memory.get(group), change)
        elif stamp is not None:
            self._file(self.home, group).append(change, stamp)

    def _file(self, home: RunDirectory, group: Group) -> States:
        return self._files.setdefault(group, home.states(group[0]))


@dataclass(kw_only=True)
class WorkerPool:
    """Workers of the groups of a run.

    Attributes:
        groups: All clients.
        workers: Who works; each group has one.
        states: Where states are kept.
        journal: Where evaluations are kept until they are part of a state.
        resident: Most clients whose states stay in memory; of more, those of one group per worker.
    """

    groups: Sequence[Group]
    workers: Sequence[Worker]
    states: StateStore
    journal: EvaluationJournal
    resident: int = RESIDENT
    _held: set[Group] = field(default_factory=set, repr=False)
    _ended: bool = field(default=False, repr=False)

    def answers(self, ask: Ask) -> FloatArray:
        """Every client's answer, ``(n_clients, dim)``."""
        found = [np.asarray(outcome.answers) for outcome in self._round(ask, None)]
        return np.concatenate(found) if len(found) > 1 else found[0]

    def sums(self, ask: Ask, summing: Summing) -> Partial:
        """Sums of all clients' answers; nobody holds more than one group's vectors."""
        found = [outcome.answers for outcome in self._round(ask, summing)]
        return together([part for part in found if isinstance(part, Partial)])

    def history(self) -> ClientHistory:
        """Every evaluation of every client."""
        return joined([outcome.history for outcome in self._all(self._history_of)])

    def end(self) -> None:
        """Stop all workers, for good."""
        self._stop()
        self.journal.close()

    def _stop(self) -> None:
        self._ended = True
        for worker in self.workers:
            worker.end()

    def _history_of(self, group: Group) -> Callable[[bool], Outcome]:
        worker = self._worker(group)
        return lambda _: worker.work(WorkerTask(group=group, broadcast=None, state=self._state(group)))

    def _round(self, ask: Ask, summing: Summing | None) -> list[Outcome]:
        """Outcomes of a round, whose changes are kept."""
        seen, broadcast = ask.standing, ask.broadcast
        stamp = None if seen is None else Stamp(round=broadcast.round, sequence=seen.sequence, head=seen.head)
        dim = 0 if ask.request is None else ask.request.dim
        stays = self.states.home is None or self.groups[-1][1] <= self.resident

        def task(group: Group) -> Callable[[bool], Outcome]:
            def once(isolated: bool) -> Outcome:
                outcome = self._worker(group).work(
                    WorkerTask(
                        group=group,
                        broadcast=broadcast,
                        dim=dim,
                        summing=None if summing is None else summing.of(slice(*group)),
                        state=self._state(group),
                        known=self.journal.known(broadcast.round, *group),
                        keeps=self.states.keeps,
                        stays=stays,
                        isolated=isolated,
                    )
                )
                (self._held.add if stays else self._held.discard)(group)
                if self.states.keeps:
                    self.states.keep(group, outcome.change, stamp)
                return replace(outcome, change={})

            return once

        found = self._all(task)
        if self.states.keeps and (self.states.home is None or stamp is not None):
            self.journal.round_is_kept(broadcast.round)
        return found

    def _state(self, group: Group) -> Snapshot | None:
        return None if group in self._held else self.states.load(group)

    def _worker(self, group: Group) -> Worker:
        return self.workers[self.groups.index(group) % len(self.workers)]

    def _all(self, task: Callable[[Group], Callable[[bool], Outcome]]) -> list[Outcome]:
        """Outcomes of all groups in their order, each worker's one after the other."""
        if len(self.workers) == 1:
            return [self._carried(group, task(group)) for group in self.groups]
        shares = [self.groups[start :: len(self.workers)] for start in range(len(self.workers))]
        with ThreadPoolExecutor(len(self.workers)) as threads:
            found = [threads.submit(lambda s: [self._carried(g, task(g)) for g in s], share) for share in shares]
            try:
                done = [one.result() for one in found]
            except BaseException:
                self._stop()  # else whoever goes on is waited for
                raise
        return [done[index % len(self.workers)][index // len(self.workers)] for index in range(len(self.groups))]

    def _carried(self, group: Group, once: Callable[[bool], Outcome]) -> Outcome:
        """The outcome of one group, by another worker where one is lost."""
        worker, losses = self._worker(group), list[LostWorkerError]()
        while len(losses) < _ATTEMPTS:
            try:
                return once(len(losses) > 1)
            except LostWorkerError as error:
                if self._ended:
                    raise
                losses.append(error)
                self._held -= {other for other in self.groups if self._worker(other) is worker}
        raise RunError(
            f"clients {group[0]} to {group[1] - 1}: {len(losses)} workers were lost one after the other "
            f"({losses[-1]}); resume the run when the machines are well, or with executor='serial'"
        )
