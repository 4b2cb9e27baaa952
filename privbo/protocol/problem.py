"""A problem: a search space, an objective, and the clients that hold it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Annotated, Literal

from pydantic import SkipValidation

from privbo.protocol.calls import require_call
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.evaluator import (
    LARGEST_VALUE,
    BatchObjective,
    Earlier,
    Enqueued,
    Evaluator,
    Objective,
    OnFailure,
)
from privbo.protocol.interrupts import Stopped, nobody_stops
from privbo.protocol.messages import FloatArray
from privbo.protocol.settings import Count, JsonObject, Sequence, settings
from privbo.protocol.space import Parameter, Space

__all__ = ["ASK", "LARGEST_VALUE", "Evaluator", "Objective", "OnFailure", "Problem", "ProblemSource"]

ASK: Literal["ask"] = "ask"
"""The objective of a problem whose evaluations somebody else makes: a person, a laboratory, another tool."""


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
    name: str | None = None
    provenance: str = ""
    fingerprint: str | None = None


@settings(table="problem")
class Problem:
    """A problem: the search space and the objective of every client.

    Attributes:
        space: Named parameters.
        constraints: Formulas that every point keeps, such as ``"width * depth <= 512"``; public, like the space, and
            a part of it where ``space`` is a ``Space``.
        objective: ``objective(client, params) -> float``, larger is better. It may raise
            or return NaN: that client's round then contributes nothing and the run goes on.
            Values beyond 1e100 in magnitude count as failures. ``"ask"`` where nothing can be
            called: trials are asked and told, see ``privbo.Site``.
        earlier: PRIVATE: ``earlier(client)`` gives pairs of parameters and value that a client evaluated before the
            run. Its own models start with them; they stay with the client and cost nothing.
        enqueued: PRIVATE: ``enqueued(client)`` gives parameters that a client evaluates in place of its first choices.
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
    constraints: Sequence[str] = ()
    objective: Objective | Literal["ask"] | None = None
    batch_objective: BatchObjective | None = None
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
        space = self.space if isinstance(self.space, Space) else Space(self.space, self.constraints)
        object.__setattr__(self, "search_space", space)
        if (self.objective is None) == (self.batch_objective is None):
            raise ConfigurationError("give exactly one of objective and batch_objective")
        for name, arguments in (("objective", "client, params"), ("batch_objective", "clients, units")):
            function = getattr(self, name)
            if function is not None and function != ASK:
                require_call(function, name, arguments, None, None)
        for name in ("earlier", "enqueued"):
            if (function := getattr(self, name)) is not None:
                require_call(function, name, "client", 0)

    @property
    def is_asked(self) -> bool:
        """Whether evaluations are asked for and told, not called."""
        return self.objective == ASK

    def table(self) -> ProblemSource:
        """Give the public facts, with the source if there is one, as a configuration's ``[problem]`` table."""
        source = self.source or ProblemSource()
        return dataclasses.replace(
            source,
            n_clients=self.n_clients,
            space=dict(self.search_space.parameters),
            constraints=tuple(self.search_space.constraints),
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
        evaluation_seconds: float | None = None,
    ) -> Evaluator:
        """The batched objective for one run.

        Args:
            on_evaluation: Called after every evaluation, for progress bars.
            on_failure: PRIVATE: told every client's first failure.
            stopped: Tells whether the operator interrupts; a KeyboardInterrupt that nobody sent is a failure.
            client_seconds: Seconds that a client's evaluations of one round may take together. Each
                then runs in a process of its own, which is killed when the time is up.
            evaluation_seconds: Seconds that one evaluation may take, in the same way.
        """
        return Evaluator(
            problem=self,
            on_evaluation=on_evaluation,
            on_failure=on_failure,
            stopped=stopped,
            client_seconds=client_seconds,
            evaluation_seconds=evaluation_seconds,
        )
