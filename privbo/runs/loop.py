"""The loop: ask, open, collect, close, tell, record.

Order in every round: the charge is durable before clients are asked, the clients'
state is durable before the release is stored, and a release is stored before anyone is
told. A run killed at any point therefore resumes: stored releases are replayed to the
deterministic server, a charged round without stored bytes is drawn anew under the same
charge (nothing of it had left), and clients that answered answer the same again.
"""

from __future__ import annotations

import io
import logging
import math
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol, Unpack, cast

from privbo.door.door import Ticket
from privbo.door.sums import Partial, Sealed
from privbo.plans.plan import Plan
from privbo.protocol.common import CHOSEN, is_of_rounds
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.files import fresh_directory, save_arrays
from privbo.protocol.messages import Algorithm, Ask, FloatArray, Standing
from privbo.protocol.problem import Problem, require_call
from privbo.protocol.processes import watched_interrupts
from privbo.protocol.settings import path_name
from privbo.runs.best import keep_common
from privbo.runs.clients import require_answers
from privbo.runs.evidence import plan_of, recovered_places
from privbo.runs.in_process import in_process, printed_to
from privbo.runs.manifest import RunDirectory, keep_clipped
from privbo.runs.opening import Run, open_run, plan_run, require_beginning, root_of, setup_of
from privbo.runs.record import History, OnPrivateRound, OnRound, Record, progress_bar
from privbo.runs.rehearsal import Rehearsal, rehearse
from privbo.runs.spec import MARGIN, RunSettings, Spec, Times
from privbo.runs.worker_pool import pool_of


@dataclass(kw_only=True)
class Clock:
    """Keeps a grid: waits for its points and names them. Without a grid nothing waits and nothing is named.

    Attributes:
        times: The grid, or None.
        now: Gives the seconds since 1970.
        sleep: Waits for seconds.
    """

    times: Times | None
    now: Callable[[], float]
    sleep: Callable[[float], None] = time.sleep
    _end: float = field(default=0.0, init=False)

    def begin(self) -> None:
        """Wait for the point at which a round begins: the end of the one before, if that has only just been."""
        if self.times is None:
            return
        length = self.times.round_seconds
        late = self.now() - self._end
        start = self._end if 0 <= late < MARGIN * length else math.ceil(self.now() / length) * length
        self._wait(start)
        self._end = start + length

    def end(self) -> str | None:
        """Wait for the end of the round and give it as text; if it has passed, the next point of the grid."""
        if self.times is None:
            return None
        length = self.times.round_seconds
        while self._end < self.now():
            self._end += length
        self._wait(self._end)
        return f"{datetime.fromtimestamp(self._end, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"

    def _wait(self, moment: float) -> None:
        while (rest := moment - self.now()) > 0:
            self.sleep(rest)


class Transport(Protocol):
    """Carries a round to every client and brings the answers back."""

    @property
    def hides_senders(self) -> bool:
        """Whether the channel hides who sends, so that only a release's secret sample need send."""

    def collect(self, ask: Ask, ticket: Ticket | None = None) -> FloatArray | Partial | Sealed:
        """Collect what clients send in a round.

        Args:
            ask: The question.
            ticket: The open release; None in a round of local work. It says who need send, and how groups are summed.

        Returns:
            Answers ``(n_clients, dim)``, rows that are not finite being absences; or the sums of groups, of clients
            who are in groups; or ciphertexts, where guardians sum.
        """


