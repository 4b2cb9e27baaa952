"""A step of clients alone beside BoTorch's: a fit to what is known, and the point of largest log improvement.

BoTorch as its tutorials use it: a ``SingleTaskGP``, ``fit_gpytorch_mll``, and ``optimize_acqf`` with as many raw
samples as ours has candidates. Its clients come one after the other: it has no step for independent models whose
searches end in points of their own. CPU seconds on one thread; the row is missing where BoTorch is.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

import privbo as pb
from benchmarks._rows import Row, least, smallest
from benchmarks.histories import round_flops
from privbo.protocol.messages import FloatArray
from privbo.protocol.processes import limited_threads

if TYPE_CHECKING:
    from torch import Tensor

LENGTHS, N_CLIENTS, PEERS, TIMES = (6, 12, 22), 40, 2, 10.0


def rows() -> Iterator[Row]:
    """Give a step of a default run's average length: the mean over several lengths of history."""
    with limited_threads(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        generator = np.random.default_rng(0)
        points = generator.random((N_CLIENTS, max(LENGTHS), 2))
        ours = float(np.mean([_ours(points[:, :t]) for t in LENGTHS])) / N_CLIENTS
        limit = least(flops=float(np.mean([round_flops(t, pb.SharedPrior().own.fit_steps) for t in LENGTHS])))
        name = f"a step of a client alone, {' to '.join(map(str, LENGTHS[::2]))} evaluations: fit and search"
        try:
            theirs = float(np.mean([_botorch(points[:PEERS, :t]) for t in LENGTHS])) / PEERS
        except ModuleNotFoundError:
            sys.stderr.write(f"no row: {name}: BoTorch is not installed (the extra `bench`)\n")
            return
        yield Row(name, ours, "BoTorch: SingleTaskGP, LogExpectedImprovement", theirs, least=limit)
        yield Row(name, ours, f"the bar, BoTorch's over {TIMES:g}", theirs / TIMES, kind="bar")


def _heights(points: FloatArray) -> FloatArray:
    return np.asarray(np.sin(7.0 * points.sum(axis=-1)) + points[..., 0])


def _ours(points: FloatArray) -> float:
    """Seconds of a first fit and a search of all clients."""
    import torch

    from privbo.algorithms.thompson.evaluations import Evaluations
    from privbo.algorithms.thompson.local_model import LocalModel
    from privbo.protocol.messages import PlainEvaluate, Setting

    space = pb.Space({"x": pb.Real(0.0, 1.0), "y": pb.Real(0.0, 1.0)})
    clients = np.arange(len(points))
    setting = Setting(space=space, n_clients=len(clients), rounds=100, public_seed=0)
    seen = Evaluations(clients, PlainEvaluate(lambda _, units: _heights(units)), space, torch.device("cpu"))
    for round_ in range(points.shape[1]):
        seen.query(points[:, round_], round_)

    def step() -> object:
        return LocalModel(pb.SharedPrior().own, setting, clients, 0, avoid=True).propose(seen, points.shape[1])

    step()  # imports
    return smallest(step)


def _botorch(points: FloatArray) -> float:
    """Seconds of the same by BoTorch, one client after the other."""
    import torch
    from botorch.acquisition.analytic import LogExpectedImprovement
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from botorch.optim.optimize import optimize_acqf
    from gpytorch.mlls import ExactMarginalLogLikelihood

    bounds, raw = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64), pb.SharedPrior().own.n_candidates

    def one(x: Tensor, y: Tensor) -> None:
        model = SingleTaskGP(x, (y - y.mean()) / y.std())
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        wish = LogExpectedImprovement(model, best_f=model.train_targets.max())
        optimize_acqf(wish, bounds=bounds, q=1, num_restarts=10, raw_samples=raw)

    def step() -> None:
        for x, y in zip(torch.as_tensor(points), torch.as_tensor(_heights(points)), strict=True):
            one(x, y[:, None])

    step()  # imports
    return smallest(step)
