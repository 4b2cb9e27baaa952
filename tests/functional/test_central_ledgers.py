"""Private searches and selections on central data without a training: ledgers, refusals, secret bookkeeping."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

import privbo as pb
from accountant.errors import BudgetExceeded
from accountant.events import Unit
from accountant.ledger import Budget
from accountant.selection import TruncatedNegativeBinomial
from privbo.door.noise import SecureNoise, SimulatedNoise
from privbo.training.central import central_run, noise_of, open_ledger
from privbo.training.plan import TRAINING, VALIDATION, RecordPrivacy
from privbo.training.selection import PrivateSelection, _counted, private_selection

PLAN = RecordPrivacy(epsilon=8.0, pulls=1, steps=8, sample_rate=0.25, noise="simulation")
SECURE = dataclasses.replace(PLAN, noise="secure")
RUNS = TruncatedNegativeBinomial(eta=1.0, gamma=0.1)
SIZES = {"n_training": 40, "n_validation": 30}


def test_a_search_has_one_directory_for_its_ledgers_and_goes_on_as_it_was(tmp_path) -> None:
    with pytest.raises(pb.ConfigurationError, match="needs a directory for its durable ledgers"):
        central_run(SECURE, **SIZES)
    with pytest.raises(pb.RunError, match="only a search with a directory can be resumed"):
        central_run(PLAN, **SIZES, resume=True)
    made = central_run(SECURE, **SIZES, directory=tmp_path / "s")
    for ledger, part, adjacency, n in (
        (made.training, "training", TRAINING, 40),
        (made.validation, "validation", VALIDATION, 30),
    ):
        policy = ledger.policy
        assert ledger.path == tmp_path / "s" / f"{part}.sqlite"
        assert (policy.unit, policy.adjacency, policy.n_clients) == (Unit.RECORD, adjacency, n)
        assert policy.population == f"central, {part} records"
        assert policy.budget == Budget(epsilon=8.0, delta=1e-5)
    with pytest.raises(pb.RunError, match="already holds a search"):
        central_run(SECURE, **SIZES, directory=tmp_path / "s")
    with pytest.raises(pb.RunError, match="another n_training"):
        central_run(SECURE, **SIZES | {"n_training": 41}, directory=tmp_path / "s", resume=True)
    assert central_run(SECURE, **SIZES, directory=tmp_path / "s", resume=True).training.entries() == []
    assert central_run(PLAN, **SIZES).training.path is None
    with pytest.raises(pb.RunError, match="name its own directory"):
        open_ledger(tmp_path / "s", "training", SECURE, 41, TRAINING, "central")


def test_noise_is_secret_where_the_plan_says_so_and_seeded_where_it_is_a_simulation() -> None:
    assert isinstance(noise_of(SECURE, 3), SecureNoise)
    for seed, same in ((3, 3), (None, 0)):
        drawn = noise_of(PLAN, seed).stream("x").gaussian((8,), 2.0**20)
        np.testing.assert_array_equal(drawn, SimulatedNoise(same).stream("x").gaussian((8,), 2.0**20))


# --- selection ------------------------------------------------------------------------------


def prepared(plan: RecordPrivacy = PLAN, **settings) -> PrivateSelection:
    return private_selection(plan, RUNS, **SIZES, **({"seed": 3} | settings))


def model(number: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.tensor([number])}


def test_a_run_is_judged_once_and_every_judgement_has_noise_of_its_own() -> None:
    judge, losses = prepared().judge, np.ones(30)
    judge.left = 1
    first = judge(lambda: losses)
    with pytest.raises(BudgetExceeded, match="paid for once"):
        judge(lambda: losses)
    judge.left = 1
    assert judge(lambda: losses) != first


def test_the_steps_of_a_run_are_counted_down_and_none_is_taken_twice() -> None:
    selection, left = prepared(), [8]
    take = _counted(selection.training, PLAN, 1.5, left)
    assert (take(0, 5).reserved, left) == (5, [3])
    with pytest.raises(BudgetExceeded, match="4 steps, the run has 3"):
        take(1, 4)
    assert (take(1, 3).reserved, left) == (3, [0])
    with pytest.raises(BudgetExceeded, match="1 steps, the run has 0"):
        take(2, 1)
    assert selection.training.entries() == []  # the selection's own charge pays for all of it


def test_a_selection_has_a_directory_for_its_ledgers(tmp_path) -> None:
    with pytest.raises(pb.ConfigurationError, match="needs a directory for its durable ledgers"):
        prepared(SECURE)
    assert prepared(SECURE, directory=tmp_path / "s").training.path == tmp_path / "s" / "training.sqlite"


@pytest.mark.parametrize(
    ("scores", "winner"),
    [
        ([3.0, 1.0, 2.0], 1),
        ([1.0, 2.0, 3.0], 0),
        ([3.0, 2.0, 1.0], 2),
        ([math.nan, 2.0, -math.inf], 1),
        ([math.nan, math.inf, math.nan], 0),
    ],
)
def test_the_best_of_the_runs_that_were_drawn_is_released_and_bound(
    scores: list[float], winner: int, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = [4, 0, 2]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("privbo.training.selection.draw_runs", lambda *_: drawn)
    selection, made = prepared(), []

    def run_one(candidate: int):
        made.append(candidate)
        return scores[len(made) - 1], model(len(made) - 1)

    found = selection.select(5, run_one)
    assert made == drawn
    assert (found.chosen, found.model) == (drawn[winner], model(winner))
    assert selection.judge.left == 0
    assert list(tmp_path.iterdir()) == []  # a simulation in memory leaves nothing behind
    for ledger in (selection.training, selection.validation):
        assert ledger.stored_release(f"{ledger.entries()[0].run}/selection") is not None


def test_a_model_that_was_written_before_a_crash_is_bound_when_it_is_found(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("privbo.training.selection.draw_runs", lambda *_: [1])
    selection = prepared(directory=tmp_path / "s")

    def crash(self, content):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PrivateSelection, "_bind", crash)
        with pytest.raises(KeyboardInterrupt):
            selection.select(2, lambda candidate: (1.0, model(4.0)))
    again = prepared(directory=tmp_path / "s", resume=True)
    found = again.select(2, lambda candidate: pytest.fail("nothing is drawn again"))
    assert found.model == model(4.0)
    assert found.chosen == 1
    with pytest.raises(pb.RunError, match="candidate 1 of 1; select among the same candidates"):
        again.select(1, lambda candidate: pytest.fail("nothing is drawn again"))
    (tmp_path / "s" / "selected.pt").write_bytes(b"other")
    with pytest.raises(pb.RunError, match="not the model that was released"):
        again.select(2, lambda candidate: pytest.fail("nothing is drawn again"))
