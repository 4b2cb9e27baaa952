"""Play model selection: searches over recorded learning curves, private searches, and image classifiers.

Arms are deterministic given their seed, so a search over recorded curves does what a search over
live training does, at no cost.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeAlias, cast

import numpy as np
import torch

from accountant.mechanisms.selection import TruncatedNegativeBinomial
from experiments.baselines import architectures
from experiments.baselines.f_lcb import Arm, RateViolated, Selection, f_lcb
from experiments.baselines.halving import early_stopping, hyperband, successive_halving, uniform
from experiments.baselines.neural import NeuralArm, RatedArm, Training, accuracy, adam
from experiments.cells import Context, Found
from experiments.outcome import Outcome, Task, make
from experiments.plays.curves import RecordedArm
from experiments.problems.digits import Digits, load_digits, network
from privbo.training.plan import RecordPrivacy, priced
from privbo.training.private_neural import MakeModel, PrivateNeuralArm
from privbo.training.search import central_run

MODELS = {"cifar10": architectures.CIFAR10, "cifar100": architectures.CIFAR100}
LEARNING_RATE = 0.5  # of the optimiser under the noise, set for the private regime
DELTA = 1e-5
RUNS = TruncatedNegativeBinomial(eta=1.0, gamma=0.1)  # ten runs on average
RUN_STEPS = 80
N_TRAINING, N_VALIDATION = 1000, 400
NEAR = 0.02  # of the best model's accuracy

Search: TypeAlias = Callable[[Sequence[Arm], int, int], Selection]


def _networks(task: Task) -> dict[str, MakeModel]:
    """Give the models of a task by name: option ``models``, a list of names or an archive's candidates."""
    models = task.options["models"]
    return MODELS[models] if isinstance(models, str) else {name: network(name) for name in cast("list[str]", models)}


def curve(task: Task) -> Outcome:
    """Train one model (option ``model``) without privacy: validation loss and test accuracy after every pull.

    A pull is 40 steps of Adam (option ``learning_rate``, 1e-3); initial weights and batches follow the seed and the
    model's place in ``models``.
    """
    torch.set_num_threads(1)
    name, models = str(task.options["model"]), _networks(task)
    given = cast("Digits", make(task.problem, task.seed))
    seed, rate = 1000 * task.seed + list(models).index(name), cast("float", task.options.get("learning_rate", 1e-3))
    arm = NeuralArm(name=name, model=models[name], data=given.split, optimiser=adam(rate), seed=seed)
    state, test = arm.init(), []
    for _ in range(cast("int", task.options["pulls"])):
        state = arm.step(state)
        test.append(accuracy(state.model, given.test_x, given.test_y))
    best = RecordedArm(name=name, losses=tuple(state.losses), test=tuple(test)).best_test
    return Outcome(figures={"accuracy": best}, curves={"loss": list(state.losses), "test": test})


def _quietly(arms: Sequence[Arm], budget: int) -> Selection:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RateViolated)  # counted in the table
        return f_lcb(arms, budget=budget)


def _common(arms: Sequence[Arm], budget: int, _seed: int) -> Selection:
    """F-LCB with g(k) = 2 log(10)/sqrt(k) for every arm."""
    same = [dataclasses.replace(arm, reference=math.log(10)) for arm in cast("Sequence[RecordedArm]", arms)]
    return _quietly(same, budget)


SEARCHES: dict[str, Search] = {
    "Hyperband": lambda arms, budget, seed: hyperband(arms, budget=budget, seed=seed),
    "SuccessiveHalving": lambda arms, budget, _: successive_halving(arms, budget=budget),
    "F-LCB": lambda arms, budget, _: _quietly(arms, budget),
    "F-LCB, common g": _common,
    "uniform": lambda arms, budget, _: uniform(arms, budget=budget),
    "early stopping": lambda arms, budget, _: early_stopping(arms, budget=budget, patience=5, min_gain=0.01),
}


