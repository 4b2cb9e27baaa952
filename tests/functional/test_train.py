"""Own networks trained privately in one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import privbo as pb
from accountant.ledger import Ledger
from tests.functional.test_private_neural import N, split

pytestmark = pytest.mark.filterwarnings("ignore:Secure RNG turned off:UserWarning")
QUICK: dict[str, Any] = {"epsilon": 8.0, "epochs": 3, "batch_size": 64, "noise": "simulation", "seed": 1}


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


def accuracy(model: nn.Module) -> float:
    data = split()
    return float((model(data.validation_x).argmax(dim=1) == data.validation_y).double().mean())


def dead() -> nn.Module:
    """A network that can learn nothing: its input is lost."""
    return nn.Sequential(nn.Linear(4, 1), nn.Threshold(1e9, 0.0), nn.Linear(1, 2))


MODELS = {"dead": dead, "linear": lambda: nn.Linear(4, 2)}


def test_one_network_of_ones_own_is_trained_and_paid_for(tmp_path: Path) -> None:
    found = pb.train_private(
        {"linear": MODELS["linear"]}, split(), optimiser=sgd, directory=tmp_path, **QUICK | {"noise": "secure"}
    )
    assert found.epsilon["maximum"] <= 8.0
    assert found.delta == min(1e-5, 1.0 / (20.0 * N))
    assert accuracy(found.model) > 0.8  # guessing gives about 0.5
    for part in ("training", "validation"):
        with Ledger.open(next(tmp_path.glob(f"{part}*.sqlite"))) as ledger:
            assert ledger.entries()
            assert ledger.verify().ok
    again = pb.train_private(
        {"linear": MODELS["linear"]},
        split(),
        optimiser=sgd,
        directory=tmp_path,
        resume=True,
        **QUICK | {"noise": "secure"},
    )
    assert again.loss == found.loss  # what was released is never drawn again
    for ours, theirs in zip(again.model.parameters(), found.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_of_several_the_best_leaves_and_the_choice_is_in_the_price(tmp_path: Path) -> None:
    found = pb.train_private(MODELS, split(), optimiser=sgd, directory=tmp_path, expected_runs=8.0, **QUICK)
    assert found.name == "linear"
    assert accuracy(found.model) > 0.8
    assert found.epsilon["maximum"] <= 8.0
    again = pb.train_private(
        MODELS, split(), optimiser=sgd, directory=tmp_path, expected_runs=8.0, resume=True, **QUICK
    )
    assert (again.name, again.loss) == (found.name, found.loss)
    alone = pb.train_private({"linear": MODELS["linear"]}, split(), optimiser={"linear": sgd}, **QUICK)
    assert alone.epsilon["training"] <= 8.0


def test_what_is_refused(tmp_path: Path) -> None:
    mixing = {"mixing": lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))}
    for changes, words in (
        ({"models": {}}, "models is empty"),
        ({"models": mixing}, "group normalisation"),
        ({"optimiser": {"dead": sgd}}, "none for linear"),
        ({"batch_size": 10_000}, "batch_size=10000"),
        ({"expected_runs": 1.0}, "above 1"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"noise": "secure"}, "directory"),
    ):
        settings = {"models": MODELS, "data": split(), "optimiser": sgd} | QUICK | changes
        with pytest.raises(pb.ConfigurationError, match=words):
            pb.train_private(**settings)
