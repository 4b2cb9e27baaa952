"""Speed of tree bandits beside PyXAB's HCT; ``python -m benchmarks experiments.baselines.speed``.

Every pull of either side evaluates the objective, and neither keeps a value. A row has a name, our seconds, the peer's
name and seconds, its kind, and the seconds of the objective alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

import privbo as pb
from experiments.baselines.trees import HCT
from privbo.algorithms.elimination.settings import Partition
from privbo.protocol.messages import FloatArray, IntArray
from privbo.protocol.space import Value

ROUNDS, PEERS, PULLS, REPEATS = 10_000, 30_000, 1_000_000, 3
CLIENTS, TIMES = 10, 20.0

Measured: TypeAlias = tuple[str, float, str, float, str, float | None]


def rows() -> Iterator[Measured]:
    """Give HCT's rounds beside PyXAB's, then a million pulls of HCT and of Fed-PNE (bar: 20 times PyXAB's)."""
    noise = np.random.default_rng(0).uniform(-0.1, 0.1, PULLS).tolist()
    peer, ours = (_smallest(lambda one=one: one(noise[:ROUNDS])) for one in (_pyxab, _hct))  # type: ignore[misc]  # a default binds it
    yield f"HCT, {ROUNDS:,} rounds on Garland", ours, "PyXAB", peer, "peer", None
    # A round of PyXAB's grows dearer with its tree, so that fewer of them are no handicap.
    peer = _smallest(lambda: _pyxab(noise[:PEERS]), 1) / PEERS
    alone = _smallest(lambda: [_garland(0.3) for _ in range(ROUNDS)]) / ROUNDS
    whose, bar = f"a pull of PyXAB's HCT, of {PEERS:,}", f"the bar, a pull of PyXAB's HCT over {TIMES:g}"
    size = f"a pull of {PULLS:,}, on Garland with noise"
    _fed_pne(CLIENTS, one=True)  # imports what a run needs, outside the clock
    ours_of: dict[str, Callable[[], None]] = {
        f"HCT: {size}": lambda: _hct(noise),
        f"Fed-PNE: {size}, {CLIENTS} clients, one call of the objective each": lambda: _fed_pne(PULLS, one=True),
        f"Fed-PNE: {size}, {CLIENTS} clients, the objective takes arrays": lambda: _fed_pne(PULLS, one=False),
    }
    for name, work in ours_of.items():
        seconds = _smallest(work, 1)
        limit = None if "arrays" in name else alone
        yield name, seconds / PULLS, whose, peer, "peer", limit
        yield name, seconds / PULLS, bar, peer / TIMES, "bar", limit


def _smallest(work: Callable[[], object], repeats: int = REPEATS) -> float:
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


def _garland(x: float) -> float:
    return x * (1 - x) * (4 - math.sqrt(abs(math.sin(60 * x))))


def _pyxab(noise: list[float]) -> None:
    from PyXAB.algos import HCT as peers  # noqa: N811 (a module)

    bandit = peers.HCT(domain=[[0, 1]])
    for turn, disturbance in enumerate(noise):
        bandit.receive_reward(turn + 1, _garland(bandit.pull(turn + 1)[0]) + disturbance)


def _hct(noise: list[float]) -> None:
    bandit = HCT(Partition(n_dims=1))
    for disturbance in noise:
        bandit.receive(_garland(bandit.tree.centre(bandit.select())[0]) + disturbance)


def _fed_pne(pulls: int, *, one: bool) -> None:
    """A whole private run, door and ledger included, whose clients pull ``pulls`` times together."""
    generator = np.random.default_rng(1)

    def single(_client: int, params: dict[str, Value]) -> float:
        return min(1.0, max(0.0, _garland(float(params["x"])) + generator.uniform(-0.1, 0.1)))

    def many(_clients: IntArray, units: FloatArray) -> FloatArray:
        x = units[:, 0]
        heights = x * (1 - x) * (4 - np.sqrt(abs(np.sin(60 * x))))
        return np.asarray(np.clip(heights + generator.uniform(-0.1, 0.1, len(x)), 0.0, 1.0))

    asked = {"objective": single} if one else {"batch_objective": many}
    problem = pb.Problem(space={"x": pb.Real(0, 1)}, n_clients=CLIENTS, **asked)
    privacy = pb.Privacy(noise_multiplier=4.0, noise="simulation")
    fed_pne = pb.FedPNE(horizon=max(2, pulls // CLIENTS), release_when="always")  # ten clients are few
    pb.run(problem, fed_pne, privacy=privacy, rounds=20, seed=0)
