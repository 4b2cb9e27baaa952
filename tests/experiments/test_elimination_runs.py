"""The elimination experiments' shared runner, at a size that takes seconds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privbo as pb
from experiments import elimination_runs as runs
from experiments.parallel import play as play_parallel

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
    cell = runs.Cell("arm", runs.play_federated, arguments)
    other = runs.Cell("arm", runs.play_federated, arguments | {"seed": 2})
    assert cell.name != other.name
    first = runs.run_cells([cell], tmp_path, 1, "test")
    path = tmp_path / "cells" / cell.name
    changed = path.stat().st_mtime_ns
    again = runs.run_cells([cell, other], tmp_path, 1, "test")
    assert path.stat().st_mtime_ns == changed
    assert again["arm"][0] == first["arm"][0]
    assert len(again["arm"]) == 2
    runs.draw({"garland": again}, "global", 300, tmp_path / "figure.png")
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
