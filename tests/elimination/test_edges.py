"""All eliminations at their edges: one client, ties, clients that leave, rewards and horizons out of range."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

import privbo as pb
from privbo.algorithms.elimination.alone import PersonalElimination
from privbo.plans.effect import always
from privbo.protocol.messages import FloatArray, IntArray

PRIVACIES = {
    "plain": pb.NoPrivacy(),
    "client": pb.Privacy(epsilon=2.0, noise="simulation"),
    "reward": pb.Privacy(epsilon=2.0, noise="simulation", unit="reward"),
}
SHARED: dict[str, Any] = {
    "fed-pne": pb.FedPNE(horizon=300),
    "fed-pne heuristic": pb.FedPNE.heuristic(horizon=300),
    "pf-pne": pb.PFPNE(horizon=200),
    "pf-pne printed": pb.PFPNE(horizon=200, stage2="printed", tail="printed"),
    "pf-pne warm": pb.PFPNE(horizon=200, stage2="warm"),
    "parallel": pb.ParallelXArmed(horizon=300),
}
ALL = SHARED | {
    "pe": PersonalElimination(horizon=200),
    "pe printed": PersonalElimination(horizon=200, stage2="printed"),
}


def hill(clients: IntArray, units: FloatArray) -> FloatArray:
    return np.asarray(0.9 - 0.8 * np.abs(units[:, 0] - 0.3 - 0.01 * (clients % 3)))


class Counting:
    """An objective that counts every client's pulls and fails for some of them after a while."""

    def __init__(self, n_clients: int, leaves: dict[int, int] | None = None, objective: Any = hill) -> None:
        self.pulls = np.zeros(n_clients, dtype=np.int64)
        self._leaves, self._objective = leaves or {}, objective

    def __call__(self, clients: IntArray, units: FloatArray) -> FloatArray:
        values = self._objective(clients, units)
        for row, client in enumerate(clients):
            self.pulls[client] += 1
            if self.pulls[client] > self._leaves.get(int(client), math.inf):
                values[row] = np.nan
        return values


def run(algorithm: Any, objective: Any, n_clients: int, privacy: Any = PRIVACIES["plain"]) -> pb.Record:
    problem = pb.Problem(space={"x": pb.Real(0, 1)}, batch_objective=objective, n_clients=n_clients, name="edges")
    return pb.run(problem, always(algorithm), privacy=privacy, rounds=40, seed=1)


@pytest.mark.parametrize("privacy", PRIVACIES)
@pytest.mark.parametrize("name", ALL)
def test_a_single_client_is_served(name: str, privacy: str) -> None:
    objective = Counting(1)
    asked = PRIVACIES["plain"] if name.startswith("pe") else PRIVACIES[privacy]
    result = run(ALL[name], objective, 1, asked)
    assert result.clients.recommended.shape == (1, 1)
    assert objective.pulls[0] <= ALL[name].horizon
    if privacy == "plain":
        assert abs(result.clients.recommended[0, 0] - 0.3) < 0.15


@pytest.mark.parametrize("privacy", ["plain", "reward"])
@pytest.mark.parametrize("name", SHARED)
def test_clients_that_leave_for_good_cost_their_share_and_nothing_else(name: str, privacy: str) -> None:
    """One never answers, one leaves in its first phase, one later; the others end near the top."""
    objective = Counting(8, leaves={1: 0, 4: 2, 6: 40})
    result = run(SHARED[name], objective, 8, PRIVACIES[privacy])
    whole = run(SHARED[name], Counting(8), 8, PRIVACIES[privacy])
    assert len(result.releases) >= 1
    assert all(np.isfinite(r.values).all() for r in result.releases)
    assert np.isfinite(result.clients.recommended).all()
    assert np.isnan(result.clients.values[1]).all()
    assert np.all(objective.pulls <= SHARED[name].horizon)
    if privacy == "plain":
        staying = [0, 2, 3, 5, 7]
        found = hill(np.array(staying), result.clients.recommended[staying])
        best = hill(np.array(staying), whole.clients.recommended[staying])
        assert np.all(found > best - 0.1)


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", ALL)
def test_plateaus_and_ties_lead_to_the_end(name: str, value: float) -> None:
    objective = Counting(5, objective=lambda clients, units: np.full(len(clients), value))
    result = run(ALL[name], objective, 5)
    assert np.isfinite(result.clients.recommended).all()
    assert np.all((result.clients.recommended >= 0) & (result.clients.recommended <= 1))
    assert len(set(objective.pulls.tolist())) == 1
    again = run(ALL[name], Counting(5, objective=lambda c, u: np.full(len(c), value)), 5)
    np.testing.assert_array_equal(again.clients.recommended, result.clients.recommended)


@pytest.mark.parametrize("privacy", PRIVACIES)
@pytest.mark.parametrize("name", SHARED)
def test_a_reward_outside_its_range_stops_nobody_and_its_client_is_told(name: str, privacy: str) -> None:
    def loud(clients: IntArray, units: FloatArray) -> FloatArray:
        return np.where(clients == 2, 1.01, hill(clients, units))

    releases = len(run(SHARED[name], hill, 4, PRIVACIES[privacy]).releases)
    clipped, absent = (
        run(dataclasses.replace(SHARED[name], outside=outside), loud, 4, PRIVACIES[privacy])
        for outside in ("clip", "absent")
    )
    assert len(clipped.releases) == len(absent.releases) == releases
    assert np.nanmax(clipped.clients.values[2]) == 1.0
    assert np.isnan(absent.clients.values[2]).all()
    for result, fate in ((clipped, "clipped"), (absent, "nothing")):
        assert list(result.failures) == [2]
        assert fate in result.failures[2]
        assert "1.01" not in result.failures[2]


@pytest.mark.parametrize("name", SHARED)
def test_a_horizon_below_the_first_phase_is_refused_before_any_pull(name: str) -> None:
    objective = Counting(1)
    settings: dict[str, Any] = {"horizon": 2, "nu1": 0.01}
    with pytest.raises(pb.ConfigurationError, match=r"2 pulls of a (client|player) do not hold one"):
        run(dataclasses.replace(SHARED[name], **settings), objective, 1)
    assert objective.pulls.sum() == 0


BAD: list[dict[str, Any]] = [
    *({"nu1": 0.0}, {"rho": 0.0}, {"rho": 1.0}, {"c": math.nan}, {"c1": 0.0}, {"horizon": 2.5}, {"n_children": 5}),
    *({"clip": math.inf}, {"clip": 0.0}, {"widen": math.nan}, {"widen": -1.0}, {"centre": "median"}, {"gap": 0.0}),
    *({"reward_range": (1.0, 1.0)}, {"outside": "drop"}, {"cap": 2, "n_children": 3}, {"delta_b": 1.0}),
    *({"expand": "all"}, {"tail": "none"}, {"stage2": "cold"}),
]
KINDS: list[Any] = [pb.FedPNE, pb.PFPNE, pb.ParallelXArmed, PersonalElimination]
REFUSED = [
    (kind, bad) for kind in KINDS for bad in BAD if set(bad) <= {field.name for field in dataclasses.fields(kind)}
]


@pytest.mark.parametrize(("kind", "settings"), REFUSED, ids=lambda v: v.__name__ if isinstance(v, type) else str(v))
def test_settings_out_of_range_are_refused_by_name(kind: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(pb.ConfigurationError, match=next(iter(settings))):
        run(kind(**settings), hill, 2)
