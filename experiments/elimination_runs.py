"""What the elimination experiments share: simulated clients, one run of every player, and its figures.

Regret is noiseless and cumulative per client. *Global* regret is measured on the average
objective, *local* regret on every client's own.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

import privbo as pb
from experiments.baselines.arms import fed1_ucb, play_tree, random_arms, random_search
from experiments.baselines.fn_ucb import fn_ucb
from experiments.baselines.hoo import HOO
from experiments.baselines.tree import locate
from experiments.baselines.trees import HCT, VHCT
from experiments.elimination_cells import POINTS
from experiments.environments import Environment, Model, Noise, Shifted
from experiments.objectives import FUNCTIONS
from privbo.algorithms.elimination.alone import PersonalElimination
from privbo.algorithms.elimination.fed_pne import FedPNE
from privbo.algorithms.elimination.fed_pne_server import FedPNEServer
from privbo.algorithms.elimination.partition import Partition
from privbo.algorithms.elimination.pf_pne import PFPNE
from privbo.protocol.messages import FloatArray, Setting

Tree: TypeAlias = Literal["hct", "hct-resplit", "vhct", "hoo"]
NEURAL_SEEDS = 4  # FN-UCB trains a network per client and round
MODULES = ("covid", "landmine")  # objectives that are more than a function of the unit cube


@dataclass(frozen=True, kw_only=True)
class Clients:
    """Simulated clients: a test function shifted per client, doses or mine fields; with reward noise.

    Raises:
        ConfigurationError: If there is no objective of that name.
    """

    function: str
    n_clients: int
    horizon: int = 5000
    shift: float = 0.01
    vertical: float = 0.0
    noise: Noise = "uniform"
    width: float = 0.1

    def __post_init__(self) -> None:
        if self.function not in FUNCTIONS and self.function not in MODULES:
            known = ", ".join((*FUNCTIONS, *MODULES))
            raise pb.ConfigurationError(f"function={self.function!r} is no objective; choose one of {known}")

    def model(self, world: int) -> Model:
        """What the clients of a world earn."""
        if self.function in FUNCTIONS:
            return _shifted(self.function, self.n_clients, world, self.shift, self.vertical)
        module = importlib.import_module(f"experiments.{self.function}")
        model: Model = module.model(self.n_clients, world)
        return model

    def world(self, seed: int) -> int:
        """Shifts change with the seed; countries and fields, which are costly to prepare, do not."""
        return seed if self.function in FUNCTIONS else 0

    def environment(self, world: int, seed: int) -> Environment:
        """The clients of a world with the reward noise of a seed."""
        return Environment(self.model(world), seed=seed, noise=self.noise, width=self.width, horizon=self.horizon)


@lru_cache(maxsize=64)
def _shifted(function: str, n_clients: int, world: int, shift: float, vertical: float) -> Shifted:
    return Shifted(FUNCTIONS[function], n_clients, seed=world, shift=shift, vertical=vertical)


def play_federated(
    clients: Clients,
    algorithm: FedPNE | PFPNE | PersonalElimination,
    privacy: pb.Privacy | pb.NoPrivacy,
    seed: int,
    world: int,
    rounds: int = 60,
    control: Literal["zeroed"] | None = None,
) -> dict[str, Any]:
    """One run of Fed-PNE or PF-PNE on the clients of ``world``, with reward and privacy noise of ``seed``."""
    env = clients.environment(world, seed)
    fitted = replace(algorithm, horizon=clients.horizon, reward_range=env.reward_range)
    sent: list[list[int]] = []

    def note(event: pb.Round) -> None:
        if event.release is not None:
            sent.append([int(env.pulls.max()), event.release.values.shape[1]])

    result = pb.run(env.problem(), fitted, privacy=privacy, rounds=rounds, seed=seed, control=control, on_round=note)
    sizes = [release.values.shape[1] for release in result.releases]
    plan = result.plan
    cell = figures(env) | {
        "releases": len(sizes),
        "planned": plan.releases,
        "floats_up": sum(sizes),
        "floats_down": numbers_told(fitted, env, result, rounds),
        "sent": sent,
        "noise_multiplier": plan.noise_multiplier,
    }
    if isinstance(fitted, FedPNE):
        cell["lost"] = lost_optimum(fitted, env, result, rounds)
    return cell


def numbers_told(
    algorithm: FedPNE | PFPNE | PersonalElimination, env: Environment, result: pb.Record, rounds: int
) -> int:
    """Numbers the server tells every client until it falls silent, that message included."""
    server, told = algorithm.server(setting_for(env, rounds)), 0
    for release in (*result.releases, None):
        ask = server.ask()
        if ask is not None:
            told += sum(np.size(array) for array in ask.broadcast.arrays.values())
        server.tell(release)
    return told


def setting_for(env: Environment, rounds: int) -> Setting:
    """What both sides of a run on these clients are told."""
    return Setting(space=env.problem().search_space, n_clients=env.n_clients, rounds=rounds, public_seed=0)


def figures(env: Environment) -> dict[str, Any]:
    """Global and local regret of what an environment has seen: totals and curves."""
    return {
        "global": _thin(env.regret(env.global_best)),
        "local": _thin(env.regret(env.local_best)),
    }


def _thin(curve: FloatArray) -> list[float]:
    at = np.linspace(0, len(curve) - 1, POINTS + 1).astype(int)
    return [float(x) for x in curve[at]]


def lost_optimum(algorithm: FedPNE, env: Environment, result: pb.Record, rounds: int) -> bool:
    """Whether the last phase's active nodes miss the cells of all of the average objective's optima."""
    server = FedPNEServer(algorithm, setting_for(env, rounds))
    active, depth = np.zeros(1, dtype=np.int64), 0
    for release in result.releases:
        if server.phase is not None:
            active, depth = server.phase.nodes, server.phase.depth
        server.tell(release)
    partition = Partition(n_dims=env.model.n_dims, n_children=algorithm.n_children)
    cells = locate(partition, depth, env.model.global_optima)
    return not bool(np.isin(cells, active).any())


def make_tree(kind: Tree, n_dims: int, horizon: int) -> HCT | VHCT | HOO:
    """A tree bandit with the papers' settings."""
    partition = Partition(n_dims=n_dims)
    if kind == "hoo":
        return HOO(partition, horizon=horizon)
    return VHCT(partition) if kind == "vhct" else HCT(partition, resplit=kind == "hct-resplit")


