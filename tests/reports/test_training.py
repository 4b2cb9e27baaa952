"""The ledgers of a private training on the command line."""

import json

import pytest

import privbo as pb
from accountant.errors import LedgerError
from privbo.reports.training import training_ledgers
from tests.cli.test_cli import ran, refused
from tests.functional.test_train import ASKED, MODELS

pytestmark = pytest.mark.filterwarnings("ignore:Secure RNG turned off:UserWarning")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trainings")
    pb.train_private(directory=folder / "several", **ASKED)
    pb.train_private(directory=folder / "one", **ASKED | {"models": {"linear": MODELS["linear"]}})
    return folder


@pytest.mark.parametrize("kind", ["several", "one"])
def test_both_ledgers_are_shown_with_price_and_adjacency(kind: str, home) -> None:
    found = training_ledgers(home / kind)
    assert [len(part.charges) for part in found.parts] == [1, 1]
    assert found.epsilon["maximum"] <= 8.0
    assert "add-or-remove-one" in found.plan
    shown, _ = (ran("ledger", verb, home / kind).stdout for verb in ("show", "verify"))
    assert shown.splitlines()[1].startswith(" training: epsilon ")
    assert "training records: 1 charges, verified" in shown
    refused("ledger", "left", home / kind, says="holds two ledgers")


def test_another_model_plan_or_ledger_is_noticed(home) -> None:
    file, told = home / "several" / "selected.pt", home / "several" / "search.json"
    whole, said = file.read_bytes(), told.read_text()
    file.write_bytes(b"other")
    problems = {part.problem for part in training_ledgers(home / "several").parts}
    assert problems == {"selected.pt is not the model that the ledger stored"}
    ran("ledger", "verify", home / "several", ends=3)
    file.write_bytes(whole)
    told.write_text(json.dumps(json.loads(said) | {"noise_multipliers": [99.0, 99.0]}))
    assert not training_ledgers(home / "several").verified
    told.write_text(json.dumps({}))
    with pytest.raises(pb.RunError, match="no training's description"):
        training_ledgers(home / "several")
    told.write_text(said)
    with pytest.raises((LedgerError, pb.RunError)):
        training_ledgers(home / "nowhere")
    with pytest.raises(pb.RunError, match="holds a private training and no run; privbo ledger show"):
        pb.load(home / "one")
