"""Own networks trained privately in one call."""

import dataclasses
import json

import pytest
import torch
from torch import nn

import privbo as pb
from accountant.errors import AccountingError
from accountant.ledger import Ledger
from privbo.protocol.files import alone
from privbo.training.private_neural import PrivateNeuralArm
from tests.functional.test_private_neural import N, same_model, split

pytestmark = pytest.mark.filterwarnings("ignore:Secure RNG turned off:UserWarning")
QUICK = {"epsilon": 8.0, "epochs": 3, "batch_size": 64, "noise": "simulation", "seed": 1}


def sgd(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


def accuracy(model: nn.Module) -> float:
    data = split()
    return float((model(data.validation_x).argmax(dim=1) == data.validation_y).double().mean())


def dead() -> nn.Module:
    """A network that can learn nothing: its input is lost."""
    return nn.Sequential(nn.Linear(4, 1), nn.Threshold(1e9, 0.0), nn.Linear(1, 2))


MODELS = {"dead": dead, "linear": lambda: nn.Linear(4, 2)}


ASKED = {"models": MODELS, "data": split(), "optimiser": sgd, **QUICK}
ALONE = ASKED | {"models": {"linear": MODELS["linear"]}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory):
    home = tmp_path_factory.mktemp("trained")
    return home, pb.train_private(directory=home, **ASKED)


@pytest.mark.parametrize("several", [False, True])
def test_networks_of_ones_own_are_trained_and_paid_for_with_the_choice_and_the_best_leaves(several, tmp_path) -> None:
    by_name = {"expected_runs": 8.0, "optimiser": dict.fromkeys(MODELS, sgd)}
    asked = (ASKED | by_name if several else ALONE | {"noise": "secure"}) | {"directory": tmp_path}
    found = pb.train_private(**asked)
    assert found.name == "linear"
    assert found.epsilon["maximum"] <= 8.0
    assert found.delta == min(1e-5, 1.0 / (20.0 * N))
    assert accuracy(found.model) > 0.8  # guessing gives about 0.5
    for part in ("training", "validation"):
        with Ledger.open(next(tmp_path.glob(f"{part}*.sqlite"))) as ledger:
            assert ledger.entries()
            assert ledger.verify().ok
    again = pb.train_private(**asked, resume=True)
    assert (again.name, again.loss) == (found.name, found.loss)  # what was released is never drawn again
    assert same_model(again.model, found.model)


def other_records(part: str) -> pb.Split:
    changed = {part: getattr(split(), part).clone()}
    changed[part][0] = 1 - changed[part][0]
    return dataclasses.replace(split(), **changed)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"models": dict(reversed(MODELS.items()))},
            r"candidates = \['dead', 'linear'\], now it is \['linear', 'dead'\]",
        ),
        ({"models": MODELS | {"linear": lambda: nn.Linear(4, 2, bias=False)}}, "networks.linear.shapes.bias"),
        ({"models": MODELS | {"linear": lambda: nn.Sequential(nn.Linear(4, 2))}}, "networks.linear"),
        ({"optimiser": lambda p: torch.optim.SGD(p, lr=0.5)}, r"lr': '1.0'.* now it is .*lr': '0.5'"),
        ({"optimiser": torch.optim.Adam}, "networks.dead.optimiser.kind = 'SGD', now it is 'Adam'"),
        ({"data": other_records("train_x")}, "other records in train_x;"),
        ({"data": other_records("validation_y")}, "other records in validation_y;"),
        ({"epsilon": 7.0}, r"privacy.epsilon = 8.0, now it is 7.0; resume it as it was"),
        ({"epochs": 4}, "privacy.steps"),
        ({"seed": 2}, "seed = 1, now it is 2"),
        ({"expected_runs": 5.0}, "runs.gamma"),
    ],
)
def test_a_training_is_resumed_as_it_was_asked_for_or_not_at_all(changes, words: str, trained) -> None:
    home, found = trained
    with pytest.raises(pb.RunError, match=words):
        pb.train_private(directory=home, resume=True, **ASKED | changes)
    again = pb.train_private(directory=home, resume=True, **ASKED)
    assert (again.name, again.loss) == (found.name, found.loss)


def test_one_network_is_bound_as_well_and_its_records_digest_stays_private(tmp_path) -> None:
    pb.train_private(directory=tmp_path, **ALONE)
    with pytest.raises(pb.RunError, match=r"networks\.linear\.optimiser\.groups"):
        pb.train_private(directory=tmp_path, resume=True, **ALONE | {"optimiser": lambda p: torch.optim.SGD(p, lr=0.1)})
    digests = json.loads((tmp_path / "private" / "data.json").read_text())
    told = (tmp_path / "search.json").read_text()
    assert sorted(digests) == ["train_x", "train_y", "validation_x", "validation_y"]
    assert not [digest for digest in digests.values() if digest in told]
    (tmp_path / "private" / "data.json").unlink()
    with pytest.raises(pb.RunError, match=r"data\.json is gone; restore it"):
        pb.train_private(directory=tmp_path, resume=True, **ALONE)
    with pytest.raises(pb.RunError, match="no search to resume"):
        pb.train_private(directory=tmp_path / "elsewhere", resume=True, **ALONE)


