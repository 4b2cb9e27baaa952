"""The loop: ask, open, collect, close, tell, record; and what it leaves behind.

Order in every round: the charge is durable before clients are asked, the clients'
state is durable before the release is stored, and a release is stored before anyone is
told. A run killed at any point therefore resumes: stored releases are replayed to the
deterministic server, a charged round without stored bytes is drawn anew under the same
charge (nothing of it had left), and clients that answered answer the same again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from accountant.ledger import Ledger
from privbo.door.clipping import ClipStatistics
from privbo.door.door import Door
from privbo.door.noise import BoolArray
from privbo.plans.plan import Terms, resolve
from privbo.plans.privacy import NoPrivacy, Privacy, SharedLedger
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import save_arrays
from privbo.protocol.messages import (
    Algorithm,
    Ask,
    ClientHistory,
    Cohort,
    FloatArray,
    Release,
    Request,
    Server,
    UnitName,
)
from privbo.protocol.problem import Problem
from privbo.runs.attendance import Attendance, UnreliableCohort
from privbo.runs.in_process import InProcess, ZeroedCohort
from privbo.runs.notes import Notes, OnRound
from privbo.runs.opening import open_run, setting_of
from privbo.runs.record import RunDirectory


class Transport(Protocol):
    """Carries a round to every client and brings the answers back."""

    def collect(self, ask: Ask) -> FloatArray:
        """Answers ``(n_clients, dim)``; rows that are not finite are absences."""
        ...


@runtime_checkable
class AnonymousTransport(Transport, Protocol):
    """A transport whose channel hides who sends, so that only a release's secret sample need send."""

    def collect_from(self, ask: Ask, senders: BoolArray) -> FloatArray:
        """As ``collect``, with a message from the senders alone; the other rows are NaN."""
        ...


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished run.

    Attributes:
        config: The configuration as run, with the plan and its price.
        ledger: The ledger that was charged.
        releases: What was made public, in order.
        directory: Where it is kept; None for a simulation in memory.
        clients: PRIVATE: what the clients evaluated.
        clipping: PRIVATE: clip statistics per release.
        errors: PRIVATE: first failure of each client's objective.
    """

    config: dict[str, Any]
    ledger: Ledger
    releases: tuple[Release, ...]
    directory: Path | None
    clients: ClientHistory = field(repr=False)
    clipping: tuple[ClipStatistics, ...] = field(repr=False)
    errors: dict[int, str] = field(repr=False)


def plan(problem: Problem, algorithm: Algorithm, *, privacy: Privacy | NoPrivacy, rounds: int) -> Terms:
    """What a run would cost, without touching any data.

    Raises:
        ConfigurationError: If the settings are impossible.
        BudgetExceeded: If no noise meets the target.
    """
    adaptive = isinstance(privacy, Privacy) and privacy.adaptive_clipping is not None
    if adaptive and getattr(algorithm, "is_certified", False):
        raise ConfigurationError(
            "adaptive_clipping would break the guarantee of a certified elimination, which needs its clipping norm "
            "fixed; drop it, or choose the heuristic form"
        )
    unit: UnitName = privacy.unit if isinstance(privacy, Privacy) else "client"
    asked = planned_requests(problem, algorithm, rounds=rounds, unit=unit)
    return resolve(privacy, asked, n_clients=problem.n_clients)


def planned_requests(
    problem: Problem, algorithm: Algorithm, *, rounds: int, unit: UnitName = "client"
) -> Iterator[Request]:
    """Every request a run can make, without touching any data.

    Raises:
        ConfigurationError: If the settings are impossible.
    """
    _require_rounds(rounds)
    return algorithm.server(setting_of(problem, rounds, public_seed=0, device="cpu", unit=unit)).plan()


def execute(
    problem: Problem,
    algorithm: Algorithm,
    *,
    terms: Terms,
    rounds: int,
    seed: int | None = None,
    directory: Path | None = None,
    resume: bool = False,
    ledger: SharedLedger | None = None,
    control: Literal["zeroed"] | None = None,
    attendance: Attendance | None = None,
    name: str | None = None,
    source: dict[str, Any] | None = None,
    device: str = "cpu",
    on_round: OnRound | None = None,
    on_evaluation: Callable[[], None] | None = None,
) -> Outcome:
    """Run an algorithm to its end under the terms of ``plan``; see ``privbo.run`` for the arguments."""
    home = None if directory is None else RunDirectory(directory)
    run = open_run(
        problem,
        algorithm,
        terms=terms,
        rounds=rounds,
        seed=seed,
        home=home,
        resume=resume,
        ledger=ledger,
        control=control,
        attendance=attendance,
        name=name or problem.name,
        source=source,
        device=device,
    )
    evaluate = problem.evaluator(on_evaluation)
    cohort = algorithm.cohort(
        run.setting, clients=np.arange(problem.n_clients), evaluate=evaluate, seed=run.clients_seed
    )
    transport = InProcess(
        cohort=_sending(cohort, control, attendance, home),
        save=(lambda _: None) if home is None else home.save_clients,
    )
    notes = Notes(home=home, on_round=on_round, sending_share=terms.sending_share)
    play(run.server, transport, run.door, notes)
    history = cohort.history()
    if home is not None:
        save_arrays(home.evaluations_path, vars(history))
    return Outcome(
        config=run.config,
        ledger=run.ledger,
        releases=tuple(notes.releases),
        directory=directory,
        clients=history,
        clipping=tuple(notes.clipping),
        errors=dict(evaluate.errors),
    )


def _sending(
    cohort: Cohort, control: Literal["zeroed"] | None, attendance: Attendance | None, home: RunDirectory | None
) -> Cohort:
    """The clients as they send: under a control, now and then away, with what they knew before a crash."""
    sending: Cohort = ZeroedCohort(cohort=cohort) if control == "zeroed" else cohort
    if attendance is not None:
        sending = UnreliableCohort(cohort=sending, attendance=attendance)
    if home is not None and (snapshot := home.load_clients()) is not None:
        sending.restore(snapshot)
    return sending


def play(server: Server, transport: Transport, door: Door, notes: Notes) -> None:
    """The one loop, from the first open round to the last.

    Raises:
        ConfigurationError: If only sampled clients shall send over a transport that shows who sends.
    """
    if door.only_sampled_send and not isinstance(transport, AnonymousTransport):
        raise ConfigurationError(
            f"privacy.channel='anonymous', but {type(transport).__name__} does not hide who sends; use channel='open'"
        )
    position = 0
    while (ask := server.ask()) is not None:
        if ask.request is None:
            transport.collect(ask)
            server.tell(None)
            notes.add(ask.broadcast.round, None, None)
            continue
        ticket = door.open(ask.broadcast.round, ask.request, plan_position=position)
        position += 1
        if ticket.release is None:
            senders = ticket.senders
            if senders is not None and isinstance(transport, AnonymousTransport):
                answers = transport.collect_from(ask, senders)
            else:
                answers = transport.collect(ask)
            release, clipping = door.close(ticket, answers)
        else:
            release, clipping = ticket.release, None
        server.tell(release)
        notes.add(ask.broadcast.round, release, clipping)


def _require_rounds(rounds: int) -> None:
    if int(rounds) != rounds or rounds < 1:
        raise ConfigurationError(f"rounds={rounds!r} must be an integer >= 1")
