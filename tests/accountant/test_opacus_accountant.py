"""Our accountant under its name in Opacus."""

import pytest
import torch
from opacus import PrivacyEngine
from opacus.accountants.utils import get_noise_multiplier
from torch.utils.data import DataLoader, TensorDataset

import accountant
import privbo.bridges.opacus


def trained():
    torch.manual_seed(0)
    engine = PrivacyEngine(accountant="privbo")
    data = TensorDataset(torch.randn(64, 3), torch.randn(64, 1))
    model = torch.nn.Linear(3, 1)
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=16),
        noise_multiplier=2.0,
        max_grad_norm=1.0,
    )
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return engine


@pytest.mark.filterwarnings("ignore:Secure RNG turned off", "ignore:Full backward hook", "ignore:Optimal order")
def test_a_training_costs_what_its_steps_cost_and_the_state_survives():
    engine = trained()
    steps = len(range(0, 64, 16))
    expected = accountant.epsilon(noise_multiplier=2.0, sample_rate=0.25, rounds=steps, delta=1e-5)
    assert engine.get_epsilon(1e-5) == expected
    again = privbo.bridges.opacus.PrivboAccountant()
    again.load_state_dict(engine.accountant.state_dict())
    assert again.get_epsilon(1e-5) == expected
    assert accountant.tradeoff(again.event).epsilon(1e-5) == pytest.approx(expected, rel=2e-3)


def test_changed_noise_is_counted_apart_and_no_noise_costs_everything():
    spent = privbo.bridges.opacus.PrivboAccountant()
    for z in (2.0, 2.0, 3.0, 2.0):
        spent.step(noise_multiplier=z, sample_rate=0.1)
    assert spent.history == [(2.0, 0.1, 2), (3.0, 0.1, 1), (2.0, 0.1, 1)]
    assert sorted(count for _, count in spent.event.parts) == [1, 3]
    spent.step(noise_multiplier=0.0, sample_rate=0.1)
    assert spent.get_epsilon(1e-5) == float("inf")


@pytest.mark.filterwarnings("ignore:Optimal order")
def test_opacus_calibrates_with_it():
    goal = {"target_epsilon": 2.0, "target_delta": 1e-5, "sample_rate": 0.01, "steps": 1000}
    z = get_noise_multiplier(**goal, accountant="privbo")
    assert z == pytest.approx(
        accountant.noise_multiplier(epsilon=2.0, delta=1e-5, sample_rate=0.01, rounds=1000), rel=0.01
    )
    assert z < get_noise_multiplier(**goal, accountant="rdp")
