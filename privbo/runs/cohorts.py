"""Clients in this process: the default transport."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from privbo.protocol.messages import Ask, Broadcast, ClientHistory, Cohort, FloatArray
from privbo.protocol.problem import Evaluator
from privbo.runs.aside import printed_to
from privbo.runs.asked import Desk
from privbo.runs.attendance import UnreliableCohort
from privbo.runs.history import OnPrivateRound, PrivateRound
from privbo.runs.manifest import RunDirectory, Stamp
from privbo.runs.opening import Run
from privbo.runs.separate import Clients, Snapshot, clients_of
from privbo.runs.spec import Spec

_private_log = logging.getLogger("privbo.private")


@dataclass(frozen=True, kw_only=True)
class InProcess:
    """Asks clients directly and makes their state durable before the answer goes on.

    Attributes:
        clients: All clients, in the order of the request's weights.
        save: Called with the clients' snapshot and what was asked after every answer, so that a
            stored release never stands before the state of the clients that answered it.
        output: PRIVATE: where what the clients' code prints goes; None leaves it on the terminal.
        renew: Called when a round begins.
        on_private_round: PRIVATE: told of the clients' evaluations after every round; what it raises changes nothing.
    """

    clients: Clients
    save: Callable[[Mapping[str, npt.NDArray[np.generic]], Ask], None]
    output: Path | None = None
    renew: Callable[[], None] = lambda: None
    on_private_round: OnPrivateRound | None = None

    def collect(self, ask: Ask) -> FloatArray:
        """Every client's answer, ``(n_clients, dim)``."""
        self.renew()
        with printed_to(self.output):
            answers = self.clients.answer(ask.broadcast, 0 if ask.request is None else ask.request.dim)
            snapshot = self.clients.snapshot()
            self._tell(ask.broadcast.round)
        self.save(snapshot, ask)
        return answers

    def _tell(self, round_: int) -> None:
        """Call the callback; clients' values may decide whether it fails, so that changes nothing."""
        if self.on_private_round is None:
            return
        try:
            self.on_private_round(PrivateRound(index=round_, clients=self.clients.history()))
        except KeyboardInterrupt:  # the operator's
            raise
        except BaseException:
            _private_log.exception("on_private_round failed in round %d", round_)

    def collect_from(self, ask: Ask, senders: npt.NDArray[np.bool_]) -> FloatArray:
        """The senders' answers; nothing leaves this process, so nobody sees who sent."""
        return np.where(senders[:, None], self.collect(ask), np.nan)


@dataclass(frozen=True, kw_only=True)
class AlteredCohort:
    """Clients that act as ever and whose answers are altered on the way.

    Attributes:
        cohort: The clients.
        alter: Gives what arrives from their answers, ``(n, dim)``, and the index of the round.
    """

    cohort: Cohort
    alter: Callable[[FloatArray, int], FloatArray]

    @property
    def clients(self) -> npt.NDArray[np.int64]:
        """As the wrapped cohort."""
        return self.cohort.clients

    def respond(self, broadcast: Broadcast) -> FloatArray:
        """Act on the broadcast, answer with what is made of the answers."""
        return self.alter(self.cohort.respond(broadcast), broadcast.round)

    def snapshot(self) -> Mapping[str, npt.NDArray[np.generic]]:
        """As the wrapped cohort."""
        return self.cohort.snapshot()

    def restore(self, snapshot: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """As the wrapped cohort."""
        self.cohort.restore(snapshot)

    def history(self) -> ClientHistory:
        """As the wrapped cohort."""
        return self.cohort.history()


def in_process(
    opened: Run,
    home: RunDirectory | None,
    evaluate: Evaluator,
    output: Path | None,
    on_private_round: OnPrivateRound | None = None,
) -> InProcess:
    """Give the clients of a run in this process, with what they knew before a crash."""
    clients = _clients(opened, evaluate, home)
    return InProcess(
        clients=clients, save=_saving(home), output=output, renew=evaluate.renew, on_private_round=on_private_round
    )


def _saving(home: RunDirectory | None) -> Callable[[Snapshot, Ask], None]:
    """Keep the clients' state with the place of the ledger that they have seen."""

    def save(snapshot: Snapshot, ask: Ask) -> None:
        if home is not None and (seen := ask.standing) is not None:
            home.save_clients(snapshot, Stamp(round=ask.broadcast.round, sequence=seen.sequence, head=seen.head))

    return save


def _clients(opened: Run, evaluate: Evaluator, home: RunDirectory | None) -> Clients:
    """The clients with what they knew before a crash."""
    spec = opened.record.spec
    found = clients_of(
        spec.played,
        opened.setting,
        clients=np.arange(opened.setting.n_clients),
        evaluate=evaluate,
        seed=opened.clients_seed,
        sent=partial(_sending, spec),
        desk=None if home is None else _desk(spec, home),
    )
    if home is not None and (snapshot := home.load_clients()) is not None:
        found.restore(snapshot)
    return found


def _desk(spec: Spec, home: RunDirectory) -> Desk:
    """Where trials are told; on a grid of times for as long as a round waits for answers."""
    patience = None if spec.times is None else spec.times.patience
    return Desk(folder=home.private, patience=patience, threads=spec.threads)


def _sending(spec: Spec, cohort: Cohort) -> Cohort:
    """Clients as they send: under a control, now and then away."""
    sending: Cohort = zeroed(cohort) if spec.control == "zeroed" else cohort
    return sending if spec.attendance is None else UnreliableCohort(cohort=sending, attendance=spec.attendance)


def zeroed(cohort: Cohort) -> AlteredCohort:
    """Give the control in which clients act as ever, but every vector they send is zero.

    Run behind the same mechanism it shows what the noise alone does; a gain of sharing
    is claimed only against it.
    """
    return AlteredCohort(cohort=cohort, alter=lambda answers, _: np.zeros_like(answers))
