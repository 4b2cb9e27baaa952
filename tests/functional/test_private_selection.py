"""Private selection: paid for as a whole before the first run, one release, nothing else leaves."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import privbo as pb
from accountant.errors import BudgetExceeded
from accountant.events import BestOfRandomRuns
from accountant.selection import TruncatedNegativeBinomial
from privbo.door.noise import SecureNoise, SimulatedNoise
from privbo.door.selection import draw_runs
from privbo.training.plan import RecordPrivacy
from privbo.training.private_neural import PrivateNeuralArm, record_losses
from privbo.training.selection import private_selection
from tests.functional.test_private_neural import N, sgd, split

RUNS = TruncatedNegativeBinomial(eta=1.0, gamma=0.3)
PLAN = RecordPrivacy(epsilon=8.0, pulls=1, steps=8, sample_rate=0.25, noise="simulation")
MODELS = (lambda: nn.Linear(4, 2), lambda: nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 2)))


def prepared(plan=PLAN, **settings):
    return private_selection(plan, RUNS, n_training=N, n_validation=N, **({"seed": 3} | settings))


def runner(selection, seen=None):
    def run_one(index):
        arm = PrivateNeuralArm(
            name=f"m{index}", model=MODELS[index], data=split(), optimiser=sgd, trainer=selection.trainer,
            judge=selection.judge, steps=PLAN.steps, seed=index,
        )  # fmt: skip
        if seen is not None:
            seen.append((index, len(selection.training.entries()), len(selection.validation.entries())))
        state = arm.step(arm.init())
        if seen is not None:
            seen[-1] = (*seen[-1], arm.value(state))
        return arm.value(state), state.model.state_dict()

    return run_one


def test_both_ledgers_are_charged_once_before_the_first_run_and_the_best_is_released() -> None:
    selection, seen = prepared(), []
    found = selection.select(2, runner(selection, seen))
    assert [row[1:3] for row in seen] == [(1, 1)] * len(seen)
    assert found.score == min(row[3] for row in seen)
    for ledger, event in zip((selection.training, selection.validation), selection.events, strict=True):
        assert [entry.event for entry in ledger.entries()] == [event]
        assert isinstance(ledger.entries()[0].event, BestOfRandomRuns)
        assert not ledger.guarantees
    price = selection.epsilon()
    assert price["maximum"] <= 8.0
    assert price["maximum"] < price["both"]


def test_a_real_selection_is_released_once_and_found_again(tmp_path) -> None:
    plan = dataclasses.replace(PLAN, noise="secure")
    selection = prepared(plan, directory=tmp_path / "s")
    found = selection.select(2, runner(selection))
    assert {e.noise_source for e in selection.training.entries()} == {"secure"}
    assert {p.name for p in (tmp_path / "s").iterdir() if p.suffix == ".pt"} == {"selected.pt"}
    again = prepared(plan, directory=tmp_path / "s", resume=True)
    seen = []
    back = again.select(2, runner(again, seen))
    assert (back.chosen, back.score, seen) == (found.chosen, found.score, [])
    assert all(torch.equal(back.model[name], found.model[name]) for name in found.model)
    assert len(again.training.entries()) == len(again.validation.entries()) == 1
    (tmp_path / "s" / "selected.pt").write_bytes(b"other")
    with pytest.raises(pb.RunError, match="not the model that was released"):
        again.select(2, runner(again))
    (tmp_path / "s" / "selected.pt").unlink()
    with pytest.raises(pb.RunError, match="is gone"):
        again.select(2, runner(again))


def test_cut_off_in_a_run_it_is_made_anew_for_the_same_charge(tmp_path) -> None:
    selection = prepared(directory=tmp_path / "s")

    def cut(index):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        selection.select(2, cut)
    assert list((tmp_path / "s").glob("*.pt")) == []
    again = prepared(directory=tmp_path / "s", resume=True)
    assert again.select(2, runner(again)).chosen in (0, 1)
    assert len(again.training.entries()) == len(again.validation.entries()) == 1


def test_nothing_is_trained_or_judged_outside_of_a_run_or_twice() -> None:
    selection = prepared()
    with pytest.raises(BudgetExceeded, match="inside its run"):
        selection.judge(lambda: np.ones(N))
    with pytest.raises(BudgetExceeded, match="inside select"):
        runner(selection)(0)
    assert selection.training.entries() == []

    def greedy(index):
        score, model = runner(selection)(index)
        runner(selection)(index)
        return score, model

    with pytest.raises(BudgetExceeded):
        selection.select(2, greedy)


def test_scores_carry_the_noise_that_is_charged() -> None:
    """1,000 scores of one mean: standard deviation within 6 standard errors (false alarms below 1e-8)."""
    judge = prepared().judge
    judge.left = 1000
    scores = np.array([judge(lambda: np.full(N, 1.0)) for _ in range(1000)])
    assert abs(scores.std() / judge.stddev - 1) < 6 / np.sqrt(2000)
    assert abs(scores.mean() - 1.0) < 6 * judge.stddev / np.sqrt(1000)


@pytest.mark.parametrize("noise", [SecureNoise(), SimulatedNoise(1)], ids=["secure", "simulation"])
def test_runs_are_drawn_as_stated(noise) -> None:
    """3,000 draws: mean of K and share of candidate 0 within 6 standard errors (false alarms below 1e-8)."""
    drawn = [draw_runs(RUNS, 3, noise) for _ in range(3000)]
    counts = np.array([len(d) for d in drawn])
    assert counts.min() >= 1
    assert abs(counts.mean() - RUNS.mean) < 6 * counts.std() / np.sqrt(3000)
    every = np.concatenate(drawn)
    assert set(every) == {0, 1, 2}
    assert abs((every == 0).mean() - 1 / 3) < 6 * np.sqrt(2 / 9 / len(every))
    with pytest.raises(pb.ConfigurationError):
        draw_runs(RUNS, 0, noise)


def test_the_released_model_is_the_one_that_was_judged() -> None:
    selection = prepared(RecordPrivacy(epsilon=50.0, pulls=1, steps=8, sample_rate=0.25, noise="simulation"))
    found = selection.select(1, runner(selection))
    arm = PrivateNeuralArm(
        name="m0", model=MODELS[0], data=split(), optimiser=sgd, trainer=selection.trainer, judge=selection.judge
    )
    state = arm.init()
    state.model.load_state_dict(found.model)
    assert abs(record_losses(state.model, arm.data).mean() - found.score) < 6 * selection.judge.stddev
