"""Releases that can change nothing are not made and cost nothing; those that can are."""

import dataclasses
import re
from functools import partial

import numpy as np
import pytest

import privbo as pb
from accountant.errors import BudgetExceeded
from privbo.runs.offer import acts, always, is_optional, useful
from privbo.runs.spec import Spec
from privbo.testing import bumps
from tests.builders import problem

SPACE = {"x": pb.Real(0, 1), "y": pb.Real(0, 1)}
TWO = pb.Privacy(epsilon=2.0, delta=1e-5, noise="simulation")


def alike(n_clients: int) -> pb.Problem:
    """Clients who all have the same bump, between 0 and 1."""
    return problem(n_clients, space=SPACE, batch_objective=lambda clients, units: bumps(np.zeros_like(clients), units))


def points(record: pb.Record):
    common = None if record.common is None else record.common.params
    return [record.clients.units.tolist(), record.clients.recommended.tolist(), common]


# At epsilon 2: releases that are planned, and of how many seeds out of eight a run with all releases is another one
# than its noise alone. Half of them is the bound.
CELLS = [
    (pb.FedPNE(horizon=22), 12, 0),
    (pb.FedPNE(horizon=22), 40, 3),
    (pb.FedPNE(horizon=500), 12, 0),
    (pb.FedPNE(horizon=500), 40, 6),
    (pb.PFPNE(horizon=22), 40, 0),
    (pb.PFPNE(horizon=22), 200, 6),
    (pb.ParallelXArmed(horizon=500), 200, 12),
    (pb.SharedPrior(), 12, 2),  # below its least signal it differs as well, and gains nothing
]


@pytest.mark.parametrize(
    ("algorithm", "n_clients", "releases"), CELLS, ids=lambda value: getattr(value, "type", str(value))
)
def test_a_run_that_is_charged_differs_from_its_noise_and_one_that_would_not_costs_nothing(
    algorithm, n_clients: int, releases: int
) -> None:
    """The measure of a run given up: with all of its releases it is, at most seeds, the run of its noise alone.

    Where it is not given up, the releases that are made count.
    """
    clients = alike(n_clients)
    plan = pb.plan(clients, algorithm, privacy=TWO, rounds=20)
    assert plan.releases == releases
    assert plan.epsilon()["tight"] == (pytest.approx(2.0, rel=1e-3) if releases else 0.0)
    differ = 0
    for seed in range(8):
        run = partial(pb.run, clients, privacy=TWO, rounds=20, seed=seed)
        played = algorithm if releases else always(algorithm)
        differ += points(run(played)) != points(run(played, control="zeroed"))
    assert differ >= 5 if releases else differ <= 4
    if not releases:
        assert run(algorithm).ledger.entries() == []
        assert points(run(algorithm)) == points(run(algorithm.local()))


@pytest.mark.parametrize("kind", [pb.FedPNE, pb.PFPNE, pb.ParallelXArmed])
def test_a_papers_preset_makes_all_its_releases(kind) -> None:
    assert not is_optional(kind.paper())
    assert pb.plan(alike(3), kind.paper(horizon=500), privacy=TWO, rounds=20).releases >= 5
    assert pb.plan(alike(3), useful(kind.paper(horizon=500)), privacy=TWO, rounds=20).releases == 0


def test_the_answer_depends_on_public_numbers_alone_and_not_on_the_seed() -> None:
    def unseen(clients, units):
        raise AssertionError("an objective was called for a plan")

    for seed, objective in ((1, bumps), (2, unseen)):
        clients = dataclasses.replace(alike(40), batch_objective=objective)
        assert pb.plan(clients, pb.PFPNE(horizon=500), privacy=TWO, rounds=20, seed=seed).releases == 0


@pytest.mark.parametrize(
    ("algorithm", "n_clients"), [(pb.PFPNE(horizon=22), 12), (pb.SharedPrior(), 5)], ids=["pf-pne", "shared prior"]
)
def test_a_plan_of_nothing_says_what_would_change_that_and_it_does(algorithm, n_clients: int) -> None:
    plan = pb.plan(alike(n_clients), algorithm, privacy=TWO, rounds=20)
    found = re.match(r"epsilon ([0-9.]+) or ([0-9]+) clients", plan.remedy or "")
    assert found is not None
    dear = dataclasses.replace(TWO, epsilon=float(found.group(1)))
    for people, privacy in ((n_clients, dear), (int(found.group(2)), TWO)):
        more = pb.plan(alike(people), algorithm, privacy=privacy, rounds=20)
        assert more.releases > 0
        assert more.remedy is None
    almost = dataclasses.replace(TWO, epsilon=dear.epsilon / 2)
    assert pb.plan(alike(n_clients), algorithm, privacy=almost, rounds=20).releases == 0
    assert (plan.epsilon()["tight"], plan.noise_multiplier) == (0.0, None)
    assert plan.outlook.startswith("nothing is released or charged: ")
    assert isinstance(algorithm, pb.PFPNE) or plan.largest_over_noise < 1
    assert plan.outlook.endswith(f"; {plan.remedy}")


