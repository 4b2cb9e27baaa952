"""Private training of arms, charged before it begins and judged through the door; and private selection."""

import copy
import dataclasses
import errno
import functools
import itertools
import math
import os
import shutil
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

import privbo as pb
from accountant.errors import BudgetExceeded
from accountant.events import BestOfRandomRuns, PoissonSampledGaussian, Unit, repeat
from accountant.ledger import Budget
from accountant.mechanisms.selection import TruncatedNegativeBinomial
from experiments.baselines.f_lcb import f_lcb
from experiments.baselines.halving import hyperband, successive_halving
from experiments.baselines.neural import RatedArm
from privbo.door.clipping import clip_rows
from privbo.door.noise import SecureNoise, SimulatedNoise
from privbo.door.selection import draw_runs
from privbo.door.sums import noisy_gradient_sum
from privbo.training.plan import TRAINING, VALIDATION, RecordPrivacy, priced
from privbo.training.private_neural import PrivateNeuralArm, Split, record_losses
from privbo.training.search import central_run, noise_of, open_ledger
from tests.builders import Changed

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


def arm_of(run, name="linear", kind=RatedArm, **changes):
    plain = {"model": lambda: nn.Linear(4, 2), "data": split(), "optimiser": sgd, "steps": PLAN.steps}
    return kind(name=name, trainer=run.trainer, judge=run.judge, **plain | changes)


def same_model(first, second):
    return all(torch.equal(one, two) for one, two in zip(first.parameters(), second.parameters(), strict=True))


SEARCHES = {
    "f-lcb": lambda arms: f_lcb(arms, budget=6),
    "halving": lambda arms: successive_halving(arms, budget=6),
    "hyperband": lambda arms: hyperband(arms, budget=8, seed=0, factor=2),
}


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_every_pull_is_charged_on_both_ledgers(search) -> None:
    run = run_of(dataclasses.replace(PLAN, pulls=8))
    found = search([arm_of(run), arm_of(run, "constant", seed=1)])
    n_pulls = len(found.played)
    step = PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=run.plan.noise_multipliers[0])
    assert run.training.event() == repeat(step, 5 * n_pulls)
    assert len(run.training.entries()) == len(run.validation.entries()) == n_pulls <= 8
    assert run.training.policy.unit is run.validation.policy.unit is Unit.RECORD
    assert not run.training.guarantees  # simulated noise says so
    price = run.plan.epsilon()
    assert price["maximum"] <= 8.0
    assert price["maximum"] < price["both"] < price["training"] + price["validation"]


def begun(plan=PLAN):
    """A search, its only arm, and the arm's first state."""
    run = run_of(plan)
    arm = arm_of(run)
    return run, arm, arm.init()


def test_the_block_is_charged_before_the_first_batch() -> None:
    run, arm, state = begun()
    assert run.training.entries() == []  # making a model costs nothing
    seen = []
    sample = run.trainer.sample
    run.trainer.sample = lambda: seen.append(len(run.training.entries())) or sample()
    arm.step(state)
    assert seen == [1] * 5


def test_losses_are_computed_after_the_charge() -> None:
    run, seen = run_of(), []
    value = run.judge(lambda: seen.append(len(run.validation.entries())) or np.full(N, 1.0))
    assert seen == [1]
    assert abs(value - 1.0) < 8 * run.judge.stddev


def test_nothing_goes_beyond_the_plan() -> None:
    run, arm, state = begun()
    for _ in range(6):
        state = arm.step(state)
    before = copy.deepcopy(state.model)
    with pytest.raises(BudgetExceeded):
        arm.step(state)
    assert same_model(before, state.model)
    assert len(run.training.entries()) == 6


def test_an_empty_sample_is_noise_and_the_same_event() -> None:
    run, arm, state = begun(dataclasses.replace(PLAN, sample_rate=1e-6))
    before = copy.deepcopy(state.model)
    arm.step(state)
    assert not same_model(before, state.model)
    assert len(run.training.entries()) == 1


def test_one_record_moves_a_step_by_no_more_than_the_clipping_norm() -> None:
    """Same noise; one record's gradient made huge: the summed gradient moves by at most the norm."""
    moved = []
    for scale in (1.0, 1e6):
        data = split()
        data.train_x[0] *= scale
        arm = arm_of(run_of(dataclasses.replace(PLAN, sample_rate=1.0, pulls=1, steps=1)), data=data, steps=1)
        state = arm.init()
        arm.step(state)
        moved.append(torch.cat([p.grad.ravel() * N for p in state.model.parameters()]))
    assert 0 < float((moved[0] - moved[1]).norm()) <= 2.0 + 1e-4  # replaced: at most twice the norm


