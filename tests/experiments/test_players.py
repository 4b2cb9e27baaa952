"""Players at a size that takes seconds."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import privbo as pb
from experiments.cells import Context, algorithm_of
from experiments.outcome import Outcome, Task
from experiments.plays import elimination, f_lcb, returned
from experiments.plays.parallel import parallel
from experiments.problems.clients import Clients
from experiments.run import Options, run
from experiments.study import study

SMALL = {"type": "experiments.problems.clients:Clients", "function": "garland", "n_clients": 5, "horizon": 300}
FED = {"type": "fed-pne"}


def task(
    algorithm: dict | None = None, privacy: pb.Privacy | None = None, problem: dict = SMALL, **options: object
) -> Task:
    made = None if algorithm is None else algorithm_of(algorithm)
    given = privacy or pb.NoPrivacy()
    return Task(problem=problem, algorithm=made, privacy=given, control=None, rounds=60, seed=1, options=options)


def test_one_run_reports_its_regret_and_communication() -> None:
    found = elimination.federated(task(FED))
    figures = found.figures
    assert figures["made"] >= 1
    assert figures["floats up"] >= figures["made"]
    assert 0 < figures["global"] < 300
    assert 0 < figures["local"] < 300
    assert found.curves["sent"][-1] == figures["floats up"]
    assert np.all(np.diff(found.curves["local"]) >= -0.5)
    assert figures["lost"] == 0


@pytest.mark.parametrize("kind", ["hct", "hct-resplit", "vhct", "hoo"])
def test_tree_baselines_on_the_average_and_on_every_client(kind: str) -> None:
    assert 0 < elimination.tree(task(kind=kind)).figures["global"] < 300
    assert 0 < elimination.tree(task(kind=kind, sampled=2)).figures["local"] < 300


def test_flat_baselines() -> None:
    longer = SMALL | {"horizon": 5000}
    random = elimination.flat(task(problem=longer, kind="random")).figures["global"]
    assert 0.3 < random / 5000 < 0.5  # Garland's mean lies that far below its top
    assert 0 < elimination.flat(task(problem=longer, kind="fed1-ucb")).figures["global"] < 0.8 * random


def test_a_lost_optimum_is_seen() -> None:
    """A cap of two keeps one node per phase: under heavy noise that is a lottery."""
    lottery = FED | {"cap": 2, "clip": 0.15, "centre": "client"}
    privacy = pb.Privacy(noise_multiplier=50.0, noise="simulation")
    given = task(lottery, privacy, SMALL | {"n_clients": 100, "horizon": 2000, "worlds": 1})
    assert any(elimination.federated(dataclasses.replace(given, seed=seed)).figures["lost"] for seed in range(5))


def test_the_parallel_experiment_reports_its_bound() -> None:
    algorithm = {"type": "parallel", "horizon": 1600, "nu1": 5.0, "rho": 0.5}
    problem = {"type": "experiments.problems.clients:moved", "function": "two-sines", "n_clients": 4, "horizon": 1600}
    found = parallel(task(algorithm, problem=problem))
    assert found.figures["above"] == 0
    assert found.figures["pulls"] <= 1600
    assert found.curves["loss"][-1] == found.figures["loss"] >= 0


def test_what_is_returned_is_judged_on_the_average_and_by_every_client() -> None:
    """Alike clients without noise return one point: own losses are the common one's."""
    alike = SMALL | {"shift": 0.0, "noise": "none", "horizon": 2000}
    figures = returned.returned(task(FED, problem=alike)).figures
    assert figures["own"] == pytest.approx(figures["worst"]) == pytest.approx(figures["own, own loss"])
    assert figures["common"] == pytest.approx(figures["common, own loss"])
    assert 0 < figures["common"] < 0.2
    unlike = returned.returned(task(FED, problem=SMALL | {"shift": 0.1, "horizon": 2000})).figures
    assert unlike["own, own loss"] < unlike["common, own loss"]
    assert unlike["worst"] > unlike["own"] == pytest.approx(unlike["common"] + unlike["own more"])


