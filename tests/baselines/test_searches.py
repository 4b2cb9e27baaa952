"""Searches for a common setting against plain re-implementations, their prices, and their edges."""

import dataclasses
import hashlib
import io
import json
import math
import tarfile
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import privbo as pb
from experiments.baselines import architectures
from experiments.baselines.central_model import CentralModel
from experiments.baselines.common import Scores, Votes
from experiments.baselines.dp_hype import DPHype
from experiments.baselines.f_lcb import f_lcb
from experiments.baselines.neural import NeuralArm, accuracy, adam, validation_loss
from experiments.baselines.private_search import PrivateSearch
from experiments.plays import neural
from experiments.plays.curves import RecordedArm
from experiments.problems import cifar
from experiments.problems.cifar import CIFAR10, CIFAR100, Images, load
from experiments.problems.digits import enlarged_digits
from experiments.run import Options, run, write
from experiments.study import Panel, study
from privbo.protocol.messages import FloatArray, Setting
from privbo.training.private_neural import Split

N = 9
CENTRES = np.random.default_rng(5).uniform(0.2, 0.8, (N, 2))


def score(client: int, params) -> float:
    """Between 0 and 1.2, so that clipping to [0, 1] matters; one client fails in a corner."""
    if client == 3 and params["x"] < 0.3:
        return math.nan
    return 1.2 * math.exp(-4 * ((params["x"] - CENTRES[client, 0]) ** 2 + (params["y"] - CENTRES[client, 1]) ** 2))


PROBLEM = pb.Problem(space={"x": pb.Real(0, 1), "y": pb.Real(0, 1)}, objective=score, n_clients=N)
NOISY = pb.Privacy(noise_multiplier=1.0, noise="simulation")


def played(algorithm, privacy=None, rounds: int = 5) -> pb.Record:
    return pb.run(PROBLEM, algorithm, privacy=privacy or pb.NoPrivacy(), rounds=rounds, seed=2)


def scores_at(points: FloatArray) -> FloatArray:
    """Plain: one call of the objective after the other, ``(N, k)``."""
    return np.array([[score(n, {"x": x, "y": y}) for x, y in points] for n in range(N)])


def released(record: pb.Record) -> FloatArray:
    return np.concatenate([release.values[0] for release in record.releases])


def evaluated(record: pb.Record) -> FloatArray:
    """The common points, which all clients evaluated in the same order."""
    units = record.clients.units
    assert (units == units[0]).all()
    return units[0]


@pytest.mark.parametrize("sampler", ["sobol", "random"])
@pytest.mark.parametrize("privacy", [None, NOISY], ids=["exact", "noisy"])
def test_private_search_is_the_mean_of_clipped_scores_and_its_largest(sampler, privacy) -> None:
    record = played(PrivateSearch(n_candidates=4, sampler=sampler, evaluations=18), privacy)
    points, told = evaluated(record), released(record)
    assert [release.values.shape for release in record.releases] == [(1, 4)] * 4 + [(1, 2)]
    assert len(np.unique(points, axis=0)) == 18
    if privacy is None:
        # Clipped to [0, 1], a failure is the worst, less the middle, on average.
        means = np.minimum(np.nan_to_num(scores_at(points)), 1.0).mean(axis=0) - 0.5
        assert np.allclose(told, means, atol=1e-12)
        assert told.argmax() == means.argmax()
    else:
        assert {round(r.noise_stddev, 12) for r in record.releases} == {round(0.5 * math.sqrt(18) / N, 12)}
    assert (record.clients.recommended == points[told.argmax()]).all()


@pytest.mark.parametrize("privacy", [None, NOISY], ids=["exact", "noisy"])
def test_dp_hype_counts_votes_and_announces_the_most(privacy) -> None:
    record = played(DPHype(n_candidates=12), privacy)
    points, told = evaluated(record), released(record)
    votes = np.bincount(np.nan_to_num(scores_at(points), nan=-math.inf).argmax(axis=1), minlength=12)
    assert len(record.releases) == 1
    if privacy is None:
        assert np.allclose(told * N, votes, atol=1e-9)
        assert (record.clients.recommended == points[votes.argmax()]).all()
    else:
        assert record.releases[0].noise_stddev * N == pytest.approx(1.0, rel=1e-4)
        assert (record.clients.recommended == points[told.argmax()]).all()


# ---- prices


