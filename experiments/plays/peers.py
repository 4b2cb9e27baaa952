"""Other tools' own engines, alone: every matched client is tuned by the tool as its users would, nothing is shared.

Each client has as many evaluations as everyone else, chosen one by one; the first are the tool's own.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import TypeAlias, cast

import numpy as np

import privbo as pb
from experiments.outcome import Outcome, Task, make
from experiments.plays.worth import FIRST, judged, seen
from experiments.problems.surfaces import Surfaces, sobol
from privbo.protocol.messages import ClientHistory, FloatArray
from privbo.protocol.space import Space

# The next point in the cube, (n_dims,), from points (t, n_dims) and values (t,); t may be 0.
Next: TypeAlias = Callable[[FloatArray, FloatArray], FloatArray]
_RESTARTS, _RAW = 10, 512  # of BoTorch's own tutorials
_SPREAD = 4096


def alone(task: Task) -> Outcome:
    """Run a tool on the first clients; its name is the option ``tool``, their number the option ``clients``.

    The figure ``step`` is CPU seconds per choice.

    Raises:
        ConfigurationError: If the tool is none of them.
    """
    surfaces = cast("Surfaces", make(task.problem, task.seed))
    name, count = cast("str", task.options["tool"]), FIRST + task.rounds
    if name not in TOOLS:
        raise pb.ConfigurationError(f"tool={name!r} is none of {', '.join(TOOLS)}")
    chosen = np.arange(min(cast("int", task.options["clients"]), surfaces.n_clients))
    units, values = np.empty((len(chosen), count, surfaces.space.n_dims)), np.empty((len(chosen), count))
    spent = 0.0
    for client in chosen:
        choose = TOOLS[name](surfaces.space, task.seed * 1000 + int(client))
        for turn in range(count):
            start = time.process_time()
            units[client, turn] = surfaces.space.snap(choose(units[client, :turn], values[client, :turn])[None])[0]
            spent += time.process_time() - start
            values[client, turn] = surfaces.observe(np.array([client]), units[client, turn][None])[0]
    history = ClientHistory(units=units, values=values, rounds=np.arange(count), recommended=units[:, -1])
    found = judged(seen(surfaces.losses(history), history), surfaces.correlation(), None)
    found.figures["step"] = round(spent / units[..., 0].size, 5)
    return found


def _optuna(space: Space, seed: int) -> Next:
    """Optuna's Gaussian process sampler, told that values carry no noise."""
    import optuna

    from privbo.bridges.optuna import distributions_of

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    names = list(space.parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.GPSampler(seed=seed, deterministic_objective=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    asked: list[optuna.trial.Trial] = []

    def choose(_: FloatArray, values: FloatArray) -> FloatArray:
        if len(asked):
            study.tell(asked[-1], float(values[-1]))
        asked.append(study.ask(distributions_of(space)))
        return np.asarray(space.encode({name: asked[-1].params[name] for name in names}))

    return choose


def _botorch(space: Space, seed: int) -> Next:
    """BoTorch's log expected improvement after its Sobol points.

    It is maximised by BoTorch's own search among numbers, over all that is left of a finite space, and over many spread
    points where there are numbers and categories.
    """
    import torch
    from botorch.acquisition.analytic import LogExpectedImprovement
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from botorch.optim.optimize import optimize_acqf, optimize_acqf_discrete
    from gpytorch.mlls import ExactMarginalLogLikelihood

    start = sobol(space, FIRST, seed)
    grid = space.grid(2**16)
    if grid is None and space.n_embedded > space.n_dims:
        grid = sobol(space, _SPREAD, seed)

    def choose(units: FloatArray, values: FloatArray) -> FloatArray:
        if len(values) < FIRST:
            return np.asarray(start[len(values)])
        torch.manual_seed(seed + len(values))
        spread = float(values.std()) or 1.0
        told = torch.from_numpy((values - values.mean()) / spread)[:, None]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about fits that had to be tried again
            model = SingleTaskGP(torch.from_numpy(np.array(space.embed(units))), told)
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
            wish = LogExpectedImprovement(model, best_f=told.max())
            if grid is None:
                bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, space.n_dims)
                found, _ = optimize_acqf(wish, bounds, q=1, num_restarts=_RESTARTS, raw_samples=_RAW)
                return np.asarray(found[0].numpy())
            been = (grid[:, None] == units[None]).all(axis=2).any(axis=1)
            left = grid[~been]
            embedded = torch.from_numpy(np.array(space.embed(left)))
            best, _ = optimize_acqf_discrete(wish, q=1, choices=embedded)
        return np.asarray(left[int((embedded == best).all(dim=1).nonzero()[0, 0])])

    return choose


TOOLS: dict[str, Callable[[Space, int], Next]] = {"optuna": _optuna, "botorch": _botorch}