def test_numbers_told_are_those_of_the_broadcasts() -> None:
    figures = elimination.federated(task({"type": "pf-pne", "gap": 0.3})).figures
    assert figures["made"] == 2
    assert figures["floats up"] == 1 + 2
    # depth, pulls, nodes; then depth and survivors of the last phase (node, mean, radius) too; then the clock's two.
    assert figures["floats down"] == (2 + 1) + (2 + 2) + (1 + 3) + (1 + 3 * 2) + 2
    alone = elimination.federated(task({"type": "pf-pne", "local": True})).figures
    assert (alone["made"], alone["floats up"]) == (0, 0)


def test_some_clients_go_on_alone_after_all_of_them_shared() -> None:
    """The shared stage is the whole run's, release by release; whoever goes on plays the whole horizon."""
    privacy = pb.Privacy(epsilon=2.0, delta=1e-3, noise="simulation")
    world = SMALL | {"worlds": 1}
    whole = elimination.federated(task({"type": "pf-pne", "gap": 0.1}, privacy, world))
    some = elimination.federated(task({"type": "pf-pne", "gap": 0.1}, privacy, world, sampled=3))
    assert (some.figures["made"], some.figures["floats up"]) == (whole.figures["made"], whole.figures["floats up"])
    assert some.paid == whole.paid
    assert len(some.curves["local"]) == len(whole.curves["local"])
    assert 0.3 * whole.figures["local"] < some.figures["local"] < 3 * whole.figures["local"]

    problem = Clients(seed=1, function="garland", n_clients=5, horizon=300).environment().problem()
    algorithm = pb.PFPNE(gap=0.1, horizon=300, reward_range=(-0.1, 1.1), release_when="always")
    full = pb.run(problem, algorithm, privacy=privacy, rounds=60, seed=1)
    problem = Clients(seed=1, function="garland", n_clients=5, horizon=300).environment().problem()
    shared = elimination.SharedStage(algorithm=algorithm)
    part = pb.run(problem, shared, privacy=privacy, rounds=60, seed=1)
    for ours, theirs in zip(part.releases, full.releases, strict=True):
        np.testing.assert_array_equal(ours.values, theirs.values)


# ---- F-LCB at the size of its bars


@pytest.mark.parametrize("name", ["heavy_arms", "strongly_convex_heavy_arms", "strongly_convex_inexact_arms"])
def test_the_methods_of_table_2_stay_below_their_bounds(name: str) -> None:
    given = task(problem={"type": f"experiments.problems.suites:{name}"}, budget=1503)
    runs = [f_lcb.suite(dataclasses.replace(given, seed=seed)).figures for seed in range(3)]
    assert all(run["below"] and run["returned"] for run in runs)
    assert sum(run["violations"] for run in runs) == 0


def test_a_wrong_best_arm_would_be_noticed() -> None:
    """Planted fault: with the first arm left out, another one is best, returned and most pulled."""
    whole = f_lcb.suite(task(problem={"type": "experiments.problems.suites:smooth_arms"}, budget=203)).figures
    turned = f_lcb.suite(task(problem={"type": f"{__name__}:turned"}, budget=203)).figures
    assert turned["returned"] == turned["most pulled"] == 1.0
    assert (turned["pulls 3"], turned["pulls 1"]) == (whole["pulls 1"], whole["pulls 3"])


def turned(seed: int) -> list:
    from experiments.problems.suites import smooth_arms

    return smooth_arms(seed)[::-1]


def test_cauchy_figure(tmp_path: Path) -> None:
    run("f-lcb-cauchy", tmp_path, Options(scale="small", jobs=1))
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    (made,) = json.loads((tmp_path / "summary.json").read_text())["made"]  # no cells, so it is made here and now
    assert made.startswith(f"privbo {pb.__version__}, 20")
    (panel,) = study("f-lcb-cauchy", "small").panels
    found = f_lcb.cauchy(Context(panel=panel, seeds=range(5), out=tmp_path))
    regret = {name: np.mean([run.figures["regret"] for run in runs.values()]) for name, runs in found.items()}
    assert all(np.isfinite(list(regret.values())))
    assert regret["SGD-UCB-SMoM-F"] < 0.8 * regret["SGD-UCB-SMoM-F, printed index"]
    assert isinstance(found["uniform play"][0], Outcome)
    assert regret["uniform play"] == pytest.approx(0.45 * 2500)
