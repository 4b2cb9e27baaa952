"""Clients with a surface each, of which the best value, the range and the spread are known.

Losses are regrets in units of the client's own range (best minus worst value), so that families compare. Observations
carry normal noise of a share of the surface's standard deviation over the space; losses never do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from scipy.stats import qmc

import privbo as pb
from privbo.protocol.messages import ClientHistory, FloatArray, IntArray
from privbo.protocol.space import Space

# Noiseless values of clients[i] at units[i], (n,).
Values: TypeAlias = Callable[[IntArray, FloatArray], FloatArray]
PROBES = 512  # points by which spread and correlation are measured


@dataclass(frozen=True, eq=False, kw_only=True)
class Surfaces:
    """Simulated clients of a seed, one surface each.

    Attributes:
        name: Of the family.
        seed: Of the clients and of the observation noise.
        space: What is searched.
        values: Noiseless values.
        best: Largest value of every client, ``(n_clients,)``.
        low: Smallest value of every client.
        probes: Noiseless values of every client at points spread over the space, ``(n_clients, n_points)``.
        noise: Standard deviation of an observation, in units of the surface's own over the space.
        clients: Their numbers among a family's clients, of which every seed draws some; None where all are its own.
    """

    name: str
    seed: int
    space: Space
    values: Values
    best: FloatArray
    low: FloatArray
    probes: FloatArray
    noise: float = 0.0
    clients: IntArray | None = None
    _spread: FloatArray = field(init=False, repr=False)
    _asked: IntArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.noise < np.inf:
            raise pb.ConfigurationError(f"noise={self.noise!r} must be a number >= 0, a share of the surface's spread")
        object.__setattr__(self, "_spread", self.probes.std(axis=1))
        object.__setattr__(self, "_asked", np.zeros(self.n_clients, dtype=np.int64))

    @property
    def n_clients(self) -> int:
        """N."""
        return len(self.best)

    def problem(self) -> pb.Problem:
        """Give the tuning problem."""
        return pb.Problem(
            space=self.space,
            batch_objective=self.observe,
            n_clients=self.n_clients,
            best_values=self.best,
            name=self.name,
            provenance=f"{self.name}, seed {self.seed}",
        )

    def observe(self, clients: IntArray, units: FloatArray) -> FloatArray:
        """Give noisy values of ``clients[i]`` at ``units[i]``; the k-th of a client always carries the same noise."""
        found = self.values(clients, units)
        if not self.noise:
            return found
        drawn = [self._draw(int(client)) for client in clients]
        return np.asarray(found + self.noise * self._spread[clients] * np.array(drawn))

    def _draw(self, client: int) -> float:
        self._asked[client] += 1
        return float(np.random.default_rng([self.seed, 3, client, int(self._asked[client])]).standard_normal())

    def losses(self, history: ClientHistory) -> FloatArray:
        """Give the noiseless regret of every evaluation in units of the range; the first clients are enough."""
        n, k, d = history.units.shape
        found = self.values(np.repeat(np.arange(n), k), history.units.reshape(-1, d)).reshape(n, k)
        spread = (self.best - self.low)[:n, None]
        # On a constant surface every point is a best one.
        regret = (self.best[:n, None] - found) / np.where(spread > 0.0, spread, 1.0)
        return np.where(np.isfinite(history.values), np.maximum(regret, 0.0), np.nan)

    def correlation(self) -> float:
        """Give the mean correlation of two clients' surfaces over the space."""
        centred = self.probes - self.probes.mean(axis=1, keepdims=True)
        unit = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-300)
        n = len(unit)
        return float((np.sum(unit.sum(axis=0) ** 2) - n) / max(n * (n - 1), 1))


def tabulated(
    name: str, seed: int, space: Space, shape: tuple[int, ...], table: FloatArray, noise: float = 0.0
) -> Surfaces:
    """Give clients whose values at all points of a grid ``shape`` are a row of ``table``; NaN where a trial fails."""
    levels = np.array(shape)

    def values(clients: IntArray, units: FloatArray) -> FloatArray:
        at = np.minimum((units * levels).astype(np.int64), levels - 1)
        return np.asarray(table[clients, np.ravel_multi_index(tuple(at.T), shape)])

    known = np.where(np.isfinite(table), table, np.nanmin(table, axis=1, keepdims=True))
    return Surfaces(
        name=name,
        seed=seed,
        space=space,
        values=values,
        best=known.max(axis=1),
        low=known.min(axis=1),
        probes=known,
        noise=noise,
    )


def spread_out(
    name: str,
    seed: int,
    space: Space,
    values: Values,
    heights: Callable[[FloatArray], FloatArray],
    noise: float = 0.0,
) -> Surfaces:
    """Give clients of any values, which ``heights`` gives at points spread over the space, ``(n_clients, k)``."""
    points = sobol(space, 4096, seed=1)
    table = heights(points)
    return Surfaces(
        name=name,
        seed=seed,
        space=space,
        values=values,
        best=searched(values, space, points, table),
        low=table.min(axis=1),
        probes=table[:, :PROBES],
        noise=noise,
    )


def sobol(space: Space, count: int, seed: int) -> FloatArray:
    """Give points spread over a space, ``(count, n_dims)``."""
    return space.snap(qmc.Sobol(space.n_dims, seed=seed).random(count))


def on_points(values: Values, n_clients: int, points: FloatArray) -> FloatArray:
    """Give the values of every client at all points, ``(n_clients, n_points)``."""
    clients = np.repeat(np.arange(n_clients), len(points))
    return values(clients, np.tile(points, (n_clients, 1))).reshape(n_clients, -1)


def searched(values: Values, space: Space, points: FloatArray, heights: FloatArray) -> FloatArray:
    """Give the largest value of every client, ``(n_clients,)``, by random steps from the best points of a table.

    Args:
        values: Noiseless values.
        space: What is searched.
        points: Points spread over it, ``(n_points, n_dims)``.
        heights: Values of every client there, ``(n_clients, n_points)``.
    """
    starts, tries = 4, 4
    top = np.argpartition(-heights, starts, axis=1)[:, :starts]
    best, at = np.take_along_axis(heights, top, axis=1).reshape(-1), points[top.reshape(-1)]
    rows, owners = np.arange(len(at)), np.repeat(np.arange(len(heights)), starts)
    generator = np.random.default_rng(0)
    for step in np.geomspace(0.1, 1e-3, 6 + 6 * at.shape[1]):
        moved = space.snap(at[:, None] + step * generator.standard_normal((len(at), tries, at.shape[1])))
        offers = values(np.repeat(owners, tries), moved.reshape(-1, at.shape[1])).reshape(-1, tries)
        chosen = offers.argmax(axis=1)
        better = offers[rows, chosen] > best
        best = np.where(better, offers[rows, chosen], best)
        at = np.where(better[:, None], moved[rows, chosen], at)
    return np.asarray(best.reshape(-1, starts).max(axis=1))