def test_the_trained_model_learns_and_the_value_is_the_last_release() -> None:
    run, arm, state = begun(dataclasses.replace(PLAN, epsilon=50.0))
    start = record_losses(state.model, arm.data).mean()
    for _ in range(6):
        state = arm.step(state)
    assert record_losses(state.model, arm.data).mean() < 0.8 * start
    assert arm.value(state) == state.losses[-1]
    assert arm.value_stddev == run.judge.stddev > 0


class CutError(Exception):
    pass


def dying(call):
    """A call that ends its process with its third result."""
    calls = itertools.count(1)

    @functools.wraps(call)
    def made(*given):
        found = call(*given)
        if next(calls) == 3:
            raise CutError
        return found

    return made


def cut_off(run, stage):
    """A search that is cut off in the third pull: after training, after keeping the model, after its loss left."""
    pull, train = run.trainer.pull, dying(lambda made: made())
    if stage == "judged":
        return dataclasses.replace(run, judge=dying(run.judge))
    within = Changed(run.trainer, pull=lambda name, steps, made: pull(name, steps, lambda: train(made)))
    return dataclasses.replace(run, trainer=within if stage == "trained" else Changed(run.trainer, pull=dying(pull)))


def searched(folder, *, resume=False, noise="secure", search=None, stage=None):
    run = run_of(dataclasses.replace(PLAN, noise=noise, pulls=8), directory=folder, resume=resume)
    run = run if stage is None else cut_off(run, stage)
    arms = [arm_of(run), arm_of(run, "other", seed=1)]
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
    search = SEARCHES[name]
    whole, expected = searched(tmp_path / "whole", noise="simulation", search=search)
    with pytest.raises(CutError):
        searched(tmp_path / "cut", noise="simulation", search=search, stage=stage)
    run, found = searched(tmp_path / "cut", noise="simulation", search=search, resume=True)
    assert found.chosen == expected.chosen
    np.testing.assert_array_equal(found.played, expected.played)
    np.testing.assert_array_equal(found.after, expected.after)
    assert run.training.event() == whole.training.event()
    assert len(run.validation.entries()) == len(whole.validation.entries())
    assert all(same_model(state.model, expected.states[index].model) for index, state in found.states.items())


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
    assert same_model(ours.model, theirs[0].model)


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


# ---- private selection: paid for as a whole before the first run, one release, nothing else leaves

RUNS = TruncatedNegativeBinomial(eta=1.0, gamma=0.3)
CHOICE = dataclasses.replace(PLAN, pulls=1, steps=8)
MODELS = (lambda: nn.Linear(4, 2), lambda: nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 2)))


def prepared(plan=CHOICE, **settings):
    given = {"seed": 3, "candidates": ("m0", "m1")} | settings
    return central_run(priced(plan, runs=RUNS, n_training=N, n_validation=N), **given)


def runner(selection, seen=None):
    def run_one(index):
        arm = arm_of(selection, f"m{index}", PrivateNeuralArm, model=MODELS[index], steps=CHOICE.steps, seed=index)
        charged = len(selection.training.entries()), len(selection.validation.entries())
        state = arm.step(arm.init())
        if seen is not None:
            seen.append((*charged, arm.value(state)))
        return arm.value(state), state.model.state_dict()

    return run_one


def test_both_ledgers_are_charged_once_before_the_first_run_and_the_best_is_released() -> None:
    selection, seen = prepared(), []
    found = selection.select(runner(selection, seen))
    assert [charged for *charged, _ in seen] == [[1, 1]] * len(seen)
    assert found.score == min(score for *_, score in seen)
    for ledger, event in zip((selection.training, selection.validation), selection.plan.events, strict=True):
        assert [entry.event for entry in ledger.entries()] == [event]
        assert isinstance(event, BestOfRandomRuns)
        assert not ledger.guarantees


def result(selection) -> list[bytes | None]:
    return [led.stored_release("selection/selection") for led in (selection.training, selection.validation)]


def test_a_real_selection_is_released_once_and_found_again(tmp_path) -> None:
    plan = dataclasses.replace(CHOICE, noise="secure")
    selection, file = prepared(plan, directory=tmp_path / "s"), tmp_path / "s" / "selected.pt"
    found = selection.select(runner(selection))
    assert {e.noise_source for e in selection.training.entries()} == {"secure"}
    assert {p.name for p in (tmp_path / "s").iterdir() if p.suffix == ".pt"} == {"selected.pt"}
    assert result(selection) == [file.read_bytes()] * 2  # what is published is what the ledgers stored
    again = prepared(plan, directory=tmp_path / "s", resume=True)
    back = again.select(forbidden)
    assert (back.chosen, back.score) == (found.chosen, found.score)
    assert all(torch.equal(back.model[name], found.model[name]) for name in found.model)
    assert len(again.training.entries()) == len(again.validation.entries()) == 1
    file.write_bytes(b"other")
    with pytest.raises(pb.RunError, match="not the model that was released"):
        again.select(forbidden)
    assert file.read_bytes() == b"other"  # evidence stays
    file.unlink()
    assert again.select(forbidden).score == found.score
    assert result(again) == [file.read_bytes()] * 2