def play(opened: Run, transport: Transport, on_round: OnRound | None = None, *, clock: Clock | None = None) -> Record:
    """Play a run over a transport, from its first open round to the last: ask, open, collect, close, tell, record.

    Args:
        opened: The run.
        transport: Carries its rounds.
        on_round: Called after every round with public quantities.
        clock: Keeps the run's grid of times; made of ``spec.times`` unless given.

    Raises:
        ConfigurationError: If only sampled clients shall send over a transport that shows who sends.
        RunError: If the server asks a round again after it was told its release.
    """
    if opened.door.only_sampled_send and not transport.hides_senders:
        raise ConfigurationError(
            f"privacy.channel='anonymous', but {type(transport).__name__} does not hide who sends; use channel='open'"
        )
    record, server, door = opened.record, opened.server, opened.door
    home = None if record.directory is None else record.home
    book = record.ledger.book()
    bound = plan_of(record.manifest, book)
    history = History(home=home, on_round=on_round, lost=recovered_places(book, record.run_id))
    announced, position, clock = None, 0, clock or Clock(times=record.spec.times, now=time.time)
    # Of rounds that ended the answers are stored, and no time of theirs shows; trials are waited for again.
    past = history.ended if home is not None and home.all_states() and not record.spec.problem.is_asked else {}
    if home is not None:
        home.recall(server)
    last = -math.inf
    while (ask := server.ask()) is not None:
        round_, ticket = ask.broadcast.round, None
        release, clipping, ended = None, None, None
        if round_ <= last:  # its release is stored, so the run would never end
            raise RunError(f"the server asks round {round_} after round {last}; tell() must lead to the next round")
        last, announced = round_, ask.broadcast.arrays.get(CHOSEN, announced)
        standing = Standing(plan=bound.digest, sequence=len(book.rows), head=book.head)
        if ask.request is not None:
            kept = None if home is None else home.keep_announced(server)
            ticket = door.open(round_, ask.request, plan_position=position, announced=kept)
            release, position = ticket.release, position + 1
            standing = replace(standing, sequence=ticket.receipt.sequence, head=ticket.receipt.head)
        if release is None:
            if (ended := past.get(round_)) is None:
                clock.begin()
            answers = transport.collect(replace(ask, standing=standing), ticket)
            ended = ended or clock.end()
            if ticket is not None:
                release, clipping = door.close(ticket, answers)
        server.tell(release)
        history.add(round_, release, clipping if is_of_rounds(ask) else None, ended=ended)
    return replace(record, common=keep_common(announced, server, record.spec.problem.search_space, record.directory))


def plan(problem: Problem, algorithm: Algorithm | None = None, **settings: Unpack[RunSettings]) -> Plan:
    """Price a run without touching any data; arguments as for ``run``.

    It does not look at what decides whether a run may begin: ``policy``, ``ledger``, ``jobs``, ``device``, ``times``.

    Raises:
        ConfigurationError: If the settings are impossible.
        BudgetExceeded: If no noise meets the target.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda client, params: 0.0, n_clients=40)
        >>> pb.plan(problem, pb.DPFTSDE(), privacy=pb.Privacy(epsilon=2.0), rounds=20).releases
        20
    """
    spec = asked_for(problem, algorithm, None, settings)
    return replace(plan_run(spec), remedy=spec.remedy, calls_per_client=spec.calls_per_client)


