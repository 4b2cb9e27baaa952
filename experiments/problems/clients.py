"""Clients of the elimination experiments: a test function shifted per client, doses or mine fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

import privbo as pb
from experiments.problems import covid, landmine
from experiments.problems.environments import Environment, Model, Noise, Shifted
from experiments.problems.objectives import FUNCTIONS, Named

MODELS: dict[str, Callable[[int, int], Model]] = {
    "covid": covid.model,
    "landmine": landmine.model,
}  # objectives that are more than a function of the unit cube


@dataclass(frozen=True, kw_only=True)
class Clients:
    """Simulated clients of a seed.

    Attributes:
        seed: Of the reward noise.
        function: Name of the objective.
        n_clients: M.
        horizon: T, pulls of one client.
        shift: Standard deviation of the clients' shifts.
        vertical: Share of a client's own offset.
        noise: See ``draw_noise``.
        width: Of the noise.
        worlds: Shifts are those of ``seed % worlds``; 0 draws them anew for every seed. Countries and fields,
            which are costly to prepare, stay the same.

    Raises:
        ConfigurationError: If there is no objective of that name.
    """

    seed: int
    function: str
    n_clients: int
    horizon: int = 5000
    shift: float = 0.01
    vertical: float = 0.0
    noise: Noise = "uniform"
    width: float = 0.1
    worlds: int = 0

    def __post_init__(self) -> None:
        if self.function not in MODELS:
            named(self.function)

    @property
    def model(self) -> Model:
        """Noiseless rewards."""
        if self.function in MODELS:
            return MODELS[self.function](self.n_clients, 0)
        world = self.seed % self.worlds if self.worlds else self.seed
        return _shifted(self.function, self.n_clients, world, self.shift, self.vertical)

    def environment(self) -> Environment:
        """Give the clients, ready to be pulled."""
        return Environment(self.model, seed=self.seed, noise=self.noise, width=self.width, horizon=self.horizon)


def named(function: str) -> Named:
    """Give a test function by its name.

    Raises:
        ConfigurationError: If there is none of that name.

    Example:
        >>> named("double-sine").optimum
        (0.5,)
    """
    if function not in FUNCTIONS:
        known = ", ".join((*FUNCTIONS, *MODELS))
        raise pb.ConfigurationError(f"function={function!r} is no objective; choose one of {known}")
    return FUNCTIONS[function]


@lru_cache(maxsize=64)
def _shifted(function: str, n_clients: int, world: int, shift: float, vertical: float) -> Shifted:
    return Shifted(named(function), n_clients, seed=world, shift=shift, vertical=vertical)


def moved(seed: int, function: str, n_clients: int, horizon: int) -> Environment:
    """Give players of one and the same function, which every seed moves by a uniform shift of at most 0.1.

    On one fixed function the loss is not monotone in the number of players: where cell centres fall decides.
    """
    model = Shifted(named(function), n_clients, seed=seed)
    model.shifts[:] = np.random.default_rng([seed, 31]).uniform(-0.1, 0.1)
    return Environment(model, seed=seed, noise="normal-inside", width=1.0, horizon=horizon)
