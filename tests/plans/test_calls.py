"""How often the objective is called, as plans say it beforehand, and as runs then call it."""

import json
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

import privbo as pb
from accountant.events import Adjacency, Composed, Event, NonPrivate, compose
from accountant.filters import fixed_order_filter
from accountant.ledger import Budget
from experiments.examples.zoom import Zoom
from privbo.algorithms.thompson.scout import Scout
from privbo.runs.offer import always
from privbo.runs.opening import policy_of
from tests.accountant.builders import allocated, fixed, gaussian, poisson, truncated
from tests.cli.test_cli import X, privbo, toml

N = 4
CLIENT = pb.Privacy(noise_multiplier=1.0, noise="simulation")
RECORD = pb.Privacy(noise_multiplier=1.0, noise="simulation", unit="record", protects="records")
SHARED = [
    (pb.SharedPrior(n_features=12, n_init=3), CLIENT, 3 + 6),
    (pb.SharedPrior(n_features=12, n_init=3, evaluations=5), CLIENT, 5),
    (pb.DPFTSDE(n_features=12, n_init=2), CLIENT, 2 + 6),
    (pb.FedPNE(horizon=400, c=0.02), CLIENT, 400),
    (pb.FedPNE(horizon=400, evaluations=150, c=0.02), CLIENT, 150),
    (pb.PFPNE(horizon=60, c=0.02), CLIENT, 60),
    (pb.PFPNE(horizon=60, c=0.02, stage2="printed"), CLIENT, 60),
    (pb.ParallelXArmed(horizon=200, nu1=5.0, rho=0.8), CLIENT, 200),
    (pb.FederatedFLCB(), CLIENT, 6 * 3 + 1),
    (pb.FederatedFLCB(evaluations=11), CLIENT, 3 * 3 + 1),
    (Scout(evaluations=7), CLIENT, 7),
    (pb.MultiTask(), RECORD, 4 + 6),
    (pb.MultiTask(goal="common"), RECORD, 5 + 4 + 1),
]
CASES = [
    case
    for algorithm, privacy, calls in SHARED
    for case in ((always(algorithm), privacy, calls), (algorithm.local(), privacy, None))
]
CASES.append((pb.PFPNE(horizon=40), pb.Privacy(epsilon=0.5, noise="simulation"), 40))  # of which nothing is released


def counted(privacy: pb.Privacy) -> tuple[pb.Problem, Counter[int]]:
    """A problem whose objective counts its calls by client."""
    calls: Counter[int] = Counter()

    def score(client: int, params) -> float:
        calls[client] += 1
        return 1.0 - float((params["x"] - 0.1 * client) ** 2)

    records = {"n_records": (30,) * N, "score_range": (0.0, 1.0)} if privacy.unit == "record" else {}
    return pb.Problem(space={"x": pb.Real(0, 1)}, objective=score, n_clients=N, **records), calls


@pytest.mark.parametrize(("algorithm", "privacy", "stated"), CASES, ids=lambda v: getattr(v, "type", None))
def test_a_run_calls_the_objective_as_often_as_its_plan_says(algorithm, privacy, stated):
    problem, calls = counted(privacy)
    plan = pb.plan(problem, algorithm, privacy=privacy, rounds=6)
    assert not calls
    assert stated in (plan.calls_per_client, None)
    pb.run(problem, algorithm, privacy=privacy, rounds=6, seed=1)
    assert set(calls) == set(range(N))
    if algorithm == always(SHARED[7][0]):  # it ends with its rounds, whatever is left of its horizon
        assert 0 < max(calls.values()) < plan.calls_per_client
    else:
        assert calls == dict.fromkeys(range(N), plan.calls_per_client)
        assert calls.total() == plan.calls


def test_a_plan_says_it_in_words_and_an_algorithm_that_does_not_say_is_not_guessed() -> None:
    problem, _ = counted(CLIENT)
    plan = pb.plan(problem, pb.PFPNE(), privacy=pb.NoPrivacy(), rounds=20)
    assert "at most 5,000 calls of the objective per client, 20,000 in all" in repr(plan)
    silent = pb.plan(problem, Zoom(), privacy=CLIENT, rounds=2)
    assert (silent.calls_per_client, silent.calls, silent.calls_text) == (None, None, None)
    assert "calls" not in repr(silent)


def test_a_dry_run_counts_the_calls_of_the_run_and_of_its_controls(tmp_path) -> None:
    config = tmp_path / "flcb.toml"
    elsewhere = {"objective": "no_such_module:score", "n_clients": 40, "space": X}
    chosen = {"algorithm": {"type": "f-lcb"}, "privacy": {"noise_multiplier": 4.0}}
    config.write_text(toml(controls=["local", "zeroed"], problem=elsewhere, **chosen))
    asked = ("run", str(config), "--out", str(tmp_path / "run"), "--dry-run")
    found = json.loads(privbo(*asked, "--json").stdout)
    assert found["plan"]["releases"] == 3
    # 3 rounds of 3 calls and the announced point; the control alone announces none, and the noise-only one does.
    assert (found["calls_per_client"], found["calls"], found["control_calls"]) == (10, 400, 40 * 9 + 40 * 10)
    told = "at most 10 calls of the objective per client, 400 in all"
    assert f"{told}; 760 more by controls" in privbo(*asked).stdout
    alone = privbo(*asked, "--set", "controls=[]")
    assert told in alone.stdout
    assert "more by controls" not in alone.stdout
    assert "epsilon above 10 limits little" not in alone.stdout
    assert "epsilon above 10 limits little" in privbo(*asked, "--set", "privacy.noise_multiplier=0.5").stdout
    assert list(tmp_path.iterdir()) == [config]  # nothing was made


