"""Clients in this process or its workers: the default transport."""

from __future__ import annotations

import logging
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from privbo.door.door import Ticket
from privbo.door.sums import Partial
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.limited import named
from privbo.protocol.messages import Ask, FloatArray
from privbo.protocol.problem import Evaluator
from privbo.protocol.processes import n_jobs, start_server
from privbo.runs.aside import printed_to
from privbo.runs.asked import Desk
from privbo.runs.backends import backend_of, starts
from privbo.runs.evaluated import EvaluationJournal
from privbo.runs.history import OnPrivateRound, PrivateRound
from privbo.runs.manifest import RunDirectory
from privbo.runs.opening import Run
from privbo.runs.spec import Spec
from privbo.runs.worker import LocalWorker, Message, RemoteWorker, Worker, WorkerSetup, evaluator_of
from privbo.runs.worker_pool import StateStore, WorkerPool, groups_of

_private_log = logging.getLogger("privbo.private")


@dataclass(frozen=True, kw_only=True)
class InProcess:
    """Asks clients directly; their state is durable before the answer goes on.

    Attributes:
        pool: All clients, in the order of the request's weights.
        output: PRIVATE: where what the clients' code prints goes; None leaves it on the terminal.
        on_private_round: PRIVATE: told of the clients' evaluations after every round; what it raises changes nothing.
    """

    pool: WorkerPool
    output: Path | None = None
    on_private_round: OnPrivateRound | None = None
    hides_senders: bool = True

    def collect(self, ask: Ask, ticket: Ticket | None = None) -> FloatArray | Partial:
        """Every client's answer, ``(n_clients, dim)``, or their sums by groups, where the ticket asks for them."""
        senders, summing = (None, None) if ticket is None else (ticket.senders, ticket.summing)
        with printed_to(self.output):
            found = self.pool.answers(ask) if summing is None or senders is not None else self.pool.sums(ask, summing)
            self._tell(ask.broadcast.round)
        # Nothing leaves this process, so nobody sees who sent.
        return found if senders is None or isinstance(found, Partial) else np.where(senders[:, None], found, np.nan)

    def _tell(self, round_: int) -> None:
        """Call the callback; clients' values may decide whether it fails, so that changes nothing."""
        if self.on_private_round is None:
            return
        try:
            self.on_private_round(PrivateRound(index=round_, clients=self.pool.history()))
        except KeyboardInterrupt:  # the operator's
            raise
        except BaseException:
            _private_log.exception("on_private_round failed in round %d", round_)


def require_executor(spec: Spec, executor: object) -> None:
    """Refuse an executor that there is not, that has nothing to do, or to which the problem can't be sent.

    Raises:
        ConfigurationError: Naming it.
    """
    if backend_of(executor) != "serial" and spec.problem.is_asked:
        raise ConfigurationError(
            f"executor={executor!r}: trials of objective='ask' are evaluated elsewhere already; drop the executor"
        )
    if backend_of(executor) in ("serial", "threads"):
        return
    if backend_of(executor) == "processes":
        start_server()  # loads while the run is planned
    import cloudpickle

    try:
        cloudpickle.dumps(spec.problem)
    except Exception as error:
        raise ConfigurationError(
            f"executor={executor!r}: the problem can't be sent to workers ({named(error)}); let it open files and "
            "connections where they are used, or use 'threads'"
        ) from None


def in_process(
    opened: Run,
    home: RunDirectory | None,
    evaluate: Evaluator,
    output: Path | None,
    on_private_round: OnPrivateRound | None = None,
    *,
    executor: object = "serial",
    journal: Path | None = None,
) -> InProcess:
    """Give the clients of a run, with what they knew before a crash.

    Args:
        opened: The run.
        home: Its directory; None for one in memory.
        evaluate: Calls the objectives, and is told of failures.
        output: PRIVATE: where what clients' code prints goes; None leaves it on the terminal.
        on_private_round: PRIVATE: told of clients' evaluations after every round.
        executor: Who works on clients; see ``privbo.runs.backends``.
        journal: PRIVATE: file of all evaluations of a run in memory, so that none is made again.
    """
    spec = opened.record.spec
    setup = WorkerSetup(spec=spec, setting=opened.setting, seed=opened.clients_seed)
    path = journal if home is None else home.journal_path
    kept = EvaluationJournal(path, opened.setting.space.n_dims, ever=journal is not None)
    listener, desk = _Listener(evaluate=evaluate, journal=kept), None if home is None else _desk(spec, home)
    workers = _workers(setup, executor, listener, desk, quiet=output is not None)
    serial = backend_of(executor) == "serial"
    groups = _groups(home, opened.setting.n_clients, len(workers))
    states = StateStore(home=home, keeps=home is not None or not serial)
    pool = WorkerPool(groups=groups, workers=workers, states=states, journal=kept)
    return InProcess(pool=pool, output=output, on_private_round=on_private_round)


def _groups(home: RunDirectory | None, n_clients: int, parts: int) -> list[tuple[int, int]]:
    """The groups in which a run began, or begins now."""
    if home is not None and (begun := home.groups_of(n_clients)):
        return begun
    groups = groups_of(n_clients, parts)
    if home is not None:
        home.keep_groups([group[0] for group in groups])
    return groups


@dataclass(kw_only=True)
class _Listener:
    """Puts where it belongs what workers tell; several of them may speak at once."""

    evaluate: Evaluator
    journal: EvaluationJournal
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _ended: BaseException | None = field(default=None, repr=False)

    def keep(self, message: Message) -> None:
        """Keep evaluations."""
        if message[0] == "evaluated":
            self.journal.add(message[1])

    def hear(self, message: Message) -> None:
        """Keep evaluations, note failures, and tell whoever follows the run."""
        self.keep(message)
        if message[0] == "failed":
            with self._lock:
                self.evaluate.note(message[1], message[2])
        else:
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


def _workers(
    setup: WorkerSetup, executor: object, listener: _Listener, desk: Desk | None, *, quiet: bool
) -> list[Worker]:
    jobs, evaluate = setup.spec.jobs, listener.evaluate
    match backend_of(executor):
        case "serial":
            return [LocalWorker(setup, evaluate, listener.keep, desk)]
        case "threads":
            return [_threaded(setup, listener) for _ in range(n_jobs(jobs))]
        case _:
            made = starts(executor, jobs, setup, quiet=quiet)
            return [RemoteWorker(start, listener.hear, listener.printed) for start in made]


def _threaded(setup: WorkerSetup, listener: _Listener) -> LocalWorker:
    own = evaluator_of(setup, listener.hear)
    own.on_evaluation, own.stopped = listener.moved, listener.evaluate.stopped
    return LocalWorker(setup, own, listener.keep)


def _desk(spec: Spec, home: RunDirectory) -> Desk:
    """Where trials are told; on a grid of times for as long as a round waits for answers."""
    patience = None if spec.times is None else spec.times.patience
    return Desk(folder=home.private, patience=patience, threads=spec.threads)