def test_without_noise_every_release_acts() -> None:
    plan = pb.plan(alike(2), pb.PFPNE(horizon=22), privacy=pb.NoPrivacy(), rounds=20)
    assert plan.releases == 4


def test_the_vote_is_kept_where_the_rounds_say_nothing() -> None:
    quiet = dataclasses.replace(TWO, epsilon=0.05)
    record = pb.run(alike(40), pb.FedPNE(horizon=500), privacy=quiet, rounds=20, final="common", seed=1)
    assert record.plan.releases == len(record.ledger.entries()) == 1
    assert record.plan.final is not None
    assert record.common is not None


def test_sums_that_no_one_could_tell_from_noise_are_told_as_such() -> None:
    """Planted: the gate asked of a plan whose noise is far larger, or far smaller, answers the other way."""
    setting = Spec(name="gate", problem=alike(40), algorithm=pb.FedPNE(), privacy=TWO, rounds=20).setting(0)
    algorithm = pb.FedPNE(horizon=500, release_when="always")
    found = [
        acts(algorithm, setting, pb.plan(alike(40), algorithm, privacy=privacy, rounds=20))
        for privacy in (pb.Privacy(noise_multiplier=z) for z in (0.1, 1e3))
    ]
    assert found == [True, False]


def test_what_was_planned_before_in_a_process_changes_no_plan() -> None:
    """Two spaces that differ in a condition alone have plans of their own, in either order."""
    free = {"k": pb.Categorical(("a", "b")), **SPACE}
    bound = {"k": free["k"], "x": pb.Real(0, 1, when={"k": "a"}), "y": pb.Real(0, 1, when={"k": "b"})}
    privacy = dataclasses.replace(TWO, epsilon=3.0)

    def releases(space) -> int:
        return pb.plan(problem(20, space=space), pb.FedPNE(horizon=60), privacy=privacy, rounds=20).releases

    found = [releases(space) for space in (free, bound, free, bound)]
    assert found[:2] == found[2:]
    assert found[0] != found[1]


def test_a_budget_is_asked_of_what_a_run_makes_and_a_remedy_beyond_it_is_none() -> None:
    for budget in (1.2, 1.0):
        privacy = pb.Privacy(noise_multiplier=8.0, budget=budget, noise="simulation")
        plan = pb.plan(alike(12), pb.PFPNE(horizon=22), privacy=privacy, rounds=20)
        assert plan.releases == 0
    with pytest.raises(BudgetExceeded, match="over the budget"):
        pb.plan(alike(2000), pb.PFPNE(horizon=22), privacy=privacy, rounds=20)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mine(pb.PFPNE):
    """A user's own algorithm, whose list makes it no key of a cache."""

    notes: list[str] = dataclasses.field(default_factory=list)


def test_an_algorithm_that_cannot_be_a_key_is_planned_like_one_that_can() -> None:
    plans = [
        pb.plan(alike(n_clients), kind(horizon=22), privacy=TWO, rounds=20).releases
        for n_clients in (12, 200)
        for kind in (pb.PFPNE, Mine)
    ]
    assert plans == [0, 0, 6, 6]
    quiet = pb.Privacy(epsilon=0.1, delta=0.01)  # above 1/N of the clients that would make it release, not of these
    assert " clients " in pb.plan(alike(12), pb.PFPNE(horizon=22), privacy=quiet, rounds=20).outlook


def test_a_run_of_too_few_rounds_for_any_release_says_how_many_would_do() -> None:
    """One round alone releases nothing, because no later one would use it; clients alone release nothing ever."""
    for final, before in ((None, ""), ("common", "before the vote ")):
        told = {"privacy": TWO, "final": final}
        plan = pb.plan(alike(40), pb.SharedPrior(), rounds=1, **told)
        words = "nothing is released or charged: no later round would use a release; 2 rounds would change that"
        assert (plan.outlook, plan.releases) == (before + words, len(before) > 0)
        assert pb.plan(alike(40), pb.SharedPrior(), rounds=2, **told).releases == 1 + (len(before) > 0)
        assert words in str(plan)
        few = pb.plan(alike(40), pb.SharedPrior(evaluations=3), rounds=5, **told)
        assert few.outlook == before + words.replace("2 rounds", "4 evaluations of a client")
        told["privacy"] = pb.Privacy(epsilon=0.1)
        faint = pb.plan(alike(40), pb.SharedPrior(), rounds=1, **told).outlook
        assert faint == before + words.replace("2 rounds would", "more rounds or evaluations alone would not")
        assert pb.plan(alike(40), pb.SharedPrior().local(), rounds=1, **told).outlook is None
