"""Test functions on the unit cube with values in [0, 1], and the simulated clients that hold them.

Every client holds the function shifted horizontally by its own normal draw and moved
vertically by its own share, both from a stated seed. A client's pull is the mean plus
reward noise; the environment keeps the noiseless rewards of all pulls, so regret is known
exactly however the algorithm reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, TypeAlias

import numpy as np

import privbo as pb
from privbo.protocol import FloatArray, IntArray

Function: TypeAlias = Callable[[FloatArray], FloatArray]
Noise: TypeAlias = Literal["uniform", "inside", "normal-inside", "none"]


def garland(units: FloatArray) -> FloatArray:
    """Garland, x (1 - x) (4 - sqrt|sin 60 x|); maximum 0.997772 at pi/6, a cusp."""
    x = units[..., 0]
    return np.asarray(x * (1 - x) * (4 - np.sqrt(np.abs(np.sin(60 * x)))))


def double_sine(units: FloatArray) -> FloatArray:
    """DoubleSine of Grill et al. 2015 (rho 0.3 and 0.8, optimum 1/2) plus 1; maximum 1."""
    u = np.maximum(2 * np.abs(units[..., 0] - 0.5), 1e-300)
    low, high = u ** -math.log2(0.3), u ** -math.log2(0.8)
    wave = (np.sin(np.pi * np.log2(u)) + 1) / 2
    return np.asarray(1 + wave * (high - low) - high)


def himmelblau(units: FloatArray) -> FloatArray:
    """Himmelblau's function on [-5, 5]^2, turned over and divided by its largest value, 890."""
    x, y = 10 * units[..., 0] - 5, 10 * units[..., 1] - 5
    return np.asarray(1 - ((x**2 + y - 11) ** 2 + (x + y**2 - 7) ** 2) / 890)


# Largest value of x^2 + 10 - 10 cos(2 pi x) on [-1, 1], at |x| = 0.50255 (20.2512730, rounded up).
RASTRIGIN_TOP = 20.251274


def rastrigin(units: FloatArray) -> FloatArray:
    """Rastrigin's function on [-1, 1]^d, turned over, per dimension divided by its largest value."""
    x = 2 * units - 1
    return np.asarray(1 - np.mean(x**2 + 10 - 10 * np.cos(2 * np.pi * x), axis=-1) / RASTRIGIN_TOP)


# Largest value of Ackley's function on [-1, 1]^2, on its edge at (1, 0.559) (4.6752050, rounded up).
ACKLEY_TOP = 4.675206


def ackley(units: FloatArray) -> FloatArray:
    """Ackley's function on [-1, 1]^2, turned over and divided by its largest value there."""
    x = 2 * units - 1
    bowl = 20 * np.exp(-0.2 * np.sqrt(np.mean(x**2, axis=-1)))
    waves = np.exp(np.mean(np.cos(2 * np.pi * x), axis=-1))
    return np.asarray(1 + (bowl + waves - math.e - 20) / ACKLEY_TOP)


def two_sines(units: FloatArray) -> FloatArray:
    """(sin 13x sin 27x / 2 + 1) / 2; maximum 0.737800 near 0.8675."""
    x = units[..., 0]
    return np.asarray((np.sin(13 * x) * np.sin(27 * x) / 2 + 1) / 2)


@dataclass(frozen=True)
class Named:
    """A test function with its dimension and where its maximum lies in the unit cube."""

    name: str
    function: Function
    n_dims: int
    optimum: tuple[float, ...]

    @property
    def maximum(self) -> float:
        """Its largest value."""
        return float(self.function(np.array(self.optimum)))


FUNCTIONS = {
    f.name: f
    for f in (
        Named("garland", garland, 1, (math.pi / 6,)),
        Named("double-sine", double_sine, 1, (0.5,)),
        Named("himmelblau", himmelblau, 2, (0.8, 0.7)),
        Named("rastrigin", rastrigin, 10, (0.5,) * 10),
        Named("ackley", ackley, 2, (0.5, 0.5)),
        Named("two-sines", two_sines, 1, (0.86752621,)),
    )
}


