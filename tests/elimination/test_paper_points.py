"""The points that the papers of Fed-PNE and the parallel bandit return, by code written anew from their pseudo-code."""

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pytest

import privbo as pb
from privbo.protocol.messages import FloatArray, IntArray

Cell: TypeAlias = tuple[float, float]
CASES = range(100)


def surface(case: int, n_clients: int) -> Callable[[FloatArray], FloatArray]:
    """Random waves per client in [0, 1]: ``(n_clients, len(x))``."""
    generator = np.random.default_rng(case)
    places, heights = generator.uniform(0, 6.28, (n_clients, 3)), generator.uniform(0.05, 0.15, 3)
    speeds = generator.uniform(2, 30, 3)

    def values(x: FloatArray) -> FloatArray:
        common = places.mean(axis=0) + 0.3 * (places - places.mean(axis=0))
        waves = np.sin(speeds[:, None] * x[None, None, :] + common[:, :, None])
        return np.asarray(0.5 + (heights[None, :, None] * waves).sum(axis=1))

    return values


def split(cells: list[Cell], k: int) -> list[Cell]:
    return [(a + (b - a) * j / k, a + (b - a) * (j + 1) / k) for a, b in cells for j in range(k)]


def fed_pne(mean: Callable[[Cell], float], m: int, horizon: int, k: int) -> float:
    """Algorithm 1 of Fed-PNE with nu1 = 1, rho = 1/2, c = .1, c1 = 1: the best node of the last whole phase."""
    c, log = 0.1, math.log(horizon * m)
    active, depth, spent, best = [(0.0, 1.0)], 0, 0, (0.0, 1.0)
    while True:
        while depth == 0 or len(active) * math.ceil(c * c * log * 4**depth) < m:
            active, depth = split(active, k), depth + 1
        pulls = math.ceil(math.ceil(c * c * log * 4**depth) / m)
        if spent + pulls * len(active) > horizon:
            return sum(best) / 2
        spent += pulls * len(active)
        means, radius = [mean(cell) for cell in active], c * math.sqrt(log / (m * pulls))
        best = active[means.index(max(means))]
        kept = [cell for cell, mu in zip(active, means, strict=True) if mu + radius + 0.5**depth >= max(means) - radius]
        active, depth = split(kept, k), depth + 1


def parallel(mean: Callable[[Cell], float], m: int, horizon: int, k: int) -> float:
    """The parallel bandit with nu1 = 1, rho = 1/2, delta = 1/n: the best node of the last whole depth."""
    active, depth, spent, best = [(0.0, 1.0)], 0, 0, (0.0, 1.0)
    while True:
        log = math.log(math.pi**2 * (depth + 1) ** 2 * len(active) / 3 * horizon)
        pulls = math.ceil(log / (2 * 0.25**depth * m))
        if spent + pulls * len(active) > horizon:
            return sum(best) / 2
        spent += pulls * len(active)
        means = [mean(cell) for cell in active]
        best = active[means.index(max(means))]
        kept = [cell for cell, mu in zip(active, means, strict=True) if mu >= max(means) - 3 * 0.5**depth]
        active, depth = split(kept, k), depth + 1


PAPERS = {
    "fed-pne": (fed_pne, pb.FedPNE.paper),
    "parallel": (parallel, pb.ParallelXArmed.paper),
}


@pytest.mark.parametrize("name", PAPERS)
def test_the_common_point_is_the_papers_in_a_hundred_cases(name: str) -> None:
    reference, paper = PAPERS[name]
    distinct = set()
    for case in CASES:
        generator = np.random.default_rng([7, case])
        m, k, horizon = int(generator.integers(2, 40)), int(generator.integers(2, 4)), int(generator.integers(60, 900))
        values = surface(case, m)

        def play(
            clients: IntArray, units: FloatArray, values: Callable[[FloatArray], FloatArray] = values
        ) -> FloatArray:
            return np.asarray(values(units[:, 0])[clients, np.arange(len(clients))])

        problem = pb.Problem(space={"x": pb.Real(0, 1)}, batch_objective=play, n_clients=m)
        algorithm = paper(horizon=horizon, nu1=1.0, rho=0.5, n_children=k)
        made = pb.run(problem, algorithm, privacy=pb.NoPrivacy(), rounds=40, seed=case)
        wanted = reference(lambda cell, values=values: float(values(np.array([sum(cell) / 2])).mean()), m, horizon, k)
        assert made.common is not None
        assert made.common.params["x"] == pytest.approx(wanted, abs=1e-9), case
        distinct.add(round(wanted, 6))
    assert len(distinct) > 20  # a constant answer would not do
