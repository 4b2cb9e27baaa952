"""Play F-LCB on suites of functions, its private federated form, and bandits under Cauchy noise."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from experiments.baselines.f_lcb import RateViolated, f_lcb
from experiments.baselines.function_arms import FunctionArm
from experiments.baselines.heavy_bandits import Policy, RobustUCBMedian, SGDUCBSMoM, play as play_bandit
from experiments.cells import Context, Found
from experiments.figure import scales
from experiments.outcome import Outcome, Task, make, paid, world
from experiments.problems.suites import minima
from experiments.problems.three_functions import arm_of
from experiments.study import Panel, Picture
from experiments.summary import Rows
from privbo.protocol.messages import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEANS = np.arange(10) / 10.0
WIDTH = 4.0
POINTS = 200  # of every curve


def suite(task: Task) -> Outcome:
    """Run F-LCB on the functions of a seed (options ``budget``, and ``delta`` in place of 1/(K T^2)).

    The regret counts the pulls after the first one of each arm; ``bound`` is the theory's, of the regret at selection.
    """
    arms = cast("list[FunctionArm]", make(task.problem, task.seed))
    budget, delta = cast("int", task.options["budget"]), cast("float | None", task.options.get("delta"))
    lowest = minima(arms)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RateViolated)  # counted below, in the open
        found = f_lcb(arms, budget=budget, delta=delta)
    used = delta if delta is not None else 1.0 / (len(arms) * budget**2)
    pulls = [int(n) for n in found.pulls]
    rates = [arm.optimiser.rate for arm in arms]
    bound = sum(rate(k, used) for rate, n in zip(rates, pulls, strict=True) for k in range(1, n + 1))
    regret = (found.after - lowest.min())[len(arms) :]
    at_selection = float(np.nansum(found.before - lowest.min()))
    best = int(lowest.argmin())
    figures = {
        "regret": float(regret.sum()),
        "late": float(regret[100:].sum()),
        "at selection": at_selection,
        "bound": float(bound),
        "below": float(at_selection <= bound),
        "returned": float(found.chosen == best),
        "most pulled": float(int(np.argmax(pulls)) == best),
        "violations": float(len(found.violations)),
    }
    curves = {"regret": regret.cumsum(), "value": found.after[len(arms) :]}
    curves |= {f"f{i + 1}": _held(found.after, found.played == i)[len(arms) :] for i in range(len(arms))}
    return Outcome(
        figures=figures | {f"pulls {i + 1}": float(n) for i, n in enumerate(pulls)},
        curves={name: _thin(curve) for name, curve in curves.items()},
    )


def _held(values: FloatArray, seen: npt.NDArray[np.bool_]) -> FloatArray:
    """Give at every time the value that was seen last."""
    last = np.maximum.accumulate(np.where(seen, np.arange(len(values)), 0))
    return np.asarray(values[last])


def _thin(curve: FloatArray) -> list[float]:
    at = np.linspace(0, len(curve) - 1, min(len(curve), POINTS + 1)).astype(int)
    return [float(x) for x in curve[at]]


def values(axes: Axes, panel: Panel, rows: Rows, picture: Picture) -> None:
    """Draw the value of every arm under the first rate, mean and standard error over runs."""
    row = next(iter(rows.values()))
    for name in (name for name in row.curves if re.fullmatch(r"f\d+", name)):
        mean, error, _ = row.curves[name]
        x = np.linspace(0, panel.horizon, len(mean))
        (line,) = axes.plot(x, mean, label=f"{name}: {row.measures[f'pulls {name[1:]}']:.0f} pulls")
        axes.fill_between(x, mean - error, mean + error, color=line.get_color(), alpha=0.15, lw=0)
    scales(axes, picture)


def federated(task: Task) -> Outcome:
    """Run federated F-LCB: is the best function recommended, and how far is the recommended point from its optimum."""
    made = world(task.problem, task.seed).problem()
    result = task.run(made)
    best = int(np.asarray(made.best_values)[0])
    pulls = np.bincount(arm_of(result.clients.units[0, :, 0]))
    figures = {
        "right": float(arm_of(result.clients.recommended[:1, 0])[0] == best),
        "most pulled": float(int(pulls.argmax()) == best),
        "loss": 1.0 - float(np.nanmean(result.clients.values[:, -1])),
    }
    return Outcome(figures=figures, paid=paid(result))


def cauchy(context: Context) -> Found:
    """Play the three algorithms of Figure 5, and the functional index as printed, on one stream of Cauchy noise.

    One after another; a seed is a trial, and all trials are played at once.
    """
    horizon, trials = int(context.panel.horizon), len(context.seeds)
    rng = np.random.default_rng(5)
    smoothed = partial(SGDUCBSMoM, len(MEANS), n_trials=trials, rng=rng, scale=WIDTH)
    policies: dict[str, Callable[[], Policy]] = {
        "SGD-UCB-SMoM": smoothed,
        "SGD-UCB-SMoM-F": partial(smoothed, index="averaged"),
        "SGD-UCB-SMoM-F, printed index": partial(smoothed, index="printed"),
        "RUCB-Median": partial(RobustUCBMedian, len(MEANS), n_trials=trials, horizon=horizon),
    }
    found: Found = {}
    for name, make_policy in policies.items():
        curves = play_bandit(make_policy(), MEANS, horizon=horizon, noise=rng.standard_cauchy, n_trials=trials)
        found[name] = {
            seed: Outcome(figures={"regret": float(curve[-1])}, curves={"regret": [0.0, *curve.tolist()]})
            for seed, curve in zip(context.seeds, curves, strict=True)
        }
    uniform = float((MEANS.max() - MEANS).mean() * horizon)
    found["uniform play"] = {seed: Outcome(figures={"regret": uniform}) for seed in context.seeds}
    return found
