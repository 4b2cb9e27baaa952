"""Play an arm of the leaderboard of many evaluations, each of which is cheap and carries noise.

Rewards are shares of the declared range, with uniform noise. *Local* regret is measured on every client's own surface;
*global* regret compares what clients earn with the best setting that all could use. Regret over evaluations is the mean
over all of them; what a client leaves of its horizon it spends at the point that it would use. A search of few points
evaluates each of them several times (option ``each``) and sees the mean.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

import numpy as np

import privbo as pb
from experiments.baselines.arms import play_tree
from experiments.outcome import Outcome, Paid, Task, make, named_delta, paid
from experiments.plays.board import announced
from experiments.plays.elimination import make_tree
from experiments.plays.worth import FLOOR, MATCHED
from experiments.problems.environments import draw_noise
from experiments.problems.surfaces import PROBES, Surfaces, on_points, searched, sobol
from privbo.protocol.messages import FloatArray, IntArray
from privbo.protocol.settings import JsonObject

HORIZON = 5000  # unless an arm has the option ``horizon``


@dataclass
class Pulled:
    """Clients whose evaluations are noisy shares of the declared range, and what those earned.

    Attributes:
        surfaces: The clients.
        horizon: Evaluations of every client.
        width: Half-width of the noise.
        each: Evaluations of every point that is asked for.
        generator: Of the noise.
        pulls: Evaluations of every client so far.
        earned: Sum of their noiseless values.
    """

    surfaces: Surfaces
    horizon: int
    width: float
    each: int
    generator: np.random.Generator
    pulls: IntArray = dataclasses.field(init=False)
    earned: FloatArray = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.pulls, self.earned = np.zeros(self.surfaces.n_clients, dtype=np.int64), np.zeros(self.surfaces.n_clients)

    def share(self, values: FloatArray) -> FloatArray:
        """Give values as shares of the declared range, from the lowest to the highest value of any client."""
        low, high = float(self.surfaces.low.min()), float(self.surfaces.best.max())
        return np.asarray((values - low) / (high - low))

    def value(self, clients: IntArray, units: FloatArray) -> FloatArray:
        """Give the noiseless share of ``clients[i]`` at ``units[i]``."""
        return self.share(self.surfaces.values(clients, units))

    def problem(self) -> pb.Problem:
        """Give the problem."""
        return replace(self.surfaces.problem(), batch_objective=self, best_values=None)

    def __call__(self, clients: IntArray, units: FloatArray) -> FloatArray:
        """Evaluate every point as often as a point is."""
        return self.pull(clients, units, np.full(len(clients), self.each))

    def pull(self, clients: IntArray, units: FloatArray, counts: IntArray) -> FloatArray:
        """Mean rewards of ``counts`` evaluations each; NaN for none."""
        values, n = self.value(clients, units), self.surfaces.n_clients
        self.pulls += np.bincount(clients, weights=counts, minlength=n).astype(np.int64)
        self.earned += np.bincount(clients, weights=counts * values, minlength=n)
        rewards = values + draw_noise(self.generator, "uniform", values, counts, self.width)
        return np.where(counts > 0, rewards, np.nan)


def play(task: Task) -> Outcome:
    """Run an algorithm; eliminations and F-LCB know the horizon, the range and the width of the noise."""
    clients = _clients(task)
    if task.algorithm is None:
        raise pb.ConfigurationError("this player runs an algorithm, but its arm names none; add algorithm")
    public = {"horizon": clients.horizon, "reward_range": (-clients.width, 1.0 + clients.width), "c": clients.width}
    known = {name: value for name, value in public.items() if hasattr(task.algorithm, name)}
    fitted = replace(cast("Any", task.algorithm), **known)
    with named_delta():
        result = task.run(clients.problem(), fitted)
    common, everyone = announced(result), np.arange(clients.surfaces.n_clients)
    found = _judged(task, clients, clients.value(everyone, result.clients.recommended), paid(result))
    if common is None:
        return found
    used = clients.value(everyone, np.tile(common, (len(everyone), 1)))
    regret = _best_common(json.dumps(task.problem), task.seed) - float(used.mean())
    return replace(found, figures=found.figures | {"common": max(regret, FLOOR)})


def alone(task: Task) -> Outcome:
    """Play a tree bandit (option ``kind``) for each of the first ``MATCHED`` clients."""
    clients = _clients(task)
    used = []
    for client in range(min(MATCHED, clients.surfaces.n_clients)):

        def mean(unit: FloatArray, client: int = client) -> float:
            return float(clients.value(np.array([client]), unit[None])[0])

        bandit = make_tree(str(task.options["kind"]), clients.surfaces.space.n_dims, clients.horizon, c=clients.width)
        noise = clients.generator.uniform(-clients.width, clients.width, clients.horizon)
        earned = play_tree(bandit, mean, noise)
        clients.pulls[client], clients.earned[client] = clients.horizon, earned.sum()
        used.append(mean(bandit.tree.point(int(np.argmax(bandit.tree.visits)))))
    return _judged(task, clients, np.array(used), None)


def _clients(task: Task) -> Pulled:
    return Pulled(
        surfaces=cast("Surfaces", make(task.problem, task.seed)),
        horizon=cast("int", task.options.get("horizon", HORIZON)),
        width=float(cast("float", task.options["width"])),
        each=cast("int", task.options.get("each", 1)),
        generator=np.random.default_rng([task.seed, 3]),
    )


def _judged(task: Task, clients: Pulled, used: FloatArray, plan: Paid | None) -> Outcome:
    """Give the outcome of clients that use points of some values; the first ones where there are fewer values.

    Raises:
        ConfigurationError: If a client made more evaluations than the horizon has.
    """
    n = len(used)
    if clients.pulls.max() > clients.horizon:
        raise pb.ConfigurationError(f"a client made {clients.pulls.max()} evaluations, {clients.horizon} are allowed")
    best = clients.share(clients.surfaces.best)[:n]
    earned = (clients.earned[:n] + (clients.horizon - clients.pulls[:n]) * used) / clients.horizon
    mean, end = np.maximum(best - earned, FLOOR), np.maximum(best - used, FLOOR)
    figures = {"mean": float(mean.mean()), "end": float(end.mean())}
    figures["global"] = _best_common(json.dumps(task.problem), task.seed) - float(earned.mean())
    return Outcome(
        figures=figures | {"correlation": round(clients.surfaces.correlation(), 4)},
        curves={
            "mean by client": [round(float(x), 5) for x in mean],
            "end by client": [round(float(x), 5) for x in end],
        },
        paid=plan,
    )


@lru_cache(maxsize=2)
def _best_common(problem: str, seed: int) -> float:
    """Largest mean over clients of the share of one setting."""
    surfaces = cast("Surfaces", make(cast("JsonObject", json.loads(problem)), seed))

    def average(_: IntArray, units: FloatArray) -> FloatArray:
        return np.asarray(on_points(surfaces.values, surfaces.n_clients, units).mean(axis=0))

    heights = surfaces.probes.mean(axis=0)[None]
    points = sobol(surfaces.space, 4096, seed=1)[:PROBES]  # where the probes are
    best = searched(average, surfaces.space, points, heights)
    low, high = float(surfaces.low.min()), float(surfaces.best.max())
    return float((best[0] - low) / (high - low))
