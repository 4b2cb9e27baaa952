"""How often the objective is called, as plans say it beforehand, and as runs then call it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import privbo as pb
from experiments.examples.zoom import Zoom
from privbo.algorithms.thompson.scout import Scout
from privbo.plans.effect import always
from privbo.protocol.messages import Algorithm
from tests.cli.test_cli import privbo

N = 4
CLIENT = pb.Privacy(noise_multiplier=1.0, noise="simulation")
RECORD = pb.Privacy(noise_multiplier=1.0, noise="simulation", unit="record", protects="records")
SHARED: list[tuple[Algorithm, pb.Privacy, int]] = [
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
# Ends with its rounds, whatever is left of its horizon.
ENDS_EARLY = [always(SHARED[7][0])]
FLCB = """
name = "flcb"
rounds = 3
controls = ["local", "zeroed"]
[problem]
objective = "no_such_module:score"
n_clients = 40
[problem.space.x]
type = "real"
low = 0.0
high = 1.0
[algorithm]
type = "f-lcb"
[privacy]
noise_multiplier = 4.0
"""
CASES = [
    case
    for algorithm, privacy, calls in SHARED
    for case in ((always(algorithm), privacy, calls), (algorithm.local(), privacy, None))
]


def counted(privacy: pb.Privacy) -> tuple[pb.Problem, Counter[int]]:
    """A problem whose objective counts its calls by client."""
    calls: Counter[int] = Counter()

    def score(client: int, params: dict[str, Any]) -> float:
        calls[client] += 1
        return 1.0 - float((params["x"] - 0.1 * client) ** 2)

    records = {"n_records": (30,) * N, "score_range": (0.0, 1.0)} if privacy.unit == "record" else {}
    return pb.Problem(space={"x": pb.Real(0, 1)}, objective=score, n_clients=N, **records), calls


@pytest.mark.parametrize(("algorithm", "privacy", "stated"), CASES, ids=lambda v: getattr(v, "type", None))
def test_a_run_calls_the_objective_as_often_as_its_plan_says(
    algorithm: Algorithm, privacy: pb.Privacy, stated: int | None
) -> None:
    problem, calls = counted(privacy)
    plan = pb.plan(problem, algorithm, privacy=privacy, rounds=6)
    assert not calls
    assert stated in (plan.calls_per_client, None)
    pb.run(problem, algorithm, privacy=privacy, rounds=6, seed=1)
    assert set(calls) == set(range(N))
    if algorithm in ENDS_EARLY:
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


def test_a_dry_run_counts_the_calls_of_the_run_and_of_its_controls(tmp_path: Path) -> None:
    config = tmp_path / "flcb.toml"
    config.write_text(FLCB)
    asked = ("run", str(config), "--dry-run")
    found = json.loads(privbo(*asked, "--json").stdout)
    # 3 rounds of 3 calls and the announced point; the control alone announces none, and the noise-only one does.
    assert (found["calls_per_client"], found["calls"], found["control_calls"]) == (10, 400, 40 * 9 + 40 * 10)
    told = "at most 10 calls of the objective per client, 400 in all"
    assert f"{told}; 760 more by controls" in privbo(*asked).stdout
    alone = privbo(*asked, "--set", "controls=[]")
    assert told in alone.stdout
    assert "more by controls" not in alone.stdout


def test_a_run_that_releases_nothing_calls_as_its_clients_alone() -> None:
    problem, calls = counted(CLIENT)
    privacy = pb.Privacy(epsilon=0.5, noise="simulation")
    plan = pb.plan(problem, pb.PFPNE(horizon=40), privacy=privacy, rounds=6)
    pb.run(problem, pb.PFPNE(horizon=40), privacy=privacy, rounds=6, seed=1)
    assert (plan.releases, plan.calls_per_client, calls.total()) == (0, 40, N * 40)
