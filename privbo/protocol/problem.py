"""A problem: a search space, an objective, and the clients that hold it."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

import numpy as np
from pydantic import SkipValidation

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, IntArray, PullObjective
from privbo.protocol.settings import Count, JsonObject, settings
from privbo.protocol.space import Parameter, Space, Value

Objective: TypeAlias = Callable[[int, dict[str, Value]], float]
BatchObjective: TypeAlias = Callable[[IntArray, FloatArray], FloatArray]

_private_log = logging.getLogger("privbo.private")


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
        n_clients: N, the number of registered clients, public.
        batch_objective: Optional vectorised form for simulations,
            ``batch_objective(clients (n,), units (n, n_dims)) -> (n,)``.
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

    def evaluator(self, on_evaluation: Callable[[], None] | None = None) -> Evaluator:
        """The batched objective for one run.

        Args:
            on_evaluation: Called after every evaluation, for progress bars.
        """
        return Evaluator(problem=self, on_evaluation=on_evaluation)


@dataclass(kw_only=True)
class Evaluator:
    """Calls the objective and turns failures into NaN, telling each client's first failure once.

    The text of an error is private: it goes to the logger ``privbo.private`` on this
    machine and to ``errors``, never into anything that is published.
    """

    problem: Problem
    on_evaluation: Callable[[], None] | None = None
    errors: dict[int, str] = field(default_factory=dict)

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
        return pull

    def _batch(self, objective: BatchObjective, clients: IntArray, units: FloatArray) -> FloatArray:
        values = np.asarray(objective(clients, units), dtype=np.float64)
        if values.shape != (len(clients),):
            raise ConfigurationError(
                f"batch_objective returned shape {values.shape}; return one value per client: ({len(clients)},)"
            )
        for client in clients[~np.isfinite(values)]:
            self._failed(int(client), "the objective returned a value that is not finite")
        if self.on_evaluation is not None:
            self.on_evaluation()
        return np.where(np.isfinite(values), values, np.nan)

    def _one(self, objective: Objective, client: int, unit: FloatArray) -> float:
        try:
            value = float(objective(client, self.problem.search_space.decode(unit)))
        except Exception as error:  # a user's objective may raise anything; the run goes on
            self._failed(client, f"{type(error).__name__}: {error}")
            value = math.nan
        else:
            if not math.isfinite(value):
                self._failed(client, f"the objective returned {value!r}")
                value = math.nan
        if self.on_evaluation is not None:
            self.on_evaluation()
        return value

    def _failed(self, client: int, reason: str) -> None:
        if client not in self.errors:
            self.errors[client] = reason
            _private_log.warning("client %d contributes nothing while its objective fails: %s", client, reason)
