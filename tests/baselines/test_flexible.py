"""Flexible personalisation: pull by pull against a plain re-implementation; what mixture and slack are worth."""

import math

import numpy as np
import pytest

import privbo as pb
from experiments.baselines.flexible import FlexibleXArmed
from tests.baselines.calls import Calls

M = 6
NOISY = pb.Privacy(noise_multiplier=0.05, noise="simulation")
PEAKS = np.random.default_rng(3).uniform(0.1, 0.9, (M, 2))


def reward(client: int, point: tuple[float, float], _: int) -> float:
    return math.exp(-3 * ((point[0] - PEAKS[client, 0]) ** 2 + (point[1] - PEAKS[client, 1]) ** 2))


def called() -> Calls:
    return Calls({"x": pb.Real(0, 1), "y": pb.Real(0, 1)}, M, reward)


# Own share, slack between clients, nu1 and rho; digests of all pulls without noise and with it.
PULLS = {
    (0.0, 0.1, 1.0, 0.5): ("f8866ca375", "ccac126acd"),
    (0.0, 0.1, 0.3, 0.6): ("de1985528e", "939176836c"),
    (0.3, 0.0, 1.0, 0.5): ("a72d70da97", "00f6014045"),
    (0.3, 0.0, 0.3, 0.6): ("7c57fe6978", "b336d1e9b7"),
    (0.5, 0.1, 1.0, 0.5): ("79d19e122d", "19f5d795a9"),
    (0.5, 0.1, 0.3, 0.6): ("bbf90bad0f", "93626ab298"),
    (1.0, 0.05, 1.0, 0.5): ("15e73ade75", "5a3a6151b6"),
    (1.0, 0.05, 0.3, 0.6): ("dabb4d9b1f", "0f0d0513ce"),
}


@pytest.mark.parametrize("numbers", PULLS)
def test_every_pull_is_that_of_the_plain_algorithm(numbers: tuple[float, ...]) -> None:
    """Golden: pulls of a re-implementation with dictionaries, one client and one node after the other."""
    share, gap, nu1, rho = numbers
    algorithm = FlexibleXArmed(
        evaluations=60, c=0.02, release_when="always", own_share=share, heterogeneity=gap, nu1=nu1, rho=rho
    )
    for privacy, expected in zip((pb.NoPrivacy(), NOISY), PULLS[numbers], strict=True):
        calls = called()
        pb.run(calls.problem, algorithm, privacy=privacy, rounds=20, seed=1)
        assert all(len(made) == algorithm.budget for made in calls.made)
        assert calls.digest == expected


def test_a_phase_that_need_not_fit_is_not_paid_for() -> None:
    """1 + 2 + 4 + 8 pulls are 15, and 16 more would be too many for 22; with a cap of two nodes 1 + 10 * 2 fit."""
    privacy = pb.Privacy(epsilon=2.0, delta=1e-5)
    problem = called().problem
    for algorithm, releases in (
        (FlexibleXArmed(evaluations=22, c=0.02, release_when="always"), 4),
        (FlexibleXArmed(evaluations=22, c=1e-4, cap=2, release_when="always"), 11),
    ):
        plan = pb.plan(problem, algorithm, privacy=privacy, rounds=20)
        assert plan.releases == releases
        assert 1.99 < min(plan.epsilon().values()) <= 2.0
