"""A problem slow enough to be killed in the middle; named by the crash test's configuration."""

import dataclasses
import math
import time

import numpy as np

import privbo as pb


def _objective(clients, units):
    time.sleep(0.02)
    return -((units[:, 0] - 0.3) ** 2) + 0.01 * np.cos(clients)


def problem() -> pb.Problem:
    return pb.Problem(space={"x": pb.Real(0.0, 1.0)}, batch_objective=_objective, n_clients=6, name="crash")


def with_optimum() -> pb.Problem:
    """The same with its clients' best attainable scores, at x = 0.3."""
    return dataclasses.replace(problem(), best_values=0.01 * np.cos(np.arange(6)))


def losses(history):
    return 1.0 - history.values


def two_lost() -> pb.Problem:
    """The same where client 0, who could have most, has no value anywhere, and client 1 none on the right."""

    def objective(clients, units):
        lost = (clients == 0) | ((clients == 1) & (units[:, 0] > 0.1))
        return np.where(lost, math.nan, _objective(clients, units))

    best = 0.01 * np.cos(np.arange(6)) + 100.0 * (np.arange(6) == 0)
    return dataclasses.replace(problem(), batch_objective=objective, best_values=best)
