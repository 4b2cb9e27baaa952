"""A rehearsal before a run exists: it stops a typo for nothing, and costs no evaluation."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import privbo as pb
from accountant.errors import BudgetExceeded
from privbo.runs.rehearsal import middle
from tests.conformance.cases import problem
from tests.executor_problem import Noting

PRIVATE = pb.Privacy(noise_multiplier=4.0)
REWARDS = pb.Privacy(noise_multiplier=4.0, unit="reward")
SPACE = {"dose": pb.Real(0, 1)}


def failing(*clients: int, n: int = 20) -> pb.Problem:
    return pb.Problem(
        space=SPACE, n_clients=n, objective=lambda client, params: params["Dose" if client in clients else "dose"]
    )


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_a_typo_of_all_clients_makes_no_directory_and_no_ledger(executor: str, tmp_path: Path) -> None:
    people = pb.SharedLedger(path=str(tmp_path / "people.sqlite"), population="ward")
    asked = {"privacy": PRIVATE, "rounds": 2, "directory": tmp_path / "run", "executor": executor, "jobs": 2}
    with pytest.raises(pb.RehearsalError, match=r"none of 20 clients has a value \(KeyError 20\)"):
        pb.run(failing(*range(20)), pb.SharedPrior(), ledger=people, **asked)
    assert not list(tmp_path.iterdir())
    made = pb.run(failing(*range(20)), pb.DPFTSDE(n_features=8), rehearse=False, **asked)
    assert len(made.ledger.entries()) == 2


def test_who_fails_in_a_rehearsal_is_told_to_the_private_side_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.WARNING, "privbo.private"):
        made = pb.run(failing(3), pb.DPFTSDE(n_features=8), privacy=PRIVATE, rounds=2, directory=tmp_path / "run")
    said = [record.message for record in caplog.records if record.name == "privbo.private"]
    assert said == ["client 3: KeyError: 'Dose'", "rehearsal: 1 of 20 clients have no value (KeyError 1)"]
    assert len(made.ledger.entries()) == 2
    assert made.failures == {3: "KeyError: 'Dose'"} == pb.load(tmp_path / "run").failures
    assert "KeyError" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("algorithm", "privacy"),
    [
        (pb.SharedPrior(), PRIVATE),
        (pb.DPFTSDE(n_features=8), PRIVATE),
        (pb.FederatedFLCB(), PRIVATE),
        (pb.FedPNE(horizon=40), REWARDS),
        (pb.PFPNE(horizon=40), REWARDS),
        (pb.ParallelXArmed(), REWARDS),
    ],
    ids=lambda found: type(found).__name__,
)
def test_a_run_takes_its_rehearsal_over_so_that_no_evaluation_is_made_twice(
    algorithm: object, privacy: pb.Privacy, tmp_path: Path
) -> None:
    first, made = {}, {}
    for rehearse in (True, False):
        calls: Counter[int] = Counter()

        def score(client: int, params: dict, calls: Counter[int] = calls) -> float:
            calls[client] += 1
            return params["dose"]

        shown = pb.Problem(space=SPACE, n_clients=6, objective=score)
        home = tmp_path / f"{rehearse}"
        done = pb.run(shown, algorithm, privacy=privacy, rounds=2, seed=3, directory=home, rehearse=rehearse)
        first[rehearse], made[rehearse] = done.clients.units[:, 0], calls
    assert np.array_equal(first[True], first[False])
    assert made[True] == made[False]


@pytest.mark.parametrize(("executor", "jobs"), [("serial", 1), ("processes", 2)])
def test_workers_and_batches_rehearse_too(executor: str, jobs: int, tmp_path: Path) -> None:
    calls = Noting(tmp_path / "calls")
    noted = pb.Problem(space=problem().space, objective=calls, n_clients=7)
    asked = {"privacy": PRIVATE, "rounds": 1, "seed": 1, "jobs": jobs}
    pb.run(noted, pb.SharedPrior(), directory=tmp_path / "run", executor=executor, **asked)
    assert len(calls.lines()) == len(set(calls.lines())) == 7 * (1 + pb.SharedPrior().n_init)


def test_a_rehearsal_of_a_batch_stops_where_the_whole_batch_fails(tmp_path: Path) -> None:
    def score(clients: np.ndarray, units: np.ndarray) -> np.ndarray:
        return np.full(len(clients), np.nan)

    batch = pb.Problem(space=SPACE, n_clients=5, batch_objective=score)
    with pytest.raises(pb.RehearsalError, match=r"none of 5 clients has a value \(no error 5\)"):
        pb.run(batch, pb.SharedPrior(), privacy=PRIVATE, rounds=1, directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_would_be_refused_is_refused_before_anybody_evaluates(tmp_path: Path) -> None:
    calls = list[int]()
    counted = pb.Problem(space=SPACE, n_clients=4, objective=lambda client, _: calls.append(client) or 0.5)
    people = pb.SharedLedger(path=str(tmp_path / "people.sqlite"), population="ward", epsilon=1.0, delta=1e-6)
    asked = {"privacy": PRIVATE, "rounds": 2, "directory": tmp_path / "run"}
    for refused in ({"policy": pb.Policy(epsilon=0.01, delta=1e-6)}, {"ledger": people}):
        with pytest.raises((pb.PolicyError, BudgetExceeded)):
            pb.run(counted, pb.DPFTSDE(n_features=8), **asked, **refused)
    assert not calls
    assert not list(tmp_path.iterdir())


def test_check_counts_kinds_and_keeps_the_constraints() -> None:
    def score(client: int, params: dict) -> float:
        if client < 3:
            raise ValueError(f"client {client}")
        return float("nan") if client == 3 else params["x"]

    found = pb.check(pb.Problem(space={"x": pb.Real(0, 1)}, constraints=("x > 0.9",), objective=score, n_clients=6))
    assert found.kinds == {"ValueError": 3, "no error": 1}
    assert found.n_clients == 6
    assert repr(found).startswith("<Rehearsal: 4 of 6 clients have no value (ValueError 3, no error 1); ")
    assert "client 0" not in repr(found)
    assert found.failures[0] == "ValueError: client 0"
    space = pb.Space({"x": pb.Real(0, 1)}, ["x > 0.9"])
    assert space.allows(middle(space))
