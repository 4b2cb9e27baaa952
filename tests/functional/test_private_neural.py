"""Private training of arms: reserved before the first batch, judged through the door, priced as a plan."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from opacus.accountants import PRVAccountant
from torch import nn

import privbo as pb
from accountant.errors import BudgetExceeded
from accountant.events import PoissonSampledGaussian, Unit, repeat
from privbo.functional.f_lcb import f_lcb
from privbo.functional.halving import hyperband, successive_halving
from privbo.functional.neural import Split
from privbo.functional.private_neural import PrivateNeuralArm, record_losses
from privbo.training import RecordPrivacy, central_run

N = 120
PLAN = RecordPrivacy(epsilon=8.0, pulls=6, steps=5, sample_rate=0.25, noise="simulation")


def split():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2 * N, 4, generator=generator)
    y = (x[:, 0] > 0).long()
    return Split(train_x=x[:N], train_y=y[:N], validation_x=x[N:], validation_y=y[N:])


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.5)


def run_of(plan=PLAN, **settings):
    return central_run(plan, n_training=N, n_validation=N, **({"seed": 3} | settings))


def arm_of(run, name="linear", model=None, **settings):
    return PrivateNeuralArm(
        name=name,
        model=model or (lambda: nn.Linear(4, 2)),
        data=split(),
        optimiser=sgd,
        trainer=run.trainer,
        judge=run.judge,
        steps=PLAN.steps,
        **settings,
    )


@pytest.mark.parametrize(
    "search",
    [
        lambda arms: f_lcb(arms, budget=6),
        lambda arms: successive_halving(arms, budget=6),
        lambda arms: hyperband(arms, budget=6, seed=0),
    ],
    ids=["f-lcb", "halving", "hyperband"],
)
def test_every_pull_is_charged_on_both_ledgers(search) -> None:
    run = run_of()
    found = search([arm_of(run), arm_of(run, "constant", lambda: nn.Linear(4, 2), seed=1)])
    n_pulls = len(found.played)
    z_train, z_validate = run.noise_multipliers
    step = PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=z_train)
    assert run.training.event() == repeat(step, 5 * n_pulls)
    assert len(run.training.entries()) == len(run.validation.entries()) == n_pulls <= 6
    assert run.training.policy.unit is run.validation.policy.unit is Unit.RECORD
    assert not run.training.guarantees  # simulated noise says so
    price = run.epsilon()
    assert price["maximum"] <= 8.0
    assert price["sum"] == pytest.approx(price["training"] + price["validation"])
    assert z_validate > 0


def test_the_block_is_charged_before_the_first_batch() -> None:
    run = run_of()
    arm = arm_of(run)
    state = arm.init()
    assert run.training.entries() == []  # making a model costs nothing
    seen = []
    sample = run.trainer.sample
    run.trainer.sample = lambda: seen.append(len(run.training.entries())) or sample()
    arm.step(state)
    assert seen == [1] * 5


def test_losses_are_computed_after_the_charge() -> None:
    run, seen = run_of(), []

    def losses():
        seen.append(len(run.validation.entries()))
        return np.full(N, 1.0)

    value = run.judge(losses)
    assert seen == [1]
    assert abs(value - 1.0) < 8 * run.judge.stddev


def test_nothing_goes_beyond_the_plan() -> None:
    run = run_of()
    arm = arm_of(run)
    state = arm.init()
    for _ in range(6):
        state = arm.step(state)
    before = [p.detach().clone() for p in state.model.parameters()]
    with pytest.raises(BudgetExceeded):
        arm.step(state)
    assert all(torch.equal(a, b) for a, b in zip(before, state.model.parameters(), strict=True))
    assert len(run.training.entries()) == 6


@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_steps_beyond_the_block_raise_before_the_model_changes() -> None:
    run = run_of()
    arm = arm_of(run)
    state = arm.step(arm.init())
    state.model.train()
    before = [p.detach().clone() for p in state.model.parameters()]
    with pytest.raises(BudgetExceeded):
        arm._one_step(state)
    assert all(torch.equal(a, b) for a, b in zip(before, state.model.parameters(), strict=True))


def test_an_empty_sample_is_noise_and_the_same_event() -> None:
    run = run_of(dataclasses.replace(PLAN, sample_rate=1e-6))
    arm = arm_of(run)
    state = arm.init()
    before = torch.cat([p.detach().ravel().clone() for p in state.model.parameters()])
    arm.step(state)
    after = torch.cat([p.detach().ravel() for p in state.model.parameters()])
    assert not torch.equal(before, after)
    assert len(run.training.entries()) == 1


def test_one_record_moves_a_step_by_no_more_than_the_clipping_norm() -> None:
    """Same noise; one record's gradient made huge: the summed gradient moves by at most the norm."""
    moved = []
    for scale in (1.0, 1e6):
        run = run_of(dataclasses.replace(PLAN, sample_rate=1.0, pulls=1, steps=1))
        data = split()
        data.train_x[0] *= scale
        arm = dataclasses.replace(arm_of(run), data=data, steps=1)
        state = arm.init()
        arm.step(state)
        moved.append(torch.cat([p.grad.ravel() * N for p in state.model.parameters()]))
    assert 0 < float((moved[0] - moved[1]).norm()) <= 2.0 + 1e-4  # replaced: at most twice the norm


def test_the_trained_model_learns_and_the_value_is_the_last_release() -> None:
    run = run_of(RecordPrivacy(epsilon=50.0, pulls=6, steps=5, sample_rate=0.25, noise="simulation"))
    arm = arm_of(run)
    state = arm.init()
    start = record_losses(state.model, arm.data).mean()
    for _ in range(6):
        state = arm.step(state)
    assert record_losses(state.model, arm.data).mean() < 0.8 * start
    assert arm.value(state) == state.losses[-1]
    assert arm.value_stddev == run.judge.stddev > 0


def test_training_epsilon_is_opacus_own_within_a_percent() -> None:
    """640 steps at q = 1/16, epsilon 3, delta 1e-5: the digits plan."""
    plan = RecordPrivacy(epsilon=3.0, pulls=16, noise="simulation")
    run = central_run(plan, n_training=1000, n_validation=400, seed=0)
    opacus = PRVAccountant()
    opacus.history = [(run.noise_multipliers[0], plan.sample_rate, 640)]
    assert run.epsilon()["training"] == pytest.approx(opacus.get_epsilon(1e-5), rel=0.01)


def test_models_that_mix_records_are_refused() -> None:
    run = run_of()
    arm = arm_of(run, model=lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    with pytest.raises(pb.ConfigurationError, match="group normalisation"):
        arm.init()


def test_secure_noise_is_not_claimed_without_a_cryptographic_generator(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torchcsprng", None)
    with pytest.raises(pb.ConfigurationError, match="torchcsprng"):
        run_of(dataclasses.replace(PLAN, noise="secure"), directory=tmp_path)


@pytest.mark.parametrize(
    "settings", [{"epsilon": 0.0}, {"pulls": 0}, {"sample_rate": 0.0}, {"delta": 1.0}, {"loss_bound": -1.0}]
)
def test_impossible_plans_are_refused(settings) -> None:
    with pytest.raises(pb.ConfigurationError, match="="):
        dataclasses.replace(PLAN, **settings)
