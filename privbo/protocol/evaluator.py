"""The clients' objectives called for one run, whatever they do; PRIVATE."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, TypeGuard, TypeVar

import numpy as np
import numpy.typing as npt

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.interrupts import Stopped, nobody_stops
from privbo.protocol.limited import NoAnswerError, named, within
from privbo.protocol.memory import Memory, Rows
from privbo.protocol.messages import FloatArray, IntArray, PullObjective
from privbo.protocol.space import Space, Value

Objective: TypeAlias = Callable[[int, dict[str, Value]], float]
BatchObjective: TypeAlias = Callable[[IntArray, FloatArray], FloatArray]
Earlier: TypeAlias = Callable[[int], Iterable[tuple[Mapping[str, Value], float]]]
Enqueued: TypeAlias = Callable[[int], Iterable[Mapping[str, Value]]]
OnFailure: TypeAlias = Callable[[int, str], None]
T = TypeVar("T")
_Known: TypeAlias = tuple[FloatArray, IntArray, Rows | None]

LARGEST_VALUE = 1e100
"""Largest magnitude of an objective's value: squares and sums of such values stay finite."""

_private_log = logging.getLogger("privbo.private")
_private_log.addHandler(logging.NullHandler())  # else Python prints warnings of a logger without handler


class Evaluated(Protocol):
    """A problem as far as evaluating it goes."""

    @property
    def search_space(self) -> Space:
        """Named parameters."""
        ...

    @property
    def objective(self) -> Objective | Literal["ask"] | None:
        """The objective of one client."""
        ...

    @property
    def batch_objective(self) -> BatchObjective | None:
        """Of many."""
        ...

    @property
    def earlier(self) -> Earlier | None:
        """Evaluations of a client before the run."""
        ...

    @property
    def enqueued(self) -> Enqueued | None:
        """Points that a client evaluates first."""
        ...

    @property
    def is_asked(self) -> bool:
        """Whether evaluations are asked for and told."""
        ...


_NOT_FINITE = f"only finite values up to {LARGEST_VALUE:g} in magnitude count"
NOT_ALLOWED = "a point that does not keep the space's constraints was chosen; it is not evaluated"


