"""Forty clients that are alike: without privacy sharing is never worse than being alone at the end."""

import numpy as np
import pytest

import privbo as pb
from tests.thompson.conftest import PLANE

SEEDS, CLIENTS, ROUNDS, FLOOR = 6, 40, 20, 0.01
KINDS = pb.Space({"kind": pb.Categorical(("a", "b", "c", "d")), "x": pb.Real(0.0, 1.0), "y": pb.Real(0.0, 1.0)})


def ridge(rng):
    """A ridge of a tenth of the square's width, higher towards one place on it."""
    across, along = 0.02 * rng.standard_normal((2, CLIENTS))

    def values(clients, units):
        off = units[:, 0] - units[:, 1] - across[clients]
        return np.exp(-((off / 0.07) ** 2)) * (1.0 - np.abs(units[:, 0] - 0.7 - along[clients]))

    return PLANE, values


def mixed(rng):
    """Every kind has a top of its own height and place."""
    tops, heights = rng.random((4, 2)), rng.permutation([1.0, 0.8, 0.6, 0.3])
    moved = 0.03 * rng.standard_normal((CLIENTS, 2))

    def values(clients, units):
        kind = np.minimum((4 * units[:, 0]).astype(int), 3)
        squares = ((units[:, 1:] - tops[kind] - moved[clients]) ** 2).sum(axis=1)
        return heights[kind] * np.exp(-5.0 * squares)

    return KINDS, values


def steps(rng):
    """Ten steps up to a place that differs a little."""
    top = 0.2 + 0.6 * rng.random(2) + 0.02 * rng.standard_normal((CLIENTS, 2))

    def values(clients, units):
        return np.floor(10.0 * np.exp(-30.0 * ((units - top[clients]) ** 2).sum(axis=1))) / 10.0

    return PLANE, values


def regrets(surfaces, algorithm):
    """Mean regret at the end by seed, in units of a client's range and at least 1 % of it."""
    found = []
    for seed in range(SEEDS):
        space, values = surfaces(np.random.default_rng(seed))
        wide = space.snap(np.random.default_rng(99).random((20_000, space.n_dims)))
        probes = np.array([values(np.full(len(wide), client), wide) for client in range(CLIENTS)])
        problem = pb.Problem(space=space, batch_objective=values, n_clients=CLIENTS)
        record = pb.run(problem, algorithm, privacy=pb.NoPrivacy(), rounds=ROUNDS, seed=seed)
        best = np.maximum(probes.max(axis=1), record.clients.values.max(axis=1))
        lost = (best - record.clients.values.max(axis=1)) / np.ptp(probes, axis=1)
        found.append(np.maximum(lost, FLOOR).mean())
    return np.array(found)


@pytest.mark.slow
@pytest.mark.parametrize("surfaces", [ridge, mixed, steps])
def test_alike_clients_that_share_end_no_worse_than_alone(surfaces):
    """On average over six draws of the clients; alone has the better of its two starts."""
    shared = regrets(surfaces, pb.SharedPrior()).mean()
    alone = [regrets(surfaces, pb.SharedPrior(explore=explore).local()).mean() for explore in (None, 0)]
    assert shared <= min(alone)
