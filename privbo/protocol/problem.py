"""A problem: a search space, an objective, and the clients that hold it."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import SkipValidation

from privbo.protocol.calls import require_call
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.interrupts import Stopped, nobody_stops
from privbo.protocol.limited import NoAnswerError, named, within
from privbo.protocol.messages import FloatArray, IntArray, PullObjective
from privbo.protocol.settings import Count, JsonObject, settings
from privbo.protocol.space import Parameter, Space, Value

Objective: TypeAlias = Callable[[int, dict[str, Value]], float]
BatchObjective: TypeAlias = Callable[[IntArray, FloatArray], FloatArray]
OnFailure: TypeAlias = Callable[[int, str], None]
T = TypeVar("T")

LARGEST_VALUE = 1e100
"""Largest magnitude of an objective's value: squares and sums of such values stay finite."""

_private_log = logging.getLogger("privbo.private")
_private_log.addHandler(logging.NullHandler())  # else Python prints warnings of a logger without handler


@settings(table="problem")
class ProblemSource:
    """The ``[problem]`` table of a configuration: where a problem comes from, and its public facts.

    Attributes:
        factory: ``module:function`` that returns a ``Problem``; called with ``arguments``.
        arguments: Of the factory.
        objective: ``module:function`` of the objective, where there is no factory.
        n_clients: N; without a factory it must be given.
        space: Named parameters; without a factory they must be given.
        name: Shown in reports.
        provenance: Where the data comes from; shown in reports.
        fingerprint: Names the data's version, so that kept results of other data are not reused.
    """

    factory: str | None = None
    arguments: JsonObject = field(default_factory=dict)
    objective: str | None = None
    n_clients: Count | None = None
    space: dict[str, Parameter] = field(default_factory=dict)
    name: str | None = None
    provenance: str = ""
    fingerprint: str | None = None


@settings(table="problem")
class Problem:
    """A problem: the search space and the objective of every client.

    Attributes:
        space: Named parameters.
        objective: ``objective(client, params) -> float``, larger is better. It may raise
            or return NaN: that client's round then contributes nothing and the run goes on.
            Values beyond 1e100 in magnitude count as failures.
        n_clients: N, the number of registered clients, public.
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
    objective: Objective | None = None
    batch_objective: BatchObjective | None = None
    best_values: Annotated[FloatArray | Callable[[], FloatArray] | None, SkipValidation] = field(
        default=None, repr=False
    )
    name: str = "problem"
    provenance: str = ""
    fingerprint: str | None = None
    source: ProblemSource | None = field(default=None, repr=False)
    search_space: Annotated[Space, SkipValidation] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        space = self.space if isinstance(self.space, Space) else Space(self.space)
        object.__setattr__(self, "search_space", space)
        if (self.objective is None) == (self.batch_objective is None):
            raise ConfigurationError("give exactly one of objective and batch_objective")
        for name, arguments in (("objective", "client, params"), ("batch_objective", "clients, units")):
            function = getattr(self, name)
            if function is not None:
                require_call(function, name, arguments, None, None)

    def table(self) -> ProblemSource:
        """Give the public facts, with the source if there is one, as a configuration's ``[problem]`` table."""
        source = self.source or ProblemSource()
        return dataclasses.replace(
            source,
            n_clients=self.n_clients,
            space=dict(self.search_space.parameters),
            name=self.name,
            provenance=self.provenance,
            fingerprint=self.fingerprint,
        )

    def evaluator(
        self,
        on_evaluation: Callable[[], None] | None = None,
        on_failure: OnFailure | None = None,
        *,
        stopped: Stopped = nobody_stops,
        client_seconds: float | None = None,
    ) -> Evaluator:
        """The batched objective for one run.

        Args:
            on_evaluation: Called after every evaluation, for progress bars.
            on_failure: PRIVATE: told every client's first failure.
            stopped: Tells whether the operator interrupts; a KeyboardInterrupt that nobody sent is a failure.
            client_seconds: Seconds that a client's evaluations of one round may take together. Each
                then runs in a process of its own, which is killed when the time is up.
        """
        return Evaluator(
            problem=self,
            on_evaluation=on_evaluation,
            on_failure=on_failure,
            stopped=stopped,
            client_seconds=client_seconds,
        )


@dataclass(kw_only=True)
class Evaluator:
    """Calls the objective and turns failures into NaN, noting each client's first failure once.

    Whatever an objective raises is its client's failure, and so is time that it overruns; only the
    KeyboardInterrupt of an operator, and what ``on_evaluation`` raises, end a run (``ends``). The text
    of an error is private: it goes to the logger ``privbo.private`` on this machine, to ``errors``
    and to ``on_failure``, never into anything that is published.
    """

    problem: Problem
    on_evaluation: Callable[[], None] | None = None
    on_failure: OnFailure | None = None
    stopped: Stopped = nobody_stops
    client_seconds: float | None = None
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
        problem = self.problem
        if problem.batch_objective is not None:
            return self._batch(problem.batch_objective, clients, units)
        if problem.objective is not None:
            pairs = zip(clients, units, strict=True)
            return np.array([self._one(problem.objective, int(c), u) for c, u in pairs], dtype=np.float64)
        raise ConfigurationError("the problem has no objective")

    @property
    def pull(self) -> PullObjective | None:
        """``pull(clients, units, counts)``, means of many rewards at once, where the batch objective offers it.

        Algorithms that evaluate one point many times use it instead of one call per
        reward; it is meant for simulations.
        """
        pull: PullObjective | None = getattr(self.problem.batch_objective, "pull", None)
        if pull is None:
            return None
        return lambda clients, units, counts: self._guarded(pull, clients, units, counts)

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
        self._moved()
        return values

    def _moved(self) -> None:
        if self.on_evaluation is None:
            return
        try:
            self.on_evaluation()
        except BaseException as error:
            self._ended = error  # whatever stands between here and the loop must not take it for a client's
            raise

    def _timed(self, client: int, call: Callable[[], T]) -> T:
        """Call a client's code, within what is left of its time in this round."""
        if self.client_seconds is None:
            return call()
        left, started = self._left.get(client, self.client_seconds), time.monotonic()
        try:
            if left <= 0:
                raise NoAnswerError("TimeoutError: its time in this round is used up")
            return within(left, call)
        finally:
            self._left[client] = left - (time.monotonic() - started)

    def _guarded(self, function: Callable[..., object], *given: npt.NDArray[np.generic]) -> FloatArray:
        """Values of many clients at once; where that fails, of each half, so that who fails does so alone."""
        n = len(given[0])
        reason = "each is asked alone"
        if n == 1 or self.client_seconds is None:
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
        self._moved()
        return value

    def _reason(self, error: BaseException) -> str:
        """Why a client has no value, in words; raises what ends the run instead."""
        if (end := self.ends(error)) is not None:
            raise end
        return str(error) if isinstance(error, NoAnswerError) else named(error)


_NOT_FINITE = f"only finite values up to {LARGEST_VALUE:g} in magnitude count"


def _usable(values: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(values) <= LARGEST_VALUE, values, np.nan)