@dataclass(kw_only=True)
class Evaluator:
    """Calls the objective and turns failures into NaN, noting each client's first failure once.

    Whatever an objective raises is its client's failure, and so is time that it overruns; only the
    KeyboardInterrupt of an operator, and what ``on_evaluation`` raises, end a run (``ends``). The text
    of an error is private: it goes to the logger ``privbo.private`` on this machine, to ``errors``
    and to ``on_failure``, never into anything that is published.
    """

    problem: Evaluated
    on_evaluation: Callable[[], None] | None = None
    on_failure: OnFailure | None = None
    stopped: Stopped = nobody_stops
    client_seconds: float | None = None
    evaluation_seconds: float | None = None
    isolated: bool = False
    memory: Memory | None = field(default=None, repr=False)
    errors: dict[int, str] = field(default_factory=dict)
    _left: dict[int, float] = field(default_factory=dict, repr=False)
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
        batch, objective = self.problem.batch_objective, self.problem.objective
        if batch is not None:
            return self._made(clients, units, None, lambda left: self._batch(batch, clients[left], units[left]))
        if callable(objective):
            return self._each(objective, clients, units)
        raise ConfigurationError(
            "objective='ask': trials of this problem are asked and told, so nothing can be called here; give it an "
            "objective(client, params)"
        )

    @property
    def pull(self) -> PullObjective | None:
        """``pull(clients, units, counts)``, means of many rewards at once, where the batch objective offers it.

        Algorithms that evaluate one point many times use it instead of one call per
        reward; it is meant for simulations.
        """
        pull: PullObjective | None = getattr(self.problem.batch_objective, "pull", None)
        if pull is None:
            return None

        def means(clients: IntArray, units: FloatArray, counts: IntArray) -> FloatArray:
            given = clients, units, counts
            return self._made(*given, lambda left: self._guarded(pull, *(each[left] for each in given)))

        return means

    def _made(
        self, clients: IntArray, units: FloatArray, counts: IntArray | None, make: Callable[[IntArray], FloatArray]
    ) -> FloatArray:
        """Values of what is known, and of what is made and kept now, all at once; ``(n,)``."""
        values, left, rows = self._known(clients, units, counts)
        if len(left):
            values[left] = make(left)
            if self.memory is not None and rows is not None:
                self.memory.keep(rows[left], values[left])
            if counts is None:
                self.moved()
        return values

    def _each(self, objective: Objective, clients: IntArray, units: FloatArray) -> FloatArray:
        """The same, where every value is made and kept by itself."""
        values, left, rows = self._known(clients, units, None)
        keep = None if self.memory is None or rows is None else self.memory.keeper(rows)
        for place, client in zip(left.tolist(), clients[left].tolist(), strict=True):
            values[place] = value = self._one(objective, client, units[place])
            if keep is not None:
                keep(place, value)
            self.moved()
        return values

    def _known(self, clients: IntArray, units: FloatArray, counts: IntArray | None) -> _Known:
        """Values that are known, NaN elsewhere; which are to be made, at points that are allowed; all their rows."""
        values, rows, left = np.full(len(clients), np.nan), None, np.arange(len(clients))
        if self.memory is not None:
            rows, left = self.memory.recall(clients, units, counts)
            values[:] = rows["value"]
        allowed = self.problem.search_space.allows(units)
        for client in clients[~allowed].tolist():
            self.note(client, NOT_ALLOWED)
        return values, left[allowed[left]], rows

    def earlier(self, client: int) -> list[tuple[FloatArray, float]]:
        """PRIVATE: give what a client evaluated before the run; what can't be used is left out, and told to it."""
        space, found = self.problem.search_space, []
        for params, value in self._brought(self.problem.earlier, client):
            unit = self._encoded(client, params, space)
            if unit is not None and self._is_value(value):
                found.append((unit, float(value)))
            elif unit is not None:
                self.note(client, f"an earlier evaluation gave {value!r}; {_NOT_FINITE}")
        return found

    def chosen(self, clients: IntArray, units: FloatArray, place: int) -> FloatArray:
        """PRIVATE: give the points that are evaluated: what clients enqueued stands in place of their first choices."""
        if self.problem.enqueued is None:
            return units
        made = np.array(units)
        for row, client in zip(made, map(int, clients), strict=True):
            queue = self._brought(self.problem.enqueued, client)
            if (
                place < len(queue)
                and (unit := self._encoded(client, queue[place], self.problem.search_space)) is not None
            ):
                row[:] = unit
        return made

    def _brought(self, given: Callable[[int], Iterable[T]] | None, client: int) -> list[T]:
        """Points that a client brings along; whatever its code raises is its failure."""
        try:
            return [] if given is None else list(given(client))
        except BaseException as error:
            self.note(client, self._reason(error))
            return []

    def _encoded(self, client: int, params: Mapping[str, Value], space: Space) -> FloatArray | None:
        try:
            return space.snap(space.encode(params))
        except Exception as error:  # whatever a client brings along, it is that client's
            self.note(client, self._reason(error))
            return None

    @staticmethod
    def _is_value(value: object) -> TypeGuard[float]:
        return isinstance(value, int | float) and abs(value) <= LARGEST_VALUE

    def note(self, client: int, reason: str) -> None:
        """PRIVATE: tell a client's own side why something of it was changed or left out; the first time only."""
        if client in self.errors:
            return
        self.errors[client] = reason
        _private_log.warning("client %d: %s", client, reason)
        if self.on_failure is not None:
            self.on_failure(client, reason)

    def _batch(self, objective: BatchObjective, clients: IntArray, units: FloatArray) -> FloatArray:
        values = self._guarded(objective, clients, units)
        for client in clients[np.isnan(values)]:
            self.note(int(client), _NOT_FINITE)
        return values

    def moved(self) -> None:
        """Tell whoever follows the run that it goes on; what that raises ends the run."""
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

    def _timed(self, client: int, call: Callable[[], T]) -> T:
        """Call a client's code, within what is left of its time in this round."""
        if not self._is_apart:
            return call()
        whole = math.inf if self.client_seconds is None else self.client_seconds
        left, started = self._left.get(client, whole), time.monotonic()
        try:
            if left <= 0:
                raise NoAnswerError("TimeoutError: its time in this round is used up")
            return within(min(left, self.evaluation_seconds or math.inf), call)
        finally:
            self._left[client] = left - (time.monotonic() - started)

    def _guarded(self, function: Callable[..., object], *given: npt.NDArray[np.generic]) -> FloatArray:
        """Values of many clients at once; where that fails, of each half, so that who fails does so alone."""
        n = len(given[0])
        reason = "each is asked alone"
        if n == 1 or not self._is_apart:
            try:
                first = int(given[0][0]) if n else 0
                values = self._timed(first, lambda: np.asarray(function(*given), dtype=np.float64))
                if values.shape == (n,):
                    return _usable(values)
                reason = f"the objective returned shape {values.shape} for {n} clients"
            except BaseException as error:
                reason = self._reason(error)
        if n == 1:
            self.note(int(given[0][0]), reason)
            return np.full(1, np.nan)
        halves = (slice(n // 2), slice(n // 2, n)) if n else ()
        return np.concatenate([np.empty(0), *(self._guarded(function, *(a[half] for a in given)) for half in halves)])

    def _one(self, objective: Objective, client: int, unit: FloatArray) -> float:
        params = self.problem.search_space.decode(unit)
        try:
            value = self._timed(client, lambda: float(objective(client, params)))
        except BaseException as error:  # whatever a user's objective raises is its client's; the run goes on
            self.note(client, self._reason(error))
            value = math.nan
        else:
            if not abs(value) <= LARGEST_VALUE:
                self.note(client, f"the objective returned {value!r}; {_NOT_FINITE}")
                value = math.nan
        return value

    def _reason(self, error: BaseException) -> str:
        """Why a client has no value, in words; raises what ends the run instead."""
        if (end := self.ends(error)) is not None:
            raise end
        return str(error) if isinstance(error, NoAnswerError) else named(error)


def _usable(values: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(values) <= LARGEST_VALUE, values, np.nan)
