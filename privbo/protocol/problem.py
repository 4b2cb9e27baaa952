"""A problem: a search space, an objective, and the clients that hold it.

Any learner is put under record-level privacy by sample and aggregate (``in_blocks``; Nissim, Raskhodnikova and Smith
2007).

What a client evaluates is a function of its history and of public numbers, so a round that is played again asks for the
same points in the same order: an evaluation is known by its client, its round and its place in it, if the point agrees
(``Memory``; PRIVATE).
"""

from __future__ import annotations

import inspect
import logging
import math
import operator
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sized
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import SkipValidation

from accountant.errors import EventError
from accountant.events import Event, compose, from_dict, to_dict
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Array, BoolArray, FloatArray, IntArray, PullObjective
from privbo.protocol.processes import NoAnswerError, Stopped, kept_generators, named, stir_generators, within
from privbo.protocol.settings import Count, JsonObject, Range, Sequence, settings
from privbo.protocol.space import Parameter, Space, Value

Rows = npt.NDArray[np.void]
_KEY = ("client", "round", "place", "count")


def row_type(n_dims: int) -> np.dtype[np.void]:
    """Layout of one evaluation in a file or on the wire, of 64-bit words; ``count`` is 0 but for a mean."""
    numbers = [(name, "<i8") for name in _KEY]
    return np.dtype([*numbers, ("value", "<f8"), ("unit", "<f8", (n_dims,))])


class Memory:
    """Remembers the evaluations of some clients, whose numbers follow each other.

    Args:
        clients: Their numbers.
        n_dims: Of the search space.
        keep: Told of every evaluation as soon as it was made; what it keeps is never made again.
    """

    def __init__(self, clients: IntArray, n_dims: int, keep: Callable[[Rows], None]) -> None:
        self._first, self._n_dims, self._keep = int(clients.min(initial=0)), n_dims, keep
        self._places = np.zeros(int(clients.max(initial=-1)) + 1 - self._first, dtype=np.int64)
        self.begin(0, np.empty(0, dtype=row_type(n_dims)))

    def begin(self, round_: int, known: Rows) -> None:
        """Begin a round, maybe again, with those of its evaluations that are known."""
        self._places[:] = 0
        self._round = round_
        known = known[known["round"] == round_]
        order = np.argsort(_names(known["client"], known["place"]), kind="stable")
        self._known = known[order]
        self._named = _names(self._known["client"], self._known["place"])

    def recall(self, clients: IntArray, units: FloatArray, counts: IntArray | None) -> tuple[FloatArray, IntArray]:
        """Give the values that are known of what is to be evaluated, NaN elsewhere, and the places of those.

        Args:
            clients: ``(n,)``.
            units: ``(n, n_dims)``.
            counts: Rewards that are averaged, ``(n,)``; None where one value is asked for.
        """
        index = np.asarray(clients) - self._first
        order = np.argsort(index, kind="stable")
        ordered, rank = index[order], np.empty(len(index), dtype=np.int64)
        rank[order] = np.arange(len(index)) - np.searchsorted(ordered, ordered)
        places = self._places[index] + rank  # of each evaluation among its client's in this round
        np.add.at(self._places, index, 1)
        self._rows = rows = np.zeros(len(clients), dtype=row_type(self._n_dims))
        rows["client"], rows["round"], rows["place"] = clients, self._round, places
        rows["count"], rows["unit"] = 0 if counts is None else counts, units
        self._values = rows["value"]  # a view, as one evaluation after the other is kept
        self._values[:] = np.nan
        if not len(self._known):
            return self._values.copy(), np.arange(len(rows))
        last = np.searchsorted(self._named, _names(clients, places), side="right") - 1
        there = self._known[np.maximum(last, 0)]
        same = [there[name] == rows[name] for name in _KEY]
        same.append((there["unit"].view("<i8") == rows["unit"].view("<i8")).reshape(len(rows), -1).all(axis=1))
        found = np.logical_and.reduce(same)
        return np.where(found, there["value"], np.nan), np.flatnonzero(~found)

    def is_first(self, rows: IntArray) -> BoolArray:
        """Tell which of the rows that were recalled are their client's first of the round."""
        return np.asarray(self._rows["place"][rows] == 0)

    def name(self, row: int) -> str:
        """Give the round of a row that was recalled and its place there, as text."""
        return f"{self._rows['round'][row]} {self._rows['place'][row]}"

    def keep(self, made: int | IntArray, values: FloatArray | float) -> None:
        """Keep the values of what was recalled at a place or at several, each once."""
        self._values[made] = values
        self._keep(self._rows[made : made + 1] if isinstance(made, int) else self._rows[made])