def forbidden(candidate):
    pytest.fail("a selection that was released draws and trains nothing again")


def model(number: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.tensor([number])}


def cut(selection, part, method, *, after=False):
    """A selection whose process dies before or after a call of one of its ledgers."""

    def died(*given, **named):
        if after:
            getattr(whole, method)(*given, **named)
        raise KeyboardInterrupt

    whole = getattr(selection, part)
    return dataclasses.replace(selection, **{part: Changed(whole, **{method: died})})


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("method", ["charge", "store_release", "stored_release"])
@pytest.mark.parametrize("part", ["training", "validation"])
def test_cut_off_anywhere_one_charge_pays_for_one_output(part, method, after, tmp_path) -> None:
    whole = prepared(directory=tmp_path / "s")
    with pytest.raises(KeyboardInterrupt):
        cut(whole, part, method, after=after).select(lambda candidate: (1.0, model(1.0)))
    left = [content for content in result(whole) if content is not None]
    assert not (tmp_path / "s" / "selected.pt").exists()  # nothing was published before both ledgers had stored it
    again = prepared(directory=tmp_path / "s", resume=True)
    found = again.select(lambda candidate: (1.0, model(2.0)))
    stored = result(again)
    assert stored == [(tmp_path / "s" / "selected.pt").read_bytes()] * 2
    assert set(left) <= set(stored)
    assert found.model == model(1.0 if left else 2.0)
    assert len(again.training.entries()) == len(again.validation.entries()) == 1
    assert again.training.verify().ok
    assert again.validation.verify().ok
    assert prepared(directory=tmp_path / "s", resume=True).select(forbidden) == found


