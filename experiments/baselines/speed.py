"""Speed of the baselines: our HCT against PyXAB's; ``python -m benchmarks experiments.baselines.speed``."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import numpy as np

from experiments.baselines.trees import HCT
from privbo.algorithms.elimination.partition import Partition

ROUNDS, REPEATS = 10_000, 3


def rows() -> Iterator[tuple[str, float, str, float]]:
    """Seconds of ours and of the peer's: HCT's rounds (bar: 20 times PyXAB); both ask the objective in each."""
    noise = np.random.default_rng(0).uniform(-0.1, 0.1, ROUNDS).tolist()
    peer, ours = _smallest(lambda: _pyxab(noise)), _smallest(lambda: _hct(noise))
    yield f"HCT, {ROUNDS} rounds on Garland", ours, "PyXAB", peer


def _smallest(work: Callable[[], None]) -> float:
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
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