def _names(clients: IntArray, places: IntArray) -> IntArray:
    """One number per client and place."""
    return np.asarray((clients << 28) | places)


Objective: TypeAlias = Callable[[int, dict[str, Value]], float | npt.ArrayLike | tuple[npt.ArrayLike, Event]]
BatchObjective: TypeAlias = Callable[[IntArray, FloatArray], FloatArray]
Earlier: TypeAlias = Callable[[int], Iterable[tuple[Mapping[str, Value], float]]]
Enqueued: TypeAlias = Callable[[int], Iterable[Mapping[str, Value]]]
T = TypeVar("T")

ASK: Literal["ask"] = "ask"
"""The objective of a problem whose evaluations are asked for and told: by a person, a laboratory, another tool."""
LARGEST_VALUE = 1e100
"""Largest magnitude of an objective's value: squares and sums of such values stay finite."""

FACTS = ("name", "provenance", "n_clients", "fingerprint", "n_records", "score_range")
"""Fields of a problem, besides its space, that every party of a run knows."""
_private_log = logging.getLogger("privbo.private")
_private_log.addHandler(logging.NullHandler())  # else Python prints warnings of a logger without handler
_NOT_FINITE = f"only finite values up to {LARGEST_VALUE:g} in magnitude count"
_CLIPPED = "it counts as the nearer end, or as the lower one; normalise the objective"
_LONGEST_REASON = 10_000
_evaluating = threading.local()
NOT_ALLOWED = "a point that does not keep the space's constraints was chosen; it is not evaluated"


@settings(table="problem")
class ProblemSource:
    """The ``[problem]`` table of a configuration: where a problem comes from, and its public facts.

    Attributes:
        factory: ``module:function`` that returns a ``Problem``; called with ``arguments``.
        arguments: Of the factory.
        objective: ``module:function`` of the objective, where there is no factory; ``"ask"`` where values are told.
        earlier: ``module:function`` of what clients evaluated before the run, where there is no factory.
        enqueued: ``module:function`` of points that clients evaluate first, where there is no factory.
        n_clients: N; without a factory it must be given.
        space: Named parameters; without a factory they must be given.
        constraints: Formulas that every point keeps.
        n_records: As in ``Problem``.
        score_range: As in ``Problem``.
        training: As in ``Problem``: the event's table, such as ``{type = "gaussian", noise_multiplier = 8.0}``.
        name: Shown in reports.
        provenance: Where the data comes from; shown in reports.
        fingerprint: Names the data's version, so that kept results of other data are not reused.
    """

    factory: str | None = None
    arguments: JsonObject = field(default_factory=dict)
    objective: str | None = None
    earlier: str | None = None
    enqueued: str | None = None
    n_clients: Count | None = None
    space: dict[str, Parameter] = field(default_factory=dict)
    constraints: Sequence[str] = ()
    n_records: Sequence[Count] | None = None
    score_range: Range = (0.0, 1.0)
    training: JsonObject | None = None
    name: str | None = None
    provenance: str = ""
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        for name in ("factory", "objective", "earlier", "enqueued"):
            reference = getattr(self, name)
            if reference is not None and ":" not in reference and (name, reference) != ("objective", ASK):
                module, _, function = reference.rpartition(".")
                example = f", here perhaps '{module}:{function}'" if module else ""
                raise ConfigurationError(
                    f"problem.{name}={reference!r} names no function; write module:function{example}"
                )
        require_records(self.n_records, self.n_clients, is_called=self.objective != ASK)
        self.training_event()

    def training_event(self) -> Event | None:
        """Give the declared event of one evaluation's training.

        Raises:
            ConfigurationError: If the table describes no event.
        """
        try:
            return None if self.training is None else from_dict(self.training)
        except EventError as error:
            raise ConfigurationError(f"problem.training={self.training!r}: {error}") from None


