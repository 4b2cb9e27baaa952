"""Synthetic clients of the DP-FTS-DE paper: functions drawn from a Gaussian process on a grid of 1,000 points.

Homogeneous (App. B.1.1): one draw with squared exponential kernel and length scale 0.03, scaled to
[0, 1]; every client adds +0.02 or -0.02 at every point, by its own coins. Heterogeneous
(App. B.1.2): client i holds ``alpha f_i + (1 - alpha) f_base`` with its own independent draw
f_i, every draw scaled to [0, 1]. Observations carry normal noise of variance 0.01; regret is
noiseless.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

import privbo as pb
from privbo.protocol.messages import ClientHistory, FloatArray, IntArray

GRID = 1000
LENGTHSCALE = 0.03
PERTURBATION = 0.02
NOISE_STDDEV = 0.1
_BLOCK = 128  # observations whose noise is drawn at once


@dataclass(frozen=True, eq=False)
class GridFunctions:
    """One function per client on the grid, observed with noise.

    Attributes:
        table: Noiseless values ``(n_clients, GRID)``.
        seed: Of the observation noise; the k-th observation of a client always carries the same noise.
    """

    table: FloatArray
    seed: int
    _asked: IntArray = field(init=False, repr=False)
    _noise: dict[int, FloatArray] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_asked", np.zeros(len(self.table), dtype=np.int64))

    def observe(self, clients: IntArray, units: FloatArray) -> FloatArray:
        """Noisy values of ``clients[i]`` at ``units[i]``, ``(n,)``."""
        noise = np.array([self._draw(int(client)) for client in clients])
        return np.asarray(self.table[clients, _index(units)] + NOISE_STDDEV * noise)

    def losses(self, history: ClientHistory) -> FloatArray:
        """Noiseless regret of every evaluation, ``(n_clients, n_evaluations)``."""
        rows = np.arange(len(self.table))[:, None]
        return np.asarray(self.table.max(axis=1, keepdims=True) - self.table[rows, _index(history.units)])

    def problem(self) -> pb.Problem:
        """The tuning problem."""
        return pb.Problem(
            space={"x": pb.Int(0, GRID - 1)},
            batch_objective=self.observe,
            n_clients=len(self.table),
            name="synthetic",
            provenance=f"Gaussian process draws on {GRID} points, length scale {LENGTHSCALE}, seed {self.seed}",
        )

    def _draw(self, client: int) -> float:
        count = int(self._asked[client])
        self._asked[client] += 1
        if count % _BLOCK == 0:
            generator = np.random.default_rng([self.seed, 3, client, count // _BLOCK])
            self._noise[client] = generator.standard_normal(_BLOCK)
        return float(self._noise[client][count % _BLOCK])


def homogeneous(seed: int, n_clients: int = 200) -> GridFunctions:
    """Clients that share one function up to small perturbations."""
    generator = np.random.default_rng([seed, 1])
    base = _draws(1, generator)
    coins = generator.integers(0, 2, (n_clients, GRID))
    return GridFunctions(base + PERTURBATION * (2 * coins - 1), seed)


def heterogeneous(seed: int, n_clients: int = 50, alpha: float = 0.7) -> GridFunctions:
    """Clients whose functions differ by ``alpha``: 0 is one function for all, 1 is independent ones.

    Raises:
        ConfigurationError: If alpha is not in [0, 1].
    """
    if not 0 <= alpha <= 1:
        raise pb.ConfigurationError(f"alpha={alpha!r} must lie in [0, 1]")
    draws = _draws(n_clients + 1, np.random.default_rng([seed, 2]))
    return GridFunctions(alpha * draws[1:] + (1 - alpha) * draws[:1], seed)


def problem(seed: int = 0, n_clients: int = 200, alpha: float | None = None) -> pb.Problem:
    """For configuration files: homogeneous clients, or heterogeneous ones where ``alpha`` is given."""
    if alpha is None:
        return homogeneous(seed, n_clients).problem()
    return heterogeneous(seed, n_clients, alpha).problem()


def _index(units: FloatArray) -> IntArray:
    return np.asarray(np.minimum(np.floor(units[..., 0] * GRID), GRID - 1), dtype=np.int64)


def _draws(count: int, generator: np.random.Generator) -> FloatArray:
    """Draws of the process, each scaled to [0, 1], ``(count, GRID)``."""
    raw = generator.standard_normal((count, GRID)) @ _factor().T
    low, high = raw.min(axis=1, keepdims=True), raw.max(axis=1, keepdims=True)
    return np.asarray((raw - low) / (high - low))


@lru_cache(maxsize=1)
def _factor() -> FloatArray:
    points = np.linspace(0.0, 1.0, GRID)
    covariance = np.exp(-0.5 * ((points[:, None] - points) / LENGTHSCALE) ** 2)
    return np.asarray(np.linalg.cholesky(covariance + 1e-8 * np.eye(GRID)), dtype=np.float64)
