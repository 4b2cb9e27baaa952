"""Runs that a policy refuses, in process: before any data is touched, in sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

import privbo as pb
from accountant import Adjacency, Gaussian, Laplace, NonPrivate, numerical, repeat
from privbo.plans.policy import Policy
from privbo.protocol.errors import PolicyError
from tests.builders import problem

POLICY = Policy(epsilon=4.0, delta=1e-6)
SMALL = {"n_features": 8}
PROBLEM = problem(40)


def untouched(client: int, params: object) -> float:
    raise AssertionError("the policy refuses, and a client was asked")


UNTOUCHED = problem(40, objective=untouched)
HOSTILE = {
    "no privacy": ({"privacy": pb.NoPrivacy()}, {}, "privacy.none=true, and policy.no_privacy=false"),
    "epsilon 1000": (
        {"privacy": pb.Privacy(epsilon=1000.0, delta=1e-6)},
        {},
        "from epsilon 0 to 1000 at delta 1e-06, and policy.epsilon=4; plan fewer rounds or more noise",
    ),
    "another noise": (
        {"privacy": pb.Privacy(epsilon=1.0, noise="simulation")},
        {},
        "privacy.noise='simulation', and policy.noise=['secure', 'exact']",
    ),
    "trust": (
        {"privacy": pb.Privacy(epsilon=1.0)},
        {"trust": ["guardians"]},
        "privacy.trust='server', and policy.trust=['guardians']",
    ),
    "against outsiders alone": (
        {"privacy": pb.Privacy(epsilon=1.0, trust="guardians", guardians=3, against="outsiders")},
        {},
        "set privacy.against='coalition'",
    ),
    "another algorithm": (
        {},
        {"algorithms": ["fed-pne", "scout"]},
        "algorithm.type='shared-prior', and policy.algorithms=['fed-pne', 'scout']",
    ),
    "too many rounds": ({"rounds": 11}, {"max_rounds": 10}, "rounds=11, and policy.max_rounds=10; plan fewer rounds"),
    "another unit": (
        {"algorithm": pb.FedPNE(horizon=400, c=0.02), "privacy": pb.Privacy(epsilon=1.0, unit="reward")},
        {},
        "privacy.unit='reward', and policy.unit='client'",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_refused_run_touches_nobody_and_writes_nothing(case: str, tmp_path: Path) -> None:
    changes, policy, words = HOSTILE[case]
    given = {"algorithm": pb.SharedPrior(**SMALL), "privacy": pb.Privacy(epsilon=1.0), "rounds": 3} | changes
    policy = Policy(epsilon=4.0, delta=1e-6, **policy)
    with pytest.raises(PolicyError) as refused:
        pb.run(UNTOUCHED, given.pop("algorithm"), directory=tmp_path / "run", policy=policy, **given)
    assert str(refused.value).startswith("this policy refuses: ")
    assert words in str(refused.value)
    assert "Policy(" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_run_within_the_policy_is_the_same_run(tmp_path: Path) -> None:
    settings = {"privacy": pb.Privacy(epsilon=1.0, noise="simulation"), "rounds": 2, "seed": 3}
    bare = pb.run(PROBLEM, pb.SharedPrior(**SMALL), **settings)
    policy = Policy(epsilon=4.0, delta=1e-6, noise=["simulation"])
    held = pb.run(PROBLEM, pb.SharedPrior(**SMALL), policy=policy, **settings)
    assert [r.values.tolist() for r in held.releases] == [r.values.tolist() for r in bare.releases]
    assert held.spec.digest() == bare.spec.digest()
    assert pb.Spec.from_dict(held.spec.to_dict() | {"problem": bare.spec.to_dict()["problem"]}).policy == policy


def test_runs_on_one_ledger_are_added_up_and_the_one_that_passes_the_bound_touches_nothing(tmp_path: Path) -> None:
    """The ledger's own bound is wide: what refuses is the policy."""
    ledger = pb.SharedLedger(path=str(tmp_path / "people.sqlite"), population="p", epsilon=100.0, delta=1e-6)
    privacy = pb.Privacy(epsilon=1.0, delta=1e-6)

    def play(number: int, problem: pb.Problem = PROBLEM, **more) -> pb.Record:
        home = tmp_path / str(number)
        settings = {"privacy": privacy, "rounds": 2, "directory": home, "ledger": ledger} | more
        return pb.run(problem, pb.DPFTSDE(**SMALL), policy=POLICY, **settings)

    each = pb.plan(PROBLEM, pb.DPFTSDE(**SMALL), privacy=privacy, rounds=2).event
    costs = [numerical.epsilon(repeat(each, n), 1e-6, adjacency=Adjacency.ZERO_OUT) for n in range(1, 20)]
    allowed = sum(cost <= 4.0 for cost in costs)
    for number in range(allowed):
        play(number).ledger.close()
    with pytest.raises(PolicyError, match=r"to 4\.[0-9]+ at delta 1e-06, and policy.epsilon=4"):
        play(allowed, UNTOUCHED)
    assert allowed > 4
    assert not (tmp_path / str(allowed)).exists()
    again = play(0, resume=True)  # it stands on the ledger already, and is not counted twice
    with again.ledger as kept:
        assert len(kept.book().reservations) == allowed
    stricter = pb.Policy(epsilon=2.0, delta=1e-6)
    with pytest.raises(PolicyError, match=r"and policy.epsilon=2"):
        pb.run(
            UNTOUCHED, pb.DPFTSDE(**SMALL), privacy=privacy, rounds=2, directory=tmp_path / "0", ledger=ledger,
            policy=stricter, resume=True,
        )  # fmt: skip


