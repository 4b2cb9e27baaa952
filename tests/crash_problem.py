"""A problem slow enough to be killed in the middle; named by the crash test's configuration."""

import dataclasses
import time

import numpy as np

import privbo as pb
from privbo.protocol.messages import FloatArray, IntArray


def _objective(clients: IntArray, units: FloatArray) -> FloatArray:
    time.sleep(0.02)
    return -((units[:, 0] - 0.3) ** 2) + 0.01 * np.cos(clients)


def problem() -> pb.Problem:
    return pb.Problem(space={"x": pb.Real(0.0, 1.0)}, batch_objective=_objective, n_clients=6, name="crash")


def with_optimum() -> pb.Problem:
    """The same with its clients' best attainable scores, at x = 0.3."""
    return dataclasses.replace(problem(), best_values=0.01 * np.cos(np.arange(6)))
