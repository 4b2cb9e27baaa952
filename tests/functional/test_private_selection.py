"""Private selection: paid for as a whole before the first run, one release, nothing else leaves."""

import dataclasses
import errno
import math
import os
import shutil

import numpy as np
import pytest
import torch
from torch import nn

import privbo as pb
from accountant.errors import BudgetExceeded, LedgerError
from accountant.events import BestOfRandomRuns, Unit
from accountant.ledger import Budget, Ledger
from accountant.mechanisms.selection import TruncatedNegativeBinomial
from privbo.door.noise import SecureNoise, SimulatedNoise
from privbo.door.selection import draw_runs
from privbo.training.plan import TRAINING, VALIDATION, RecordPrivacy, priced
from privbo.training.private_neural import PrivateNeuralArm, record_losses
from privbo.training.search import central_run, noise_of, open_ledger
from tests.functional.test_private_neural import N, sgd, split

RUNS = TruncatedNegativeBinomial(eta=1.0, gamma=0.3)
PLAN = RecordPrivacy(epsilon=8.0, pulls=1, steps=8, sample_rate=0.25, noise="simulation")
MODELS = (lambda: nn.Linear(4, 2), lambda: nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 2)))


def prepared(plan=PLAN, **settings):
    given = {"seed": 3, "candidates": ("m0", "m1")} | settings
    return central_run(priced(plan, runs=RUNS, n_training=N, n_validation=N), **given)


def runner(selection, seen=None):
    def run_one(index):
        arm = PrivateNeuralArm(
            name=f"m{index}", model=MODELS[index], data=split(), optimiser=sgd, trainer=selection.trainer,
            judge=selection.judge, steps=PLAN.steps, seed=index,
        )  # fmt: skip
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
        assert isinstance(ledger.entries()[0].event, BestOfRandomRuns)
        assert not ledger.guarantees
    price = selection.plan.epsilon()
    assert price["maximum"] <= 8.0
    assert price["maximum"] < price["both"]


def result(selection) -> list[bytes | None]:
    return [led.stored_release("selection/selection") for led in (selection.training, selection.validation)]


def test_a_real_selection_is_released_once_and_found_again(tmp_path) -> None:
    plan = dataclasses.replace(PLAN, noise="secure")
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


@dataclasses.dataclass
class CutLedger:
    """A ledger whose process dies before or after one of its calls."""

    ledger: Ledger
    method: str
    after: bool

    def __getattr__(self, name):
        sound = getattr(self.ledger, name)
        return self._cut if name == self.method else sound

    def _cut(self, *args, **kwargs):
        if self.after:
            getattr(self.ledger, self.method)(*args, **kwargs)
        raise KeyboardInterrupt


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("method", ["charge", "store_release", "stored_release"])
@pytest.mark.parametrize("part", ["training", "validation"])
def test_cut_off_anywhere_one_charge_pays_for_one_output(part, method, after, tmp_path) -> None:
    whole = prepared(directory=tmp_path / "s")
    cut = dataclasses.replace(whole, **{part: CutLedger(getattr(whole, part), method, after)})
    with pytest.raises(KeyboardInterrupt):
        cut.select(lambda candidate: (1.0, model(1.0)))
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


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_copy_that_could_not_be_written_is_written_when_resumed(tmp_path, monkeypatch) -> None:
    selection = prepared(directory=tmp_path / "s")
    monkeypatch.setattr(os, "link", full_disk)
    with pytest.raises(pb.RunError, match=r"selected\.pt can't be written"):
        selection.select(lambda candidate: (1.0, model(1.0)))
    monkeypatch.undo()
    assert prepared(directory=tmp_path / "s", resume=True).select(forbidden).model == model(1.0)
    assert (tmp_path / "s" / "selected.pt").read_bytes() == result(selection)[0]


def test_a_selection_whose_ledgers_went_back_or_are_gone_is_not_drawn_again(tmp_path) -> None:
    selection, home = prepared(directory=tmp_path / "s"), tmp_path / "s"
    with pytest.raises(KeyboardInterrupt):
        dataclasses.replace(selection, training=CutLedger(selection.training, "store_release", after=False)).select(
            lambda candidate: (1.0, model(1.0))
        )
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


