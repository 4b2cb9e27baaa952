"""Private training of arms: reserved before the first batch, judged through the door, priced as a plan."""

import dataclasses
import math
import os
import shutil

import numpy as np
import pytest
import torch
from torch import nn

import privbo as pb
from accountant.errors import BudgetExceeded
from accountant.events import PoissonSampledGaussian, Unit, repeat
from experiments.baselines.f_lcb import f_lcb
from experiments.baselines.halving import hyperband, successive_halving
from experiments.baselines.neural import RatedArm
from privbo.door.clipping import clip_rows
from privbo.door.noise import SecureNoise, SimulatedNoise
from privbo.door.sums import noisy_gradient_sum
from privbo.training.plan import RecordPrivacy, priced
from privbo.training.private_neural import Split, record_losses
from privbo.training.search import central_run

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
    return central_run(priced(plan, n_training=N, n_validation=N), **({"seed": 3} | settings))


def arm_of(run, name="linear", model=None, **settings):
    return RatedArm(
        name=name,
        model=model or (lambda: nn.Linear(4, 2)),
        data=split(),
        optimiser=sgd,
        trainer=run.trainer,
        judge=run.judge,
        steps=PLAN.steps,
        **settings,
    )


SEARCHES = {
    "f-lcb": lambda arms: f_lcb(arms, budget=6),
    "halving": lambda arms: successive_halving(arms, budget=6),
    "hyperband": lambda arms: hyperband(arms, budget=8, seed=0, factor=2),
}


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_every_pull_is_charged_on_both_ledgers(search) -> None:
    run = run_of(dataclasses.replace(PLAN, pulls=8))
    found = search([arm_of(run), arm_of(run, "constant", lambda: nn.Linear(4, 2), seed=1)])
    n_pulls = len(found.played)
    z_train, z_validate = run.plan.noise_multipliers
    step = PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=z_train)
    assert run.training.event() == repeat(step, 5 * n_pulls)
    assert len(run.training.entries()) == len(run.validation.entries()) == n_pulls <= 8
    assert run.training.policy.unit is run.validation.policy.unit is Unit.RECORD
    assert not run.training.guarantees  # simulated noise says so
    price = run.plan.epsilon()
    assert price["maximum"] <= 8.0
    assert price["maximum"] < price["both"] < price["training"] + price["validation"]
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


class CutError(Exception):
    pass


class Cut:
    """A trainer or judge whose process dies at its third result, before or after it is kept."""

    def __init__(self, whole, *, before=False):
        self._whole, self._before, self._calls = whole, before, 0

    def __getattr__(self, name):
        return getattr(self._whole, name)

    def _third(self, call, *args):
        self._calls += 1
        found = call(*args)
        if self._calls == 3:
            raise CutError
        return found

    def pull(self, name, steps, train):
        def trained():
            made = train()
            if self._calls == 3 and self._before:
                raise CutError
            return made

        return self._third(self._whole.pull, name, steps, trained)

    def __call__(self, *args):
        return self._third(self._whole, *args)


def searched(folder, *, resume=False, noise="secure", search=None, cut=None):
    run = run_of(dataclasses.replace(PLAN, noise=noise, pulls=8), directory=folder, resume=resume)
    run = run if cut is None else cut(run)
    arms = [arm_of(run), arm_of(run, "other", lambda: nn.Linear(4, 2), seed=1)]
    return run, (search or (lambda a: f_lcb(a, budget=6)))(arms)


def test_secure_gradient_noise_has_its_size_and_one_record_its_bound() -> None:
    """40,000 entries: standard deviation and mean within 6 standard errors (false alarms below 1e-8)."""
    rows = np.random.default_rng(0).normal(size=(50, 40_000))
    rows[7] = np.nan
    noisy = noisy_gradient_sum(rows, clipping_norm=0.5, noise_multiplier=1.5, noise=SecureNoise())
    noise = noisy - clip_rows(rows, 0.5).sum(axis=0)
    assert abs(noise.std() / 0.75 - 1) < 6 / math.sqrt(2 * 40_000)
    assert abs(noise.mean()) < 6 * 0.75 / 200
    step = 2.0 ** (math.frexp(0.75)[1] - 11)
    assert np.array_equal(np.rint(noisy / step) * step, noisy)  # on the grid, so the last bits tell nothing
    quiet = SimulatedNoise(1)
    with_it = noisy_gradient_sum(rows, clipping_norm=0.5, noise_multiplier=1.5, noise=quiet.stream("0"))
    without = noisy_gradient_sum(rows[1:], clipping_norm=0.5, noise_multiplier=1.5, noise=quiet.stream("0"))
    assert 0.4 < np.linalg.norm(with_it - without) <= 0.5
    nobody = noisy_gradient_sum(np.empty((0, 9)), clipping_norm=0.5, noise_multiplier=1.5, noise=SecureNoise())
    assert np.all(nobody != 0)


