"""Private searches on central data without a training: ledgers, refusals, noise."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import privbo as pb
from accountant.events import Unit
from accountant.ledger import Budget
from privbo.door.noise import SecureNoise, SimulatedNoise
from privbo.training.plan import TRAINING, VALIDATION, RecordPrivacy
from privbo.training.search import central_run, noise_of, open_ledger

PLAN = RecordPrivacy(epsilon=8.0, pulls=1, steps=8, sample_rate=0.25, noise="simulation")
SECURE = dataclasses.replace(PLAN, noise="secure")
SIZES = {"n_training": 40, "n_validation": 30}


def test_a_search_has_one_directory_for_its_ledgers_and_goes_on_as_it_was(tmp_path) -> None:
    with pytest.raises(pb.ConfigurationError, match="needs a directory for its durable ledgers"):
        central_run(SECURE, **SIZES)
    with pytest.raises(pb.RunError, match="only a search with a directory can be resumed"):
        central_run(PLAN, **SIZES, resume=True)
    made = central_run(SECURE, **SIZES, directory=tmp_path / "s")
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
        central_run(SECURE, **SIZES, directory=tmp_path / "s")
    with pytest.raises(pb.RunError, match="n_training = 40, now it is 41"):
        central_run(SECURE, **SIZES | {"n_training": 41}, directory=tmp_path / "s", resume=True)
    assert central_run(SECURE, **SIZES, directory=tmp_path / "s", resume=True).training.entries() == []
    assert central_run(PLAN, **SIZES).training.path is None
    with pytest.raises(pb.RunError, match="name its own directory"):
        open_ledger(tmp_path / "s", "training", SECURE, 41, TRAINING, "central")


def test_noise_is_secret_where_the_plan_says_so_and_seeded_where_it_is_a_simulation() -> None:
    assert isinstance(noise_of(SECURE, 3), SecureNoise)
    for seed, same in ((3, 3), (None, 0)):
        drawn = noise_of(PLAN, seed).stream("x").gaussian((8,), 2.0**20)
        np.testing.assert_array_equal(drawn, SimulatedNoise(same).stream("x").gaussian((8,), 2.0**20))
