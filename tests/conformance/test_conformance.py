"""Every algorithm of the house and of the how-to keeps the law; the checks notice planted faults."""

import ast
import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import privbo as pb
from experiments.examples.zoom import Zoom
from privbo.protocol.common import CANDIDATES
from privbo.protocol.messages import Ask, Broadcast, Cohort, FloatArray, IntArray, Release, Server, answers_together
from privbo.testing import CHECKS, ConformanceError, Subject, boundary, check_algorithm, checks, subject
from privbo.testing.boundary import holds_a_row_of
from privbo.testing.subject import spoiled
from tests.conformance.cases import ALIKE, CASES, N_CLIENTS, RECORDS, ROUNDS, VARIANTS, VOTES, Case, bumps
from tests.conformance.small import problem as small_problem

SLOW = [pytest.param(case, marks=pytest.mark.slow, id=str(case)) for case in [*VARIANTS, *VOTES[1:]]]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("case", [*CASES, *ALIKE, *RECORDS, *VOTES[:1], *SLOW], ids=str)
def test_the_law_is_kept(case: Case, check: str) -> None:
    if (case.name, check) == ("scout", "acts_or_costs_nothing"):
        return  # what a scout releases is its answer, and its clients act on none
    CHECKS[check](case.subject)


@pytest.mark.parametrize("case", [*CASES, *ALIKE, *RECORDS, *VOTES], ids=str)
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


def counted(case: Case, algorithm: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], int, list[int]]:
    """What a run releases, how often it makes a cohort, and how often it calls the objective of every client.

    A verdict on sharing asks for as many evaluations alone; a mean of 40 pulls is one value and 40 evaluations.
    """
    called, cohorts = np.zeros(N_CLIENTS, dtype=int), []
    home = next(kind for kind in type(algorithm).__mro__ if "cohort" in vars(kind))
    make = vars(home)["cohort"]

    def cohort(self: Any, *settings: Any, **named: Any) -> Any:
        cohorts.append(self)
        return make(self, *settings, **named)

    def objective(clients: IntArray, units: FloatArray) -> FloatArray:
        np.add.at(called, clients, 1)
        return bumps(clients, units)

    problem = dataclasses.replace(small_problem(), batch_objective=objective)
    with monkeypatch.context() as patch:
        patch.setattr(home, "cohort", cohort)
        record = pb.run(problem, algorithm, privacy=case.privacy(), rounds=ROUNDS, seed=3, final=case.final)
    assert record.clients.evaluations.tolist() == called.tolist()
    assert all(called)
    return [release.values.tolist() for release in record.releases], len(cohorts), called.tolist()


@pytest.mark.parametrize("alone", [False, True], ids=["shared", "alone"])
@pytest.mark.parametrize("case", [*CASES, *ALIKE, *VARIANTS, *VOTES], ids=str)
def test_an_empty_subclass_releases_the_same_from_as_many_calls_which_its_history_tells(case, alone, monkeypatch):
    algorithm = case.algorithm.local() if alone else case.algorithm
    case = dataclasses.replace(case, final=None if alone else case.final)
    settings = {each.name: getattr(algorithm, each.name) for each in dataclasses.fields(algorithm) if each.init}
    mine = type("Mine", (type(algorithm),), {"__module__": "mine"})(**settings)
    found = counted(case, mine, monkeypatch)
    assert found == counted(case, algorithm, monkeypatch)
    assert found[1] >= 1


def test_a_subclass_with_a_cohort_of_its_own_is_not_held_to_what_it_inherits() -> None:
    own = type("Own", (pb.FedPNE,), {"cohort": lambda self, setting, **named: None})
    said = type("Said", (own,), {"answers_together": True})
    assert [answers_together(kind()) for kind in (own, said, pb.FedPNE)] == [False, True, True]


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


def needs_every_round(cohort: Cohort, broadcast: Any) -> FloatArray:
    seen = vars(cohort).setdefault("seen", 0)
    if broadcast.round > seen:
        raise ConformanceError(f"round {seen} never came")
    vars(cohort)["seen"] = broadcast.round + 1
    return cohort.respond(broadcast)