def run(
    problem: Problem,
    algorithm: Algorithm | None = None,
    *,
    directory: str | Path | None = None,
    resume: bool = False,
    name: str | None = None,
    executor: object = "serial",
    rehearse: bool = True,
    progress: bool = False,
    on_round: OnRound | None = None,
    on_private_round: OnPrivateRound | None = None,
    **settings: Unpack[RunSettings],
) -> Record:
    """Run a private federated optimisation.

    Args:
        problem: The clients' search space and objectives.
        algorithm: What to run, such as ``DPFTSDE()``; by default ``SharedPrior()``, or ``MultiTask()`` where one record
            is the unit of privacy.
        directory: Where the run is kept; by default ``runs/NAME-DATE-TOKEN``, and in memory
            for simulations.
        resume: Go on with the run in ``directory``.
        name: Shown in reports, and part of paths: no spaces; the problem's by default.
        executor: Who works on the clients: ``"serial"``, ``"threads"``, ``"processes"``, ``"dask:HOST:PORT"``, or a
            ``dask.distributed.Client``. It changes no number; see docs/scale.md.
        rehearse: Let every client of a private run make its first evaluation before the run exists. Where none has a
            value, nothing is made or charged. What else it shows goes to the logger ``privbo.private``. The run takes
            the evaluations over, so none is made twice.
        progress: Show a progress bar on standard error.
        on_round: Called after every round with public quantities; what it raises ends the run.
        on_private_round: PRIVATE: called when clients have answered a round, with their evaluations, which no epsilon
            covers; what it raises goes to the logger ``privbo.private`` and changes nothing.
        settings: What is run, by name; ``privacy`` and ``rounds`` are needed:

            - ``privacy``: A target or a noise multiplier; ``NoPrivacy()`` for a baseline.
            - ``rounds``: Number of rounds in which clients act on what was shared.
            - ``seed``: Makes the algorithm's and the clients' choices repeatable. Privacy noise is
              never seeded unless ``privacy.noise == "simulation"``.
            - ``ledger``: A population's ledger to charge instead of the run's own, where several runs
              concern the same clients.
            - ``policy``: Runs that are allowed on these people; a run that it refuses touches no data.
            - ``final``: ``"common"`` ends the run with one more planned release, a noisy vote of the clients that
              chooses one setting for all: ``Record.common``.
            - ``final_share``: Share of the run's squared budget that the vote gets.
            - ``control``: ``"zeroed"`` replaces every client's vector by zero behind the same
              mechanism, to show what the noise alone does.
            - ``attendance``: Clients that are away or late, simulated; None for an ideal network.
            - ``device``: Torch device of batched agents.
            - ``times``: A declared grid on which rounds begin and end, so that no client's slowness shows; None for no
              time but the date.
            - ``jobs``: Number of workers; by default one per processor, or as many as the cluster has.
            - ``evaluation_seconds``: Seconds that one evaluation may take; it then has a process of its own, which is
              killed when they are over, and counts as failed.

    Returns:
        The record; its ``ledger`` is open.

    Raises:
        ConfigurationError: If a setting is impossible; nothing was touched.
        PolicyError: If the policy refuses the run; nothing was touched.
        BudgetExceeded: If the plan costs more than the ledger has left.
        RehearsalError: If no client has a value; nothing was made or charged.
        RunError: If the directory can't be used as asked.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda c, params: params["x"], n_clients=3)
        >>> record = run(problem, pb.FederatedFLCB(), privacy=pb.NoPrivacy(), rounds=2, seed=0)
        >>> record.epsilon()
        inf
    """
    spec = asked_for(problem, algorithm, name, settings, on_round=on_round, on_private_round=on_private_round)
    if problem.is_asked:
        raise ConfigurationError("objective='ask': its trials are evaluated outside of this call; use privbo.start")
    if isinstance(executor, str):
        spec = replace(spec, executor=executor)
    if not isinstance(directory, str | Path | None):
        raise ConfigurationError(f"directory={directory!r} is no path; write directory='runs/first'")
    home = None if directory is None else Path(directory)
    if home is None and spec.privacy.noise_source not in {"none", "simulation"}:
        home = fresh_directory(spec.name)
    return run_spec(
        spec,
        home,
        resume=resume,
        progress=progress,
        on_round=on_round,
        on_private_round=on_private_round,
        on_rehearsal=_log_rehearsal if rehearse else None,
        executor=executor,
    )


def _log_rehearsal(found: Rehearsal) -> None:
    if found.failures:
        logging.getLogger("privbo.private").warning("rehearsal: %s", found.text)


def asked_for(
    problem: Problem, algorithm: Algorithm | None, name: str | None, settings: RunSettings, **callbacks: object
) -> Spec:
    """Give the run that these settings ask for, named after its problem where they give no name.

    Args:
        problem: As of ``run``.
        algorithm: As of ``run``.
        name: As of ``run``.
        settings: As of ``run``.
        callbacks: By name; each has to take a round.

    Raises:
        ConfigurationError: If a setting is impossible, or a callback can't be called.
    """
    unknown = settings.keys() - RunSettings.__annotations__.keys()
    if unknown:
        allowed = ", ".join(sorted(RunSettings.__annotations__))
        raise ConfigurationError(f"{', '.join(sorted(unknown))}: no argument, and no setting of a run: {allowed}")
    if not name:
        name = path_name(problem.name) if isinstance(problem, Problem) else "run"
    spec = Spec(name=name, problem=problem, algorithm=cast("Algorithm", algorithm), **settings)
    for called, callback in callbacks.items():
        if callback is not None:
            require_call(callback, called, "round", None)
    return spec


