"""The clients of one process: one cohort of all, or one each; and the worker that holds groups of them. PRIVATE.

Of one each, an error is that client's alone, and no client is moved by the data of another. A client that raises in
the middle of a round is absent in that round. It goes on from the state after the last round that it answered, and its
first error is reported to its own side. Clients are called one after the other, unless each waits for values in a
thread of its own (``privbo.runs.trials``).

A worker is in this process, a thread, or a process on this or another machine. A task is one round of one group; its
outcome is the group's answers, or their sums, and the changes of its state. Everything that has to survive is reported
on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from privbo.door.sums import Partial, Summing
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.messages import (
    Algorithm,
    Array,
    Arrays,
    Broadcast,
    ClientHistory,
    Cohort,
    Evaluate,
    FloatArray,
    IntArray,
    PlainEvaluate,
    Setting,
    answers_together,
    takes_points,
)
from privbo.protocol.problem import Evaluator, Memory, Problem, Rehearsed, Rows
from privbo.protocol.processes import named
from privbo.runs.altered import unreliable, zeroed
from privbo.runs.spec import Spec
from privbo.runs.states import Group, difference

FINISHED = "finished_round"


@dataclass(kw_only=True)
class Each:
    """A cohort of one for every client, whose objectives are called one client after the other; PRIVATE.

    Attributes:
        clients: Numbers of the clients, ``(n,)``.
        made: Makes the cohort of some of them.
        evaluate: Their objectives; told of every client's first error.
    """

    clients: IntArray
    made: Callable[[IntArray, Evaluate], Cohort]
    evaluate: Evaluator
    _cohorts: dict[int, Cohort] = field(default_factory=dict, init=False, repr=False)
    _kept: dict[int, dict[str, Array]] = field(default_factory=dict, init=False, repr=False)
    _histories: dict[int, ClientHistory] = field(default_factory=dict, init=False, repr=False)

    def answer(self, broadcast: Broadcast, dim: int) -> FloatArray:
        """Every client's answer, ``(n, dim)``; NaN rows for those that raised, were late or answered otherwise."""
        rows = np.full((len(self.clients), dim), np.nan)
        for row, client in zip(rows, map(int, self.clients), strict=True):
            with self.guarded(client):
                found = self.act(client, broadcast, dim)
                if dim:
                    row[:] = found[0]
        return rows

    def snapshot(self) -> Arrays:
        """Every client's state after the last round that it finished, by number and name."""
        return {f"{client}/{name}": array for client, kept in self._kept.items() for name, array in kept.items()}

    def restore(self, snapshot: Arrays) -> None:
        """Take the state of ``snapshot``."""
        for state in (self._cohorts, self._histories, self._kept):
            state.clear()
        for key, array in snapshot.items():
            client, _, name = key.partition("/")
            self._kept.setdefault(int(client), {})[name] = array

    def history(self) -> ClientHistory:
        """PRIVATE: every evaluation of the rounds that clients finished; NaN for one that has none."""
        for client in self._kept.keys() - self._histories.keys():
            with self.guarded(client):
                self._histories[client] = self._cohort(client).history()
        return joined([self._histories.get(int(client)) for client in self.clients])

    def act(self, client: int, broadcast: Broadcast, dim: int) -> FloatArray:
        """Let one client answer ``(1, dim)``, and keep its state after the round."""
        cohort = self._cohort(client)
        found = shaped(cohort.respond(broadcast), dim)
        kept, history = dict(cohort.snapshot()), cohort.history()
        self._kept[client], self._histories[client] = kept, history
        return found

    def evaluates(self, client: int) -> Evaluate:  # noqa: ARG002 (of one that asks for trials there is one each)
        """Give what a client's cohort evaluates with."""
        return self.evaluate

    def mark_finished(self, client: int, round_: int) -> None:
        """Store with a client's state that it has finished a round, whatever came of it."""
        self._kept[client] = {**self._kept.get(client, {}), FINISHED: np.array(round_)}

    def finished(self, client: int) -> int:
        """Last round that a client is marked to have finished; -1 before the first."""
        found = self._kept.get(client, {}).get(FINISHED)
        return -1 if found is None else int(found)

    def forget(self, client: int) -> None:
        """Begin anew from a client's kept state: it stopped in the middle of something."""
        self._cohorts.pop(client, None)

    @contextmanager
    def guarded(self, client: int) -> Iterator[None]:
        """Whatever a client's own code raises is its failure; the run goes on."""
        try:
            yield
        except Rehearsed:
            self.forget(client)
        except BaseException as error:
            if (end := self.evaluate.ends(error)) is not None:
                raise end from None
            self.forget(client)
            self.evaluate.note(client, named(error))

    def _cohort(self, client: int) -> Cohort:
        if client not in self._cohorts:
            made = self.made(np.array([client]), self.evaluates(client))
            kept = {name: array for name, array in self._kept.get(client, {}).items() if name != FINISHED}
            if kept:
                made.restore(kept)
            self._cohorts[client] = made
        return self._cohorts[client]


