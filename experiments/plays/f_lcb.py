"""Play F-LCB on suites of functions, its private federated form, and bandits under Cauchy noise."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from experiments.baselines.function_arms import FunctionArm
from experiments.baselines.heavy_bandits import Policy, RobustUCBMedian, SGDUCBSMoM
from experiments.baselines.heavy_bandits import play as play_bandit
from experiments.cells import Context, Found
from experiments.outcome import Outcome, Task, make, paid, world
from experiments.problems.suites import minima
from experiments.problems.three_functions import arm_of
from experiments.study import Panel, Picture
from experiments.summary import Rows
from privbo.algorithms.functional.bounds import RateViolated
from privbo.algorithms.functional.f_lcb import f_lcb

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEANS = np.arange(10) / 10.0
WIDTH = 4.0


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
    curves = {"regret": regret.cumsum().tolist(), "value": found.after.tolist(), "played": found.played.tolist()}
    return Outcome(figures=figures | {f"pulls {i + 1}": float(n) for i, n in enumerate(pulls)}, curves=curves)


def values(axes: Axes, _panel: Panel, rows: Rows, _picture: Picture) -> None:
    """Draw the value of every arm against pulls, in the first run of the first rate."""
    curves = next(iter(rows.values())).first.curves
    played, after = np.array(curves["played"]), np.array(curves["value"])
    for arm in np.unique(played):
        at = np.flatnonzero(played == arm)
        axes.step(at, after[at], where="post", label=f"f{int(arm) + 1}: {len(at)} pulls")
    axes.set_yscale("log")


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