@pytest.mark.parametrize(
    ("algorithm", "rounds"),
    [(PrivateSearch(n_candidates=4), 5), (PrivateSearch(n_candidates=3, evaluations=20), 9), (DPHype(), 1),
     (CentralModel(n_init=4), 17)],
)  # fmt: skip
def test_a_search_costs_one_gaussian_release_however_many_rounds_it_takes(algorithm, rounds: int) -> None:
    one = pb.plan(PROBLEM, DPHype(), privacy=NOISY, rounds=1)
    plan = pb.plan(PROBLEM, algorithm, privacy=NOISY, rounds=rounds)
    assert plan.epsilon()["gaussian_dp"] == pytest.approx(one.epsilon()["gaussian_dp"], rel=1e-6)
    record = played(algorithm, pb.Privacy(epsilon=2.0, noise="simulation"), rounds)
    assert 1.99 < record.epsilon() <= 2.0
    assert len(record.ledger.entries()) == len(record.releases) == plan.releases


# ---- forms


@pytest.mark.parametrize(
    ("form", "pulls"),
    [(Scores(low=-1.0, high=2.0), n) for n in (1, 7, 100)] + [(Votes(ballot=one), 1) for one in ("single", "graded")],
    ids=str,
)
@pytest.mark.parametrize("unit", ["client", "reward"])
def test_answers_keep_their_bounds(form, pulls: int, unit) -> None:
    """Against values far outside, failures in every place, and one reward exchanged for another."""
    generator = np.random.default_rng(0)
    values = generator.normal(0, 3, (400, pulls, 6))
    values[generator.random(values.shape) < 0.3] = np.nan
    values[0] = np.nan
    setting = Setting(space=PROBLEM.search_space, n_clients=N, rounds=5, public_seed=1, unit=unit)
    request = form.request(6, 6, pulls, setting)
    vectors = form.vectors(values, unit)
    norms = np.linalg.norm(vectors, axis=1)
    assert np.nanmax(norms) <= request.clipping_norm * (1 + 1e-12)
    if unit == "client":
        assert request.unit_bound is None
        assert np.isnan(vectors[0]).all()
        return
    moved = values.copy()
    where = np.arange(400), generator.integers(0, pulls, 400), generator.integers(0, 6, 400)
    moved[where] = generator.choice([np.nan, -9.0, 9.0], 400)
    apart = np.nan_to_num(form.vectors(moved, unit)) - np.nan_to_num(vectors)
    largest = np.linalg.norm(apart, axis=1).max()
    assert 0.5 * request.unit_bound < largest <= request.unit_bound
    assert isinstance(form, Votes) or request.unit_bound == pytest.approx(3.0 / pulls)


def test_where_a_client_fails_at_some_points_these_are_its_worst() -> None:
    form = Scores(low=0.0, high=1.0)
    told = form.vectors(np.array([[[0.75, np.nan]], [[np.nan, np.nan]]]), "client")
    assert np.array_equal(told, [[0.25, -0.5], [np.nan, np.nan]], equal_nan=True)
    votes = Votes(ballot="single").vectors(np.array([[[np.nan, -3.0]], [[2.0, 5.0]]]), "client")
    assert votes.tolist() == [[0.0, 1.0], [0.0, 1.0]]


# ---- edges


@pytest.mark.parametrize("algorithm", [PrivateSearch(n_candidates=4), DPHype(n_candidates=40), CentralModel()])
def test_a_small_space_is_searched_whole_and_no_point_twice(algorithm) -> None:
    space = {"k": pb.Int(1, 4), "kind": pb.Categorical(["a", "b"]), "g": pb.Int(0, 1, when={"kind": "b"})}
    problem = pb.Problem(space=space, objective=lambda client, p: p["k"] / 4 - 0.1 * (p["kind"] == "a"), n_clients=5)
    record = pb.run(problem, algorithm, privacy=pb.NoPrivacy(), rounds=40)
    points = evaluated(record)
    assert len(points) == len(np.unique(points, axis=0)) == 12
    best = record.best(client=0).params
    assert (best["k"], best["kind"]) == (4, "b")


def test_alone_every_client_keeps_its_own_best_and_models_its_own_scores() -> None:
    for algorithm in (PrivateSearch(), DPHype(), CentralModel()):
        record = played(algorithm.local(), rounds=8)
        history = record.clients
        best = np.nan_to_num(history.values, nan=-1.0).argmax(axis=1)
        assert (history.recommended == history.units[np.arange(N), best]).all()
    assert len({tuple(row) for row in history.units[:, -1].tolist()}) == N


