"""The clients of one process: one cohort of all, or one each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.limited import named
from privbo.protocol.messages import (
    Algorithm,
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
from privbo.protocol.problem import Evaluator
from privbo.runs.asked import Asked, Desk
from privbo.runs.each import Called, Each, Snapshot, shaped
from privbo.runs.spec import Spec


class Clients(Protocol):
    """The clients of one process, however many cohorts they are."""

    @property
    def clients(self) -> IntArray:
        """Global numbers of the clients, ``(n,)``."""
        ...

    def answer(self, broadcast: Broadcast, dim: int) -> FloatArray:
        """Answers to a broadcast, ``(n, dim)``; a row that is not finite is an absence."""
        ...

    def snapshot(self) -> Snapshot:
        """Everything needed to go on in another process; private."""
        ...

    def restore(self, snapshot: Snapshot) -> None:
        """Take the state of ``snapshot``."""
        ...

    def history(self) -> ClientHistory:
        """PRIVATE: every evaluation so far."""
        ...

    def finish(self) -> None:
        """Tell who evaluates that the run is over."""
        ...


def clients_of(
    algorithm: Algorithm,
    setting: Setting,
    *,
    clients: IntArray,
    evaluate: Evaluator,
    seed: int,
    sent: Callable[[Cohort], Cohort] = lambda cohort: cohort,
    desk: Desk | None = None,
    apart: bool = False,
) -> Clients:
    """Make the private side for some clients: one cohort where the algorithm answers for all at once, else one each.

    Clients whose evaluations somebody else makes, and those that bring evaluations along, have one each as well: none
    waits for another one's, and none is moved by them.

    Args:
        algorithm: Its settings.
        setting: Facts of the run.
        clients: Numbers of the clients.
        evaluate: Their objectives.
        seed: Of the clients' own randomness.
        sent: Alters what a cohort sends.
        desk: Where trials are asked and told, where the problem has no objective to call.
        apart: Whether each has a cohort of its own in any case.

    Raises:
        ConfigurationError: If trials are to be asked and there is no place for them.
    """

    def made(some: IntArray, by: Evaluate = evaluate) -> Cohort:
        return sent(algorithm.cohort(setting, clients=some, evaluate=by, seed=seed))

    given = [name for name in ("earlier", "enqueued") if getattr(evaluate.problem, name) is not None]
    if given and not takes_points(algorithm):
        raise ConfigurationError(
            f"problem.{given[0]}: clients of {type(algorithm).__name__} choose no points themselves; use shared-prior "
            f"or dp-fts-de, or drop {given[0]}"
        )
    if evaluate.problem.is_asked:
        if desk is None:
            raise ConfigurationError(
                "objective='ask' keeps its trials beside the run, and this one has no directory (a simulation or a "
                "control in memory); name a directory, and drop controls"
            )
        waiting = Asked(space=setting.space, evaluate=evaluate, desk=desk, takes_points=takes_points(algorithm))
        return Each(clients=clients, made=made, evaluate=evaluate, waiting=waiting)

    # What one client brings along must not move another one, not even by the length of a common array.
    if answers_together(algorithm) and evaluate.problem.earlier is None and not apart:
        return Together(cohort=made(clients))
    return Each(clients=clients, made=made, evaluate=evaluate, waiting=Called(evaluate=evaluate))


def require_answers(spec: Spec) -> None:
    """Let a client of the user's own algorithm answer the first round on made-up values: nobody's data, no charge.

    Raises:
        ConfigurationError: If it raises, or answers in another shape: every client would, in every charged round.
    """
    if answers_together(spec.played):
        return
    setting, alone = spec.setting(public_seed=0), np.zeros(1, dtype=np.int64)
    ask = spec.played.server(setting).ask()
    if ask is None:
        return
    try:
        made_up = PlainEvaluate(lambda _, units: np.asarray(units.mean(axis=1)))
        cohort = spec.played.cohort(setting, clients=alone, evaluate=made_up, seed=0)
        shaped(cohort.respond(ask.broadcast), 0 if ask.request is None else ask.request.dim)
        cohort.restore(cohort.snapshot())
        cohort.history()
    except Exception as error:
        kind = type(spec.algorithm).__name__
        raise ConfigurationError(
            f"a client of {kind} fails on made-up values ({named(error)}); mend it. Nothing was charged"
        ) from error


@dataclass(frozen=True, kw_only=True)
class Together:
    """One cohort of all clients; what it raises is a fault of the program and ends the run."""

    cohort: Cohort

    @property
    def clients(self) -> IntArray:
        """As the cohort."""
        return self.cohort.clients

    def answer(self, broadcast: Broadcast, dim: int) -> FloatArray:  # noqa: ARG002 (the protocol's)
        """Answer as the cohort does."""
        return self.cohort.respond(broadcast)

    def snapshot(self) -> Snapshot:
        """As the cohort."""
        return self.cohort.snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        """As the cohort."""
        self.cohort.restore(snapshot)

    def history(self) -> ClientHistory:
        """As the cohort."""
        return self.cohort.history()

    def finish(self) -> None:
        """Nobody waits."""
