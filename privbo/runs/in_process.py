"""Clients in this process or its workers: the default transport. PRIVATE.

How clients are grouped changes no number: a client's choices depend on its own history, its own streams and public
numbers, and sums of groups are integers. Groups are fixed when a run begins; who works on them may change whenever it
is resumed.
"""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from privbo.door.door import Ticket
from privbo.door.sums import Partial, Summing, together
from privbo.protocol.files import write_json, write_once
from privbo.protocol.messages import Arrays, Ask, Broadcast, ClientHistory, FloatArray
from privbo.protocol.problem import Evaluator, Rows
from privbo.protocol.processes import Stopped
from privbo.runs.clients import LocalWorker, Result, WorkerSetup, WorkerTask, joined
from privbo.runs.manifest import RunDirectory
from privbo.runs.record import OnPrivateRound, PrivateRound
from privbo.runs.states import EvaluationJournal, Group, States, applied
from privbo.runs.worker_pool import RemoteWorker, WorkerPool

LARGEST_GROUP = 2**15
RESIDENT = 2**18  # most clients whose states stay in memory; of more, those of one group per worker
_SERIAL = partial(WorkerPool, "serial", "serial")
_private_log = logging.getLogger("privbo.private")


def groups_of(n_clients: int, parts: int) -> list[Group]:
    """Divide clients into ``parts`` groups of nearly one size, and into more where they would be too large."""
    count = min(n_clients, max(parts, -(-n_clients // LARGEST_GROUP)))
    edges = [n_clients * index // count for index in range(count + 1)]
    return list(itertools.pairwise(edges))


@dataclass(kw_only=True)
class InProcess:
    """Asks clients directly; their state is durable before the answer goes on.

    Attributes:
        groups: All clients, in the order of the request's weights.
        workers: Who works on them.
        folder: The private folder that states of groups are kept in; None keeps them in memory.
        keeps: Whether states have to be kept at all.
        journal: Where evaluations are kept until they are part of a state.
        on_private_round: PRIVATE: called with the clients' evaluations after every round; its errors change nothing.
        stopped: Tells whether the operator interrupts; another KeyboardInterrupt is the callback's.
    """

    groups: Sequence[Group]
    workers: WorkerPool
    folder: Path | None
    keeps: bool
    journal: EvaluationJournal
    on_private_round: OnPrivateRound | None = None
    stopped: Stopped = lambda: False
    hides_senders: bool = True
    _held: set[Group] = field(default_factory=set, repr=False)
    _files: dict[Group, States] = field(default_factory=dict, repr=False)
    _memory: dict[Group, Arrays] = field(default_factory=dict, repr=False)

    def collect(self, ask: Ask, ticket: Ticket | None = None) -> FloatArray | Partial:
        """Every client's answer, ``(n_clients, dim)``, or their sums by groups, where the ticket asks for them."""
        senders = None if ticket is None else ticket.senders
        summing = None if ticket is None or senders is not None else ticket.summing
        standing, round_ = ask.standing, ask.broadcast.round
        stays = self.folder is None or self.groups[-1][1] <= RESIDENT

        def keep(group: Group, change: Arrays) -> None:
            (self._held.add if stays else self._held.discard)(group)
            if self.keeps and self.folder is None:
                self._memory[group] = applied(self._memory.get(group), change)
            elif self.keeps and self.folder is not None and standing is not None:  # durable before the answer goes on
                stamp = {"round": round_, "sequence": standing.sequence, "head": standing.head}
                self._files.setdefault(group, States.of(self.folder, group[0])).append(change, stamp)

        dim = 0 if ask.request is None else ask.request.dim
        results = self._each(ask.broadcast, keep, summing, dim=dim, keeps=self.keeps, stays=stays)
        if self.keeps and (self.folder is None or standing is not None):
            self.journal.round_is_kept(round_)
        if self.on_private_round is not None:
            self._report(self.on_private_round, round_)
        if summing is not None:
            return together(results)
        # What has no shape is the door's to refuse.
        answers: FloatArray = np.concatenate(results) if len(results) > 1 else results[0]
        # Nothing leaves this process, so nobody sees who sent.
        return answers if senders is None else np.where(senders[:, None], answers, np.nan)

    def rehearse(self, broadcast: Broadcast) -> Rows:
        """Let every client make its first evaluation of a round, keep those in the journal, and give them."""
        self._each(broadcast, rehearses=True)
        return self.journal.known(broadcast.round, 0, self.groups[-1][1])

    def history(self) -> ClientHistory:
        """Every evaluation of every client."""
        return joined(self._each(None))

    def _each(
        self,
        broadcast: Broadcast | None,
        keep: Callable[[Group, Arrays], None] = lambda *_: None,
        summing: Summing | None = None,
        **how: Any,  # noqa: ANN401 (fields of a task)
    ) -> list[Any]:
        """What comes of one task of every group; the change of its state is kept before the next one of its worker."""

        def done(group: Group, worker: LocalWorker | RemoteWorker, isolated: bool) -> Result:
            state = None  # of a group that is new, too
            if group not in self._held:
                state = self._memory.get(group) if self.folder is None else States.of(self.folder, group[0]).load()
            result, change = worker.work(
                WorkerTask(
                    group=group,
                    broadcast=broadcast,
                    summing=None if summing is None else summing.of(slice(*group)),
                    state=state,
                    known=None if broadcast is None else self.journal.known(broadcast.round, *group),
                    isolated=isolated,
                    **how,
                )
            )
            keep(group, change)
            return result

        return self.workers.each(self.groups, done, self._held)

    def end(self) -> None:
        """Stop all workers, for good."""
        self.workers.end()
        self.journal.close()

    def _report(self, callback: OnPrivateRound, round_: int) -> None:
        """Call the callback; clients' values may decide whether it fails, so that changes nothing."""
        try:
            callback(PrivateRound(index=round_, clients=self.history()))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and self.stopped():
                raise
            _private_log.exception("on_private_round failed in round %d", round_)


@contextmanager
def printed_to(place: Path | TextIO | None) -> Iterator[None]:
    """Append what Python code prints, logs or warns of to a private file, open or not; None leaves it on the terminal.

    An objective may print what it sees, and a solver warns where data is awkward: on the terminal of a
    command both are published. What compiled code writes to the process's own descriptors is not caught.
    """
    with ExitStack() as stack:
        if place is not None:
            terminal = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
            file = stack.enter_context(place.open("a") if isinstance(place, Path) else nullcontext(place))
            stack.enter_context(redirect_stdout(file))
            stack.enter_context(redirect_stderr(file))
            for logger in (logging.root, *logging.root.manager.loggerDict.values()):
                for handler in getattr(logger, "handlers", ()):  # made earlier, such as at the top of a module
                    if isinstance(handler, logging.StreamHandler) and handler.stream in terminal:
                        stack.callback(handler.setStream, handler.setStream(file))
        yield


def in_process(
    setup: WorkerSetup,
    home: RunDirectory | None,
    evaluate: Evaluator,
    on_private_round: OnPrivateRound | None = None,
    *,
    pool: Callable[..., WorkerPool] = _SERIAL,
    journal: Path | None = None,
) -> InProcess:
    """Give the clients of a run, with what they knew before a crash.

    Args:
        setup: The run.
        home: Its directory; None for one in memory.
        evaluate: Calls the objectives, and notes failures.
        on_private_round: PRIVATE: called with clients' evaluations after every round.
        pool: Makes the workers; see ``pool_of``.
        journal: PRIVATE: file of all evaluations of a run in memory, so that none is made again.
    """
    spec, setting = setup.spec, setup.setting
    path = journal if home is None else home.journal_path
    if home is not None:
        write_once(home.journal_path, b"")  # a run in this process, finished or not, has one
    kept = EvaluationJournal(path, setting.space.n_dims, ever=journal is not None)
    asking = None
    if spec.problem.is_asked and home is not None:
        from privbo.runs.trials import PendingTrials

        patience = None if spec.times is None else spec.times.patience
        asking = partial(PendingTrials, spec=spec, folder=home.private, patience=patience)
    workers = pool(setup, evaluate, kept, asking=asking)
    groups = [] if home is None else home.groups_of(setting.n_clients)
    if not groups:
        groups = groups_of(setting.n_clients, len(workers.workers))
        if home is not None and len(groups) > 1:  # one group of all clients needs no words
            write_json(home.groups_path, {"first": [group[0] for group in groups]})
    return InProcess(
        groups=groups,
        workers=workers,
        folder=None if home is None else home.private,
        keeps=home is not None or not workers.is_serial,
        journal=kept,
        on_private_round=on_private_round,
        stopped=evaluate.stopped,
    )