def agreed(cohort: Cohort, broadcast: Any) -> FloatArray:
    """Ballots that rest on who else votes."""
    answers = cohort.respond(broadcast)
    return answers + len(answers) if CANDIDATES in broadcast.arrays else answers


def outside(cohort: Cohort) -> Any:
    history = cohort.history()
    return type(history)(**vars(history) | {"recommended": history.recommended + 2.0})


BEST: dict[int, int] = {}  # what a cohort leaves for its server past the door


def whispering(cohort: Cohort, broadcast: Any) -> FloatArray:
    answers = cohort.respond(broadcast)
    BEST[broadcast.round] = int(np.argsort(np.nan_to_num(answers[0])).dot(np.arange(answers.shape[1])))
    return answers


def telling(ask: Ask, number: int) -> Ask:
    """The same question with a number of the server's in it."""
    arrays = {**ask.broadcast.arrays, "steered": np.array([number])}
    return dataclasses.replace(ask, broadcast=dataclasses.replace(ask.broadcast, arrays=arrays))


def overheard(server: Server) -> Any:
    ask = server.ask()
    return ask if ask is None or ask.broadcast.round == 0 else telling(ask, BEST[ask.broadcast.round - 1])


def leaky(subject: Subject) -> Any:
    """Through a name that both sides see, kept per round: no array of a vector is there to be found."""
    return subject.wrapped(
        on_cohort=lambda cohort: Faulty(cohort, {"respond": whispering}),
        on_server=lambda server: Faulty(server, {"ask": overheard}),
    )


def moving(server: Server) -> Ask | None:
    """Asks something else the second time; of a run that goes on clients that answered would refuse it."""
    vars(server)["moved"] = vars(server).get("moved", 0) + 1
    ask = server.ask()
    return ask and telling(ask, vars(server)["moved"])


def wider(server: Any, broadcast: Any) -> Any:
    own = server.request_for(broadcast)
    return own and dataclasses.replace(own, clipping_norm=own.clipping_norm * (1 + 1e-9))


def bounded_by(bound: Callable[[float | None], float | None]) -> Callable[[Server], Any]:
    def asked(server: Server) -> Any:
        ask = server.ask()
        if ask is None or ask.request is None:
            return ask
        request = dataclasses.replace(ask.request, unit_bound=bound(ask.request.unit_bound))
        return dataclasses.replace(ask, request=request)

    return asked


def deaf(server: Server, release: Release | None) -> None:
    """Goes on as if nothing but zeros had been released."""
    server.tell(None if release is None else dataclasses.replace(release, values=0.0 * release.values))


FLCB, ZOOM = Subject(algorithm=pb.FederatedFLCB()), Subject(algorithm=Zoom())
FED = Subject(algorithm=pb.FedPNE(horizon=400, c=0.02), rounds=ROUNDS)
REWARD, VOTE = dataclasses.replace(FED, unit="reward"), dataclasses.replace(FED, final="common")
TOO_SMALL = r"another reward moves a vector by .* unit_bound is"
# The check that notices, whose algorithm the fault is planted in, the fault, and what is said.
FAULTS: list[tuple[str, Subject, Callable[[Subject], Any], str | None]] = [
    ("runs_to_its_end", FLCB, servers(plan=lambda server: [*server.plan(), *server.plan()]), None),
    ("answers_twice_alike", FLCB, cohorts(respond=noisy), None),
    ("repeats_under_a_seed", FLCB, cohorts(respond=noisy), None),
    ("resumes", FLCB, cohorts(respond=noisy), None),
    ("snapshots_everything", FLCB, cohorts(restore=lambda cohort, snapshot: None), None),
    ("splits_into_cohorts", FLCB, cohorts(respond=lambda one, asked: one.respond(asked) + len(one.clients)), None),
    ("splits_into_cohorts", VOTE, cohorts(respond=agreed), None),
    ("learns", FLCB, cohorts(history=outside), None),
    ("goes_on_after_missed_rounds", FLCB, cohorts(respond=needs_every_round), None),
    ("is_steered_by_releases", ZOOM, servers(ask=moving), "must repeat its answer until tell"),
    ("is_steered_by_releases", ZOOM, leaky, "asks what its releases alone don't lead to"),
    ("derives_its_requests", FED, servers(request_for=wider), "gives another request than ask"),
    ("keeps_its_unit_bound", REWARD, servers(ask=bounded_by(lambda bound: bound and 1e-6 * bound)), TOO_SMALL),
    ("keeps_its_unit_bound", REWARD, servers(ask=bounded_by(lambda bound: bound and 0.5 * bound)), TOO_SMALL),
    ("acts_or_costs_nothing", FED, servers(tell=deaf), "cost something and change nothing"),
]