def run_spec(
    spec: Spec,
    directory: Path | None,
    *,
    resume: bool = False,
    progress: bool = False,
    on_round: OnRound | None = None,
    on_evaluation: Callable[[], None] | None = None,
    on_private_round: OnPrivateRound | None = None,
    on_rehearsal: Callable[[Rehearsal], None] | None = None,
    output: Path | None = None,
    executor: object = None,
    journal: Path | None = None,
) -> Record:
    """Plan, open and play a run with its clients in this process.

    Args:
        spec: What to run.
        directory: Where the run is kept; None keeps a simulation in memory.
        resume: Go on with the run in ``directory``.
        progress: Show a progress bar on standard error.
        on_round: Called after every round with public quantities.
        on_evaluation: Called after every evaluation; what it raises ends the run, which can be resumed.
        on_private_round: PRIVATE: as for ``run``.
        on_rehearsal: PRIVATE: called with what a rehearsal shows, before a private run is made; None rehearses nothing.
        output: PRIVATE: where what clients' code prints goes; None leaves it on the terminal.
        executor: Who works on the clients, where it is no text; ``spec.executor`` otherwise.
        journal: PRIVATE: file of the evaluations of a run in memory, of which none is then made twice.

    Raises:
        ConfigurationError: If a setting is impossible; nothing was touched.
        PolicyError: If the policy refuses the run; nothing was touched.
        BudgetExceeded: If the plan costs more than the ledger has left.
        RehearsalError: If no client has a value; nothing was made or charged.
        RunError: If the directory can't be used as asked.
    """
    pool = pool_of(spec.executor if executor is None else executor, spec, quiet=output is not None)
    made = partial(in_process, pool=pool)
    home = None if directory is None else RunDirectory(directory.absolute())
    evaluate = spec.evaluator(on_evaluation=on_evaluation)
    if not resume:
        require_answers(spec)
    priced, root, rehearsed, said = plan_run(spec), None, None, io.StringIO()
    if on_rehearsal is not None and priced.has_secret_noise and not (resume or spec.problem.is_asked):
        require_beginning(spec, priced, home)
        root = root_of(spec)
        with watched_interrupts() as stopped, printed_to(output and said):
            first = spec.evaluator(on_evaluation=on_evaluation, stopped=stopped)
            rehearsed = rehearse(setup_of(spec, root), first, made)
        on_rehearsal(rehearsed)
    with (
        nullcontext() if home is None else home.settled(),
        ExitStack() as held,
        nullcontext(open_run(spec, priced, home, resume=resume, root=root, held=held)) as opened,
        progress_bar(spec.name, spec.rounds, on_round) if progress else nullcontext(on_round) as heard,
        watched_interrupts() as stopped,
        printed_to(output),
    ):
        evaluate.stopped = stopped
        if home is not None:
            evaluate.on_failure, evaluate.on_clipped = home.keep_failure, partial(keep_clipped, home.scores_path)
            evaluate.errors |= home.failures()
        clients = made(opened.setup, home, evaluate, on_private_round, journal=journal)
        if rehearsed is not None:
            rehearsed.hand_over(clients.journal, evaluate, said.getvalue())
        try:
            record, history = play(opened, clients, heard), clients.history()
        finally:
            clients.end()
        if home is not None:
            save_arrays(home.evaluations_path, vars(history))
            if spec.problem.is_asked:
                from privbo.runs.trials import TRIALS, Journal

                Journal(path=home.private / TRIALS).finish()
    return replace(record, _clients=history, _failures=evaluate.errors)