def test_an_event_that_the_rule_does_not_count_is_refused_with_the_rule_that_does() -> None:
    asked = {"algorithm": "f-lcb", "rounds": 1}
    refused = POLICY.decide(pb.Privacy(epsilon=1.0), Laplace(scale_multiplier=50.0), **asked)
    assert "policy.rule='gaussian' counts Gaussian releases only; a policy with rule = 'renyi'" in refused.words
    wider = Policy(epsilon=4.0, delta=1e-6, rule="renyi")
    assert wider.decide(pb.Privacy(epsilon=1.0), Laplace(scale_multiplier=50.0), **asked).allowed
    assert not wider.decide(pb.Privacy(epsilon=1.0), NonPrivate(), **asked).allowed


def test_a_run_without_privacy_that_is_allowed_counts_nowhere() -> None:
    open_policy = Policy(epsilon=4.0, delta=1e-6, no_privacy=True)
    paid = [Gaussian(noise_multiplier=4.0)]
    decision = open_policy.decide(pb.NoPrivacy(), NonPrivate(), algorithm="pe", rounds=1, paid=paid)
    assert decision.allowed
    assert decision.spent == decision.projected > 0
    assert "without privacy, which policy.no_privacy allows" in decision.verdict("this policy")


def test_a_bound_that_was_passed_already_refuses_whatever_comes() -> None:
    paid = [Gaussian(noise_multiplier=0.5)]
    decision = POLICY.decide(
        pb.Privacy(epsilon=0.1), Gaussian(noise_multiplier=1e6), algorithm="pe", rounds=1, paid=paid
    )
    assert not decision.allowed


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"epsilon": 0.0}, "policy.epsilon"),
        ({"delta": 1.0}, "policy.delta"),
        ({"noise": ["none"]}, "policy.noise"),
        ({"rule": "planned"}, "policy.rule"),
    ],
)
def test_impossible_policies_are_refused(wrong: dict, words: str) -> None:
    with pytest.raises(pb.ConfigurationError, match=words):
        Policy(**{"epsilon": 4.0, "delta": 1e-6} | wrong)


CONFIG = {
    "name": "tiny",
    "rounds": 3,
    "problem": {"factory": "tests.crash_problem:problem"},
    "algorithm": {"type": "dp-fts-de", "n_features": 8},
    "privacy": {"epsilon": 2.0, "delta": 1e-6},
}
