"""The parallel X-armed bandit: its rule, its loss bound, its private margin."""

import math
from typing import Any

import numpy as np
import pytest

import privbo as pb
from privbo.algorithms.elimination.settings import noise_half_width
from privbo.protocol.messages import FloatArray, IntArray, Release, Setting

SPACE = pb.Space({"x": pb.Real(0, 1)})


def cone(clients: IntArray, units: FloatArray) -> FloatArray:
    """1-Lipschitz with its top at 0.37: nu1 = 1/2 bounds the variation of the whole interval from its centre."""
    return np.asarray(0.9 - np.abs(units[:, 0] - 0.37))


def play(n_players: int, **settings: Any) -> tuple[pb.Record, float]:
    problem = pb.Problem(space=SPACE, batch_objective=cone, n_clients=n_players, name="cone")
    algorithm = pb.ParallelXArmed(**({"horizon": 2000, "nu1": 0.5, "rho": 0.5} | settings))
    result = pb.run(problem, algorithm, privacy=pb.NoPrivacy(), rounds=60, seed=1)
    return result, 0.9 - float(cone(np.zeros(1, dtype=int), result.clients.recommended[:1])[0])


def test_more_players_go_deeper_and_keep_the_bound() -> None:
    depths = []
    for n_players in (1, 4, 16, 64):
        result, loss = play(n_players)
        depth = len(result.releases) - 1
        depths.append(depth)
        assert loss <= 6 * 0.5 * 0.5**depth
    assert depths == sorted(depths)
    assert depths[-1] >= depths[0] + 2


def test_pulls_follow_the_formula() -> None:
    algorithm = pb.ParallelXArmed(horizon=2000, nu1=0.5, rho=0.5, delta_b=0.01)
    for depth, nodes, players in ((0, 1, 1), (3, 4, 16), (6, 8, 4)):
        wanted = math.log(math.pi**2 * (depth + 1) ** 2 * nodes / (3 * 0.01)) / (2 * (0.5 * 0.5**depth) ** 2 * players)
        assert algorithm.pulls_per_player(depth, nodes, players) == math.ceil(wanted)
    assert pb.ParallelXArmed(horizon=100).pulls_per_player(3, 4, 4) == pb.ParallelXArmed(
        horizon=100, delta_b=0.01
    ).pulls_per_player(3, 4, 4)


@pytest.mark.parametrize(("behind", "stays"), [(-1e-9, True), (1e-9, False)])
def test_keeps_what_lies_within_three_variations_and_two_noise_widths(behind: float, stays: bool) -> None:
    setting = Setting(space=SPACE, n_clients=16, rounds=4, public_seed=0)
    server = pb.ParallelXArmed(horizon=2000, nu1=0.5, rho=0.5).server(setting)
    ask = server.ask()
    assert ask is not None
    server.tell(Release(round=0, values=np.zeros((1, 1)), noise_stddev=0.02, sequence=0, head=""))
    margin = 3 * 0.25 + 2 * noise_half_width(0.02, 2, 4)
    values = np.array([[0.0, -margin - behind]])
    server.tell(Release(round=1, values=values, noise_stddev=0.02, sequence=1, head=""))
    ask = server.ask()
    assert ask is not None
    assert ask.request is not None
    assert ask.request.dim == (4 if stays else 2)


def test_pulls_stay_within_the_horizon_and_the_plan() -> None:
    result, _ = play(4, horizon=500)
    plan = pb.plan(
        pb.Problem(space=SPACE, batch_objective=cone, n_clients=4),
        pb.ParallelXArmed(horizon=500, nu1=0.5, rho=0.5),
        privacy=pb.NoPrivacy(),
        rounds=60,
    )
    assert 1 <= len(result.releases) <= plan.releases
