"""Play an arm of the study of what sharing is worth, and judge it by every client's own regret.

Regret is noiseless, of the point that looked best to the client so far, in units of its surface's range, and counts at
least 1 % of that: below, nobody cares which of two points is better. Curves run over evaluations.
"""

from __future__ import annotations

from typing import cast

import numpy as np

import privbo as pb
from experiments.baselines.dp_fts_de import Variant
from experiments.outcome import Outcome, Paid, Task, make, paid
from experiments.problems.surfaces import Surfaces
from privbo.protocol.messages import Algorithm, ClientHistory, Cohort, FloatArray, IntArray
from privbo.runs.altered import AlteredCohort
from privbo.testing.subject import Wrapped

FLOOR = 0.01
FIRST = 2  # evaluations every arm begins with; the mean over evaluations leaves them out
MATCHED = 20  # clients that peers are run on


def share(task: Task) -> Outcome:
    """Run an algorithm; with the option ``poisoned`` that share of the clients sends the worst vector there is.

    They are evenly chosen, act as ever, and are left out of what is judged.
    """
    clients = cast("Surfaces", make(task.problem, task.seed))
    algorithm, honest = task.algorithm, np.ones(clients.n_clients, dtype=bool)
    poisoned = cast("float", task.options.get("poisoned", 0.0))
    if poisoned and isinstance(algorithm, pb.SharedPrior | pb.DPFTSDE | Variant):
        bad = max(1, round(poisoned * clients.n_clients))
        honest[np.linspace(0, clients.n_clients - 1, bad).astype(int)] = False
        algorithm = poisoning(algorithm, np.flatnonzero(~honest))
    result = task.run(clients.problem(), algorithm)
    history = result.clients
    outcome = judged(seen(clients.losses(history), history)[honest], clients.correlation(), paid(result))
    if clients.clients is not None:
        outcome.curves["number by client"] = clients.clients[honest].tolist()
    return outcome


def tree_parzen(task: Task) -> Outcome:
    """Run Optuna's TPE as installed, alone, for the first ``MATCHED`` clients."""
    import optuna

    from privbo.bridges.optuna import distributions_of

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    clients = cast("Surfaces", make(task.problem, task.seed))
    count, chosen = FIRST + task.rounds, np.arange(min(MATCHED, clients.n_clients))
    space, names = clients.space, list(clients.space.parameters)
    units, values = np.empty((len(chosen), count, space.n_dims)), np.empty((len(chosen), count))
    for client in chosen:
        sampler = optuna.samplers.TPESampler(seed=task.seed * 1000 + int(client))
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for turn in range(count):
            trial = study.ask(distributions_of(space))
            units[client, turn] = space.snap(space.encode({name: trial.params[name] for name in names})[None])[0]
            values[client, turn] = clients.observe(np.array([client]), units[client, turn][None])[0]
            study.tell(trial, values[client, turn])
    history = ClientHistory(units=units, values=values, rounds=np.arange(count), recommended=units[:, -1])
    return judged(seen(clients.losses(history), history), clients.correlation(), None)


def seen(losses: FloatArray, history: ClientHistory) -> FloatArray:
    """Loss of the point with the largest observed value so far, ``(n, n_evaluations)``; 1 while every trial failed."""
    observed = np.where(np.isfinite(history.values), history.values, -np.inf)
    best = np.maximum.accumulate(observed, axis=1)
    at = np.where(observed >= best, np.arange(observed.shape[1]), 0)
    return np.where(best > -np.inf, np.take_along_axis(losses, np.maximum.accumulate(at, axis=1), axis=1), 1.0)


def judged(losses: FloatArray, correlation: float, plan: Paid | None) -> Outcome:
    """Give the outcome of losses so far, ``(n_clients, n_evaluations)``."""
    floored = np.maximum(losses, FLOOR)
    mean, end = floored[:, FIRST:].mean(axis=1), floored[:, -1]
    return Outcome(
        figures={"mean": float(mean.mean()), "end": float(end.mean()), "correlation": round(correlation, 4)},
        curves={
            "loss": [round(float(x), 6) for x in floored.mean(axis=0)],
            "mean by client": [round(float(x), 5) for x in mean],
            "end by client": [round(float(x), 5) for x in end],
        },
        paid=plan,
    )


def poisoning(algorithm: Algorithm, bad: IntArray) -> Wrapped:
    """Give an algorithm some of whose clients send the mean of the others turned round, as long as clipping lets it be.

    Args:
        algorithm: What is run.
        bad: Numbers of those clients.
    """

    def poisoned(cohort: Cohort) -> Cohort:
        turned = np.isin(cohort.clients, bad)

        def alter(answers: FloatArray, _: int) -> FloatArray:
            if not answers.size:
                return answers
            honest = np.nanmean(answers[~turned], axis=0)
            # The door clips it to the longest vector that is allowed.
            worst = -1e6 * honest / max(float(np.linalg.norm(honest)), 1e-12)
            return np.where(turned[:, None], worst, answers)

        return AlteredCohort(cohort=cohort, alter=alter)

    return Wrapped(algorithm=algorithm, on_cohort=poisoned, on_server=lambda server: server)
