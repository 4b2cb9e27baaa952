"""Three smooth functions per client, of which the federation looks for the best one.

Every client holds its own copy of the three functions (eq. 20 of the F-LCB paper, scaled into [0, 1], each
client's minimisers moved a little); the best function is the one whose mean over clients has the smallest minimum.
|f'| <= HEIGHT sqrt(max scales), L <= HEIGHT max scales.
"""

from __future__ import annotations

import numpy as np

import privbo as pb
from privbo.protocol.messages import FloatArray, IntArray
from privbo.protocol.space import Categorical, Real

N_CLIENTS = 1000
N_DIMS = 8
OFFSETS = (0.0, 0.15, 0.3)
HEIGHT = 0.25  # of the square root's part; losses stay inside [0, 1]
SPREAD = 0.05  # of clients' minimisers, per coordinate
STEEPNESS = 8.0


def problem(seed: int, n_clients: int = N_CLIENTS) -> pb.Problem:
    """Give the clients' functions of a seed; the arms' order is drawn too, and ``best_values`` holds the best arm."""
    rng = np.random.default_rng([31, seed])
    order = rng.permutation(len(OFFSETS))
    offsets = np.array(OFFSETS)[order]
    centres = rng.uniform(0.2, 0.8, (len(OFFSETS), N_DIMS))
    scales = STEEPNESS * np.exp(-2.0 * rng.random((len(OFFSETS), N_DIMS)))
    moved = centres[None] + SPREAD * rng.standard_normal((n_clients, len(OFFSETS), N_DIMS))

    def objective(clients: IntArray, units: FloatArray) -> FloatArray:
        arms = arm_of(units[:, 0])
        away = units[:, 1:] - moved[clients, arms]
        square = (scales[arms] * away * away).sum(axis=1)
        return np.asarray(1.0 - offsets[arms] - HEIGHT * (np.sqrt(1.0 + square) - 1.0))

    space = {"function": Categorical(("f1", "f2", "f3"))} | {f"x{i}": Real(0.0, 1.0) for i in range(N_DIMS)}
    return pb.Problem(
        space=space,
        batch_objective=objective,
        n_clients=n_clients,
        name="three functions",
        best_values=np.full(n_clients, float(np.flatnonzero(order == 0)[0])),
    )


def arm_of(first: FloatArray) -> IntArray:
    """Give the function that the first coordinate of points names, ``(n,)``."""
    return np.minimum((first * len(OFFSETS)).astype(np.int64), len(OFFSETS) - 1)


def algorithm() -> pb.FederatedFLCB:
    """Give F-LCB with the constants of ``problem``."""
    return pb.FederatedFLCB(arm="function", gradient_bound=HEIGHT * STEEPNESS**0.5, smoothness=HEIGHT * STEEPNESS)