def shaped(answer: npt.ArrayLike, dim: int) -> FloatArray:
    """Give one client's answer; in a round of local work whatever it is.

    Raises:
        RunError: If it has another shape than was asked for.
    """
    found = np.asarray(answer, dtype=np.float64)
    if dim and found.shape != (1, dim):
        raise RunError(f"the answer has shape {found.shape}, asked was (1, {dim})")
    return found


def joined(histories: Sequence[ClientHistory | None]) -> ClientHistory:
    """Give histories of clients as one; NaN where one has fewer evaluations in a round; None is one client."""
    there = [history for history in histories if history is not None]
    if len(there) == len(histories) == 1:
        return there[0]
    n_dims = there[0].units.shape[2] if there else 0
    places = sorted({place for history in there for place in _places(history)})
    column = {place: index for index, place in enumerate(places)}
    n_clients = sum(1 if history is None else len(history.values) for history in histories)
    units = np.full((n_clients, len(places), n_dims), np.nan)
    values, recommended = np.full(units.shape[:2], np.nan), np.full((n_clients, n_dims), np.nan)
    calls = np.zeros(values.shape, dtype=np.int64)
    first = 0
    for history in histories:
        rows = slice(first, first + (1 if history is None else len(history.values)))
        first = rows.stop
        if history is not None:
            mine = [column[place] for place in _places(history)]
            units[rows, mine], values[rows, mine] = history.units, history.values
            calls[rows, mine], recommended[rows] = np.asarray(history.calls), history.recommended
    rounds = np.array([round_ for round_, _ in places], dtype=np.int64)
    return ClientHistory(units=units, values=values, rounds=rounds, recommended=recommended, calls=calls)


def _places(history: ClientHistory) -> list[tuple[int, int]]:
    """Round of every evaluation, and its number in the round; rounds follow each other."""
    numbers = np.arange(len(history.rounds)) - np.searchsorted(history.rounds, history.rounds)
    return list(zip(history.rounds.tolist(), numbers.tolist(), strict=True))


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


def clients_of(
    setup: WorkerSetup,
    clients: IntArray,
    evaluate: Evaluator,
    *,
    sent: Callable[[Cohort], Cohort] = lambda cohort: cohort,
    asking: Callable[..., Each] | None = None,
    apart: bool = False,
) -> Cohort | Each:
    """Make the private side for some clients: one cohort where the algorithm answers for all at once, else one each.

    Clients whose evaluations are made outside, and those that bring evaluations along, have one each as well: none
    waits for another one's, and none is moved by them.

    Args:
        setup: The run.
        clients: Numbers of the clients.
        evaluate: Their objectives.
        sent: Alters what a cohort sends.
        asking: Makes clients that ask for trials, where the problem has no objective to call.
        apart: Whether each has a cohort of its own in any case.

    Raises:
        ConfigurationError: If trials are to be asked and there is no place for them.
    """
    algorithm = setup.spec.played

    def made(some: IntArray, by: Evaluate = evaluate) -> Cohort:
        return sent(setup.spec.cohort(setup.setting, clients=some, evaluate=by, seed=setup.seed))

    require_takes(algorithm, evaluate.problem)
    if evaluate.problem.is_asked and asking is None:
        raise ConfigurationError(
            "objective='ask' stores its trials with the run, and this one has no directory (a simulation or a control "
            "in memory); name a directory, and drop controls"
        )
    # What one client brings along must not move another one, not even by the length of a common array.
    if asking is None and answers_together(algorithm) and evaluate.problem.earlier is None and not apart:
        return made(clients)
    return (asking or Each)(clients=clients, made=made, evaluate=evaluate)


