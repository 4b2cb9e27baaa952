"""The points that Fed-PNE, the parallel bandit and PF-PNE's clients return, by the papers' pseudo-code written anew."""

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


def pf_pne(
    values: Callable[[FloatArray], FloatArray], m: int, horizon: int, k: int, gap: float
) -> tuple[list[float], int]:
    """Algorithms 1 to 3 of PF-PNE with nu1 = 1, rho = 1/2, c = .1, c1 = 1: every client's point, shared phases.

    The papers name no point that a client returns: it is that with the largest lower confidence bound of its own pulls.
    """
    c, log = 0.1, math.log(horizon * m)

    def tau(h: int) -> int:
        return math.ceil(c * c * log * 4**h)

    def own(cell: Cell) -> FloatArray:
        return np.asarray(values(np.array([sum(cell) / 2]))[:, 0])

    pulls: list[dict[float, int]] = [{} for _ in range(m)]
    said: list[dict[Cell, tuple[float, float]]] = []  # what the server keeps by depth, with its mean and radius
    counted: dict[tuple[int, Cell], int] = {}
    active, spent, depths = [(0.0, 1.0)], 0, max(1, math.ceil(math.log(gap) / math.log(0.5)))
    while len(said) < depths and spent + len(active) * (each := math.ceil(tau(len(said)) / m)) <= horizon:
        for cell in active:
            counted[len(said), cell] = each
            for mine in pulls:
                mine[sum(cell) / 2] = mine.get(sum(cell) / 2, 0) + each
        spent += len(active) * each
        mu, radius = {cell: float(own(cell).mean()) for cell in active}, c * math.sqrt(log / (m * each))
        kept = [cell for cell in active if not mu[cell] + radius + 0.5 ** len(said) < max(mu.values()) - radius]
        said.append({cell: (mu[cell], radius) for cell in kept})
        active = split(kept, k)
    points = []
    for client, mine in enumerate(pulls):
        cells, h, left = [(0.0, 1.0)], 0, horizon - spent
        while left > 0:  # PE: what the server keeps is not pulled; a depth that does not fit is pulled in order
            known = said[h] if h < len(said) else {}
            facts = dict(known)
            for cell in cells:
                if cell in known:
                    continue
                now = min(max(0, tau(h) - counted.get((h, cell), 0)), left)
                mine[sum(cell) / 2] = mine.get(sum(cell) / 2, 0) + now
                left -= now
                number = max(tau(h), counted.get((h, cell), 0))
                facts[cell] = float(own(cell)[client]), c * math.sqrt(log / number)
            best = max(cells, key=lambda cell, facts=facts: facts[cell][0])
            low = facts[best][0] - facts[best][1]
            cells = split(
                [cell for cell in cells if cell in known or facts[cell][0] + facts[cell][1] + 0.5**h >= low], k
            )
            h += 1
        bounds = {x: float(values(np.array([x]))[client, 0]) - c * math.sqrt(log / n) for x, n in mine.items() if n}
        points.append(max(bounds, key=lambda x, bounds=bounds: bounds[x]))
    return points, len(said)


def test_every_clients_point_is_that_of_the_papers_pulls_in_a_hundred_cases() -> None:
    distinct, phases = set(), set()
    for case in CASES:
        generator = np.random.default_rng([8, case])
        m, k, horizon = int(generator.integers(2, 12)), int(generator.integers(2, 4)), int(generator.integers(60, 600))
        gap, values = float(generator.uniform(0.02, 0.5)), surface(case, m)

        def play(
            clients: IntArray, units: FloatArray, values: Callable[[FloatArray], FloatArray] = values
        ) -> FloatArray:
            return np.asarray(values(units[:, 0])[clients, np.arange(len(clients))])

        problem = pb.Problem(space={"x": pb.Real(0, 1)}, batch_objective=play, n_clients=m)
        algorithm = pb.PFPNE.paper(horizon=horizon, nu1=1.0, rho=0.5, n_children=k, gap=gap)
        made = pb.run(problem, algorithm, privacy=pb.NoPrivacy(), rounds=40, seed=case)
        wanted, shared = pf_pne(values, m, horizon, k, gap)
        assert len(made.releases) == shared, case
        found = [made.best(client).params["x"] for client in range(m)]
        assert found == pytest.approx(wanted, abs=1e-9), case
        distinct.update(round(x, 6) for x in wanted)
        phases.add(shared)
    assert len(distinct) > 50  # a constant answer would not do
    assert len(phases) > 2
