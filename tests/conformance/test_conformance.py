"""Every algorithm of the house and of the how-to keeps the law; the checks notice planted faults."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import privbo as pb
from experiments.examples.zoom import Zoom
from privbo.protocol.messages import Cohort, FloatArray, Release, Server
from privbo.testing import CHECKS, ConformanceError, Subject, check_algorithm
from privbo.testing.holding import holds_a_row_of
from privbo.testing.subject import spoiled
from tests.conformance.cases import ALIKE, CASES, VARIANTS, VOTES, Case


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    "case",
    [*CASES, *ALIKE, *VOTES[:1], *(pytest.param(slow, marks=pytest.mark.slow) for slow in [*VARIANTS, *VOTES[1:]])],
    ids=str,
)
def test_the_law_is_kept(case: Case, check: str) -> None:
    CHECKS[check](case.subject)


@pytest.mark.parametrize("case", [*CASES, *ALIKE, *VOTES], ids=str)
def test_nothing_in_a_servers_signatures_could_carry_a_clients_vector(case: Case) -> None:
    server = case.subject.server()
    assert isinstance(server, Server)
    assert isinstance(case.subject.cohort(), Cohort)
    if not type(server).__module__.startswith("privbo."):
        return  # a user's own may go without annotations; what it is told is watched at run time
    assert typing.get_type_hints(type(server).tell) == {"release": Release | None, "return": types.NoneType}
    for name in vars(type(server)):
        if callable(getattr(type(server), name)) and (name == "__init__" or not name.startswith("_")):
            found = str(typing.get_type_hints(getattr(type(server), name))).lower()
            assert "cohort" not in found, name
            assert "history" not in found, name


@dataclass
class Faulty:
    """A side of an algorithm with some methods replaced."""

    side: Any
    replaced: dict[str, Callable[..., Any]]

    def __getattr__(self, name: str) -> Any:
        if name in self.replaced:
            return lambda *given: self.replaced[name](self.side, *given)
        return getattr(self.side, name)


def cohorts(**replaced: Callable[..., Any]) -> Callable[[Subject], Any]:
    return lambda subject: subject.wrapped(on_cohort=lambda cohort: Faulty(cohort, replaced))


def servers(**replaced: Callable[..., Any]) -> Callable[[Subject], Any]:
    return lambda subject: subject.wrapped(on_server=lambda server: Faulty(server, replaced))


def noisy(cohort: Cohort, broadcast: Any) -> FloatArray:
    return cohort.respond(broadcast) + np.random.default_rng().random()


def outside(cohort: Cohort) -> Any:
    history = cohort.history()
    return type(history)(**vars(history) | {"recommended": history.recommended + 2.0})


FAULTS: dict[str, Callable[[Subject], Any]] = {
    "runs_to_its_end": servers(plan=lambda server: [*server.plan(), *server.plan()]),
    "answers_twice_alike": cohorts(respond=noisy),
    "repeats_under_a_seed": cohorts(respond=noisy),
    "resumes": cohorts(respond=noisy),
    "snapshots_everything": cohorts(restore=lambda cohort, snapshot: None),
    "splits_into_cohorts": cohorts(respond=lambda cohort, asked: cohort.respond(asked) + len(cohort.clients)),
    "learns": cohorts(history=outside),
}


@pytest.mark.parametrize("check", FAULTS)
def test_a_planted_fault_is_noticed(check: str) -> None:
    plain = Subject(algorithm=pb.FederatedFLCB())
    CHECKS[check](plain)
    with pytest.raises(ConformanceError):
        CHECKS[check](Subject(algorithm=FAULTS[check](plain)))


def test_a_server_that_holds_a_vector_is_noticed() -> None:
    leaks: list[FloatArray] = []

    def leaking(cohort: Cohort) -> Any:
        def keep(answers: FloatArray, _: int) -> FloatArray:
            leaks.append(answers)
            return answers

        return spoiled(cohort, keep)

    def holding(server: Server) -> Any:
        return Faulty(server, {"held": lambda side: leaks})

    algorithm = Subject(algorithm=pb.FederatedFLCB()).wrapped(on_cohort=leaking, on_server=holding)
    with pytest.raises(ConformanceError, match="holds a client's vector"):
        CHECKS["hides_vectors_from_its_server"](Subject(algorithm=algorithm))
    assert holds_a_row_of({"deep": [leaks[0]]}, leaks[0])


def test_a_users_algorithm_is_checked_in_one_call() -> None:
    check_algorithm(Zoom())
    with pytest.raises(pb.ConfigurationError, match="is a class"):
        check_algorithm(Zoom)
