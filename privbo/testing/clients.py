"""Checks of ``check_algorithm`` on clients: cohorts asked twice, split, restored, and whose objectives fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import numpy as np

from privbo.protocol.messages import FloatArray, IntArray
from privbo.protocol.problem import Problem
from privbo.protocol.space import Value
from privbo.testing.subject import N_CLIENTS, SEED, Subject, bumps, noise_release, require, same, toy_problem


class _CancelledError(BaseException):
    """As asyncio's: no Exception."""


def _raise(error: BaseException) -> object:
    raise error


BAD_VALUES: Mapping[str, Callable[[], object]] = {
    "the largest number": lambda: 1.7e308,
    "the smallest number": lambda: -1.7e308,
    "a large number": lambda: -1e100,
    "a denormal number": lambda: 5e-324,
    "a reward above its range": lambda: 1.01,
    "infinity": lambda: float("-inf"),
    "text": lambda: "a score",
    "nothing": lambda: None,
    "a complex number": lambda: 1j,
    "an array": lambda: np.zeros(3),
    "an error": lambda: _raise(ValueError("secret")),
    "no memory": lambda: _raise(MemoryError()),
    "an exit": lambda: _raise(SystemExit(3)),
    "a cancellation": lambda: _raise(_CancelledError()),
}


def answers_twice_alike(subject: Subject) -> None:
    """A round asked twice is answered the same, without new evaluations."""
    calls: list[int] = []

    def evaluate(clients: IntArray, units: FloatArray) -> FloatArray:
        calls.append(len(clients))
        return bumps(clients, units)

    ask, cohort = subject.server().ask(), subject.cohort(evaluate=evaluate)
    if ask is None:
        require(False, "a run has at least one round")
        return
    first, count = cohort.respond(ask.broadcast), len(calls)
    require(same(cohort.respond(ask.broadcast), first), "a round asked twice is answered the same")
    require(len(calls) == count, "a round asked twice evaluates nothing again")


def splits_into_cohorts(subject: Subject) -> None:
    """A client alone behaves as the same client in a large cohort."""
    server, everyone, single = subject.server(), subject.cohort(), subject.cohort([4])
    for index in range(subject.rounds):
        ask = server.ask()
        if ask is None:
            break
        whole, alone = everyone.respond(ask.broadcast), single.respond(ask.broadcast)
        alike = np.allclose(alone[0], whole[4], rtol=1e-6, atol=1e-9, equal_nan=True)
        require(alike, f"round {index}: client 4 alone answers as in the cohort of all")
        server.tell(noise_release(ask, index))
    ours, theirs = single.history().values[0], everyone.history().values[4]
    require(np.allclose(ours, theirs, rtol=1e-6, equal_nan=True), "client 4 alone evaluates as in the cohort of all")


def snapshots_everything(subject: Subject) -> None:
    """A restored cohort goes on as the one it was taken of."""
    server, cohorts = subject.server(), [subject.cohort(), subject.cohort()]
    for index in range(subject.rounds):
        ask = server.ask()
        if ask is None:
            break
        cohorts[0].respond(ask.broadcast)
        cohorts[1].restore(dict(cohorts[0].snapshot()))
        server.tell(noise_release(ask, index))
        cohorts.reverse()  # the restored one goes on
    for name, array in cohorts[0].snapshot().items():
        require(
            np.array_equal(array, cohorts[1].snapshot()[name], equal_nan=array.dtype.kind == "f"), f"{name} is kept"
        )


def survives_failing_objectives(subject: Subject) -> None:
    """An objective that raises or returns NaN stops nobody."""

    def moody(client: int, params: Mapping[str, Value]) -> float:
        if client == 1:
            raise ValueError("secret of client 1")
        if client == 2:
            return float("nan")
        return float(bumps(np.array([client]), np.array([[float(params["x"]), 0.5]]))[0])

    shaky = Problem(space=toy_problem().space, objective=moody, n_clients=N_CLIENTS, name="shaky")
    record = subject.play(problem=shaky)
    require(np.isnan(record.clients.values[1]).all(), "a failed evaluation is NaN")
    require(np.isfinite(record.clients.values[0]).any(), "other clients go on")
    require(all(np.isfinite(r.values).all() for r in record.releases), "releases are finite")


def keeps_clients_apart(subject: Subject) -> None:
    """Whatever one client's objective returns or raises, the others answer as if it had been well."""
    whole = _answers_of_others(subject, None)
    for name, bad in BAD_VALUES.items():
        require(same(_answers_of_others(subject, bad), whole), f"a client whose objective gives {name} moves no other")


def _answers_of_others(subject: Subject, bad: Callable[[], object] | None) -> FloatArray:
    """Answers of everyone but client 2, who evaluates what ``bad`` gives."""

    def objective(client: int, params: Mapping[str, Value]) -> float:
        if client == 2 and bad is not None:
            return cast("float", bad())
        return float(bumps(np.array([client]), np.array([[float(params["x"]), 0.5]]))[0])

    problem = Problem(space=toy_problem().space, objective=objective, n_clients=N_CLIENTS)
    cohort = subject.spec().played.cohort(
        subject.setting(), clients=np.arange(N_CLIENTS), evaluate=problem.evaluator(), seed=SEED
    )
    server, answers = subject.server(), []
    for index in range(subject.rounds):
        ask = server.ask()
        if ask is None:
            break
        answers.append(np.delete(cohort.respond(ask.broadcast), 2, axis=0).ravel())
        server.tell(noise_release(ask, index))
    return np.concatenate(answers)
