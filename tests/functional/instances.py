"""Random instances of every class that has a certified rate: a function, its method, a start."""

import numpy as np

from experiments.baselines.convex_sets import Ball
from experiments.baselines.first_order import (
    AcceleratedGradient,
    TripleAveraging,
)
from experiments.baselines.function_arms import FunctionArm
from experiments.baselines.functions import Noisy, Quadratic, RootQuadratic, draw_max_affine
from experiments.baselines.stochastic import AlsoExpected, StronglyConvexStochasticAccelerated
from privbo.algorithms.functional.methods import Box, StochasticAccelerated


def _inside(rng: np.random.Generator, ball: Ball) -> np.ndarray:
    direction = rng.normal(size=len(ball.centre))
    return ball.centre + direction * (ball.radius * rng.random() / np.linalg.norm(direction))


def triple(rng: np.random.Generator) -> FunctionArm:
    n_dims = int(rng.integers(1, 12))
    box = Box(low=-2.0, high=2.0, n_dims=n_dims)
    centre, start = rng.uniform(-2, 2, (2, n_dims))
    f = draw_max_affine(rng, n_pieces=int(rng.integers(2, 12)), centre=centre, offset=rng.normal())
    method = TripleAveraging(lipschitz=f.lipschitz, distance=float(np.linalg.norm(centre - start)), domain=box)
    return FunctionArm(name="triple", optimiser=method, oracle=f, start=start)


def smooth(rng: np.random.Generator) -> FunctionArm:
    n_dims = int(rng.integers(1, 20))
    centre, start = rng.normal(size=(2, n_dims))
    distance = float(np.linalg.norm(centre - start))
    scales = np.exp(-5 * rng.random(n_dims))
    kinds = [
        RootQuadratic(centre=centre, scales=scales, offset=rng.normal()),
        Quadratic(centre=centre, scales=scales),
    ]
    method = AcceleratedGradient(smoothness=float(scales.max()), distance=distance)
    return FunctionArm(name="smooth", optimiser=method, oracle=kinds[rng.integers(2)], start=start)


def stochastic(rng: np.random.Generator) -> FunctionArm:
    n_dims = int(rng.integers(1, 12))
    noise = AlsoExpected(stddev=float(np.exp(rng.uniform(-3, 1))), n_dims=n_dims)
    ball = Ball(centre=np.zeros(n_dims), radius=3.0)
    f = RootQuadratic(centre=_inside(rng, ball), scales=np.exp(-5 * rng.random(n_dims)), offset=rng.normal())
    method = StochasticAccelerated(smoothness=float(f.scales.max()), noise=noise, domain=ball)
    oracle = Noisy(oracle=f, rng=rng, gradient_stddev=noise.stddev)
    return FunctionArm(name="stochastic", optimiser=method, oracle=oracle, start=_inside(rng, ball))


def strongly_convex_stochastic(rng: np.random.Generator) -> FunctionArm:
    n_dims, mu = int(rng.integers(1, 12)), float(np.exp(rng.uniform(-2, 1)))
    noise = AlsoExpected(stddev=float(np.exp(rng.uniform(-3, 1))), n_dims=n_dims)
    ball = Ball(centre=np.zeros(n_dims), radius=2.0)
    f = draw_max_affine(rng, n_pieces=5, centre=_inside(rng, ball), convexity=mu, offset=rng.normal())
    method = StronglyConvexStochasticAccelerated(
        smoothness=mu, convexity=mu, noise=noise, domain=ball, lipschitz=2.0 * f.lipschitz
    )
    oracle = Noisy(oracle=f, rng=rng, gradient_stddev=noise.stddev)
    return FunctionArm(name="strongly-convex-stochastic", optimiser=method, oracle=oracle, start=_inside(rng, ball))


DETERMINISTIC = [triple, smooth]
STOCHASTIC = [stochastic, strongly_convex_stochastic]


def minimum(arm: FunctionArm) -> float:
    f = arm.oracle.oracle if isinstance(arm.oracle, Noisy) else arm.oracle
    return f.minimum


def exact_value(arm: FunctionArm, x: np.ndarray) -> float:
    f = arm.oracle.oracle if isinstance(arm.oracle, Noisy) else arm.oracle
    return f.value(x)