def draw_noise(
    generator: np.random.Generator, noise: Noise, means: FloatArray, counts: IntArray, width: float
) -> FloatArray:
    """Mean of the reward noise over ``counts`` pulls at noiseless rewards ``means``.

    ``"uniform"``: uniform on +-width, rewards in [-width, 1 + width]. ``"inside"``: uniform
    on +-min(width, f, 1 - f), so that rewards stay in [0, 1]. ``"normal-inside"``: normal
    with deviation ``width`` truncated to +-min(f, 1 - f) (rejection). Up to 48 pulls are drawn
    one by one; the mean of more is normal to within what any experiment here resolves,
    with the exact variance and cut at the exact bound.
    """
    if noise == "none":
        return np.zeros(len(means))
    inside = np.minimum(means, 1 - means)
    if noise == "normal-inside":
        return _truncated_normal_means(generator, inside, counts, width)
    bound = np.full(len(means), width) if noise == "uniform" else np.minimum(width, inside)
    few = counts <= 48
    drawn = np.zeros(len(means))
    for turn in range(int(counts[few].max(initial=0))):
        due = np.flatnonzero(few & (counts > turn))
        drawn[due] += generator.uniform(-1, 1, len(due))
    many = ~few
    drawn[many] = generator.normal(0, 1, int(many.sum())) * np.sqrt(counts[many] / 3)
    return bound * np.clip(drawn / np.maximum(counts, 1), -1, 1)


def _truncated_normal_means(
    generator: np.random.Generator, inside: FloatArray, counts: IntArray, width: float
) -> FloatArray:
    """Mean of ``counts`` draws of a symmetrically truncated normal: exact variance, normal for many pulls."""
    from scipy.special import ndtri
    from scipy.stats import norm

    a = inside / width
    mass = 2 * norm.cdf(a) - 1
    few = counts <= 48
    drawn = np.zeros(len(inside))
    for turn in range(int(counts[few].max(initial=0))):
        due = np.flatnonzero(few & (counts > turn) & (a > 0))
        drawn[due] += ndtri(0.5 + mass[due] * generator.uniform(-0.5, 0.5, len(due)))
    many = np.flatnonzero(~few & (a > 0))
    variance = 1 - 2 * a[many] * norm.pdf(a[many]) / mass[many]
    drawn[many] = generator.normal(0, 1, len(many)) * np.sqrt(counts[many] * np.maximum(variance, 0))
    return width * np.clip(drawn / np.maximum(counts, 1), -a, a)


class Model(Protocol):
    """What clients earn without noise."""

    name: str
    n_dims: int
    n_clients: int

    def values(self, clients: IntArray, units: FloatArray) -> FloatArray:
        """Noiseless reward of ``clients[i]`` at ``units[i]``, ``(n,)``."""
        ...

    def average(self, units: FloatArray) -> FloatArray:
        """The average objective at points ``(n, d)``."""
        ...

    @property
    def local_bests(self) -> FloatArray:
        """Best value of every client, ``(M,)``."""
        ...

    @property
    def global_optimum(self) -> FloatArray:
        """Where the average objective is largest, ``(d,)``."""
        ...


class Shifted:
    """Every client holds the same function, moved by its own shift.

    Args:
        named: The function.
        n_clients: M.
        seed: Of the shifts.
        shift: Standard deviation of the horizontal shifts, in units of the cube; points that
            leave the cube are moved to its edge.
        vertical: v in ``(1 - v) f + v u`` with u uniform per client.
    """

    def __init__(self, named: Named, n_clients: int, *, seed: int, shift: float = 0.0, vertical: float = 0.0) -> None:
        hidden = np.random.default_rng([seed, 1])
        self.named = named
        self.name, self.n_dims, self.n_clients = named.name, named.n_dims, n_clients
        self.shifts = shift * hidden.standard_normal((n_clients, named.n_dims))
        self.scale = 1.0 - vertical
        self.offsets = vertical * hidden.uniform(0, 1, n_clients)

    def values(self, clients: IntArray, units: FloatArray) -> FloatArray:
        """Noiseless rewards."""
        moved = np.clip(units - self.shifts[clients], 0.0, 1.0)
        return np.asarray(self.scale * self.named.function(moved) + self.offsets[clients])

    def average(self, units: FloatArray) -> FloatArray:
        """The average objective."""
        total = np.zeros(len(units))
        for shift in self.shifts:
            total += self.named.function(np.clip(units - shift, 0.0, 1.0))
        return np.asarray(self.scale * total / self.n_clients + self.offsets.mean())

    @property
    def local_bests(self) -> FloatArray:
        """Best values (shifts keep every optimum inside the cube)."""
        return np.asarray(self.scale * self.named.maximum + self.offsets)

    @cached_property
    def global_optimum(self) -> FloatArray:
        """A grid, then ever finer ones around its best point; in more than two dimensions the shifted centre."""
        d = self.n_dims
        if not np.any(self.shifts):
            return np.array(self.named.optimum)
        if d > 2:
            return np.array(self.named.optimum) + self.shifts.mean(axis=0)
        return grid_maximum(self.average, d, 2001 if d == 1 else 61)


