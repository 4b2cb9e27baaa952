"""Runs that a policy refuses, in process: before any data is touched, in sentences."""

from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest

import privbo as pb
from accountant import Adjacency, NonPrivate, numerical, repeat
from accountant.errors import CalibrationError
from privbo.audits.clipping import price_of_norms, publish_norms
from privbo.plans.plan import price_plan
from privbo.plans.policy import Policy
from privbo.protocol.errors import PolicyError
from privbo.protocol.messages import Request
from privbo.runs import opening
from tests.accountant.builders import gaussian, laplace, poisson
from tests.builders import problem, same_releases

POLICY = Policy(epsilon=4.0, delta=1e-6)
SMALL = {"n_features": 8}
PROBLEM = problem(40)


def untouched(client: int, params: object) -> float:
    raise AssertionError("the policy refuses, and a client was asked")


UNTOUCHED = problem(40, objective=untouched)
DEAR, SEEDED = pb.Privacy(epsilon=1000.0, delta=1e-6), pb.Privacy(epsilon=1.0, noise="simulation")
OUTSIDERS = pb.Privacy(epsilon=1.0, trust="guardians", guardians=3, against="outsiders")
REWARDS = {"privacy": pb.Privacy(epsilon=1.0, unit="reward")}
HOSTILE = {
    "no privacy": ({"privacy": pb.NoPrivacy()}, {}, "privacy.none=true, and policy.no_privacy=false"),
    "epsilon 1000": ({"privacy": DEAR}, {}, "from epsilon 0 to 1000 at delta 1e-06, and policy.epsilon=4; lower"),
    "another noise": ({"privacy": SEEDED}, {}, "privacy.noise='simulation', and policy.noise=['secure', 'exact']"),
    "trust": ({}, {"trust": ["guardians"]}, "privacy.trust='server', and policy.trust=['guardians']"),
    "against outsiders alone": ({"privacy": OUTSIDERS}, {}, "set privacy.against='coalition'"),
    "another algorithm": ({}, {"algorithms": ["pe", "scout"]}, "'shared-prior', and policy.algorithms=['pe', 'scout']"),
    "too many rounds": ({"rounds": 11}, {"max_rounds": 10}, "rounds=11, and policy.max_rounds=10; plan fewer rounds"),
    "another unit": ({"algorithm": pb.FedPNE()} | REWARDS, {}, "privacy.unit='reward', and policy.unit='client'"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_refused_run_touches_nobody_and_writes_nothing(case: str, tmp_path) -> None:
    changes, policy, words = HOSTILE[case]
    given = {"algorithm": pb.SharedPrior(**SMALL), "privacy": pb.Privacy(epsilon=1.0), "rounds": 3} | changes
    policy = Policy(epsilon=4.0, delta=1e-6, **policy)
    with pytest.raises(PolicyError) as refused:
        pb.run(UNTOUCHED, given.pop("algorithm"), directory=tmp_path / "run", policy=policy, **given)
    assert str(refused.value).startswith("this policy refuses: ")
    assert words in str(refused.value)
    assert "Policy(" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_run_within_the_policy_is_the_same_run(tmp_path) -> None:
    settings = {"privacy": SEEDED, "rounds": 2, "seed": 3}
    bare = pb.run(PROBLEM, pb.SharedPrior(**SMALL), **settings)
    policy = Policy(epsilon=4.0, delta=1e-6, noise=["simulation"])
    held = pb.run(PROBLEM, pb.SharedPrior(**SMALL), policy=policy, **settings)
    same_releases(held, bare)
    assert held.spec.digest() == bare.spec.digest()
    assert pb.Spec.from_dict(held.spec.to_dict() | {"problem": bare.spec.to_dict()["problem"]}).policy == policy


def test_runs_on_one_ledger_are_added_up_and_the_one_that_passes_the_bound_touches_nothing(tmp_path) -> None:
    """The ledger's own bound is wide: what refuses is the policy."""
    ledger = pb.SharedLedger(path=str(tmp_path / "people.sqlite"), population="p", epsilon=100.0, delta=1e-6)
    privacy = pb.Privacy(epsilon=1.0, delta=1e-6)

    def play(number: int, problem: pb.Problem = PROBLEM, **more) -> pb.Record:
        settings = {"privacy": privacy, "rounds": 2, "ledger": ledger, "policy": POLICY} | more
        return pb.run(problem, pb.DPFTSDE(**SMALL), directory=tmp_path / str(number), **settings)

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
    with pytest.raises(PolicyError, match=r"and policy.epsilon=2"):
        play(0, UNTOUCHED, policy=Policy(epsilon=2.0, delta=1e-6), resume=True)


def test_what_is_charged_is_judged_when_it_is_charged(tmp_path, monkeypatch) -> None:
    """Planted faults: another run was charged after this one was judged; a publication beside a run."""
    ledger = pb.SharedLedger(path=str(tmp_path / "people.sqlite"), population="p")
    privacy = pb.Privacy(epsilon=1.0, delta=1e-6)
    settings = {"rounds": 2, "ledger": ledger, "privacy": privacy, "rehearse": False}
    policy = Policy(epsilon=1.2, delta=1e-6)
    pb.run(PROBLEM, pb.DPFTSDE(**SMALL), policy=policy, directory=tmp_path / "0", **settings).ledger.close()
    monkeypatch.setattr(opening, "decided", lambda *_, **__: None)  # what it said was true then
    with pytest.raises(PolicyError, match=r"to 1\.[4-9].*no data was touched"):
        pb.run(UNTOUCHED, pb.DPFTSDE(**SMALL), policy=policy, directory=tmp_path / "1", **settings)
    record = pb.load(tmp_path / "0")
    with record.ledger as kept:
        for publish in (price_of_norms, publish_norms):
            with pytest.raises(PolicyError, match=r"policy\.epsilon=1\.2"):
                publish(record, noise_multiplier=0.5)
        assert (len(kept.book().reservations), len(kept.entries())) == (1, 2)
        publish_norms(record, noise_multiplier=20.0)


def test_an_event_that_the_rule_does_not_count_is_refused_with_the_rule_that_does() -> None:
    asked = {"algorithm": "f-lcb", "rounds": 1}
    refused = POLICY.decide(pb.Privacy(epsilon=1.0), laplace(50.0), **asked)
    assert "policy.rule='gaussian' counts Gaussian releases only; a policy with rule = 'renyi'" in refused.words
    wider = Policy(epsilon=4.0, delta=1e-6, rule="renyi")
    assert wider.decide(pb.Privacy(epsilon=1.0), laplace(50.0), **asked).allowed
    assert not wider.decide(pb.Privacy(epsilon=1.0), NonPrivate(), **asked).allowed


def test_a_run_without_privacy_that_is_allowed_counts_nowhere() -> None:
    open_policy = Policy(epsilon=4.0, delta=1e-6, no_privacy=True)
    paid = [gaussian(4.0)]
    decision = open_policy.decide(pb.NoPrivacy(), NonPrivate(), algorithm="pe", rounds=1, paid=paid)
    assert decision.allowed
    assert decision.spent == decision.projected > 0
    assert "without privacy, which policy.no_privacy allows" in decision.verdict("this policy")


def test_a_bound_that_was_passed_already_refuses_whatever_comes() -> None:
    paid = [gaussian(0.5)]
    decision = POLICY.decide(pb.Privacy(epsilon=0.1), gaussian(1e6), algorithm="pe", rounds=1, paid=paid)
    assert not decision.allowed


# ---- settings of privacy

REWARD = {"noise_multiplier": 3.0, "unit": "reward"}


def request(n_blocks: int = 1, n_clients: int = 10, concentrated: bool = False, **changes) -> Request:
    weights = np.full((n_blocks, n_clients), 1.0 / n_clients)
    if concentrated:
        weights = np.tile(np.eye(n_blocks), n_clients // n_blocks) * n_blocks / n_clients
    return Request(**{"dim": 3, "clipping_norm": 2.0, "weights": weights} | changes)


def test_a_target_is_met_from_below_and_not_wasted() -> None:
    terms = price_plan(pb.Privacy(epsilon=2.0), [request()] * 5, n_clients=10)
    assert terms.releases == 5
    assert 1.999 < min(terms.epsilon().values()) <= 2.0
    given = price_plan(pb.Privacy(noise_multiplier=1.5, sample_rate=0.3), [request()] * 4, n_clients=10)
    assert given.event.parts == ((poisson(0.3, 1.5), 4),)


def test_the_papers_noise_carries_its_true_multiplier() -> None:
    """Four regions: the paper's noise is worth 2z while weights are concentrated and z when they are uniform."""
    privacy = pb.Privacy(noise_multiplier=1.0, calibration="paper")
    mixed = price_plan(privacy, [request(4, 8), request(4, 8, concentrated=True)], n_clients=8)
    assert [part.noise_multiplier for part, _ in mixed.event.parts] == pytest.approx([1.0, 2.0])


def test_a_target_with_the_papers_noise_prices_rounds_as_they_are() -> None:
    plan = [request(4, 8, concentrated=True)] * 3 + [request(4, 8)] * 3
    paper = price_plan(pb.Privacy(epsilon=2.0, calibration="paper"), plan, n_clients=8)
    tight = price_plan(pb.Privacy(epsilon=2.0), plan, n_clients=8)
    for terms in (paper, tight):
        assert 1.999 < min(terms.epsilon().values()) <= 2.0
    assert paper.noise_multiplier < tight.noise_multiplier
    assert tight.event.parts == ((gaussian(tight.noise_multiplier), 6),)


def test_deltas() -> None:
    assert pb.default_delta(10**6) == pytest.approx(1e-7)
    with pytest.warns(UserWarning, match=r"1/N = 0\.005"):
        assert pb.Privacy(epsilon=1.0, delta="paper").resolved_delta(200) == pb.paper_delta(200)
    with pytest.warns(UserWarning, match="set it to 1e-07 or less"):
        assert pb.Privacy(epsilon=1.0, delta=1e-5).resolved_delta(10**6) == 1e-5
    words = "delta = 0.05 is above 1/N = 0.025, which publishing one of N at random satisfies"
    for delta, too_large in ((0.05, True), (0.025, False)):
        with pytest.warns(UserWarning, match=words) if too_large else nullcontext():
            plan = price_plan(pb.Privacy(epsilon=2.0, delta=delta), [request()], n_clients=40)
        assert (words in repr(plan)) == too_large


def test_a_baseline_costs_infinity_and_an_empty_plan_nothing() -> None:
    """And there is nothing to say of what either shares."""
    baseline, empty = (price_plan(pb.NoPrivacy(), requests, n_clients=10) for requests in ([request()], []))
    assert (min(baseline.epsilon().values()), set(empty.epsilon().values())) == (np.inf, {0.0})
    private = price_plan(pb.Privacy(epsilon=1.0), [], n_clients=10)
    assert [plan.outlook for plan in (baseline, empty, private)] == [None] * 3


def test_a_target_out_of_reach_is_refused() -> None:
    with pytest.raises(CalibrationError, match="epsilon"):
        price_plan(pb.Privacy(epsilon=1e-9, delta=1e-12), [request()] * 5, n_clients=10)


def test_a_request_for_another_unit_than_the_privacys_is_refused() -> None:
    rewards = request(unit="reward", unit_bound=0.1)
    for privacy, wanted in ((pb.Privacy(**REWARD), request()), (pb.Privacy(noise_multiplier=3.0), rewards)):
        with pytest.raises(pb.ConfigurationError, match=f"for one {wanted.unit} only"):
            price_plan(privacy, [wanted], n_clients=10)


def test_rewards_enter_one_release_each_so_the_dearest_is_the_price() -> None:
    rewards = request(unit="reward", unit_bound=0.1)
    terms = price_plan(pb.Privacy(**REWARD), [rewards] * 5, n_clients=10)
    assert terms.event.parts == ((gaussian(3.0), 1),)
    assert (terms.releases, terms.unit, terms.adjacency) == (5, "reward", Adjacency.REPLACE_ONE)
    target = price_plan(pb.Privacy(epsilon=2.0, unit="reward"), [rewards] * 5, n_clients=10)
    alone = price_plan(pb.Privacy(epsilon=2.0, unit="reward"), [rewards], n_clients=10)
    assert target.noise_multiplier == alone.noise_multiplier


# ---- the outlook of a plan


mean = partial(request, 1, dim=16)


def test_it_is_the_norm_of_equal_answers_beside_the_expected_norm_of_the_noise():
    """40 vectors of norm 2 have a mean of norm 2; noise of standard deviation 2 z / 40 in 16 numbers has norm .2 z."""
    plan = price_plan(pb.Privacy(noise_multiplier=5.0), [mean(40)], n_clients=40)
    assert plan.largest_over_noise == pytest.approx(2.0)
    assert (
        plan.outlook == "at best, with all clients answering alike, what they share has 2 times the norm of its noise"
    )
    four = price_plan(pb.Privacy(noise_multiplier=5.0), [mean(40)] * 4, n_clients=40)
    assert four.largest_over_noise == pytest.approx(4.0)
    quarters = price_plan(pb.Privacy(noise_multiplier=5.0), [mean(40, noise_scale=2.0)] * 4, n_clients=40)
    assert quarters.largest_over_noise == pytest.approx(2.0)
    assert quarters.epsilon()["tight"] == pytest.approx(plan.epsilon()["tight"], rel=1e-6)


def test_each_kind_of_release_has_its_two_norms():
    """The first release has a mean of norm 2 under noise of norm 5 x 2 / 40 x 4 = 1; the others' is twice as loud."""
    requests = [mean(40), mean(40, noise_scale=2.0), mean(40, noise_scale=2.0)]
    plan = price_plan(pb.Privacy(noise_multiplier=5.0), requests, n_clients=40)
    found = plan.signal_to_noise
    assert [(kind.count, round(kind.largest_sum, 9), round(kind.noise, 9)) for kind in found] == [(1, 2, 1), (2, 2, 2)]
    assert found[1].text == "each of 2 releases: largest possible sum of norm 2 versus noise of typical norm 2"
    assert (found[0].largest_sum / found[0].noise) ** 2 + 2 * 1.0 == pytest.approx(plan.largest_over_noise**2)


def test_several_regions_are_one_vector():
    plan = price_plan(pb.Privacy(noise_multiplier=5.0), [request(4, 40, dim=4)], n_clients=40)
    (mechanism,) = plan.mechanisms
    stacked = np.sqrt(4) * mechanism.vector_bound  # four copies of a vector of norm 2 / sqrt(4)
    assert plan.largest_over_noise == pytest.approx(stacked / (mechanism.noise_stddev() * np.sqrt(16)))
