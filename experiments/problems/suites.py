"""The function suites of the F-LCB paper's Figures 1 to 3, drawn from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from experiments.baselines.convex_sets import Ball
from experiments.baselines.first_order import AcceleratedGradient, TripleAveraging
from experiments.baselines.function_arms import FunctionArm
from experiments.baselines.functions import MaxAffine, Noisy, RootQuadratic, draw_max_affine
from privbo.algorithms.functional.sets import Box
from privbo.algorithms.functional.stochastic import GradientNoise, Rates, StochasticAccelerated
from privbo.protocol.messages import FloatArray

N_DIMS = 20
# The paper names neither the offsets, nor the minimisers, nor the starts: these are ours.
SMOOTH_OFFSETS = (0.0, 1.0, 2.0)
REACH = 5.0


def _draw_root(rng: np.random.Generator, offset: float) -> RootQuadratic:
    scales = np.exp(-5.0 * rng.random(N_DIMS))
    scales[0] = 1.0
    return RootQuadratic(centre=rng.uniform(-REACH, REACH, N_DIMS), scales=scales, offset=offset)


def smooth_arms(seed: int, rates: Rates = "certified") -> list[FunctionArm]:
    """Eq. 20: three smooth functions, accelerated gradient from 0, R known."""
    rng = np.random.default_rng([20, seed])
    start = np.zeros(N_DIMS)
    arms = []
    for index, offset in enumerate(SMOOTH_OFFSETS):
        f = _draw_root(rng, offset)
        distance = float(np.linalg.norm(f.centre))
        method = AcceleratedGradient(smoothness=1.0, distance=distance, rates=rates)
        arms.append(FunctionArm(name=f"f{index + 1}", optimiser=method, oracle=f, start=start))
    return arms


def nonsmooth_arms(seed: int, rates: Rates = "certified") -> list[FunctionArm]:
    """Eq. 21 on [-4, 4]^20: 5, 10 and 12 pieces with minima 0.5, 1 and 1.5, triple averaging."""
    rng = np.random.default_rng([21, seed])
    box = Box(low=-4.0, high=4.0, n_dims=N_DIMS)
    arms = []
    for index, (n_pieces, offset) in enumerate(((5, 0.5), (10, 1.0), (12, 1.5))):
        centre, start = rng.uniform(-4, 4, N_DIMS), rng.uniform(-4, 4, N_DIMS)
        f = draw_max_affine(rng, n_pieces=n_pieces, centre=centre, offset=offset)
        distance = float(np.linalg.norm(centre - start))
        method = TripleAveraging(lipschitz=f.lipschitz, distance=distance, domain=box, rates=rates)
        arms.append(FunctionArm(name=f"f{index + 1}", optimiser=method, oracle=f, start=start))
    return arms


def inexact_arms(seed: int, rates: Rates = "certified", sigma: float = 2.0) -> list[FunctionArm]:
    """Eq. 20 with gradient noise sigma/sqrt(d) per coordinate, on the ball of twice the distance."""
    rng = np.random.default_rng([22, seed])
    start = np.zeros(N_DIMS)
    noise = GradientNoise(stddev=sigma / np.sqrt(N_DIMS), n_dims=N_DIMS)
    arms = []
    for index, offset in enumerate(SMOOTH_OFFSETS):
        f = _draw_root(rng, offset)
        ball = Ball(centre=start, radius=float(np.linalg.norm(f.centre)))
        method = StochasticAccelerated(smoothness=1.0, noise=noise, domain=ball, rates=rates)
        stream = np.random.default_rng([23, seed, index])
        oracle = Noisy(oracle=f, rng=stream, gradient_stddev=noise.stddev)
        arms.append(FunctionArm(name=f"f{index + 1}", optimiser=method, oracle=oracle, start=start))
    return arms


def minima(arms: Sequence[FunctionArm]) -> FloatArray:
    """Minimum of every arm's function, ``(K,)``."""
    functions = [arm.oracle.oracle if isinstance(arm.oracle, Noisy) else arm.oracle for arm in arms]
    return np.array([cast("RootQuadratic | MaxAffine", f).minimum for f in functions])