def grid_maximum(function: Function, d: int, side: int) -> FloatArray:
    """Maximum of a function on the unit cube, by a grid and six finer ones around its best point."""
    axes = np.meshgrid(*[np.linspace(0, 1, side)] * d, indexing="ij")
    grid = np.stack(axes, axis=-1).reshape(-1, d)
    best, width = grid[np.argmax(function(grid))], 2.0 / (side - 1)
    for _ in range(6):
        steps = np.meshgrid(*[np.linspace(-width, width, 21)] * d, indexing="ij")
        near = np.clip(best + np.stack(steps, axis=-1).reshape(-1, d), 0, 1)
        best, width = near[np.argmax(function(near))], width / 8
    return np.asarray(best)


class Environment:
    """Clients that answer pulls with noisy rewards, and the book of what those were worth.

    Args:
        model: What clients earn without noise.
        seed: Of the reward noise.
        noise, width: See ``draw_noise``.
        horizon: Pulls of one client that are booked.
    """

    def __init__(
        self, model: Model, *, seed: int, noise: Noise = "uniform", width: float = 0.1, horizon: int = 0
    ) -> None:
        self.model = model
        self.n_clients = model.n_clients
        self._noise, self._width = noise, width
        self._generator = np.random.default_rng([seed, 3])
        self._steps = np.zeros(horizon + 1)
        self._time = np.zeros(model.n_clients, dtype=np.int64)

    @property
    def reward_range(self) -> tuple[float, float]:
        """Bounds of a reward."""
        margin = self._width if self._noise == "uniform" else 0.0
        return (-margin, 1.0 + margin)

    def __call__(self, clients: IntArray, units: FloatArray) -> FloatArray:
        """One pull each."""
        return self.pull(clients, units, np.ones(len(clients), dtype=np.int64))

    def pull(self, clients: IntArray, units: FloatArray, counts: IntArray) -> FloatArray:
        """Mean rewards of ``counts`` pulls each; NaN for none."""
        means = self.model.values(clients, units)
        self._keep(clients, means, counts)
        rewards = means + draw_noise(self._generator, self._noise, means, counts, self._width)
        return np.where(counts > 0, rewards, np.nan)

    def _keep(self, clients: IntArray, means: FloatArray, counts: IntArray) -> None:
        """Book noiseless rewards in the order the clients earned them."""
        last = len(self._steps) - 1
        if len(clients) == self.n_clients and np.all(counts == 1):
            starts = self._time[clients]
            if starts.min() == starts.max():  # everyone pulls once: the common case of the silent stage
                total = float(means.sum())
                self._steps[min(int(starts[0]), last)] += total
                self._steps[min(int(starts[0]) + 1, last)] -= total
                self._time[clients] += 1
                return
        order = np.argsort(clients, kind="stable")
        who, worth, many = clients[order], means[order], counts[order]
        ends = np.cumsum(many)
        first = np.searchsorted(who, who)
        starts = self._time[who] + (ends - many) - (ends[first] - many[first])
        self._steps += np.bincount(np.minimum(starts, last), weights=worth, minlength=last + 1)
        self._steps -= np.bincount(np.minimum(starts + many, last), weights=worth, minlength=last + 1)
        self._time += np.bincount(clients, weights=counts, minlength=self.n_clients).astype(np.int64)

    @property
    def pulls(self) -> IntArray:
        """Pulls of every client so far."""
        return self._time

    def regret(self, best: float) -> FloatArray:
        """Cumulative regret per client against ``best``, averaged over clients, after 1..T pulls."""
        reward = np.cumsum(self._steps[:-1]) / self.n_clients
        return np.asarray(np.cumsum(best - reward))

    @property
    def local_best(self) -> float:
        """Mean over clients of the best value of each."""
        return float(self.model.local_bests.mean())

    @property
    def global_best(self) -> float:
        """Largest value of the average objective."""
        return float(self.model.average(self.model.global_optimum[None])[0])

    def problem(self) -> pb.Problem:
        """The clients as a problem."""
        return pb.Problem(
            space={f"x{i}": pb.Real(0.0, 1.0) for i in range(self.model.n_dims)},
            batch_objective=self,
            n_clients=self.n_clients,
            name=self.model.name,
            provenance="simulation",
        )