@pytest.mark.parametrize(("check", "plain", "fault", "words"), FAULTS, ids=[check for check, *_ in FAULTS])
def test_a_planted_fault_is_noticed(check: str, plain: Subject, fault: Any, words: str | None) -> None:
    CHECKS[check](plain)
    with pytest.raises(ConformanceError, match=words):
        CHECKS[check](dataclasses.replace(plain, algorithm=fault(plain), final=None))  # which holds the vote


def test_a_server_that_holds_a_vector_is_noticed() -> None:
    leaks: list[FloatArray] = []

    algorithm = FLCB.wrapped(
        on_cohort=lambda cohort: spoiled(cohort, lambda answers, _: leaks.append(answers) or answers),
        on_server=lambda server: Faulty(server, {"held": lambda side: leaks}),
    )
    with pytest.raises(ConformanceError, match="holds a client's vector"):
        CHECKS["hides_vectors_from_its_server"](Subject(algorithm=algorithm))
    assert holds_a_row_of({"deep": [leaks[0]]}, leaks[0])
    CHECKS["hides_vectors_from_its_server"](dataclasses.replace(ZOOM, algorithm=leaky(ZOOM)))  # it holds none


def test_a_users_algorithm_is_checked_in_one_call() -> None:
    assert set(CHECKS) - set(check_algorithm(Zoom())) == {"keeps_its_unit_bound"}  # one client is the unit
    with pytest.raises(pb.ConfigurationError, match="is a class"):
        check_algorithm(Zoom)


def test_a_reward_that_is_not_clipped_to_its_range_is_noticed() -> None:
    """Zoom sends scores as they are: right for one client, whose vector the door clips, and not for one reward."""
    wrapped = servers(ask=bounded_by(lambda _: 1.0))(ZOOM)
    with pytest.raises(ConformanceError, match=r"moves a vector by 9.*; it must not. Clip every reward's score to"):
        CHECKS["keeps_its_unit_bound"](Subject(algorithm=wrapped, unit="reward"))


def on_and_on(server: Any) -> Ask:
    return Ask(broadcast=Broadcast(round=server.round, arrays={"candidates": np.zeros((1, 2))}), request=None)


def test_a_control_that_never_ends_is_broken_off() -> None:
    @dataclass
    class Endless:
        def server(self, setting: Any) -> Any:
            return Faulty(Zoom().local().server(setting), {"ask": on_and_on})

        cohort, local, caveat, is_certified = Zoom().local().cohort, lambda self: self, None, False

    with pytest.raises(ConformanceError, match="rounds must end; this one was at round"):
        CHECKS["has_a_local_control"](Subject(algorithm=Endless()))


@pytest.mark.parametrize(
    ("replaced", "words"),
    [
        # The release of its round is stored, so that it would be told the same for ever.
        ({"tell": lambda *_: None}, r"the server asks round 0 after round 0; tell\(\) must lead to the next"),
        ({"ask": lambda _: 1 // 0}, "runs_to_its_end: ZeroDivisionError: integer division"),
        ({"plan": lambda side: [*side.plan(), *side.plan()]}, "runs_to_its_end: a run must make every release of its"),
    ],
)
def test_the_check_that_fails_is_named_and_why(replaced: dict[str, Any], words: str) -> None:
    with pytest.raises(ConformanceError, match=words):
        check_algorithm(servers(**replaced)(ZOOM))


def test_every_message_of_a_check_says_what_must_hold() -> None:
    """A rule alone reads as if it held."""
    said: list[str] = []
    for module in (boundary, checks, subject):
        calls = (node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.Call))
        said += [ast.unparse(call.args[1]) for call in calls if getattr(call.func, "id", "") == "require"]
    assert len(said) > 40
    assert [words for words in said if not re.search(r"\b(must|may)\b", words)] == []