def test_two_programs_do_not_train_in_one_directory(tmp_path) -> None:
    for resume in (False, True):
        with (
            alone(tmp_path / "private", wait=False),
            pytest.raises(pb.RunError, match="another program, or an earlier session of this one, is at work here"),
        ):
            pb.train_private(directory=tmp_path, resume=resume, **ASKED)
        pb.train_private(directory=tmp_path, resume=resume, **ASKED)


def test_the_plan_says_noise_and_price_beforehand_and_prices_a_person_with_several_records(trained) -> None:
    plan = pb.plan_training(MODELS, split(), **{k: QUICK[k] for k in ("epsilon", "epochs", "batch_size", "noise")})
    _, found = trained
    assert found.plan == plan
    price = plan.epsilon()
    assert sorted(price) == sorted(found.epsilon) == ["both", "maximum", "training", "validation"]
    assert plan.of_person(training=1, validation=1) == price["both"] > price["maximum"]
    assert price["maximum"] == max(price["training"], price["validation"])
    assert plan.of_person(training=2) > 1.5 * plan.of_person(training=1)
    assert plan.of_person(validation=2) > 1.5 * plan.of_person(validation=1)
    assert plan.of_person() == 0.0
    with pytest.raises(AccountingError, match="validation=-1 must be"):
        plan.of_person(validation=-1)
    assert plan.loss_stddev == pytest.approx(plan.noise_multipliers[1] * plan.privacy.loss_bound / N)
    for words in ("add-or-remove-one", "zero-out", f"{plan.loss_stddev:.3g} (standard deviation)", "by chance"):
        assert words in repr(found)


def kept(model: nn.Module):
    return lambda: model


class Made(nn.Module):
    """A network of parts, and what it makes of its inputs with them."""

    def __init__(self, made, **parts) -> None:
        super().__init__()
        self.made = made
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: torch.Tensor):
        return self.made(self, x)


DOUBLE = {part: getattr(split(), part).double() for part in ("train_x", "validation_x")}
REFUSED = [
    ({"models": {}}, "models is empty"),
    ({"models": nn.Sequential(nn.Linear(4, 2))}, "models is a Sequential; name functions that make networks"),
    ({"models": [dead]}, "models is a list;"),
    ({"models": {"mine": nn.Linear(4, 2)}}, r"models\['mine'\] is a Linear, not a function"),
    ({"data": (1, 2)}, "data is a tuple; give privbo.Split"),
    ({"epochs": 0}, "epochs=0: input should be a number > 0"),
    ({"epochs": "10"}, "epochs='10': input should be a valid number"),
    ({"batch_size": 0}, "batch_size=0: input should be"),
    ({"batch_size": 10_000}, "batch_size=10000"),
    ({"expected_runs": "3"}, "expected_runs='3': input should be a valid number"),
    ({"expected_runs": 1.0}, "above 1"),
    ({"epsilon": -1.0}, "epsilon"),
]
# What the training alone asks; much of it torch would refuse in its own words, once it is paid.
UNTRAINABLE = [
    ({"optimiser": {"dead": sgd}}, "none for linear"),
    ({"seed": -1}, "seed=-1: input should be a number >= 0"),
    ({"optimiser": lambda _: sgd(nn.Linear(4, 2).parameters())}, "optimiser of network 'dead' trains none of its"),
    ({"optimiser": lambda p: sgd([*p, *nn.Linear(4, 2).parameters()])}, "trains none of its parameters, or others"),
    ({"optimiser": "Adam"}, "optimiser of network 'dead'"),
    ({"models": {"mine": lambda: nn.Linear(4, 2).requires_grad_(False)}}, "optimiser of network 'mine'"),
    ({"models": {"mine": kept(nn.Linear(4, 2))}}, "hands out the same network twice"),
    ({"models": {"mine": lambda: 3}}, "makes a int; return a torch.nn.Module"),
    ({"models": {"mine": lambda: nn.Linear(5, 2)}}, r"network 'mine' can't take inputs of shape \(4,\)"),
    ({"models": {"mine": lambda: nn.Linear(4, 1)}}, r"train_y has classes outside 0..0, .* has 1 outputs"),
    ({"models": {"mine": lambda: nn.Sequential(nn.Linear(4, 2), nn.Flatten(0))}}, r"the shape \(4,\)"),
    ({"models": {"mine": lambda: Made(lambda _, x: (x, x))}}, "returns a tuple; return the classes' scores"),
    (
        {"data": dataclasses.replace(split(), **DOUBLE)},
        r"float64 and network 'dead' is torch.float32; convert them: x.to",
    ),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED + UNTRAINABLE)
def test_what_can_not_be_trained_is_refused_before_anything_is_paid(changes, words: str, tmp_path) -> None:
    with pytest.raises(pb.ConfigurationError, match=words):
        pb.train_private(directory=tmp_path / "t", **ASKED | changes)
    assert not (tmp_path / "t").exists()
    if (changes, words) in REFUSED:
        settings = {key: value for key, value in (ASKED | changes).items() if key not in ("optimiser", "seed")}
        with pytest.raises(pb.ConfigurationError, match=words):
            pb.plan_training(**settings)