@settings(table="problem")
class Problem:
    """A problem: the search space and the objective of every client.

    Attributes:
        space: Named parameters.
        constraints: Formulas that every point keeps, such as ``"width * depth <= 512"``; public, like the space. A
            ``Space`` has its own.
        objective: ``objective(client, params) -> float``, larger is better. It may raise
            or return NaN: that client's round then contributes nothing and the run goes on.
            Values beyond 1e100 in magnitude count as failures. ``"ask"`` where nothing can be
            called: trials are asked and told, see ``privbo.Site``.
        earlier: PRIVATE: ``earlier(client)`` gives pairs of parameters and value that a client evaluated before the
            run. Its own models start with them; they stay with the client and cost nothing.
        enqueued: PRIVATE: ``enqueued(client)`` gives parameters that a client evaluates in place of its first choices.
        n_clients: N, the number of registered clients, public.
        n_records: Number of records that every client holds, such as a hospital's patients; public. The objective
            then returns one score per record, ``(n_records[client],)``, and its value is their mean. A score outside
            ``score_range`` is clipped to it, one that is not finite counts as the lower end. With
            ``privacy.unit="record"`` a record's score may depend on that record, the parameters and nothing else.
        score_range: Declared bounds of a record's score.
        training: Where every evaluation trains a model on the records it scores, under differential privacy: what one
            training costs one record that is replaced by another, such as ``TrainingPlan.event`` of
            ``privbo.plan_training``; public. The objective then returns its scores *and* the event of the training that
            it made, ``(scores, event)``; another event than the declared one counts as a failed evaluation. With
            ``privacy.unit="record"`` the price of a run includes the trainings behind its release.

            .. versionadded:: 0.3.0
        batch_objective: Optional vectorised form for simulations,
            ``batch_objective(clients (n,), units (n, n_dims)) -> (n,)``; where it fails for
            many it is asked for one client at a time, and only those that fail are left out.
        best_values: Optional best attainable value per client ``(n_clients,)`` or a
            function that computes it, for regret in experiments; private.
        name: Shown in reports.
        provenance: Where the data comes from; shown in reports.
        fingerprint: Names the data's version, so that kept results of other data are not reused.
        source: The configuration's ``[problem]`` table it was made from; None for one made in Python.

    Raises:
        ConfigurationError: If the space is empty or there is no client or no objective.

    Example:
        >>> from privbo.protocol.space import Real
        >>> problem = Problem(space={"x": Real(0, 1)}, objective=lambda client, params: -params["x"], n_clients=3)
        >>> problem.search_space.n_dims
        1
    """

    space: Annotated[Space | Mapping[str, Parameter], SkipValidation]
    n_clients: Count
    constraints: Sequence[str] = ()
    objective: Objective | Literal["ask"] | None = None
    batch_objective: BatchObjective | None = None
    n_records: Sequence[Count] | None = None
    score_range: Range = (0.0, 1.0)
    training: Annotated[Event | None, SkipValidation] = None
    earlier: Annotated[Earlier | None, SkipValidation] = field(default=None, repr=False)
    enqueued: Annotated[Enqueued | None, SkipValidation] = field(default=None, repr=False)
    best_values: Annotated[FloatArray | Callable[[], FloatArray] | None, SkipValidation] = field(
        default=None, repr=False
    )
    name: str = "problem"
    provenance: str = ""
    fingerprint: str | None = None
    source: ProblemSource | None = field(default=None, repr=False)
    search_space: Annotated[Space, SkipValidation] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.space, Space) and self.constraints:
            raise ConfigurationError(
                f"constraints={list(self.constraints)!r}: constraints belong to the Space; give them there"
            )
        space = self.space if isinstance(self.space, Space) else Space(self.space, self.constraints)
        object.__setattr__(self, "search_space", space)
        if (self.objective is None) == (self.batch_objective is None):
            raise ConfigurationError("give exactly one of objective and batch_objective")
        require_records(self.n_records, self.n_clients, is_called=callable(self.objective))
        if self.n_records is None and self.score_range != (0.0, 1.0):
            raise ConfigurationError(
                f"score_range={self.score_range} is of records' scores; give n_records, or drop it"
            )
        if self.training is not None and (self.n_records is None or not isinstance(self.training, Event)):
            raise ConfigurationError(
                f"training={self.training!r}, n_records={self.n_records!r}: give the accountant's event of one "
                "training, and how many records every client holds"
            )
        calls = {"objective": "client, params", "batch_objective": "clients, units"}
        for name, arguments in (calls | {"earlier": "client", "enqueued": "client"}).items():
            function = getattr(self, name)
            if function is not None and not (function == ASK and name in calls):
                require_call(function, name, arguments, *arguments.split(", "))

    @property
    def is_asked(self) -> bool:
        """Whether evaluations are asked for and told, not called."""
        return self.objective == ASK

    @property
    def is_named(self) -> bool:
        """Whether a configuration names its code, so that a command can carry it out."""
        return self.source is not None and bool(self.source.factory or self.source.objective)

    def table(self) -> ProblemSource:
        """Give the public facts, with the source if there is one, as a configuration's ``[problem]`` table."""
        facts, space = {name: getattr(self, name) for name in FACTS}, self.search_space
        return replace(
            self.source or ProblemSource(),
            space=dict(space.parameters),
            constraints=tuple(space.constraints),
            training=None if self.training is None else to_dict(self.training),
            **facts,
        )

    def evaluator(self, on_evaluation: Callable[[], None] | None = None, **options: Any) -> Evaluator:  # noqa: ANN401 (checked there)
        """The batched objective for one run; ``options`` are fields of ``Evaluator``."""
        return Evaluator(problem=self, on_evaluation=on_evaluation, **options)


