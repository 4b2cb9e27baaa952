"""Opacus training on our ledger: reserved first, counted down, impossible to run for free."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from opacus.optimizers import DPOptimizer
from torch.utils.data import DataLoader, TensorDataset

from accountant.errors import AccountingError, BudgetExceeded, EventError, LedgerError
from accountant.events import Adjacency, PoissonSampledGaussian, Unit, repeat
from accountant.ledger import Budget, Ledger, LedgerPolicy
from accountant.tight import numerical
from privbo.door.opacus import LedgerAccountant


def make_ledger(*, unit=Unit.RECORD, budget=None, adjacency=Adjacency.ADD_OR_REMOVE_ONE):
    policy = LedgerPolicy(unit=unit, adjacency=adjacency, population="records", n_clients=64, budget=budget)
    return Ledger.create(None, policy)


def reserve(ledger, *, steps=4, rate=0.25, z=1.0):
    return LedgerAccountant.reserve(
        ledger,
        release_id="training",
        run="run",
        sample_rate=rate,
        noise_multiplier=z,
        steps=steps,
        unit=Unit.RECORD,
        noise_source="simulation",
    )


def training(accountant, *, noise_multiplier=1.0):
    """A tiny model under a privacy engine that is hooked to ``accountant``."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 3), torch.randn(64, 1))
    model = torch.nn.Linear(3, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus says that secure mode is off
        engine = accountant.privacy_engine(secure_mode=False)
        return engine, *engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(data, batch_size=16),
            noise_multiplier=noise_multiplier,
            max_grad_norm=1.0,
        )


def run_steps(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_training_is_charged_before_and_counted():
    ledger = make_ledger()
    with reserve(ledger) as accountant:
        assert len(ledger.entries()) == 1
        engine, model, optimizer, loader = training(accountant)
        run_steps(model, optimizer, loader)
        assert len(accountant) == 4
        expected = repeat(PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=1.0), 4)
        assert engine.get_epsilon(1e-5) == numerical.epsilon(expected, 1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE)
        assert ledger.event() == expected
        before = [p.detach().clone() for p in model.parameters()]
        with pytest.raises(BudgetExceeded, match="beyond the 4 steps"):
            run_steps(model, optimizer, loader)
        # the refused step never reached the parameters
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_an_optimizer_without_the_hook_is_noticed_and_paid_for():
    """Planted fault: Opacus's optimizer built directly; its own accountants would say epsilon 0."""
    accountant = reserve(make_ledger())
    _, model, hooked, loader = training(accountant)
    bare = DPOptimizer(hooked.original_optimizer, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=16)
    run_steps(model, bare, loader)
    assert accountant.get_epsilon(1e-5) > 1.0
    with pytest.raises(AccountingError, match="without this accountant's hook"):
        accountant.close()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_a_dearer_step_than_reserved_is_refused():
    accountant = reserve(make_ledger(), z=1.5)
    _, model, optimizer, loader = training(accountant, noise_multiplier=1.0)
    with pytest.raises(EventError, match="reserve what is run"):
        run_steps(model, optimizer, loader)


def test_the_budget_is_checked_before_the_first_batch():
    ledger = make_ledger(budget=Budget(epsilon=1.0, delta=1e-5))
    with pytest.raises(BudgetExceeded):
        reserve(ledger, steps=1000)
    assert ledger.entries() == []


def test_units_never_mix():
    with pytest.raises(LedgerError, match="never add up"):
        reserve(make_ledger(unit=Unit.CLIENT))


def test_replace_one_halves_the_multiplier():
    accountant = reserve(make_ledger(adjacency=Adjacency.REPLACE_ONE), z=2.0)
    assert accountant.event == repeat(PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=1.0), 4)


def test_checkpoints_never_count_down():
    accountant = reserve(make_ledger())
    accountant.step(noise_multiplier=1.0, sample_rate=0.25)
    state = accountant.state_dict()
    accountant.step(noise_multiplier=1.0, sample_rate=0.25)
    accountant.load_state_dict(state)
    assert len(accountant) == 2
    resumed = reserve(make_ledger())
    resumed.load_state_dict(accountant.state_dict())
    assert len(resumed) == 2  # two of the four steps are left, not four
    with pytest.raises(AccountingError, match="no state"):
        accountant.load_state_dict({"mechanism": "rdp", "history": []})
    for change in ({"mechanism": "rdp"}, {"reserved": 5}):
        with pytest.raises(AccountingError, match="no state of a block of 4 reserved steps"):
            accountant.load_state_dict(state | change)
    given = {"kept": 1}
    assert accountant.state_dict(given) is given
    assert given == {"kept": 1, "mechanism": "ledger", "used": 2, "reserved": 4}


@pytest.mark.parametrize(("z", "rate"), [(1.5 * (1 - 1e-8), 0.25), (1.5, 0.25 * (1 + 1e-8)), (0.1, 0.01), (9.0, 1.0)])
def test_a_step_that_is_dearer_in_either_way_is_refused_and_not_counted(z, rate):
    accountant = reserve(make_ledger(), z=1.5)
    # Rounding of a batch size over a data size is no dearer step, and a cheaper one is none either.
    accountant.step(noise_multiplier=1.5 * (1 - 1e-10), sample_rate=0.25 * (1 + 1e-10))
    accountant.step(noise_multiplier=3.0, sample_rate=0.1)
    with pytest.raises(EventError, match=r"costs more than the reserved 1\.5 at 0\.25; reserve what"):
        accountant.step(noise_multiplier=z, sample_rate=rate)
    assert len(accountant) == 2


@pytest.mark.parametrize("adjacency", [Adjacency.ADD_OR_REMOVE_ONE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE])
def test_the_whole_block_is_priced_under_the_ledgers_adjacency(adjacency):
    ledger = make_ledger(adjacency=adjacency)
    accountant = reserve(ledger, z=2.0)
    z = 1.0 if adjacency is Adjacency.REPLACE_ONE else 2.0
    expected = repeat(PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=z), 4)
    assert accountant.event == ledger.event() == expected
    assert accountant.get_epsilon(1e-5, "alphas", poisson=True) == numerical.epsilon(
        expected, 1e-5, adjacency=adjacency
    )
    (entry,) = ledger.entries()
    assert (entry.release_id, entry.run, entry.noise_source) == ("training", "run", "simulation")


def test_the_engine_is_hooked_to_the_block_and_draws_as_it_was_told(monkeypatch):
    accountant = reserve(make_ledger())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus says that secure mode is off
        engine = accountant.privacy_engine(secure_mode=False)
    assert engine.accountant is accountant
    assert engine.secure_mode is False
    monkeypatch.setattr("opacus.PrivacyEngine", SimpleNamespace)  # secure mode needs torchcsprng
    assert accountant.privacy_engine(secure_mode=True) == SimpleNamespace(secure_mode=True, accountant=accountant)


def test_a_block_that_nobody_stepped_through_is_an_error_unless_there_is_one_already():
    with pytest.raises(AccountingError, match="4 steps are charged and none was counted"), reserve(make_ledger()):
        pass
    with pytest.raises(KeyError), reserve(make_ledger()):
        raise KeyError
    with reserve(make_ledger()) as accountant:
        accountant.step(noise_multiplier=1.0, sample_rate=0.25)
