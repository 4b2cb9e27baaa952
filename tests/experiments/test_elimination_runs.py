"""The elimination experiments' shared runner, at a size that takes seconds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privbo as pb
from experiments import elimination_runs as runs
from experiments.elimination_cells import Cell, draw, run_cells
from experiments.parallel import play as play_parallel
from experiments.private_personal import SharedStage, play_sampled

SMALL = runs.Clients(function="garland", n_clients=5, horizon=300)


def test_one_run_reports_its_regret_and_communication() -> None:
    cell = runs.play_federated(SMALL, pb.FedPNE(), pb.NoPrivacy(), seed=1, world=0)
    assert cell["releases"] >= 1
    assert cell["floats_up"] >= cell["releases"]
    assert 0 < cell["global"][-1] < 300
    assert 0 < cell["local"][-1] < 300
    assert np.all(np.diff(cell["local"]) >= -0.5)
    assert cell["lost"] is False


@pytest.mark.parametrize("kind", ["hct", "hct-resplit", "vhct", "hoo"])
def test_tree_baselines_on_the_average_and_on_every_client(kind: Any) -> None:
    assert 0 < runs.play_single(SMALL, kind, seed=1, world=0)["global"][-1] < 300
    assert 0 < runs.play_single(SMALL, kind, seed=1, world=0, sampled=2)["local"][-1] < 300


def test_flat_baselines() -> None:
    longer = runs.Clients(function="garland", n_clients=5, horizon=5000)
    random = runs.play_random(longer, seed=1, world=0)["global"][-1]
    assert 0.3 < random / 5000 < 0.5  # Garland's mean lies that far below its top
    assert 0 < runs.play_fed1(longer, seed=1, world=0)["global"][-1] < 0.8 * random


def test_dp_fts_de_on_the_same_clients() -> None:
    cell = runs.play_dp_fts_de(SMALL, seed=1, world=0, rounds=1)
    assert 0 < cell["global"][-1] < 300


def test_finished_cells_are_never_run_twice(tmp_path: Path) -> None:
    arguments = {"clients": SMALL, "algorithm": pb.FedPNE(), "privacy": pb.NoPrivacy(), "seed": 1, "world": 0}
    cell = Cell("arm", runs.play_federated, arguments)
    other = Cell("arm", runs.play_federated, arguments | {"seed": 2})
    assert cell.name != other.name
    first = run_cells([cell], tmp_path, 1, "test")
    path = tmp_path / "cells" / cell.name
    changed = path.stat().st_mtime_ns
    again = run_cells([cell, other], tmp_path, 1, "test")
    assert path.stat().st_mtime_ns == changed
    assert again["arm"][0] == first["arm"][0]
    assert len(again["arm"]) == 2
    draw({"garland": again}, "global", 300, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_a_lost_optimum_is_seen() -> None:
    """A cap of two keeps one node per phase: under heavy noise that is a lottery."""
    clients = runs.Clients(function="garland", n_clients=100, horizon=2000)
    lottery = pb.FedPNE(cap=2, clip=0.15, centre="client")
    privacy = pb.Privacy(noise_multiplier=50.0, noise="simulation")
    cells = [runs.play_federated(clients, lottery, privacy, seed=s, world=0) for s in range(5)]
    assert any(cell["lost"] for cell in cells)


def test_the_parallel_experiment_reports_its_bound() -> None:
    cell = play_parallel("two-sines", 4, 0)
    assert 0 <= cell["loss"] <= cell["bound"]
    assert cell["steps"] <= 1600


@pytest.mark.parametrize("name", ["garlend", "os", ""])
def test_an_unknown_objective_is_refused_by_name_with_those_there_are(name: str) -> None:
    with pytest.raises(pb.ConfigurationError, match=f"function={name!r}.*garland.*landmine"):
        runs.Clients(function=name, n_clients=5)
    with pytest.raises(pb.ConfigurationError, match=f"function={name!r}.*garland, two-sines"):
        play_parallel(name, 4, 0)


def test_numbers_told_are_those_of_the_broadcasts() -> None:
    cell = runs.play_federated(SMALL, pb.PFPNE(gap=0.3), pb.NoPrivacy(), seed=1, world=0)
    assert cell["releases"] == 2
    assert cell["floats_up"] == 1 + 2
    # depth, pulls, nodes; then depth and survivors of the last phase (node, mean, radius) too; then the clock's two.
    assert cell["floats_down"] == (2 + 1) + (2 + 2) + (1 + 3) + (1 + 3 * 2) + 2
    alone = runs.play_federated(SMALL, runs.PersonalElimination(), pb.NoPrivacy(), seed=1, world=0)
    assert (alone["releases"], alone["floats_up"]) == (0, 0)


def test_some_clients_go_on_alone_after_all_of_them_shared() -> None:
    """The shared stage is the whole run's, release by release; whoever goes on plays the whole horizon."""
    privacy = pb.Privacy(epsilon=2.0, delta=1e-3, noise="simulation")
    whole = runs.play_federated(SMALL, pb.PFPNE(gap=0.1), privacy, seed=1, world=0)
    some = play_sampled(SMALL, pb.PFPNE(gap=0.1), privacy, seed=1, world=0, sampled=3)
    assert [some[name] for name in ("releases", "floats_up", "noise_multiplier")] == [
        whole[name] for name in ("releases", "floats_up", "noise_multiplier")
    ]
    assert len(some["local"]) == len(whole["local"])
    assert 0.3 * whole["local"][-1] < some["local"][-1] < 3 * whole["local"][-1]

    problem = SMALL.environment(0, 1).problem()
    algorithm = pb.PFPNE(gap=0.1, horizon=300, reward_range=(-0.1, 1.1))
    full = pb.run(problem, algorithm, privacy=privacy, rounds=60, seed=1)
    problem = SMALL.environment(0, 1).problem()
    part = pb.run(problem, SharedStage(algorithm=algorithm), privacy=privacy, rounds=60, seed=1)
    for ours, theirs in zip(part.releases, full.releases, strict=True):
        np.testing.assert_array_equal(ours.values, theirs.values)


def test_only_shifted_functions_are_played_by_some_of_their_clients() -> None:
    with pytest.raises(pb.ConfigurationError, match="no shifted function"):
        play_sampled(runs.Clients(function="covid", n_clients=3), pb.PFPNE(), pb.NoPrivacy(), 0, 0, 2)