def _models(context: Context) -> Found:
    """The curves of the arms that are models; their first pulls are trained once for all searches."""
    arms = tuple(arm for arm in context.panel.arms if "model" in arm.options)
    return dataclasses.replace(context, panel=dataclasses.replace(context.panel, arms=arms)).outcomes()


def _accuracies(found: Found) -> dict[str, float]:
    return {name: float(np.mean([run.figures["accuracy"] for run in runs.values()])) for name, runs in found.items()}


def search_curves(context: Context) -> Found:
    """Search recorded curves: rank of the model that every search selects (Table 4).

    The true order is the mean test accuracy, where the validation loss is smallest, of the arms with option ``long``
    over their seeds; of the searched curves themselves where there are none.
    """
    found = _models(context)
    long = {str(arm.options["model"]): arm.label for arm in context.panel.arms if arm.options.get("long")}
    names = [name for name in found if name not in long.values()]
    accuracies = _accuracies({name: found[long.get(name, name)] for name in names})
    order = {name: place + 1.0 for place, name in enumerate(sorted(names, key=lambda name: -accuracies[name]))}
    curves = {
        seed: [
            RecordedArm(name=n, losses=tuple(found[n][seed].curves["loss"]), test=tuple(found[n][seed].curves["test"]))
            for n in names
        ]
        for seed in context.seeds
    }
    for arm in context.panel.arms:
        if "model" in arm.options:
            continue
        search, budget = SEARCHES[str(arm.options["search"])], cast("int", arm.options["budget"])
        selected = {seed: search(arms, budget, seed) for seed, arms in curves.items()}
        ranks = {seed: order[names[s.chosen or 0]] for seed, s in selected.items()}
        failed = {seed: float(len({v.arm for v in s.violations})) for seed, s in selected.items()}
        found[arm.label] = {
            seed: Outcome(figures={"rank": rank, "best": float(rank == 1), "violations": failed[seed]})
            for seed, rank in ranks.items()
        }
    for name, rank in order.items():
        for run in found[long.get(name, name)].values():
            run.figures["true rank"] = rank
    return found


# ---- private searches