def test_two_processes_that_select_at_once_release_one_result(tmp_path) -> None:
    first = prepared(directory=tmp_path / "s")
    second = prepared(directory=tmp_path / "s", resume=True)

    def overtaken(candidate):
        second.select(lambda _: (1.0, model(2.0)))
        return 1.0, model(1.0)

    with pytest.raises(LedgerError, match="other bytes"):
        first.select(overtaken)
    assert prepared(directory=tmp_path / "s", resume=True).select(forbidden).model == model(2.0)


def test_ledgers_that_hold_two_results_are_refused(tmp_path) -> None:
    first, second = prepared(directory=tmp_path / "s"), prepared(directory=tmp_path / "t")
    first.select(lambda candidate: (1.0, model(1.0)))
    second.select(lambda candidate: (1.0, model(2.0)))
    with pytest.raises(LedgerError, match="other bytes"):
        dataclasses.replace(first, validation=second.validation).select(forbidden)


def test_what_was_released_is_read_for_the_same_candidates_or_refused(tmp_path) -> None:
    seed = next(s for s in range(99) if 1 in draw_runs(RUNS, 2, SimulatedNoise(s).stream("runs"))[:1])
    prepared(directory=tmp_path / "s", seed=seed).select(lambda candidate: (1.0 - candidate, model(1.0)))
    again = prepared(directory=tmp_path / "s", resume=True, seed=seed)
    assert again.select(forbidden).chosen == 1
    for others in (("m0",), ("m1", "m0"), ("m0", "renamed")):
        with pytest.raises(pb.RunError, match=r"candidates = \['m0', 'm1'\], now it is"):
            prepared(directory=tmp_path / "s", resume=True, seed=seed, candidates=others)
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
    with selection.judge.for_one_run(PLAN):
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
    loud = RecordPrivacy(epsilon=50.0, pulls=1, steps=8, sample_rate=0.25, noise="simulation")
    selection = prepared(loud, candidates=("m0",))
    found = selection.select(runner(selection))
    arm = PrivateNeuralArm(
        name="m0", model=MODELS[0], data=split(), optimiser=sgd, trainer=selection.trainer, judge=selection.judge
    )
    state = arm.init()
    state.model.load_state_dict(found.model)
    assert abs(record_losses(state.model, arm.data).mean() - found.score) < 6 * selection.judge.stddev


SECURE = dataclasses.replace(PLAN, noise="secure")
SIZES = {"n_training": 40, "n_validation": 30}


def test_a_search_has_one_directory_for_its_ledgers_and_goes_on_as_it_was(tmp_path) -> None:
    secure, simulated = priced(SECURE, **SIZES), priced(PLAN, **SIZES)
    with pytest.raises(pb.ConfigurationError, match="needs a directory for its durable ledgers"):
        central_run(secure)
    with pytest.raises(pb.RunError, match="only a search with a directory can be resumed"):
        central_run(simulated, resume=True)
    made = central_run(secure, directory=tmp_path / "s")
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
        central_run(secure, directory=tmp_path / "s")
    with pytest.raises(pb.RunError, match="n_training = 40, now it is 41"):
        central_run(priced(SECURE, **SIZES | {"n_training": 41}), directory=tmp_path / "s", resume=True)
    assert central_run(secure, directory=tmp_path / "s", resume=True).training.entries() == []
    assert central_run(simulated).training.path is None
    with pytest.raises(pb.RunError, match="name its own directory"):
        open_ledger(tmp_path / "s", "training", SECURE, 41, TRAINING, "central")


def test_noise_is_secret_where_the_plan_says_so_and_seeded_where_it_is_a_simulation() -> None:
    assert isinstance(noise_of(SECURE, 3), SecureNoise)
    for seed, same in ((3, 3), (None, 0)):
        drawn = noise_of(PLAN, seed).stream("x").gaussian((8,), 2.0**20)
        np.testing.assert_array_equal(drawn, SimulatedNoise(same).stream("x").gaussian((8,), 2.0**20))
