"""Baselines that are no trees: Fed1-UCB, random search, and a driver for tree bandits.

They are compared in simulation only, so they are plain functions of an environment's
``pull(clients, units, counts) -> mean rewards``; nothing here is private.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from experiments.baselines.tree import TreeBandit
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, PullObjective


def play_tree(bandit: TreeBandit, mean: Callable[[FloatArray], float], noise: FloatArray) -> FloatArray:
    """Noiseless rewards of a tree bandit's pulls, ``(T,)``.

    Args:
        bandit: HCT, VHCT or HOO.
        mean: Noiseless reward of a point ``(n_dims,)``; asked once per node.
        noise: Reward noise of every pull, ``(T,)``.
    """
    known: dict[int, float] = {}
    earned = np.empty(len(noise))
    for turn, disturbance in enumerate(noise.tolist()):
        node = bandit.select()
        value = known.get(node)
        if value is None:
            value = known[node] = mean(bandit.tree.point(node))
        bandit.receive(value + disturbance)
        earned[turn] = value
    return earned


def random_arms(n_dims: int, generator: np.random.Generator) -> FloatArray:
    """The arms of the federated multi-armed baselines: 20 per dimension, 1000 in more than two."""
    count = 20**n_dims if n_dims <= 2 else 1000
    return generator.random((count, n_dims))


def fed1_ucb(
    pull: PullObjective, *, n_clients: int, arms: FloatArray, horizon: int, noise_scale: float = 0.1
) -> FloatArray:
    """Fed1-UCB (Shi & Shen 2021) over fixed arms.

    In every phase all clients pull every active arm ``floor(10 ln T)`` times; arm i goes when
    ``mu_i + B < max mu - B`` with ``B = sqrt(4 sigma^2 ln T / (M n))`` after n pulls per client.
    What does not fit the horizon is pulled in order; a last arm is played to the end.

    Args:
        pull: The clients.
        n_clients: M.
        arms: Points, ``(K, n_dims)``.
        horizon: T, pulls of one client.
        noise_scale: sigma.

    Returns:
        The best arm, ``(n_dims,)``.

    Raises:
        ConfigurationError: If there is no arm or no pull.
    """
    if not len(arms) or horizon < 1:
        raise ConfigurationError(f"{len(arms)} arms, horizon={horizon}; give at least one of each")
    clients = np.arange(n_clients)
    active, left, pulls = np.arange(len(arms)), horizon, 0
    means = np.zeros(len(arms))
    each = max(1, math.floor(10 * math.log(max(horizon, 2))))
    while left:
        wanted = np.full(len(active), left if len(active) == 1 else each, dtype=np.int64)
        counts = np.clip(left - (np.cumsum(wanted) - wanted), 0, wanted)
        rewards = pull(
            np.repeat(clients, len(active)), np.tile(arms[active], (n_clients, 1)), np.tile(counts, n_clients)
        )
        left -= int(counts.sum())
        if np.any(counts < wanted) or len(active) == 1:
            break
        fresh = np.nanmean(rewards.reshape(n_clients, -1), axis=0)
        means[active] = (means[active] * pulls + fresh * each) / (pulls + each)
        pulls += each
        width = math.sqrt(4 * noise_scale**2 * math.log(horizon) / (n_clients * pulls))
        active = active[means[active] + width >= means[active].max() - width]
    return np.asarray(arms[active[np.argmax(means[active])]])


def random_search(
    pull: PullObjective, *, n_clients: int, n_dims: int, horizon: int, generator: np.random.Generator
) -> None:
    """Every client pulls a fresh uniform point every time."""
    clients = np.arange(n_clients)
    one = np.ones(n_clients, dtype=np.int64)
    for _ in range(horizon):
        pull(clients, generator.random((n_clients, n_dims)), one)