@pytest.mark.parametrize(
    ("name", "stage"),
    [("f-lcb", "trained"), ("f-lcb", "kept"), ("f-lcb", "judged"), ("halving", "kept"), ("hyperband", "judged")],
)
def test_a_search_resumes_where_it_was_cut_off(tmp_path, name, stage) -> None:
    """Cut off in the third pull, after training, after keeping the model, after its loss was released."""
    search = SEARCHES[name]
    whole, expected = searched(tmp_path / "whole", noise="simulation", search=search)
    cut = {
        "trained": lambda run: dataclasses.replace(run, trainer=Cut(run.trainer, before=True)),
        "kept": lambda run: dataclasses.replace(run, trainer=Cut(run.trainer)),
        "judged": lambda run: dataclasses.replace(run, judge=Cut(run.judge)),
    }[stage]
    with pytest.raises(CutError):
        searched(tmp_path / "cut", noise="simulation", search=search, cut=cut)
    run, found = searched(tmp_path / "cut", noise="simulation", search=search, resume=True)
    assert found.chosen == expected.chosen
    np.testing.assert_array_equal(found.played, expected.played)
    np.testing.assert_array_equal(found.after, expected.after)
    assert run.training.event() == whole.training.event()
    assert len(run.validation.entries()) == len(whole.validation.entries())
    for index, state in found.states.items():
        for ours, theirs in zip(state.model.parameters(), expected.states[index].model.parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_a_pull_whose_loss_left_is_never_trained_again(tmp_path) -> None:
    searched(tmp_path / "search")
    (tmp_path / "search" / "pulls" / "pull-00002.pt").unlink()
    with pytest.raises(pb.RunError, match="second outcome for one charge"):
        searched(tmp_path / "search", resume=True)


def test_of_two_trainings_of_one_pull_both_release_the_one_that_was_kept_first(tmp_path) -> None:
    plan = dataclasses.replace(PLAN, noise="secure")
    first, second = run_of(plan, directory=tmp_path), run_of(plan, directory=tmp_path, resume=True)
    arm, other, sample, theirs = arm_of(first), arm_of(second), first.trainer.sample, []

    def overtaken():
        if not theirs:
            theirs.append(other.step(other.init()))
        return sample()

    first.trainer.sample = overtaken
    ours = arm.step(arm.init())
    assert ours.losses == theirs[0].losses
    for one, two in zip(ours.model.parameters(), theirs[0].model.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_pull_that_is_damaged_or_unknown_to_the_ledger_is_refused(tmp_path) -> None:
    run_of(directory=tmp_path)
    shutil.copytree(tmp_path, tmp_path / "empty")
    run, kept = run_of(directory=tmp_path, resume=True), tmp_path / "pulls" / "pull-00000.pt"
    arm = arm_of(run)
    arm.step(arm.init())
    shutil.copytree(kept.parent, tmp_path / "empty" / "pulls", dirs_exist_ok=True)
    with pytest.raises(pb.RunError, match=r"pull-00000.pt was trained and the ledger knows nothing of it"):
        run_of(directory=tmp_path / "empty", resume=True).trainer.pull("linear", PLAN.steps, dict)
    for size in (kept.stat().st_size - 20, 100, 0):
        os.truncate(kept, size)
        with pytest.raises(pb.RunError, match=r"pull-00000.pt can't be read; restore it"):
            run_of(directory=tmp_path, resume=True).trainer.pull("linear", PLAN.steps, dict)


def test_only_the_same_search_is_resumed(tmp_path) -> None:
    searched(tmp_path / "search")
    with pytest.raises(pb.RunError, match="already holds a search"):
        searched(tmp_path / "search")
    with pytest.raises(pb.RunError, match=r"privacy\.pulls = 8, now it is 7"):
        run_of(dataclasses.replace(PLAN, noise="secure", pulls=7), directory=tmp_path / "search", resume=True)
    run = run_of(dataclasses.replace(PLAN, noise="secure", pulls=8), directory=tmp_path / "search", resume=True)
    with pytest.raises(pb.RunError, match="its own arms"):
        f_lcb([arm_of(run, "stranger")], budget=6)


@pytest.mark.parametrize(
    "settings", [{"epsilon": 0.0}, {"pulls": 0}, {"sample_rate": 0.0}, {"delta": 1.0}, {"loss_bound": -1.0}]
)
def test_impossible_plans_are_refused(settings) -> None:
    with pytest.raises(pb.ConfigurationError, match="="):
        dataclasses.replace(PLAN, **settings)
