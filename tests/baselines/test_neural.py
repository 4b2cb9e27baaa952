"""Neural arms, the paper's architectures, and CIFAR's binary format."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import tarfile
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from experiments.baselines import architectures
from experiments.baselines.f_lcb import f_lcb
from experiments.baselines.neural import NeuralArm, accuracy, adam, validation_loss
from experiments.plays import neural
from experiments.plays.curves import RecordedArm
from experiments.problems import cifar
from experiments.problems.cifar import CIFAR10, CIFAR100, Images, load
from experiments.problems.digits import enlarged_digits
from experiments.run import Options, run, write
from experiments.study import Panel, study
from privbo.training.private_neural import Split


def toy_split(n=200, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=generator)
    y = (x[:, 0] + x[:, 1] > 0).long()
    return Split(train_x=x[: n // 2], train_y=y[: n // 2], validation_x=x[n // 2 :], validation_y=y[n // 2 :])


def toy_arm(name="toy", seed=0, learning_rate=1e-2, model=None, **settings):
    make = model or (lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2)))
    return NeuralArm(
        name=name, model=make, data=toy_split(), optimiser=adam(learning_rate), batch_size=16, seed=seed, **settings
    )


def weights(state):
    return torch.cat([p.detach().ravel() for p in state.model.parameters()])


def test_a_pull_is_forty_steps_and_leaves_no_trace_in_the_global_generator() -> None:
    arm = toy_arm()
    before = torch.get_rng_state()
    state = arm.step(arm.init())
    assert torch.equal(torch.get_rng_state(), before)
    assert int(state.optimiser.state_dict()["state"][0]["step"]) == 40
    assert state.pulls == 1
    assert arm.value(state) == state.first == state.losses[0]
    assert arm.rate(state, 4, 0.1) == pytest.approx(state.first)


def test_training_is_repeatable_and_seeded() -> None:
    states = [toy_arm(seed=seed).step(toy_arm(seed=seed).init()) for seed in (1, 1, 2)]
    assert torch.equal(weights(states[0]), weights(states[1]))
    assert not torch.equal(weights(states[0]), weights(states[2]))


def test_value_is_the_best_loss_so_far() -> None:
    arm, state = toy_arm(learning_rate=0.5), toy_arm(learning_rate=0.5).init()
    for _ in range(40):  # so large a step size overshoots sooner or later, when depends on the machine
        state = arm.step(state)
        if state.losses[-1] > min(state.losses):
            break
    assert arm.value(state) == min(state.losses) < state.losses[-1]
    assert validation_loss(state.model, arm.data) == pytest.approx(state.losses[-1], rel=1e-6)


class NaNs(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.scale * torch.full((len(x), 2), float("nan"))


def test_f_lcb_picks_the_model_that_learns_and_retires_the_one_that_breaks() -> None:
    frozen = lambda: nn.Sequential(nn.Linear(6, 1), nn.Linear(1, 2))  # noqa: E731 (a line says it)
    arms = [
        toy_arm("frozen", learning_rate=1e-9, model=frozen),
        toy_arm("learner"),
        toy_arm("broken", model=NaNs),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the heuristic rate may fail; that is reported elsewhere
        found = f_lcb(arms, budget=30)
    assert found.chosen == 1
    assert found.pulls[1] == found.pulls.max()
    assert "validation loss nan" in found.retired[2]
    assert accuracy(found.states[1].model, arms[1].data.validation_x, arms[1].data.validation_y) > 0.9


SIZES = {  # millions of parameters, tables 5 and 6
    10: {"ShallowMLP": 12.64, "DeepMLP": 11.55, "DeepMLPNorm": 11.57, "VGG": 11.47, "ResNet18": 11.17},
    100: {"mobilenetv2_x1_0": 2.35, "mobilenetv2_x0_5": 0.82, "shufflenetv2_x1_0": 1.36, "resnet56": 0.86},
}


@pytest.mark.parametrize(("n_classes", "name"), [(n, name) for n, sizes in SIZES.items() for name in sizes])
def test_models_have_the_papers_size(n_classes, name) -> None:
    with torch.random.fork_rng(devices=[]):
        model = (architectures.CIFAR10 if n_classes == 10 else architectures.CIFAR100)[name]()
    assert abs(sum(p.numel() for p in model.parameters()) / 1e6 - SIZES[n_classes][name]) <= 0.0061
    with torch.no_grad():
        assert model.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, n_classes)


def tiny_archive(folder, archive, per_member=3):
    """An archive in the original format: folder name inside, label bytes first, channels first."""
    rng = np.random.default_rng(0)
    records = {}
    with tarfile.open(folder / archive.file, "w:gz") as tar:
        for name in (*archive.train, *archive.test):
            raw = rng.integers(0, 256, (per_member, archive.n_labels + 3072), dtype=np.uint8)
            raw[:, : archive.n_labels] %= 10
            records[name] = raw
            info = tarfile.TarInfo(f"cifar-batches-bin/{name}")
            info.size = raw.nbytes
            tar.addfile(info, io.BytesIO(raw.tobytes()))
    md5 = hashlib.md5((folder / archive.file).read_bytes(), usedforsecurity=False).hexdigest()
    return dataclasses.replace(archive, md5=md5), records


@pytest.mark.parametrize("archive", [CIFAR10, CIFAR100], ids=["cifar10", "cifar100"])
def test_archives_in_the_original_format(archive, tmp_path) -> None:
    tiny, records = tiny_archive(tmp_path, archive)
    train, test = load(tiny, tmp_path)
    assert isinstance(train, Images)
    assert train.images.shape == (3 * len(archive.train), 3, 32, 32)
    assert test.images.shape == (3, 3, 32, 32)
    last = records[archive.train[-1]]
    np.testing.assert_array_equal(train.classes[-3:], last[:, archive.n_labels - 1])
    assert train.images[-1, 0, 0, 1] == last[-1, archive.n_labels + 1]  # red, first row, second column
    assert train.images[-1, 2, 31, 31] == last[-1, -1]  # blue, last row, last column


def test_the_own_first_loss_starves_a_fast_learner_and_a_common_one_does_not() -> None:
    """Curves of a fast good model and five slow ones; the paper's g prefers whoever begins badly."""
    fast = RecordedArm(name="fast", losses=tuple(0.1 + 0.9 / k for k in range(1, 60)), test=())
    slow = [
        RecordedArm(name=f"slow {i}", losses=tuple(0.2 + 2.1 / k**0.7 for k in range(1, 60)), test=()) for i in range(5)
    ]
    arms = [fast, *slow]
    own = f_lcb(arms, budget=40)
    common = f_lcb([dataclasses.replace(arm, reference=2.3) for arm in arms], budget=40)
    assert own.pulls[0] < own.pulls[1:].min()
    assert common.pulls[0] > common.pulls[1:].max()
    assert common.chosen == 0


