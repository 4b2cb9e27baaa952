"""Play Fed-PNE, PF-PNE and what they are compared with; regret is noiseless and cumulative per client.

*Global* regret is measured on the average objective, *local* regret on every client's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias, cast

import numpy as np

import privbo as pb
from experiments.baselines.arms import fed1_ucb, play_tree, random_arms, random_search
from experiments.baselines.hoo import HOO
from experiments.baselines.tree import TreeBandit, locate
from experiments.baselines.trees import HCT, VHCT
from experiments.outcome import Outcome, Task, make, paid
from experiments.problems.clients import Clients
from experiments.problems.environments import Environment, Shifted
from privbo.algorithms.elimination.alone import PersonalElimination
from privbo.algorithms.elimination.settings import Partition
from privbo.protocol.messages import (
    Algorithm,
    Ask,
    FloatArray,
    IntArray,
    PlainEvaluate,
    Release,
    Request,
    Server,
    Setting,
)
from privbo.testing.subject import Wrapped

Searches: TypeAlias = pb.FedPNE | pb.PFPNE | PersonalElimination
POINTS = 100  # of every curve


def federated(task: Task) -> Outcome:
    """Run Fed-PNE or PF-PNE; with the option ``sampled`` only so many clients go on alone once all have shared."""
    clients = _clients(task)
    env = clients.environment()
    fitted = replace(cast("Searches", task.algorithm), horizon=clients.horizon, reward_range=env.reward_range)
    if sampled := cast("int", task.options.get("sampled", 0)):
        return _sampled(task, clients, env, fitted, sampled)
    sent: list[tuple[int, int]] = []

    def note(event: pb.Round) -> None:
        if event.release is not None:
            sent.append((int(env.pulls.max()), event.release.values.shape[1]))

    result = task.run(env.problem(), fitted, on_round=note)
    found = _outcome(env, result)
    found.figures["floats down"] = numbers_told(fitted, _setting(env, task.rounds), result.releases)
    found.curves["sent"] = _stairs(sent, clients.horizon)
    if isinstance(fitted, pb.FedPNE):
        found.figures["lost"] = float(lost_optimum(fitted, env, result.releases, task.rounds))
    return found


def _clients(task: Task) -> Clients:
    return cast("Clients", make(task.problem, task.seed))


def _setting(env: Environment, rounds: int) -> Setting:
    return Setting(space=env.problem().search_space, n_clients=env.n_clients, rounds=rounds, public_seed=0)


def _outcome(env: Environment, result: pb.Record | None = None) -> Outcome:
    curves = {"global": _thin(env.regret(env.global_best)), "local": _thin(env.regret(env.local_best))}
    found = {name: curve[-1] for name, curve in curves.items()}
    if result is None:
        return Outcome(figures=found, curves=curves)
    sizes = [release.values.shape[1] for release in result.releases]
    return Outcome(figures=found | {"made": len(sizes), "floats up": sum(sizes)}, curves=curves, paid=paid(result))


def _thin(curve: FloatArray) -> list[float]:
    at = np.linspace(0, len(curve) - 1, POINTS + 1).astype(int)
    return [float(x) for x in curve[at]]


def _stairs(sent: list[tuple[int, int]], horizon: int) -> list[float]:
    """Numbers one client has sent by the time it has made so many pulls."""
    times = np.linspace(0, horizon, POINTS + 1)
    return [float(sum(size for pulls, size in sent if pulls <= time)) for time in times]


def numbers_told(algorithm: Algorithm, setting: Setting, releases: tuple[Release, ...]) -> int:
    """Count the numbers the server tells every client until it falls silent, that message included."""
    server, told = algorithm.server(setting), 0
    for release in (*releases, None):
        ask = server.ask()
        if ask is not None:
            told += sum(np.size(array) for array in ask.broadcast.arrays.values())
        server.tell(release)
    return told


def lost_optimum(algorithm: pb.FedPNE, env: Environment, releases: tuple[Release, ...], rounds: int) -> bool:
    """Say whether the last phase's active nodes miss the cells of all of the average objective's optima."""
    server = algorithm.server(_setting(env, rounds))
    active, depth = np.zeros(1, dtype=np.int64), 0
    for release in releases:
        if server.phase is not None:
            active, depth = server.phase.nodes, server.phase.depth
        server.tell(release)
    partition = Partition(n_dims=env.model.n_dims, n_children=algorithm.n_children)
    cells = locate(partition, depth, env.model.global_optima)
    return not bool(np.isin(cells, active).any())


# ---- some clients go on alone


def shared_stage(algorithm: Searches) -> Wrapped:
    """Give the shared phases of an algorithm alone: the run ends where it would fall silent."""
    return Wrapped(algorithm=algorithm, on_cohort=lambda cohort: cohort, on_server=_UntilSilence)


class _UntilSilence:
    def __init__(self, server: Server) -> None:
        self._server = server

    def plan(self) -> Iterator[Request]:
        return self._server.plan()

    def ask(self) -> Ask | None:
        ask = self._server.ask()
        return None if ask is None or ask.request is None else ask

    def tell(self, release: Release | None) -> None:
        self._server.tell(release)


def _sampled(task: Task, clients: Clients, env: Environment, fitted: Searches, sampled: int) -> Outcome:
    """All clients share; ``sampled`` of them, evenly chosen, go on alone with fresh reward noise.

    What a client does alone depends on nobody else, so their mean estimates that of all.
    """
    result = task.run(env.problem(), shared_stage(fitted))
    few = Environment(
        _some(env, np.linspace(0, clients.n_clients - 1, sampled).astype(int)),
        seed=task.seed + 1_000_000,
        noise=clients.noise,
        width=clients.width,
        horizon=clients.horizon,
    )
    setting, releases = _setting(env, task.rounds), iter(result.releases)
    server = fitted.server(setting)
    cohort = fitted.cohort(setting, clients=np.arange(sampled), evaluate=PlainEvaluate(few, few.pull), seed=0)
    while (ask := server.ask()) is not None:
        cohort.respond(ask.broadcast)
        server.tell(None if ask.request is None else next(releases))
    found = _outcome(few, result)
    del found.figures["global"], found.curves["global"]
    return found


def _some(env: Environment, chosen: IntArray) -> Shifted:
    """The chosen clients of shifted functions."""
    model = env.model
    if not isinstance(model, Shifted):
        raise pb.ConfigurationError(f"{model.name} is no shifted function; only those can be played by some clients")
    few = Shifted(model.named, len(chosen), seed=0)
    few.shifts, few.scale, few.offsets = model.shifts[chosen], model.scale, model.offsets[chosen]
    return few


# ---- what they are compared with


def tree(task: Task) -> Outcome:
    """Play a tree bandit (option ``kind``) on the average objective, or on each of ``sampled`` clients' own."""
    clients, kind = _clients(task), str(task.options["kind"])
    model = clients.model
    if "sampled" not in task.options:
        best = float(model.average(model.global_optimum[None])[0])
        return _earned("global", best - _play(clients, kind, task.seed, None))
    chosen = np.linspace(0, clients.n_clients - 1, cast("int", task.options["sampled"])).astype(int)
    each = [model.local_bests[c] - _play(clients, kind, task.seed, int(c)) for c in chosen]
    return _earned("local", np.mean(each, axis=0))


