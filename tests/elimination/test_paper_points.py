"""The points that Fed-PNE, the parallel bandit and PF-PNE's clients return, by the papers' pseudo-code written anew."""

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pytest

import privbo as pb
from privbo.protocol.messages import FloatArray, IntArray
from tests.elimination.test_fed_pne import phases

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
    """The best node of the last whole phase of Fed-PNE's Algorithm 1."""
    return phases(mean, m, horizon, expand="ktau", tail="printed", k=k)[1]


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
    values: Callable[[FloatArray], FloatArray], m: int, horizon: int, k: int, shared: int, *, tail: str = "printed"
) -> list[dict[float, int]]:
    """Algorithms 1 to 3 of PF-PNE with nu1 = 1, rho = 1/2, c = .1, c1 = 1: every client's pulls by point.

    ``shared`` is the most phases that are shared; without any it is PE.
    """
    c, log = 0.1, math.log(horizon * m)

    def tau(h: int) -> int:
        return math.ceil(c * c * log * 4**h)

    def own(cell: Cell) -> FloatArray:
        return np.asarray(values(np.array([sum(cell) / 2]))[:, 0])

    pulls: list[dict[float, int]] = [{} for _ in range(m)]
    said: list[dict[Cell, tuple[float, float]]] = []  # what the server keeps by depth, with its mean and radius
    counted: dict[tuple[int, Cell], int] = {}
    active, spent = [(0.0, 1.0)], 0
    while len(said) < shared and spent + len(active) * (each := math.ceil(tau(len(said)) / m)) <= horizon:
        for cell in active:
            counted[len(said), cell] = each
            for mine in pulls:
                mine[sum(cell) / 2] = mine.get(sum(cell) / 2, 0) + each
        spent += len(active) * each
        mu, radius = {cell: float(own(cell).mean()) for cell in active}, c * math.sqrt(log / (m * each))
        kept = [cell for cell in active if not mu[cell] + radius + 0.5 ** len(said) < max(mu.values()) - radius]
        said.append({cell: (mu[cell], radius) for cell in kept})
        active = split(kept, k)
    for client, mine in enumerate(pulls):
        cells, h, left, best = [(0.0, 1.0)], 0, horizon - spent, (0.0, 1.0)
        while left > 0:  # PE: what the server keeps is not pulled
            known = said[h] if h < len(said) else {}
            need = {cell: max(0, tau(h) - counted.get((h, cell), 0)) for cell in cells if cell not in known}
            if sum(need.values()) > left and tail == "commit":
                need, cells = {best: left}, []
            for cell, number in need.items():  # a depth that does not fit is pulled in order
                now = min(number, left)
                mine[sum(cell) / 2] = mine.get(sum(cell) / 2, 0) + now
                left -= now
            facts = {
                cell: known.get(cell)
                or (float(own(cell)[client]), c * math.sqrt(log / max(tau(h), counted.get((h, cell), 0))))
                for cell in cells
            }
            best = max(cells, key=lambda cell, facts=facts: facts[cell][0], default=best)
            cells = split(
                [x for x in cells if x in known or sum(facts[x]) + 0.5**h >= facts[best][0] - facts[best][1]], k
            )
            h += 1
    return [{x: n for x, n in mine.items() if n} for mine in pulls]


def test_every_clients_point_is_that_of_the_papers_pulls_in_a_hundred_cases() -> None:
    distinct, shares = set(), set()
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
        depths = max(1, math.ceil(math.log(gap) / math.log(0.5)))
        # The papers name no point that a client returns: it is that with the largest lower bound of its own pulls.
        radius = 0.1 * math.sqrt(math.log(horizon * m))
        wanted = [
            max(mine, key=lambda x, n=mine, i=i, v=values: float(v(np.array([x]))[i, 0]) - radius / math.sqrt(n[x]))
            for i, mine in enumerate(pf_pne(values, m, horizon, k, depths))
        ]
        found = [made.best(client).params["x"] for client in range(m)]
        assert found == pytest.approx(wanted, abs=1e-9), case
        distinct.update(round(x, 6) for x in wanted)
        shares.add(len(made.releases))
    assert len(distinct) > 50  # a constant answer would not do
    assert len(shares) > 2