def linear_models() -> dict:
    return {"linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)), "none": lambda: nn.Sequential(
        nn.AvgPool2d(32), nn.Flatten(), nn.Linear(3, 10))}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "archive"), [pytest.param("cifar10", CIFAR10, marks=pytest.mark.slow), ("cifar100", CIFAR100)]
)
def test_the_whole_protocol_runs_on_a_tiny_archive(name, archive, tmp_path, monkeypatch) -> None:
    """Runs of F-LCB as they go on, long training for the true order, and all searches at all budgets."""
    tiny, _ = tiny_archive(tmp_path, archive, per_member=36)
    monkeypatch.setenv("PRIVBO_DATA", str(tmp_path))
    monkeypatch.setitem(cifar.ARCHIVES, name, tiny)
    given = study(f"f-lcb-{name}", "small")
    arms = [arm for panel in given.panels for arm in panel.arms if not arm.options.get("long")]
    first, *_, last = [str(arm.options["model"]) for arm in arms if "model" in arm.options]
    monkeypatch.setitem(neural.MODELS, name, dict(zip((first, last), linear_models().values(), strict=True)))

    def small(panel: Panel) -> Panel:
        kept = [a for a in panel.arms if a.options.get("model", first) in (first, last) and a.x != 50.0]
        fewer = {"pulls": 4 if panel.picture == "figure" else 20}
        problem = {**kept[0].problem, "n_validation": 10}
        shorter = [dataclasses.replace(a, problem=problem, options={**a.options, **fewer}) for a in kept]
        return dataclasses.replace(panel, arms=tuple(shorter), seeds=min(panel.seeds, 2))

    write(dataclasses.replace(given, panels=tuple(map(small, given.panels))), tmp_path / "out", Options(jobs=1))
    found = json.loads((tmp_path / "out" / "summary.json").read_text())["panels"]
    live, ranks = (next(rows for title, rows in found.items() if part in title) for part in ("runs of", "ranks"))
    assert set(live) == {first, last}
    assert sum(row["measures"]["pulls"]["mean"] for row in live.values()) == 4
    order = {
        label: row["measures"]["true rank"]["mean"] for label, row in ranks.items() if "true rank" in row["measures"]
    }
    assert set(order) == {f"{first}, 100 epochs", f"{last}, 100 epochs"}
    assert sorted(order.values()) == [1.0, 2.0]
    for search in neural.SEARCHES:
        label = "F-LCB, own f(x_1) in g (paper)" if search == "F-LCB" else search
        chosen = ranks[f"{label}, 20 pulls"]["measures"]["rank"]["by_seed"]
        assert len(chosen) == 2
        assert set(chosen) <= {1.0, 2.0}
    assert (tmp_path / "out" / "figure.png").exists()
    assert (tmp_path / "out" / "ranks.pdf").exists()


def test_the_five_models_study_needs_no_archive_and_keeps_finished_seeds(tmp_path, monkeypatch) -> None:
    given = enlarged_digits(0)
    assert given.split.train_x.shape == (1000, 3, 32, 32)
    assert (float(given.test_x.min()), float(given.test_x.max())) == (-1.0, 1.0)
    monkeypatch.setitem(neural.MODELS, "cifar10", linear_models())
    run("f-lcb-five-models", tmp_path / "out", Options(scale="small", seeds=1, jobs=1))
    written = (tmp_path / "out" / "table.md").read_text()
    pulls = [float(line.split("|")[2]) for line in written.splitlines() if line.startswith(("| linear", "| none"))]
    assert sum(pulls) == 20
    (cell,) = (tmp_path / "cells").iterdir()
    finished = cell.stat().st_mtime_ns
    run("f-lcb-five-models", tmp_path / "out", Options(scale="small", seeds=1, jobs=1))
    assert (tmp_path / "out" / "table.md").read_text() == written
    assert cell.stat().st_mtime_ns == finished