# ---- neural arms, the paper's architectures, and CIFAR's binary format


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


def test_a_pull_is_forty_seeded_steps_and_leaves_no_trace_in_the_global_generator() -> None:
    arm, before = toy_arm(seed=1), torch.get_rng_state()
    state, again, other = (one.step(one.init()) for one in (arm, toy_arm(seed=1), toy_arm(seed=2)))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(weights(state), weights(again))
    assert not torch.equal(weights(state), weights(other))
    assert int(state.optimiser.state_dict()["state"][0]["step"]) == 40
    assert state.pulls == 1
    assert arm.value(state) == state.first == state.losses[0]
    assert arm.rate(state, 4, 0.1) == pytest.approx(state.first)


def test_value_is_the_best_loss_so_far() -> None:
    arm = toy_arm(learning_rate=0.5)
    state = arm.init()
    for _ in range(40):  # so large a step size overshoots sooner or later, when depends on the machine
        state = arm.step(state)
        if state.losses[-1] > min(state.losses):
            break
    assert arm.value(state) == min(state.losses) < state.losses[-1]
    assert validation_loss(state.model, arm.data) == pytest.approx(state.losses[-1], rel=1e-6)


def test_f_lcb_picks_the_model_that_learns_and_retires_the_one_that_breaks() -> None:
    arms = [
        toy_arm("frozen", learning_rate=1e-9, model=lambda: nn.Sequential(nn.Linear(6, 1), nn.Linear(1, 2))),
        toy_arm("learner"),
        toy_arm("broken", model=lambda: nn.Sequential(nn.Linear(6, 2), nn.Threshold(math.inf, math.nan))),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the heuristic rate may fail; that is reported elsewhere
        found = f_lcb(arms, budget=30)
    assert found.chosen == 1
    assert found.pulls[1] == found.pulls.max()
    assert "validation loss nan" in found.retired[2]
    assert accuracy(found.states[1].model, arms[1].data.validation_x, arms[1].data.validation_y) > 0.9


# Millions of parameters, tables 5 and 6.
SIZES = {"ShallowMLP": 12.64, "DeepMLP": 11.55, "DeepMLPNorm": 11.57, "VGG": 11.47, "ResNet18": 11.17}
SIZES |= {"mobilenetv2_x1_0": 2.35, "mobilenetv2_x0_5": 0.82, "shufflenetv2_x1_0": 1.36, "resnet56": 0.86}


@pytest.mark.parametrize("name", SIZES)
def test_models_have_the_papers_size(name) -> None:
    with torch.random.fork_rng(devices=[]):
        model = (architectures.CIFAR10 | architectures.CIFAR100)[name]()
    assert abs(sum(p.numel() for p in model.parameters()) / 1e6 - SIZES[name]) <= 0.0061
    with torch.no_grad():
        assert model.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 10 if name in architectures.CIFAR10 else 100)


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
    slow = RecordedArm(name="slow", losses=tuple(0.2 + 2.1 / k**0.7 for k in range(1, 60)), test=())
    arms = [fast, *[slow] * 5]
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
    order = {row["measures"].get("true rank", {}).get("mean"): label for label, row in ranks.items()}
    assert {order.get(1.0), order.get(2.0)} == {f"{first}, 100 epochs", f"{last}, 100 epochs"}
    for search in neural.SEARCHES:
        label = "F-LCB, own f(x_1) in g (paper)" if search == "F-LCB" else search
        chosen = ranks[f"{label}, 20 pulls"]["measures"]["rank"]["by_seed"]
        assert len(chosen) == 2
        assert set(chosen) <= {1.0, 2.0}
    assert (tmp_path / "out" / "figure.png").exists()
    assert (tmp_path / "out" / "ranks.pdf").exists()


def test_the_five_models_study_needs_no_archive(tmp_path, monkeypatch) -> None:
    given = enlarged_digits(0)
    assert given.split.train_x.shape == (1000, 3, 32, 32)
    assert (float(given.test_x.min()), float(given.test_x.max())) == (-1.0, 1.0)
    monkeypatch.setitem(neural.MODELS, "cifar10", linear_models())
    run("f-lcb-five-models", tmp_path / "out", Options(scale="small", seeds=1, jobs=1))
    written = (tmp_path / "out" / "table.md").read_text()
    pulls = [float(line.split("|")[2]) for line in written.splitlines() if line.startswith(("| linear", "| none"))]
    assert sum(pulls) == 20
