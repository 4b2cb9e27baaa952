"""The point a client would use: never worse than another it has seen, by its own confidence."""

from collections import defaultdict

import numpy as np
import pytest

import privbo as pb
from privbo.algorithms.elimination.pulls import recommend
from privbo.algorithms.elimination.settings import TreeSettings
from privbo.protocol.messages import FloatArray, IntArray

CLIENTS = 12
SEARCHES: dict[str, TreeSettings] = {
    "fed-pne": pb.FedPNE(horizon=60),
    "heuristic": pb.FedPNE.heuristic(horizon=60),
    "stop": pb.FedPNE(horizon=60, tail="stop"),
    "parallel": pb.ParallelXArmed(horizon=60),
    "printed": pb.PFPNE(horizon=60, stage2="printed"),
    "in-phase": pb.PFPNE(horizon=60, stage2="in-phase"),
    "warm": pb.PFPNE(horizon=60, stage2="warm"),
    "optimistic": pb.PFPNE(horizon=60),
    "pe": pb.PFPNE(horizon=60).local(),
}


class Seen:
    """Clients with peaks of their own, 0.05 to 0.95, that note every reward."""

    def __init__(self) -> None:
        self.rewards: dict[tuple[int, float], list[float]] = defaultdict(list)

    def __call__(self, clients: IntArray, units: FloatArray) -> FloatArray:
        found = 1.0 - np.abs(units[:, 0] - (0.05 + 0.9 * clients / (CLIENTS - 1)))
        for client, unit, reward in zip(clients, units[:, 0], found, strict=True):
            self.rewards[int(client), float(unit)].append(float(reward))
        return np.asarray(found)


@pytest.mark.parametrize("name", SEARCHES)
def test_no_point_a_client_has_seen_is_better_by_its_own_confidence(name: str) -> None:
    """The lower bounds are computed here from every single reward, not from the clients' tables."""
    algorithm, seen = SEARCHES[name], Seen()
    problem = pb.Problem(space={"x": pb.Real(0, 1)}, batch_objective=seen, n_clients=CLIENTS)
    rewards = seen.rewards
    result = pb.run(problem, algorithm, privacy=pb.NoPrivacy(), rounds=8, seed=0)
    radius = algorithm.confidence(CLIENTS).radius
    lower = {key: np.mean(values) - float(radius(len(values))) for key, values in rewards.items()}
    for client in range(CLIENTS):
        chosen = float(result.clients.recommended[client, 0])
        assert lower[client, chosen] >= max(bound for (who, _), bound in lower.items() if who == client) - 1e-12


def plainly(owners: IntArray, places: IntArray, worked: IntArray, means: FloatArray, points: FloatArray) -> FloatArray:
    """The same with radius 1 / pulls, one client and point after the other."""
    found = np.full((owners.max() + 1, points.shape[1]), -1.0)
    for client in np.unique(owners):
        bounds = []
        for point in np.unique(points, axis=0):
            mine = (owners == client) & (points[places] == point).all(axis=1) & (worked > 0)
            if mine.any():
                pulls = worked[mine].sum()
                mean = (worked[mine] * means[mine]).sum() / pulls
                bounds.append((mean - 1.0 / pulls, np.flatnonzero(mine)[-1], tuple(point)))
        if bounds:
            found[client] = max(bounds)[2]
    return found


@pytest.mark.parametrize("n_clients", [3, 400])  # dense pairs of client and point, and rare ones
def test_many_turns_are_judged_as_one_by_one(n_clients: int) -> None:
    generator = np.random.default_rng(n_clients)
    owners, places = generator.integers(n_clients, size=300), generator.integers(20, size=300)
    worked, means = generator.integers(3, size=300), generator.integers(4, size=300) / 4.0  # quarters: sums are exact
    points = generator.integers(3, size=(20, 2)) / 2.0
    otherwise = np.full((owners.max() + 1, 2), -1.0)
    found = recommend(owners, places, worked, means, lambda pulls: 1.0 / pulls, points, otherwise)
    np.testing.assert_array_equal(found, plainly(owners, places, worked, means, points))