def play_single(clients: Clients, kind: Tree, seed: int, world: int, sampled: int | None = None) -> dict[str, Any]:
    """A tree bandit on the average objective, and one on each client's own (``sampled`` of them, evenly)."""
    env = clients.environment(world, seed)
    cell: dict[str, Any] = {}
    if sampled is None:
        earned = play_tree(
            make_tree(kind, env.model.n_dims, clients.horizon),
            lambda x: float(env.model.average(x[None])[0]),
            _noise(clients, seed, 0),
        )
        cell["global"] = _thin(np.cumsum(env.global_best - earned))
        return cell
    chosen = np.linspace(0, clients.n_clients - 1, sampled).astype(int)
    total = np.zeros(clients.horizon)
    for client in chosen:
        best = env.model.local_bests[client]
        who = np.array([client])
        earned = play_tree(
            make_tree(kind, env.model.n_dims, clients.horizon),
            lambda x, who=who: float(env.model.values(who, x[None])[0]),
            _noise(clients, seed, int(client) + 1),
        )
        total += np.cumsum(best - earned) / len(chosen)
    cell["local"] = _thin(total)
    return cell


def _noise(clients: Clients, seed: int, stream: int) -> FloatArray:
    """Uniform reward noise of a single bandit."""
    if clients.noise != "uniform":
        raise pb.ConfigurationError("tree baselines are compared under uniform reward noise")
    generator = np.random.default_rng([seed, 11, stream])
    return np.asarray(generator.uniform(-clients.width, clients.width, clients.horizon))


def play_fed1(clients: Clients, seed: int, world: int) -> dict[str, Any]:
    """Fed1-UCB over random arms."""
    env = clients.environment(world, seed)
    arms = random_arms(env.model.n_dims, np.random.default_rng([seed, 13]))
    fed1_ucb(env.pull, n_clients=clients.n_clients, arms=arms, horizon=clients.horizon, noise_scale=clients.width)
    return figures(env)


def play_fn_ucb(clients: Clients, seed: int, world: int) -> dict[str, Any]:
    """FN-UCB over the arms of Fed1-UCB."""
    env = clients.environment(world, seed)
    found = fn_ucb(
        env.pull,
        n_clients=clients.n_clients,
        arms=random_arms(env.model.n_dims, np.random.default_rng([seed, 13])),
        horizon=clients.horizon,
        generator=np.random.default_rng([seed, 19]),
    )
    told = {"floats_up": found.floats_up, "floats_down": found.floats_up}  # the averages come back
    return figures(env) | {"releases": found.synchronisations} | told


def play_random(clients: Clients, seed: int, world: int) -> dict[str, Any]:
    """Random search."""
    env = clients.environment(world, seed)
    generator = np.random.default_rng([seed, 17])
    random_search(
        env.pull, n_clients=clients.n_clients, n_dims=env.model.n_dims, horizon=clients.horizon, generator=generator
    )
    return figures(env)


def play_dp_fts_de(clients: Clients, seed: int, world: int, rounds: int = 30) -> dict[str, Any]:
    """DP-FTS-DE without privacy: its rounds, then every client plays the point it recommends."""
    env = clients.environment(world, seed)
    result = pb.run(env.problem(), pb.DPFTSDE(), privacy=pb.NoPrivacy(), rounds=rounds, seed=seed)
    left = np.maximum(clients.horizon - env.pulls, 0)
    env.pull(np.arange(clients.n_clients), result.clients.recommended, left)
    return figures(env)


def has_landmines() -> bool:
    """Whether the folder ``PRIVBO_DATA`` holds the landmine data."""
    folder = os.environ.get("PRIVBO_DATA")
    return folder is not None and any((Path(folder) / n).exists() for n in ("landmine.npz", "LandmineData.mat"))


def settings_of(clients: Clients) -> dict[str, Any]:
    """The clients as plain values for a summary."""
    return asdict(clients)