def test_a_split_is_of_tensors_with_one_class_per_record() -> None:
    good = dataclasses.asdict(split())
    for changes, words in (
        ({"train_x": good["train_x"].numpy()}, "train_x is a ndarray; make it a tensor"),
        ({"validation_y": good["validation_y"].double()}, "validation_y is torch.float64"),
        ({"train_y": good["train_y"][:, None]}, "give one class per record"),
        ({"validation_x": good["validation_x"][:, :2]}, "train_x and validation_x differ"),
    ):
        with pytest.raises(pb.ConfigurationError, match=words):
            pb.Split(**good | changes)


def test_a_secure_training_without_a_directory_makes_its_own(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = pb.train_private(**ALONE | {"noise": "secure", "epochs": 1, "seed": None})
    assert found.directory is not None
    assert found.directory.parent.name == "runs"
    assert (tmp_path / found.directory / "training.sqlite").exists()


class RunningMean(nn.Module):
    """A layer of one's own without parameters, which keeps the mean of its inputs for when it is judged."""

    def __init__(self, *, persistent: bool) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4), persistent=persistent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x - self.mean
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x


def mixing(mixed, scale: float = 1.0) -> nn.Module:
    """A layer that makes something of its batch, and of the numbers of its batch before; then a linear one."""

    def made(model, x: torch.Tensor):
        found, model.before = mixed(model, x.float()), x.float()
        return model.last(found)

    model = Made(made, before=torch.zeros(1, 4), last=nn.Linear(4, 2))
    model.last.weight.data *= scale
    return model


MIXED = {
    "centred": lambda _, x: x - x.mean(0),
    "past autograd": lambda _, x: x - x.mean(0).detach(),
    "by the first": lambda _, x: x - x[:1],
    "by the largest": lambda _, x: x / x.abs().max(),
    "when judged": lambda layer, x: x if layer.training else x - x.mean(0),
    "with the batch before": lambda layer, x: x - layer.before.mean(0),
}


def folded() -> nn.Module:
    """Takes every number of a record for a record."""
    return Made(lambda model, x: model.inner(x.reshape(-1, 1)).reshape(len(x), -1, 2).mean(1), inner=nn.Linear(1, 2))


def unused() -> nn.Module:
    """Has parameters that no pass uses."""
    return Made(lambda model, x: model.inner(x), inner=nn.Linear(4, 2), spare=nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: nn.Sequential(RunningMean(persistent=True), nn.Linear(4, 2)), "0.mean of the model changes while"),
        (lambda: nn.Sequential(RunningMean(persistent=False), nn.Linear(4, 2)), "0.mean of the model changes while"),
        (folded, r"inner.weight has \d+ rows of gradients for \d+ records"),
        (lambda: mixing(MIXED["centred"], scale=0.0), "mixes records"),
        (lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)), "group normalisation"),
        (unused, "spare.weight has no gradient per record"),
    ],
    ids=[
        "running mean",
        "running mean that is not kept",
        "folded",
        "centred before weights of 0",
        "batch norm",
        "unused",
    ],
)
@pytest.mark.parametrize("noise", ["simulation", "secure"])
def test_a_network_through_which_records_pass_by_the_noise_is_refused(model, words: str, noise: str, tmp_path) -> None:
    with pytest.raises(pb.ConfigurationError, match=words):
        pb.train_private({"mine": model}, split(), optimiser=sgd, directory=tmp_path, **QUICK | {"noise": noise})
    with Ledger.open(next(tmp_path.glob("validation*.sqlite"))) as ledger:
        assert not ledger.entries()  # nothing of it was judged


@pytest.mark.parametrize("mixed", MIXED.values(), ids=MIXED)
@pytest.mark.parametrize("records", ["real", "whole", "with a NaN"])
def test_a_network_that_mixes_records_is_refused_however_it_does(mixed, records: str) -> None:
    parts = vars(split())
    if records == "whole":
        parts = parts | {key: (3.0 * parts[key]).long() for key in ("train_x", "validation_x")}
    elif records == "with a NaN":
        parts["train_x"][::5] = torch.nan
    with pytest.raises(pb.ConfigurationError, match="mixes records"):
        pb.train_private({"mine": lambda: mixing(mixed)}, pb.Split(**parts), optimiser=sgd, **QUICK)


def test_dropout_frozen_layers_and_constants_are_trained_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 8), nn.GroupNorm(2, 8), nn.Dropout(0.2), nn.Linear(8, 8), nn.Linear(8, 2))
        model.register_buffer("constant", torch.ones(3))
        model[3].requires_grad_(False)
        return model

    def trained() -> pb.Trained:
        torch.manual_seed(0)  # dropout draws of torch's own generator
        return pb.train_private({"mine": made}, split(), optimiser=sgd, **QUICK)

    found = trained()
    assert accuracy(found.model) > 0.7
    monkeypatch.setattr(PrivateNeuralArm, "_require_apart", lambda *_: None)
    assert trained().loss == found.loss  # the check is seen in nothing that is released
