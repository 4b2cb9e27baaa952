"""The function suites of the F-LCB paper's Figures 1 to 3 and of its Table 2, drawn from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import cast

import numpy as np

from experiments.baselines.convex_sets import Ball
from experiments.baselines.first_order import AcceleratedGradient, Optimiser, TripleAveraging
from experiments.baselines.function_arms import FunctionArm
from experiments.baselines.functions import HeavyTailed, MaxAffine, Noisy, Quadratic, RootQuadratic, draw_max_affine
from experiments.baselines.heavy_tailed import ClippedSSTM, RestartedClippedSSTM
from experiments.baselines.stochastic import AlsoExpected, StronglyConvexStochasticAccelerated
from privbo.algorithms.functional.methods import Box, Rates, StochasticAccelerated
from privbo.protocol.messages import FloatArray

N_DIMS = 20
# The paper names neither the offsets, nor the minimisers, nor the starts: these are ours.
SMOOTH_OFFSETS = (0.0, 1.0, 2.0)
REACH = 5.0
CONVEXITY = 0.1
HEAVY_SCALE = 0.1


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
    noise = AlsoExpected(stddev=sigma / np.sqrt(N_DIMS), n_dims=N_DIMS)
    arms = []
    for index, offset in enumerate(SMOOTH_OFFSETS):
        f = _draw_root(rng, offset)
        ball = Ball(centre=start, radius=float(np.linalg.norm(f.centre)))
        method = StochasticAccelerated(smoothness=1.0, noise=noise, domain=cast("Box", ball), rates=rates)
        stream = np.random.default_rng([23, seed, index])
        oracle = Noisy(oracle=f, rng=stream, gradient_stddev=noise.stddev)
        arms.append(FunctionArm(name=f"f{index + 1}", optimiser=method, oracle=oracle, start=start))
    return arms


def heavy_arms(seed: int, degrees: float = 1.6, alpha: float = 1.5, horizon: int = 1503) -> list[FunctionArm]:
    """Eq. 20 under Student's t noise of infinite variance, clipped-SSTM with its printed rate (Table 2, first line)."""
    rng = np.random.default_rng([24, seed])
    sigma = _moment(degrees, alpha)
    arms = []
    for index, offset in enumerate(SMOOTH_OFFSETS):
        f = _draw_root(rng, offset)
        distance = float(np.linalg.norm(f.centre))
        method = ClippedSSTM(smoothness=1.0, distance=distance, sigma=sigma, horizon=horizon, alpha=alpha)
        arms.append(_heavy_arm(index, f, method, seed, degrees))
    return arms


def strongly_convex_heavy_arms(seed: int, degrees: float = 1.6, alpha: float = 1.5) -> list[FunctionArm]:
    """Quadratics under the same noise, R-clipped-SSTM with its printed rate (Table 2, second line)."""
    rng = np.random.default_rng([25, seed])
    sigma = _moment(degrees, alpha)
    arms = []
    for index, offset in enumerate(SMOOTH_OFFSETS):
        f = _draw_quadratic(rng, offset)
        distance = float(np.linalg.norm(f.centre))
        method = RestartedClippedSSTM(
            smoothness=1.0, convexity=CONVEXITY, distance=distance, sigma=sigma, alpha=alpha, step_divisor=20.0
        )
        arms.append(_heavy_arm(index, f, method, seed, degrees))
    return arms


def strongly_convex_inexact_arms(seed: int, rates: Rates = "certified", sigma: float = 2.0) -> list[FunctionArm]:
    """Quadratics with normal gradient noise, Lan's accelerated method, Proposition 4.6 (Table 2, third line)."""
    rng = np.random.default_rng([26, seed])
    start = np.zeros(N_DIMS)
    noise = AlsoExpected(stddev=sigma / np.sqrt(N_DIMS), n_dims=N_DIMS)
    arms = []
    for index, offset in enumerate(SMOOTH_OFFSETS):
        f = _draw_quadratic(rng, offset)
        distance = float(np.linalg.norm(f.centre))
        ball = Ball(centre=start, radius=distance)
        method = StronglyConvexStochasticAccelerated(
            smoothness=1.0, convexity=CONVEXITY, noise=noise, domain=ball, distance=distance, rates=rates
        )
        stream = np.random.default_rng([27, seed, index])
        oracle = Noisy(oracle=f, rng=stream, gradient_stddev=noise.stddev)
        arms.append(FunctionArm(name=f"f{index + 1}", optimiser=method, oracle=oracle, start=start))
    return arms


def _heavy_arm(index: int, f: RootQuadratic | Quadratic, method: Optimiser, seed: int, degrees: float) -> FunctionArm:
    stream = np.random.default_rng([28, seed, index])
    oracle = HeavyTailed(oracle=f, rng=stream, degrees=degrees, scale=HEAVY_SCALE)
    return FunctionArm(name=f"f{index + 1}", optimiser=method, oracle=oracle, start=np.zeros(N_DIMS))


def _draw_quadratic(rng: np.random.Generator, offset: float) -> Quadratic:
    scales = rng.uniform(CONVEXITY, 1.0, N_DIMS)
    scales[:2] = CONVEXITY, 1.0
    return Quadratic(centre=rng.uniform(-1.0, 1.0, N_DIMS), scales=scales, offset=offset)


@cache
def _moment(degrees: float, alpha: float) -> float:
    """The alpha-th moment's root of the noise's norm, from 20,000 draws."""
    draws = np.random.default_rng([29]).standard_t(degrees, (20_000, N_DIMS))
    norms = np.linalg.norm(HEAVY_SCALE * draws, axis=1)
    return float(np.mean(norms**alpha) ** (1.0 / alpha))


def minima(arms: Sequence[FunctionArm]) -> FloatArray:
    """Minimum of every arm's function, ``(K,)``."""
    functions = [arm.oracle.oracle if isinstance(arm.oracle, Noisy | HeavyTailed) else arm.oracle for arm in arms]
    return np.array([cast("RootQuadratic | MaxAffine | Quadratic", f).minimum for f in functions])
