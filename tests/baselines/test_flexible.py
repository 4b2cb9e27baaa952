"""Flexible personalisation: pull by pull against a plain re-implementation; what mixture and slack are worth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import privbo as pb
from experiments.baselines.flexible import FlexibleXArmed
from privbo.protocol.messages import FloatArray, IntArray

M = 6
PEAKS = np.random.default_rng(3).uniform(0.1, 0.9, (M, 2))


def reward(client: int, x: float, y: float) -> float:
    return math.exp(-3 * ((x - PEAKS[client, 0]) ** 2 + (y - PEAKS[client, 1]) ** 2))


class Calls:
    """Clients that write down every call."""

    def __init__(self) -> None:
        self.made: list[list[tuple[float, float]]] = [[] for _ in range(M)]

    def __call__(self, clients: IntArray, units: FloatArray) -> FloatArray:
        for client, unit in zip(clients.tolist(), units.tolist(), strict=True):
            self.made[client].append((unit[0], unit[1]))
        return np.array([reward(n, *unit) for n, unit in zip(clients.tolist(), units.tolist(), strict=True)])

    def problem(self) -> pb.Problem:
        return pb.Problem(space={"x": pb.Real(0, 1), "y": pb.Real(0, 1)}, batch_objective=self, n_clients=M)


def centre(depth: int, node: int) -> tuple[float, float]:
    """Halve the cube, x and y in turn, following the node's bits."""
    low, high = [0.0, 0.0], [1.0, 1.0]
    for level in range(depth):
        axis, middle = level % 2, (low[level % 2] + high[level % 2]) / 2
        if node >> (depth - 1 - level) & 1:
            low[axis] = middle
        else:
            high[axis] = middle
    return (low[0] + high[0]) / 2, (low[1] + high[1]) / 2


def plain(a: FlexibleXArmed, noisy: list[list[float]], stddevs: list[float]) -> tuple[list[list[Any]], list[list[int]]]:
    """Every client's points in order, and the nodes of each phase; averages are taken from what was released."""
    big = max(0.0, math.log(a.c1 * a.budget * M))

    def tau(h: int) -> int:
        return max(1, math.ceil(a.c**2 * big * a.rho ** (-2 * h) / a.nu1**2))

    def length(h: int) -> int:
        return max(each(h), math.ceil(a.own_share * tau(h)))

    def each(h: int) -> int:
        return max(1, math.ceil((1 - a.own_share) * tau(h) / M))

    def radius(n: int) -> float:
        return a.c * math.sqrt(big / n)

    phases, total = 0, 0
    while total + 2**phases * length(phases) <= a.budget and phases < 20:
        total += 2**phases * length(phases)
        phases += 1
    points: list[list[Any]] = [[] for _ in range(M)]
    nodes, active, best = [0], [{0} for _ in range(M)], [(0, 0)] * M
    told = []
    for h in range(len(noisy)):
        told.append(nodes)
        for n in range(M):
            points[n] += [centre(h, i) for _ in range(each(h)) for i in nodes]
            points[n] += [centre(h, i) for _ in range(length(h) - each(h)) for i in nodes if i in active[n]]
        average = dict(zip(nodes, noisy[h], strict=True))
        wide = radius(each(h) * M) + a.widen * stddevs[h] * math.sqrt(2 * math.log(2 * len(nodes) * phases / 0.05))
        top = max(average.values())
        spread = a.nu1 * a.rho**h
        kept = [i for i in nodes if average[i] + wide + spread + 2 * a.own_share * a.heterogeneity >= top - wide]
        for n in range(M):
            mine = [i for i in kept if i in active[n]]
            mixed = {i: a.own_share * (reward(n, *centre(h, i)) - 0.5) + (1 - a.own_share) * average[i] for i in mine}
            r = (a.own_share * radius(length(h)) if a.own_share else 0.0) + (1 - a.own_share) * wide
            best[n] = (h, max(mine, key=lambda i: mixed[i]))
            stay = {i for i in mine if mixed[i] + r + spread >= max(mixed.values()) - r}
            active[n] = {child for i in stay for child in (2 * i, 2 * i + 1)}
        nodes = [child for i in kept for child in (2 * i, 2 * i + 1)]
    for n in range(M):
        points[n] += [centre(*best[n])] * (a.budget - len(points[n]))
    return points, told


SETTINGS = [
    FlexibleXArmed(evaluations=60, c=0.02, release_when="always", own_share=share, heterogeneity=gap, nu1=nu1, rho=rho)
    for share, gap in ((0.0, 0.1), (0.3, 0.0), (0.5, 0.1), (1.0, 0.05))
    for nu1, rho in ((1.0, 0.5), (0.3, 0.6))
] + [FlexibleXArmed(evaluations=200, c=0.1, release_when="always", own_share=0.5, nu1=0.5, rho=0.6)]


@pytest.mark.parametrize("privacy", [pb.NoPrivacy(), pb.Privacy(noise_multiplier=0.05, noise="simulation")], ids=str)
@pytest.mark.parametrize("algorithm", SETTINGS, ids=lambda a: f"{a.own_share}-{a.nu1}-{a.evaluations}")
def test_every_pull_is_the_plain_algorithms(algorithm: FlexibleXArmed, privacy: Any) -> None:
    calls = Calls()
    record = pb.run(calls.problem(), algorithm, privacy=privacy, rounds=20, seed=1)
    released = [release.values[0].tolist() for release in record.releases]
    points, told = plain(algorithm, released, [release.noise_stddev for release in record.releases])
    assert [len(values) for values in released] == [len(nodes) for nodes in told]
    for n in range(M):
        assert len(points[n]) == algorithm.budget
        assert sorted(calls.made[n]) == sorted(points[n])
        assert calls.made[n][-1] == points[n][-1]
    if isinstance(privacy, pb.NoPrivacy):
        for values, nodes, h in zip(released, told, range(20), strict=False):
            mean = [sum(reward(n, *centre(h, i)) - 0.5 for n in range(M)) / M for i in nodes]
            assert values == pytest.approx(mean, abs=1e-12)


def test_what_the_average_alone_would_drop_stays_where_clients_may_differ() -> None:
    def nodes(heterogeneity: float) -> int:
        algorithm = FlexibleXArmed(evaluations=400, c=0.02, heterogeneity=heterogeneity, nu1=0.2, rho=0.6)
        record = pb.run(Calls().problem(), algorithm, privacy=pb.NoPrivacy(), rounds=20)
        return sum(release.values.shape[1] for release in record.releases)

    assert nodes(0.0) < nodes(0.1) < nodes(1.0)


def test_a_phase_that_need_not_fit_is_not_paid_for() -> None:
    """1 + 2 + 4 + 8 pulls are 15, and 16 more would be too many for 22; with a cap of two nodes 1 + 10 * 2 fit."""
    privacy = pb.Privacy(epsilon=2.0, delta=1e-5)
    problem = Calls().problem()
    for algorithm, releases in (
        (FlexibleXArmed(evaluations=22, c=0.02, release_when="always"), 4),
        (FlexibleXArmed(evaluations=22, c=1e-4, cap=2, release_when="always"), 11),
    ):
        plan = pb.plan(problem, algorithm, privacy=privacy, rounds=20)
        assert plan.releases == releases
        assert 1.99 < min(plan.epsilon().values()) <= 2.0