def test_a_copy_that_could_not_be_written_is_written_when_resumed(tmp_path, monkeypatch) -> None:
    selection = prepared(directory=tmp_path / "s")
    monkeypatch.setattr(os, "link", mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(pb.RunError, match=r"selected\.pt can't be written"):
        selection.select(lambda candidate: (1.0, model(1.0)))
    monkeypatch.undo()
    assert prepared(directory=tmp_path / "s", resume=True).select(forbidden).model == model(1.0)
    assert (tmp_path / "s" / "selected.pt").read_bytes() == result(selection)[0]


def test_a_selection_whose_ledgers_went_back_or_are_gone_is_not_drawn_again(tmp_path) -> None:
    selection, home = prepared(directory=tmp_path / "s"), tmp_path / "s"
    with pytest.raises(KeyboardInterrupt):
        cut(selection, "training", "store_release").select(lambda candidate: (1.0, model(1.0)))
    shutil.copytree(home, tmp_path / "before")
    prepared(directory=home, resume=True).select(lambda candidate: (1.0, model(1.0)))
    shutil.copy(home / "selected.pt", tmp_path / "before")
    with pytest.raises(pb.RunError, match=r"selected\.pt was released, and the ledgers went back"):
        prepared(directory=tmp_path / "before", resume=True).select(forbidden)
    for part in ("training", "validation"):
        for path in home.glob(f"{part}.sqlite*"):
            path.rename(tmp_path / path.name)
        with pytest.raises(pb.RunError, match=rf"{part}\.sqlite is gone; restore it"):
            prepared(directory=home, resume=True)
        for path in tmp_path.glob(f"{part}.sqlite*"):
            path.rename(home / path.name)


def test_what_was_released_is_read_for_the_same_candidates_or_refused(tmp_path) -> None:
    seed = next(s for s in range(99) if 1 in draw_runs(RUNS, 2, SimulatedNoise(s).stream("runs"))[:1])
    prepared(directory=tmp_path / "s", seed=seed).select(lambda candidate: (1.0 - candidate, model(1.0)))
    again = prepared(directory=tmp_path / "s", resume=True, seed=seed)
    assert again.select(forbidden).chosen == 1
    old = prepared()
    for ledger, event in zip((old.training, old.validation), old.plan.events, strict=True):
        ledger.charge("selection/selection", event, run="selection", noise_source="simulation", plan_position=0)
        ledger.store_release("selection/selection", b'{"sha256": "00"}')
    with pytest.raises(pb.RunError, match="stored selection can't be read"):
        old.select(forbidden)


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
def test_the_best_of_the_runs_that_were_drawn_is_released(scores, winner, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    draws = {seed: draw_runs(RUNS, 5, SimulatedNoise(seed).stream("runs")) for seed in range(99)}
    seed, drawn = next((seed, runs) for seed, runs in draws.items() if len(runs) == 3)
    selection, made = prepared(seed=seed, candidates=tuple("abcde")), []

    def run_one(candidate: int):
        made.append(candidate)
        return scores[len(made) - 1], model(len(made) - 1)

    found = selection.select(run_one)
    assert made == drawn
    assert (found.chosen, found.model) == (drawn[winner], model(winner))
    assert list(tmp_path.iterdir()) == []  # a simulation in memory leaves nothing behind
    with pytest.raises(BudgetExceeded, match="inside its run"):
        selection.judge(lambda: np.ones(N))


def test_the_steps_of_a_run_are_counted_down_and_none_is_taken_twice() -> None:
    selection = prepared()
    with selection.judge.for_one_run(CHOICE):
        selection.trainer.pull("m", 5, dict)
        with pytest.raises(BudgetExceeded, match="4 steps, the run has 3"):
            selection.trainer.pull("m", 4, dict)
        selection.trainer.pull("m", 3, dict)
        with pytest.raises(BudgetExceeded, match="1 steps, the run has 0"):
            selection.trainer.pull("m", 1, dict)
    assert selection.training.entries() == []  # the selection's own charge pays for all of it


def test_nothing_is_trained_or_judged_outside_of_a_run_or_twice() -> None:
    """Neither before a selection nor in it once more, nor after a run that failed."""
    selection = prepared()

    def greedy(index):
        runner(selection)(index)
        runner(selection)(index)

    for before in (True, False):
        with pytest.raises(BudgetExceeded, match="inside its run"):
            selection.judge(lambda: np.ones(N))
        with pytest.raises(BudgetExceeded, match="inside select"):
            selection.trainer.pull("m", 1, dict)
        if before:
            assert selection.training.entries() == []
            with pytest.raises(BudgetExceeded):
                selection.select(greedy)


def test_scores_carry_the_noise_that_is_charged() -> None:
    """1,000 scores of one mean: standard deviation within 6 standard errors (false alarms below 1e-8)."""
    selection = prepared()
    judge, selection.judge.judgements = selection.judge, 1000
    scores = np.array([judge(lambda: np.full(N, 1.0)) for _ in range(1000)])
    assert abs(scores.std() / judge.stddev - 1) < 6 / np.sqrt(2000)
    assert abs(scores.mean() - 1.0) < 6 * judge.stddev / np.sqrt(1000)


def test_the_released_model_is_the_one_that_was_judged() -> None:
    selection = prepared(dataclasses.replace(CHOICE, epsilon=50.0), candidates=("m0",))
    found = selection.select(runner(selection))
    arm = arm_of(selection, "m0", PrivateNeuralArm)
    state = arm.init()
    state.model.load_state_dict(found.model)
    assert abs(record_losses(state.model, arm.data).mean() - found.score) < 6 * selection.judge.stddev


SECURE = dataclasses.replace(CHOICE, noise="secure")
SIZES = {"n_training": 40, "n_validation": 30}


def test_a_search_has_one_directory_for_its_ledgers_and_goes_on_as_it_was(tmp_path) -> None:
    secure, simulated = priced(SECURE, **SIZES), priced(CHOICE, **SIZES)
    with pytest.raises(pb.ConfigurationError, match="needs a directory for its durable ledgers"):
        central_run(secure)
    with pytest.raises(pb.RunError, match="only a search with a directory can be resumed"):
        central_run(simulated, resume=True)
    made = central_run(secure, directory=tmp_path / "s")
    for part, adjacency, n in (("training", TRAINING, 40), ("validation", VALIDATION, 30)):
        ledger = getattr(made, part)
        policy = ledger.policy
        assert ledger.path == tmp_path / "s" / f"{part}.sqlite"
        assert (policy.unit, policy.adjacency, policy.n_clients) == (Unit.RECORD, adjacency, n)
        assert policy.population == f"central, {part} records"
        assert policy.budget == Budget(epsilon=8.0, delta=1e-5)
    with pytest.raises(pb.RunError, match="n_training = 40, now it is 41"):
        central_run(priced(SECURE, **SIZES | {"n_training": 41}), directory=tmp_path / "s", resume=True)
    assert central_run(secure, directory=tmp_path / "s", resume=True).training.entries() == []
    assert central_run(simulated).training.path is None
    with pytest.raises(pb.RunError, match="name its own directory"):
        open_ledger(tmp_path / "s", "training", SECURE, 41, TRAINING, "central")


def test_noise_is_secret_where_the_plan_says_so_and_seeded_where_it_is_a_simulation() -> None:
    assert isinstance(noise_of(SECURE, 3), SecureNoise)
    for seed, same in ((3, 3), (None, 0)):
        drawn = noise_of(CHOICE, seed).stream("x").gaussian((8,), 2.0**20)
        np.testing.assert_array_equal(drawn, SimulatedNoise(same).stream("x").gaussian((8,), 2.0**20))