class Rehearsed(BaseException):  # no fault, and no cohort may take it for one
    """Stops a cohort in a rehearsal, once its clients' first evaluations are made."""


@dataclass(kw_only=True)
class Evaluator:
    """Calls the objective and turns failures into NaN, noting each client's first failure once.

    Whatever an objective raises is its client's failure, and so is time that it overruns; only the
    KeyboardInterrupt of an operator, and what ``on_evaluation`` raises, end a run (``ends``). The text
    of an error is private: it goes to the logger ``privbo.private`` on this machine, to ``errors``
    and to ``on_failure``, never into anything that is published.

    Attributes:
        problem: Whose objective.
        on_evaluation: Called after every evaluation, for progress bars.
        on_failure: PRIVATE: called with every client's first failure.
        on_clipped: PRIVATE: called after every evaluation of records with its client, the number of scores that were
            changed to lie in their range, and the number of scores.
        stopped: Tells whether the operator interrupts; another KeyboardInterrupt is a failure.
        client_seconds: Seconds that a client's evaluations of one round may take together. Each
            then runs in a process of its own, which is killed when the time is up.
        evaluation_seconds: Seconds that one evaluation may take, in the same way.
        isolated: Whether every evaluation has a process of its own, whatever its time.
        rehearses: Whether only evaluations are made that are their clients' first in ``memory``; each call ends by
            ``Rehearsed``.
        memory: Evaluations that were made already.
        seed: PRIVATE: of what a client's code draws from global generators: a function of its number, the round and
            the place there, whatever others draw. Drawn anew where there is none.
        errors: PRIVATE: every client's first failure.
    """

    problem: Problem
    on_evaluation: Callable[[], None] | None = None
    on_failure: Callable[[int, str], None] | None = None
    on_clipped: Callable[[int, int, int], None] | None = None
    stopped: Stopped = lambda: False
    client_seconds: float | None = None
    evaluation_seconds: float | None = None
    isolated: bool = False
    rehearses: bool = False
    memory: Memory | None = field(default=None, repr=False)
    seed: int | None = field(default=None, repr=False)
    errors: dict[int, str] = field(default_factory=dict)
    _left: dict[int, float] = field(default_factory=dict, repr=False)
    _numerical: Any = field(default_factory=np.geterr, repr=False)
    _ended: BaseException | None = field(default=None, repr=False)

    def renew(self) -> None:
        """Give every client its whole time again: a round begins."""
        self._left.clear()

    def ends(self, error: BaseException) -> BaseException | None:
        """Give the error that ends the run where one that was caught does, None where it is a client's failure."""
        if self._ended is not None:
            return self._ended
        return error if isinstance(error, KeyboardInterrupt) and self.stopped() else None

    def __call__(self, clients: IntArray, units: FloatArray) -> FloatArray:
        """Objective of ``clients[i]`` at ``units[i]``, ``(n,)``; NaN where it failed."""
        if self.problem.batch_objective is not None:
            return self._together(self.problem.batch_objective, clients, units)
        if not callable(self.problem.objective):
            raise ConfigurationError(
                "objective='ask': trials of this problem are asked and told, so nothing can be called here; give it an "
                "objective(client, params)"
            )
        values, left = self._known(clients, units, None)
        with kept_generators():
            for place, client in zip(left.tolist(), clients[left].tolist(), strict=True):
                values[place] = self._one(self.problem.objective, client, place, units[place])
                if self.memory is not None:
                    self.memory.keep(place, values[place])
                self.moved()
        if self.rehearses:
            raise Rehearsed
        return values

    @property
    def pull(self) -> PullObjective | None:
        """``pull(clients, units, counts)``, means of many rewards at once, where the batch objective offers it.

        Algorithms that evaluate one point many times use it instead of one call per
        reward; it is meant for simulations.
        """
        pull: PullObjective | None = getattr(self.problem.batch_objective, "pull", None)
        return None if pull is None else partial(self._together, pull)

    def _together(
        self, function: Callable[..., object], clients: IntArray, units: FloatArray, counts: IntArray | None = None
    ) -> FloatArray:
        """Values of what is known, and of what is made and kept now, all at once; ``(n,)``."""
        values, left = self._known(clients, units, counts)
        if len(left):
            given = (clients[left], units[left]) if counts is None else (clients[left], units[left], counts[left])
            values[left] = self._guarded(function, *given)
            for client in clients[left[np.isnan(values[left])]]:
                self.note(int(client), _NOT_FINITE)
            if self.memory is not None:
                self.memory.keep(left, values[left])
            if counts is None:
                self.moved()
        if self.rehearses:
            raise Rehearsed
        return values

    def _known(self, clients: IntArray, units: FloatArray, counts: IntArray | None) -> tuple[FloatArray, IntArray]:
        """Values that are known, NaN elsewhere, and which are to be made, at points that are allowed."""
        values, left = np.full(len(clients), np.nan), np.arange(len(clients))
        if self.memory is not None:
            values, left = self.memory.recall(clients, units, counts)
            if self.rehearses:
                left = left[self.memory.is_first(left)]
        allowed = self.problem.search_space.allows(units)
        for client in clients[~allowed].tolist():
            self.note(client, NOT_ALLOWED)
        return values, left[allowed[left]]

    def earlier(self, client: int) -> list[tuple[FloatArray, float]]:
        """PRIVATE: give what a client evaluated before the run; what can't be used is left out, and told to it."""
        if (asked := self.problem.earlier) is None:
            return []
        found, brought = [], []
        with self._noting(client):
            brought = self._listed(asked, client)
        for each in brought:
            with self._noting(client):
                params, value = each
                unit, number = self._encoded(params), float(value)
                if abs(number) <= LARGEST_VALUE:
                    found.append((unit, number))
                else:
                    self.note(client, f"an earlier evaluation gave {value!r}; {_NOT_FINITE}")
        return found

    def chosen(self, clients: IntArray, units: FloatArray, place: int) -> FloatArray:
        """PRIVATE: give the points that are evaluated: what clients enqueued stands in place of their first choices."""
        if (asked := self.problem.enqueued) is None:
            return units
        made = np.array(units)
        for row, client in zip(made, map(int, clients), strict=True):
            with self._noting(client):
                queue = self._listed(asked, client)
                if place < len(queue):
                    row[:] = self._encoded(queue[place])
        return made

    def _listed(self, asked: Callable[[int], Iterable[T]], client: int) -> list[T]:
        """What a client brings along, given within its time."""
        with kept_generators():
            return self._own(client, lambda: list(asked(client)))

    def _encoded(self, params: Mapping[str, Value]) -> FloatArray:
        space = self.problem.search_space
        return space.snap(space.encode(params))

    @contextmanager
    def _noting(self, client: int) -> Iterator[None]:
        """Whatever a client's code raises, or what it brings along makes ours raise, is its failure."""
        try:
            with np.errstate(**self._numerical):
                yield
        except BaseException as error:
            self.note(client, self._reason(error))

    def note(self, client: int, reason: str) -> None:
        """PRIVATE: tell a client's own side why something of it was changed or left out; the first time only."""
        if client in self.errors:
            return
        self.errors[client] = reason = reason[:_LONGEST_REASON]
        _private_log.warning("client %d: %s", client, reason)
        if self.on_failure is not None:
            with suppress(OSError):  # a full disk: what a client's failure says decides nothing
                self.on_failure(client, reason)

    def moved(self) -> None:
        """Call the run's callback; what that raises ends the run."""
        if self.on_evaluation is None:
            return
        try:
            self.on_evaluation()
        except BaseException as error:
            self._ended = error  # whatever stands between here and the loop must not take it for a client's
            raise

    @property
    def _is_apart(self) -> bool:
        """Whether an evaluation has a process of its own."""
        return self.isolated or self.client_seconds is not None or self.evaluation_seconds is not None

    def _own(self, client: int, call: Callable[[], T], row: int | None = None) -> T:
        """Call one client's code, in its time, with global generators that no other call has moved."""
        key, memory = None, self.memory
        if self.seed is not None and (row is None or memory is not None):
            place = "" if row is None or memory is None else memory.name(row)
            key = sha256(f"{self.seed} {client} {place}".encode()).digest()

        def seeded() -> T:
            stir_generators(key)
            before, _evaluating.stopped = getattr(_evaluating, "stopped", None), self.stopped
            try:
                return call()
            finally:
                _evaluating.stopped = before

        return self._timed(client, seeded)

    def _timed(self, client: int, call: Callable[[], T]) -> T:
        """Call a client's code, within what is left of its time in this round."""
        if not self._is_apart:
            with chdir("."), np.errstate(**self._numerical):  # as it was when it returns, whatever it changes
                return call()
        whole = math.inf if self.client_seconds is None else self.client_seconds
        left, started = self._left.get(client, whole), time.monotonic()
        try:
            if left <= 0:
                raise NoAnswerError("TimeoutError: its time in this round is used up")
            return within(min(left, self.evaluation_seconds or math.inf), call)
        finally:
            self._left[client] = left - (time.monotonic() - started)

    def _guarded(self, function: Callable[..., object], *given: Array) -> FloatArray:
        """Values of many clients at once; where that fails, of each half, so that who fails does so alone."""
        n, reason = len(given[0]), "each is asked alone"
        if n == 1 or not self._is_apart:
            try:
                first = int(given[0][0]) if n else 0
                values = self._timed(first, lambda: np.asarray(function(*given), dtype=np.float64))
                if values.shape == (n,):
                    return np.where(np.abs(values) <= LARGEST_VALUE, values, np.nan)
                reason = f"the objective returned shape {values.shape} for {n} clients"
            except BaseException as error:
                reason = self._reason(error)
        if n == 1:
            self.note(int(given[0][0]), reason)
            return np.full(1, np.nan)
        halves = (slice(n // 2), slice(n // 2, n)) if n else ()
        return np.concatenate([np.empty(0), *(self._guarded(function, *(a[half] for a in given)) for half in halves)])

    def _one(self, objective: Objective, client: int, row: int, unit: FloatArray) -> float:
        params = self.problem.search_space.decode(unit)
        try:
            value, clipped = self._own(client, lambda: self._value(objective(client, params), client), row)
        except BaseException as error:  # whatever a user's objective raises is its client's; the run goes on
            self.note(client, self._reason(error))
            return math.nan
        if self.problem.n_records is not None and self.on_clipped is not None:
            self.on_clipped(client, clipped, self.problem.n_records[client])
        if clipped:
            self.note(client, f"a record's score is no number in score_range={self.problem.score_range}; {_CLIPPED}")
        if abs(value) <= LARGEST_VALUE:
            return value
        self.note(client, f"the objective returned {value!r}; {_NOT_FINITE}")
        return math.nan

    @np.errstate(all="ignore")  # one record's number is its own
    def _value(self, returned: object, client: int) -> tuple[float, int]:
        """An evaluation's value, and how many scores of records were changed to lie in their range."""
        if self.problem.n_records is None:
            return float(returned), 0  # type: ignore[arg-type]  # whatever is no number raises
        if self.problem.training is not None:
            returned = _paid(returned, self.problem.training)
        scores, (low, high) = _floats(returned), self.problem.score_range  # type: ignore[arg-type]  # what has no length raises
        count = self.problem.n_records[client]
        if scores.shape != (count,):
            raise ValueError(
                f"scores of shape {scores.shape} for {count} records; return one score per record, ({count},)"
            )
        inside = np.clip(np.where(np.isfinite(scores), scores, low), low, high)
        return math.fsum(inside) / count, int(np.sum(inside != scores))

    def _reason(self, error: BaseException) -> str:
        """Why a client has no value, in words; raises what ends the run instead."""
        if (end := self.ends(error)) is not None:
            raise end
        return str(error) if isinstance(error, NoAnswerError) else named(error)


def _floats(returned: Collection[object]) -> Array:
    """Scores of records as floats: one that is no real number is NaN, and changes no other."""
    found: Array | None = _tried(np.asarray, returned)
    if found is None:  # entries of several shapes
        found = np.empty(len(returned), dtype=object)
    if found.dtype.kind in "fiub":
        return found.astype(np.float64)
    return found if found.ndim != 1 else np.array([_float(score) for score in returned])


def _float(score: object) -> float:
    number = _tried(complex, score) if _tried(np.ndim, score) == 0 else None
    return math.nan if number is None or number.imag else float(number.real)


def _tried(call: Callable[[Any], Any], given: object) -> Any:  # noqa: ANN401 (whatever it gives)
    """What a call gives, None where it raises: whatever one record's score does is that record's."""
    try:
        return call(given)
    except BaseException as error:
        if _is_operators(error):
            raise
        return None


def _is_operators(error: BaseException) -> bool:
    """Whether it is an operator's Ctrl-C: in a run the operator is asked, elsewhere it always is."""
    stopped: Stopped | None = getattr(_evaluating, "stopped", None)
    return isinstance(error, KeyboardInterrupt) and (stopped is None or stopped())


def _paid(returned: object, declared: Event) -> object:
    """The scores of an evaluation whose training cost what was declared, and nothing else."""
    scores, spent = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
    if not isinstance(spent, Event) or compose([spent]) != compose([declared]):
        raise ValueError(f"its training cost {spent!r}, and problem.training declares {declared!r}")
    return scores


def require_records(n_records: Sized | None, n_clients: int | None, *, is_called: bool) -> None:
    """Refuse numbers of records that are not one for each client, or without an objective that scores records.

    Raises:
        ConfigurationError: Naming which.
    """
    if n_records is not None and n_clients not in (None, len(n_records)):
        raise ConfigurationError(f"n_records has {len(n_records)} numbers, n_clients={n_clients}; give one per client")
    if n_records is not None and not is_called:
        raise ConfigurationError(
            "n_records needs scores that this process counts, not objective='ask' or a batch_objective: give "
            "objective(client, params), which returns one score per record, or drop n_records"
        )


def require_call(function: object, name: str, arguments: str, *given: object, **named: object) -> None:
    """Refuse a function that can't be called as it will be, so that no round is charged in vain.

    Raises:
        ConfigurationError: If its signature does not take the arguments; compiled code that has none passes.
    """
    if not callable(function):
        raise ConfigurationError(f"{name}={function!r} is no function; write {name}({arguments})")
    try:
        inspect.signature(function).bind(*given, **named)
    except ValueError:
        return  # compiled code without a signature
    except TypeError as error:
        raise ConfigurationError(f"{name} can't be called as {name}({arguments}): {error}; fix it") from None


TrainAndScore: TypeAlias = Callable[[int, Mapping[str, object], IntArray], float]
"""``train_and_score(client, params, rows)``: trains and scores a model on these records of the client alone."""


def in_blocks(
    train_and_score: TrainAndScore, *, n_records: Iterable[int], n_blocks: int
) -> Callable[[int, Mapping[str, object]], FloatArray]:
    """Give an objective that scores a learner on ``n_blocks`` disjoint blocks of every client's records.

    .. versionadded:: 0.3.0

    One record is in one block, so it moves one of ``n_blocks`` scores, whatever the learner does with it. State
    ``n_records=[n_blocks] * n_clients`` in the problem and ``protects="records"``: a score then stands for a block, and
    what hides one score hides each of its records. A block that fails gives NaN, which counts as the lower end; the
    first error goes to the logger ``privbo.private``. State ``delta`` yourself, far below one over the number of all
    records: its default counts blocks.

    A model of a block sees few records, and may prefer other settings than one of all records.

    Args:
        train_and_score: ``(client, params, rows) -> score``. It may read the records ``rows`` of the client alone, and
            trains and validates within them.
        n_records: Records of every client, ``(n_clients,)``, public.
        n_blocks: Blocks of every client, at least 1 and at most the fewest records of a client. Noise on the mean
            score falls with it, and so do the records of a block.

    Raises:
        ConfigurationError: If some block would hold no record.

    Example:
        >>> data = [np.arange(10.0), np.arange(8.0)]
        >>> scores = in_blocks(lambda client, params, rows: data[client][rows].mean(), n_records=[10, 8], n_blocks=2)
        >>> scores(1, {})
        array([3., 4.])
    """
    try:
        counts, n_blocks = tuple(n_records), operator.index(n_blocks)
    except TypeError:
        given = f"n_records={n_records!r}, n_blocks={n_blocks!r}"
        raise ConfigurationError(f"{given}; give a list, the records of every client, and a whole number") from None
    if not 1 <= n_blocks <= min(counts, default=0):
        raise ConfigurationError(
            f"n_blocks={n_blocks!r} must lie between 1 and the fewest records of a client, {min(counts, default=0)}; "
            "every block needs a record"
        )
    return partial(_scores, train_and_score, counts, n_blocks)


def _scores(
    train_and_score: TrainAndScore,
    n_records: tuple[int, ...],
    n_blocks: int,
    client: int,
    params: Mapping[str, object],
) -> FloatArray:
    found, failed, key = np.full(n_blocks, math.nan), False, random.randbytes(32)
    with kept_generators():
        for block in range(n_blocks):
            rows = np.arange(block, n_records[client], n_blocks)  # by place alone: no value moves another record
            stir_generators(sha256(key + block.to_bytes(8)).digest())  # nor does what another block draws
            try:
                found[block] = float(train_and_score(client, dict(params), rows))
            except BaseException as error:  # whatever one record breaks is its own block
                if _is_operators(error):
                    raise
                if not failed:
                    _private_log.warning("client %d, block %d failed", client, block, exc_info=True)
                failed = True
    return found