def sgd(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Make the optimiser under the noise."""
    return torch.optim.SGD(parameters, lr=LEARNING_RATE)


def private(task: Task) -> Outcome:
    """Search privately at record level (options ``search``, ``epsilon``, ``pulls``, ``models``).

    Training and validation records are a public, disjoint split; epsilon is the target of either part. F-LCB, halving
    and Hyperband share one plan of pulls; private selection (Papernot and Steinke 2022) trains a secret random number
    of randomly chosen models and is priced by its own theorem.
    """
    torch.set_num_threads(1)
    digits = load_digits(task.seed, n_train=N_TRAINING, n_validation=N_VALIDATION)
    if task.options["search"] == "private selection":
        return _selected(task, digits)
    models, pulls = cast("list[str]", task.options["models"]), cast("int", task.options["pulls"])
    epsilon = cast("float", task.options["epsilon"])
    privacy = RecordPrivacy(epsilon=epsilon, delta=DELTA, pulls=pulls, noise="simulation")
    run = central_run(priced(privacy, n_training=N_TRAINING, n_validation=N_VALIDATION), seed=task.seed)
    arm = partial(RatedArm, data=digits.split, optimiser=sgd, trainer=run.trainer, judge=run.judge)
    seeds = range(1000 * task.seed, 1000 * task.seed + len(models))
    arms = [
        arm(name=name, model=network(name), seed=seed, reference=math.log(10))
        for name, seed in zip(models, seeds, strict=True)
    ]
    found = SEARCHES[str(task.options["search"])](arms, pulls, task.seed)
    state = None if found.chosen is None else found.states.get(found.chosen)
    figures = {
        "chosen": float(-1 if found.chosen is None else found.chosen),
        "violations": float(len(found.violations)),
    }
    if state is not None:
        figures["private accuracy"] = accuracy(state.model, digits.test_x, digits.test_y)
    return Outcome(figures=figures | _price(run.plan.epsilon()))


def _price(epsilons: dict[str, float]) -> dict[str, float]:
    return {part: epsilons[part] for part in ("training", "validation", "both")}


def _selected(task: Task, digits: Digits) -> Outcome:
    epsilon, names = cast("float", task.options["epsilon"]), cast("list[str]", task.options["models"])
    privacy = RecordPrivacy(epsilon=epsilon, delta=DELTA, pulls=1, steps=RUN_STEPS, noise="simulation")
    plan = priced(privacy, runs=RUNS, n_training=N_TRAINING, n_validation=N_VALIDATION)
    selection = central_run(plan, candidates=names, seed=task.seed)
    trained = partial(PrivateNeuralArm, trainer=selection.trainer, judge=selection.judge, steps=RUN_STEPS)
    seeds = itertools.count(1000 * task.seed)

    def run_one(index: int) -> tuple[float, dict[str, torch.Tensor]]:
        name, seed = names[index], next(seeds)
        arm = trained(name=name, model=network(name), data=digits.split, optimiser=sgd, seed=seed)
        state = arm.step(arm.init())
        return arm.value(state), state.model.state_dict()

    found = selection.select(run_one)
    return Outcome(figures={"chosen": float(found.chosen), "violations": 0.0} | _price(plan.epsilon()))


def judge_private(context: Context) -> Found:
    """Judge private choices by the long-run accuracy of the chosen model, beside the best and a random one."""
    truth = _models(context)
    accuracies, names = _accuracies(truth), list(truth)
    best = max(accuracies.values())
    searches = tuple(arm for arm in context.panel.arms if "search" in arm.options)
    found = dataclasses.replace(context, panel=dataclasses.replace(context.panel, arms=searches)).outcomes()
    for runs in found.values():
        for run in runs.values():
            chosen = int(run.figures.pop("chosen"))
            reached = accuracies[names[chosen]] if chosen >= 0 else 0.0
            rank = 1.0 + sum(other > reached for other in accuracies.values()) if chosen >= 0 else float(len(names))
            run.figures.update({"reached": reached, "rank": rank, "near": float(best - reached <= NEAR)})
    levels = {"best model": best, "random choice": float(np.mean(list(accuracies.values())))}
    return truth | found | {name: {0: Outcome(figures={"reached": level})} for name, level in levels.items()}


# ---- image classifiers


def classify(task: Task) -> Outcome:
    """Run F-LCB over the models of an archive (options ``models``, ``pulls``): test accuracy after every pull."""
    given = cast("Digits", make(task.problem, task.seed))
    models = MODELS[str(task.options["models"])]
    arms = [
        NeuralArm(name=name, model=model, data=given.split, optimiser=adam(1e-4), seed=1000 * task.seed + i)
        for i, (name, model) in enumerate(models.items())
    ]
    curves: list[list[float]] = [[] for _ in arms]

    def after(arm: int, state: Training | None) -> None:
        if state is not None:
            curves[arm].append(accuracy(state.model, given.test_x, given.test_y))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RateViolated)  # counted below
        found = f_lcb(arms, budget=cast("int", task.options["pulls"]), on_pull=after)
    figures = {
        "chosen": float(-1 if found.chosen is None else found.chosen),
        "violations": float(len(found.violations)),
    }
    pulls = {f"pulls {name}": float(n) for name, n in zip(models, found.pulls, strict=True)}
    return Outcome(figures=figures | pulls, curves=dict(zip(models, curves, strict=True)))


def by_model(context: Context) -> Found:
    """Tell the outcomes of ``classify`` apart by model; one seed after another, because a seed fills the device."""
    (runs,) = dataclasses.replace(context, jobs=1).outcomes().values()
    names = list(next(iter(runs.values())).curves)
    found: Found = {name: {} for name in names}
    for seed, run in runs.items():
        for index, name in enumerate(names):
            seen = run.curves[name]
            figures = {"pulls": run.figures[f"pulls {name}"], "chosen": float(run.figures["chosen"] == index)}
            last = {"accuracy": seen[-1]} if seen else {}
            found[name][seed] = Outcome(figures=figures | last, curves={"accuracy": seen})
    return found
