"""FN-UCB against its pseudo-code, written out with autograd, matrices and lists of pulls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import privbo as pb
from experiments.baselines.fn_ucb import FNUCB, Networks, fn_ucb
from privbo.protocol.messages import FloatArray, IntArray

M, T = 3, 26
ARMS = np.random.default_rng(1).random((6, 2))


def reward(client: int, arm: int, turn: int) -> float:
    noise = np.random.default_rng([client, arm, turn]).normal(0, 0.2)
    return float(np.sin(5 * ARMS[arm, 0]) + ARMS[arm, 1] * (1 + 0.3 * client) + noise)


class Clients:
    """Answers pulls and notes the arms."""

    def __init__(self) -> None:
        self.played: list[list[int]] = []

    def pull(self, clients: IntArray, units: FloatArray, counts: IntArray) -> FloatArray:
        assert np.all(counts == 1)
        arms = [int(np.flatnonzero((arm == ARMS).all(axis=1))[0]) for arm in units]
        turn = len(self.played)
        self.played.append(arms)
        return np.array([reward(int(c), a, turn) for c, a in zip(clients, arms, strict=True)])


INPUTS = torch.tensor(2 * ARMS - 1)
Theta = list[torch.Tensor]


def parameters(start: Networks) -> Theta:
    raw = (start.inner[0], start.shift[0], start.outer[0], start.offset[0])
    return [torch.tensor(p).clone().requires_grad_() for p in raw]


def net(theta: Theta, x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ theta[0].T + theta[1]) @ theta[2] + theta[3]


def gradients(theta: Theta) -> list[FloatArray]:
    rows = [torch.autograd.grad(net(theta, x[None]).sum(), theta) for x in INPUTS]
    return [torch.cat([p.reshape(-1) for p in row]).numpy() for row in rows]


def train(theta: Theta, arms: list[int], rewards: list[float], settings: FNUCB) -> None:
    optimiser = torch.optim.SGD(theta, lr=settings.learning_rate, weight_decay=settings.ridge / len(arms))
    for _ in range(settings.training_steps):
        optimiser.zero_grad()
        torch.nn.functional.mse_loss(net(theta, INPUTS[arms]), torch.tensor(rewards, dtype=torch.float64)).backward()
        optimiser.step()


def log_det(matrix: FloatArray) -> float:
    return float(np.linalg.slogdet(matrix)[1])


def reference(settings: FNUCB, start: Networks) -> tuple[list[list[int]], int]:
    """The arms every agent plays, and the meetings."""
    g, lam = gradients(parameters(start)), settings.ridge
    p = len(g[0])
    w_sync, b_sync, common, own = np.zeros((p, p)), np.zeros(p), parameters(start), np.eye(p) / lam
    agents: list[dict[str, Any]] = [
        {"theta": parameters(start), "x": [], "y": [], "V": lam * np.eye(p), "W": 0 * w_sync, "B": 0 * b_sync}
        for _ in range(M)
    ]
    met_at, v_last, played, meetings = -1, lam * np.eye(p), [], 0

    def score(k: int, theta: FloatArray, v: FloatArray, a: float) -> float:
        first = g[k] @ theta + settings.nu_a * np.sqrt(lam * g[k] @ np.linalg.solve(v, g[k]))
        mean = net(common, INPUTS[k][None]).item()
        return float((1 - a) * first + a * (mean + settings.nu_b * np.sqrt(lam * g[k] @ own @ g[k])))

    for t in range(T):
        picks, meet = [], False
        for i, agent in enumerate(agents):
            v = lam * np.eye(p) + w_sync + agent["W"]
            theta = np.linalg.solve(v, b_sync + agent["B"])
            arm = int(np.argmax([score(k, theta, v, settings.weight(t)) for k in range(len(ARMS))]))
            picks.append(arm)
            agent["x"].append(arm)
            agent["y"].append(reward(i, arm, t))
            for name in ("W", "V"):
                agent[name] = agent[name] + np.outer(g[arm], g[arm])
            agent["B"] = agent["B"] + agent["y"][-1] * g[arm]
            gained = log_det(lam * np.eye(p) + w_sync + agent["W"]) - log_det(v_last)
            meet = meet or (t - met_at) * gained > settings.threshold
        played.append(picks)
        if not meet:
            continue
        meetings += 1
        for agent in agents:
            w_sync, b_sync = w_sync + agent["W"], b_sync + agent["B"]
            agent["W"], agent["B"] = 0 * w_sync, 0 * b_sync
        met_at, v_last = t, lam * np.eye(p) + w_sync
        own = np.mean([np.linalg.inv(agent["V"]) for agent in agents], axis=0)
        if settings.weight(t + 1) > 0 and t < settings.training_rounds:
            for agent in agents:
                train(agent["theta"], agent["x"], agent["y"], settings)
            common = [torch.stack([a["theta"][j].detach() for a in agents]).mean(dim=0) for j in range(4)]
    return played, meetings


@pytest.mark.parametrize("threshold", [0.0, 4.0])
def test_plays_the_pseudo_code(threshold: float) -> None:
    settings = FNUCB(width=5, threshold=threshold, ramp=12, training_rounds=20, training_steps=4, nu_a=2.0, nu_b=2.0)
    clients = Clients()
    out = fn_ucb(clients.pull, n_clients=M, arms=ARMS, horizon=T, generator=np.random.default_rng(7), settings=settings)
    played, meetings = reference(settings, Networks.alike(M, 5, 2, np.random.default_rng(7)))
    assert clients.played == played
    assert out.synchronisations == meetings
    assert (meetings == T) == (threshold == 0.0)
    assert len({arm for round_ in played for arm in round_}) > 2
    p = 5 * 2 + 5 + 5 + 1
    assert out.floats_up == meetings * (p * (p + 1) + 2 * p)
    assert (out.best == ARMS).all(axis=1).any()


def test_survives_clients_that_fail() -> None:
    """A client without any pull that worked keeps networks untrained, and the run goes on."""

    def pull(clients: IntArray, units: FloatArray, counts: IntArray) -> FloatArray:
        return np.where(clients == 0, np.nan, units[:, 0])

    out = fn_ucb(pull, n_clients=3, arms=ARMS, horizon=10, generator=np.random.default_rng(0))
    assert np.isfinite(out.best).all()


@pytest.mark.parametrize("settings", [{"width": 0}, {"ridge": 0.0}, {"nu_a": -1.0}, {"threshold": np.nan}, {"ramp": 0}])
def test_refuses_bad_settings_by_name(settings: dict[str, Any]) -> None:
    with pytest.raises(pb.ConfigurationError, match=next(iter(settings))):
        FNUCB(**settings)


def test_refuses_no_arms() -> None:
    with pytest.raises(pb.ConfigurationError, match="at least one"):
        fn_ucb(Clients().pull, n_clients=M, arms=ARMS[:0], horizon=T, generator=np.random.default_rng(0))