# ---- a shared ledger's settings: the rule that is chosen when it is made, and what a later run may say of it

ZERO = Adjacency.ZERO_OUT
SAMPLED = poisson(0.1, 1.0, 20)
EVERYONE = gaussian(9.0, 20)
MANY = pb.DeclaredReleases(count=100, sample_rate=0.1, noise_multiplier=1.0)
FEW = pb.DeclaredReleases(count=3, noise_multiplier=9.0)


def shared(**settings) -> pb.SharedLedger:
    return pb.SharedLedger(**{"path": "p.sqlite", "population": "w", "epsilon": 4.0, "delta": 1e-5} | settings)


def made(plan: Event = SAMPLED, **settings) -> Budget | None:
    return shared(**settings).budget(plan, n_clients=40, adjacency=ZERO)


def test_the_exact_filter_is_chosen_by_itself_where_everybody_takes_part() -> None:
    exact = Budget(epsilon=4.0, delta=1e-5, rule="gaussian")
    assert made(EVERYONE) == exact
    assert made(compose([poisson(1.0, 3.0)])) == exact
    assert made(SAMPLED, releases=[FEW]) == exact  # what is declared counts, not the first run
    assert made(SAMPLED, rule="gaussian") == exact
    assert made(EVERYONE, epsilon=None, delta=None) is None


def test_a_plan_gives_the_order_where_some_do_not() -> None:
    def order(plan: Event) -> float:
        return fixed_order_filter(epsilon=4.0, delta=1e-5, plan=plan, adjacency=ZERO).order

    assert made(SAMPLED) == Budget(epsilon=4.0, delta=1e-5, rule="renyi", order=order(SAMPLED))
    both = shared(releases=[MANY, FEW]).declared(40)
    assert made(EVERYONE, releases=[MANY, FEW]) == Budget(epsilon=4.0, delta=1e-5, rule="renyi", order=order(both))
    assert made(EVERYONE, rule="renyi").order == order(EVERYONE) != order(SAMPLED)
    assert made(NonPrivate()) == Budget(epsilon=4.0, delta=1e-5, rule="renyi")
    for rate, rule in ((1.0, "gaussian"), (0.5, "renyi")):  # a first run that releases nothing
        privacy = pb.Privacy(epsilon=0.01, sample_rate=rate)
        plan = pb.plan(counted(CLIENT)[0], pb.SharedPrior(), privacy=privacy, rounds=2)
        assert plan.releases == 0
        assert policy_of(plan, shared()).budget.rule == rule


def test_an_envelope_reserves_what_is_declared() -> None:
    found = made(Composed(), rule="envelope", releases=[MANY, FEW])
    assert compose(found.slots) == compose([(poisson(0.1, 1.0), 100),
                                            (gaussian(9.0), 3)])  # fmt: skip
    fitting = made(SAMPLED, releases=[MANY, FEW], epsilon=9.0)
    assert fitting == made(SAMPLED, rule="envelope", releases=[MANY, FEW], epsilon=9.0)
    assert fitting.rule == "envelope"  # by itself, where what is declared fits the bound
    assert made(SAMPLED, epsilon=9.0).rule == "renyi"  # nothing is declared beyond the first run
    assert made(SAMPLED, rule="renyi", releases=[MANY, FEW], epsilon=9.0).rule == "renyi"


def test_every_sampling_of_a_run_can_be_declared() -> None:
    """A subset or bounded batch release by release; a random allocation as one slot for all releases of a run."""
    declared = partial(pb.DeclaredReleases, noise_multiplier=2.0)
    subset = declared(count=2, sample_rate=0.24, sampling="fixed-size")
    bounded = declared(count=20, sample_rate=0.25, sampling="truncated-poisson", max_cohort=16)
    allotted = declared(count=20, sampling="random-allocation", participations=4)
    slots = made(rule="envelope", releases=[subset, bounded, allotted, allotted], epsilon=90.0).slots
    assert set(slots) == {(fixed(40, 10, 2.0), 2), (truncated(40, 0.25, 16, 2.0), 20), (allocated(20, 4, 2.0), 2)}
    for wrong, words in (
        (declared(count=2, sample_rate=0.01, sampling="fixed-size"), "rounds to a sample of none"),
        (replace(allotted, count=3), "participations=4, and the plan has 3 releases"),
    ):
        with pytest.raises(pb.ConfigurationError, match=words):
            made(rule="envelope", releases=[wrong])


def test_later_runs_take_the_ledger_as_it_is_unless_they_say_otherwise() -> None:
    exact, ordered, slots = made(EVERYONE), made(SAMPLED), made(rule="envelope", releases=[MANY])
    for found in (exact, ordered, slots):
        for plan in (EVERYONE, SAMPLED):
            assert shared().kept(found, made(plan)) == found
        assert shared(rule=found.rule, releases=[MANY] if found is slots else []).kept(found, slots) == found
    assert shared(rule="gaussian").kept(ordered, exact) == exact  # which the ledger is not, so the run is refused
    assert shared(epsilon=5.0).kept(exact, made(epsilon=5.0)) == made(epsilon=5.0)
    assert shared(releases=[MANY]).kept(exact, made(releases=[MANY])) == made(releases=[MANY])
    more = {"rule": "envelope", "releases": [MANY, FEW]}
    assert shared(**more).kept(slots, made(**more)) == made(**more)
    swapped = {"rule": "envelope", "releases": [FEW, MANY]}
    assert shared(**swapped).kept(made(**more), made(**swapped)) == made(**more)
    assert shared(epsilon=None, delta=None).kept(exact, None) is None
    assert shared().kept(None, exact) == exact