def _earned(name: str, regret: FloatArray) -> Outcome:
    curve = _thin(np.cumsum(regret))
    return Outcome(figures={name: curve[-1]}, curves={name: curve})


def _play(clients: Clients, kind: str, seed: int, client: int | None) -> FloatArray:
    """Noiseless rewards of one bandit, on a client's objective or on the average."""
    model = clients.model

    def mean(x: FloatArray) -> float:
        values = model.average(x[None]) if client is None else model.values(np.array([client]), x[None])
        return float(values[0])

    if clients.noise != "uniform":
        raise pb.ConfigurationError("tree baselines are compared under uniform reward noise")
    generator = np.random.default_rng([seed, 11, 0 if client is None else client + 1])
    noise = np.asarray(generator.uniform(-clients.width, clients.width, clients.horizon))
    return play_tree(make_tree(kind, model.n_dims, clients.horizon), mean, noise)


def make_tree(kind: str, n_dims: int, horizon: int, c: float = 0.1) -> TreeBandit:
    """Make a tree bandit: ``"hct"``, ``"hct-resplit"``, ``"vhct"`` or ``"hoo"``, whose intervals have the width c."""
    partition = Partition(n_dims=n_dims)
    if kind == "hoo":
        return HOO(partition, horizon=horizon)
    return VHCT(partition, c=c) if kind == "vhct" else HCT(partition, c=c, resplit=kind == "hct-resplit")


def flat(task: Task) -> Outcome:
    """Play a search without a tree (option ``kind``): ``"fed1-ucb"`` or ``"random"``."""
    clients = _clients(task)
    env, n, horizon = clients.environment(), clients.n_clients, clients.horizon
    arms = random_arms(env.model.n_dims, np.random.default_rng([task.seed, 13]))
    if task.options["kind"] == "fed1-ucb":
        fed1_ucb(env.pull, n_clients=n, arms=arms, horizon=horizon, noise_scale=clients.width)
    else:
        generator = np.random.default_rng([task.seed, 17])
        random_search(env.pull, n_clients=n, n_dims=env.model.n_dims, horizon=horizon, generator=generator)
    return _outcome(env)


def thompson(task: Task) -> Outcome:
    """Run DP-FTS-DE, then let every client play the point it recommends."""
    clients = _clients(task)
    env = clients.environment()
    result = task.run(env.problem())
    env.pull(np.arange(clients.n_clients), result.clients.recommended, np.maximum(clients.horizon - env.pulls, 0))
    return _outcome(env)