def require_takes(algorithm: Algorithm, problem: Problem) -> None:
    """Refuse points that clients bring along where their algorithm takes none.

    Raises:
        ConfigurationError: Naming what to drop.
    """
    for name in ("earlier", "enqueued"):
        named = getattr(problem, name) or getattr(problem.source, name, None)  # code that a file names is not loaded
        if named is not None and not takes_points(algorithm):
            raise ConfigurationError(
                f"problem.{name}: clients of {type(algorithm).__name__} take no points from outside; drop {name}, "
                "or protect whole clients with shared-prior or dp-fts-de"
            )


def answers_of(clients: Cohort | Each, broadcast: Broadcast, dim: int) -> FloatArray:
    """Answers to a broadcast, ``(n, dim)``; a row that is not finite is an absence.

    What one cohort of all raises is a fault of the program and ends the run.
    """
    return clients.answer(broadcast, dim) if isinstance(clients, Each) else clients.respond(broadcast)


def require_answers(spec: Spec) -> None:
    """Let a client of the user's own algorithm answer the first round on made-up values: no data, no charge.

    Raises:
        ConfigurationError: If it raises, or answers in another shape: every client would, in every charged round.
    """
    if answers_together(spec.played):
        return
    setting, alone = spec.setting(public_seed=0), np.zeros(1, dtype=np.int64)
    ask = spec.server(setting).ask()
    if ask is None:
        return
    try:
        made_up = PlainEvaluate(lambda _, units: np.asarray(units.mean(axis=1)))
        cohort = spec.cohort(setting, clients=alone, evaluate=made_up, seed=0)
        shaped(cohort.respond(ask.broadcast), 0 if ask.request is None else ask.request.dim)
        cohort.restore(cohort.snapshot())
        cohort.history()
    except Exception as error:
        kind = type(spec.algorithm).__name__
        raise ConfigurationError(
            f"a client of {kind} fails on made-up values ({named(error)}); fix it. Nothing was charged"
        ) from error


def require_device(device: str) -> None:
    """Refuse a device on which torch can't hold clients' models here.

    Raises:
        ConfigurationError: With torch's words.
    """
    if device == "cpu":
        return
    import torch

    try:
        torch.empty(0, dtype=torch.float64, device=device)
    except (AssertionError, RuntimeError, TypeError) as error:
        why = str(error).partition("\n")[0]
        raise ConfigurationError(f"device={device!r} can't be used here ({why}); write device = 'cpu'") from None


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
        asking: As of ``clients_of``.
    """

    def __init__(
        self,
        setup: WorkerSetup,
        evaluate: Evaluator,
        keep: Callable[[Rows], None],
        asking: Callable[..., Each] | None = None,
    ) -> None:
        self._setup, self._evaluate, self._keep, self._asking = setup, evaluate, keep, asking
        if setup.spec.privacy.noise_source in ("none", "simulation"):  # a training's own noise has to stay secret, too
            evaluate.seed = setup.seed
        self._held: dict[Group, tuple[Cohort | Each, Arrays | None]] = {}

    @np.errstate(all="ignore")  # whatever a problem's module has set: a client's numbers decide nothing here
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

    def _made(self, task: WorkerTask) -> Cohort | Each:
        spec = self._setup.spec

        def sent(cohort: Cohort) -> Cohort:
            cohort = zeroed(cohort) if spec.control == "zeroed" else cohort
            return cohort if spec.attendance is None else unreliable(cohort, spec.attendance)

        made = clients_of(self._setup, np.arange(*task.group), self._evaluate, sent=sent, asking=self._asking)
        if task.state is not None:
            made.restore(_copied(task.state))
        return made


def _copied(state: Arrays) -> Arrays:
    """The state in arrays of its own: clients may change theirs in place, and changes are found by comparing."""
    return {name: np.array(array) for name, array in state.items()}
