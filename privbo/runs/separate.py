"""Clients of an algorithm of the user's own, each in a cohort of its own: an error of one is that one's alone.

A client that raises in the middle of a round is absent in that round. It goes on from the state after
the last round that it answered, and its first error is told to its own side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

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
)
from privbo.protocol.problem import Evaluator
from privbo.runs.answers import joined, shaped
from privbo.runs.asked import FINISHED, Asked, Desk
from privbo.runs.spec import Spec

Snapshot: TypeAlias = Mapping[str, npt.NDArray[np.generic]]


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
        return Asked(
            clients=clients,
            space=setting.space,
            made=made,
            evaluate=evaluate,
            desk=desk,
            takes_points=takes_points(algorithm),
        )

    # What one client brings along must not move another one, not even by the length of a common array.
    if answers_together(algorithm) and evaluate.problem.earlier is None and not apart:
        return Together(cohort=made(clients))
    return Separate(clients=clients, made=made, evaluate=evaluate)


def answers_together(algorithm: Algorithm) -> bool:
    """Tell whether no client's data can make an algorithm's cohort raise: ours are held to it, others may say so."""
    return bool(getattr(algorithm, "answers_together", type(algorithm).__module__.startswith("privbo.")))


def takes_points(algorithm: Algorithm) -> bool:
    """Tell whether clients can learn from points that they bring along, and evaluate others than they chose."""
    return bool(getattr(algorithm, "takes_points", False))


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


@dataclass(kw_only=True)
class Separate:
    """A cohort of one for every client.

    Attributes:
        clients: Numbers of the clients, ``(n,)``.
        made: Makes the cohort of some of them.
        evaluate: Their objectives; told of every client's first error.
    """

    clients: IntArray
    made: Callable[[IntArray], Cohort]
    evaluate: Evaluator
    _cohorts: dict[int, Cohort] = field(default_factory=dict, repr=False)
    _kept: dict[int, Snapshot] = field(default_factory=dict, repr=False)
    _histories: dict[int, ClientHistory] = field(default_factory=dict, repr=False)

    def answer(self, broadcast: Broadcast, dim: int) -> FloatArray:
        """Every client's answer; NaN rows for those that raised or answered in another shape."""
        rows = np.full((len(self.clients), dim), np.nan)
        for row, client in zip(rows, map(int, self.clients), strict=True):
            with self._guarded(client):
                cohort = self._cohort(client)
                found = shaped(cohort.respond(broadcast), dim)
                kept, history = dict(cohort.snapshot()), cohort.history()
                self._kept[client], self._histories[client] = kept, history
                if dim:
                    row[:] = found[0]
        return rows

    def snapshot(self) -> Snapshot:
        """Every client's state after the last round that it answered, by number and name."""
        return {f"{client}/{name}": array for client, kept in self._kept.items() for name, array in kept.items()}

    def restore(self, snapshot: Snapshot) -> None:
        """Take the state of ``snapshot``."""
        self._cohorts.clear()
        for key, array in snapshot.items():
            client, _, name = key.partition("/")
            if name == FINISHED:  # clients that were asked, and are called now
                continue
            self._kept[int(client)] = {**self._kept.get(int(client), {}), name: array}

    def history(self) -> ClientHistory:
        """PRIVATE: every evaluation of every client; NaN for one that has none."""
        for client in self._kept.keys() - self._histories.keys():
            with self._guarded(int(client)):
                self._histories[client] = self._cohort(client).history()
        return joined([self._histories.get(int(client)) for client in self.clients])

    def _cohort(self, client: int) -> Cohort:
        if client not in self._cohorts:
            made = self.made(np.array([client]))
            if client in self._kept:
                made.restore(self._kept[client])
            self._cohorts[client] = made
        return self._cohorts[client]

    @contextmanager
    def _guarded(self, client: int) -> Iterator[None]:
        try:
            yield
        except BaseException as error:  # whatever a client's own code raises is its failure; the run goes on
            if (end := self.evaluate.ends(error)) is not None:
                raise end from None
            self._cohorts.pop(client, None)  # it may have stopped in the middle of something
            self.evaluate.note(client, named(error))
