"""Test functions on the unit cube with values in [0, 1]."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from privbo.protocol.messages import FloatArray

Function: TypeAlias = Callable[[FloatArray], FloatArray]


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


# Branin's smallest value, and its largest on [-5, 10] x [0, 15], at (-5, 0) (308.1290960, rounded up).
BRANIN_BOTTOM, BRANIN_TOP = 5 / (4 * math.pi), 308.129097


def branin(units: FloatArray) -> FloatArray:
    """Branin's function, turned over; three optima of value 1."""
    x, y = 15 * units[..., 0] - 5, 15 * units[..., 1]
    valley = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
    value = valley**2 + 10 * (1 - 1 / (8 * math.pi)) * np.cos(x) + 10
    return np.asarray(np.clip(1 - (value - BRANIN_BOTTOM) / (BRANIN_TOP - BRANIN_BOTTOM), 0.0, 1.0))


# The camel's smallest value, and its largest on [-2, 2] x [-1, 1], 86/15 at (2, 1) and (-2, -1).
CAMEL_BOTTOM, CAMEL_TOP = -1.0316284534898776, 86 / 15


def camel(units: FloatArray) -> FloatArray:
    """The six-hump camel on [-2, 2] x [-1, 1], turned over; two optima of value 1."""
    x, y = 4 * units[..., 0] - 2, 2 * units[..., 1] - 1
    value = (4 - 2.1 * x**2 + x**4 / 3) * x**2 + x * y + (4 * y**2 - 4) * y**2
    return np.asarray(np.clip(1 - (value - CAMEL_BOTTOM) / (CAMEL_TOP - CAMEL_BOTTOM), 0.0, 1.0))


# Largest value of Griewank's function on [-5, 10]^2, at (9.4295, 8.8947) (2.0419766868, rounded up).
GRIEWANK_TOP = 2.041977


def griewank(units: FloatArray) -> FloatArray:
    """Griewank's function on [-5, 10]^2 (its optimum is no cell's centre), turned over."""
    x, y = 15 * units[..., 0] - 5, 15 * units[..., 1] - 5
    value = 1 + (x**2 + y**2) / 4000 - np.cos(x) * np.cos(y / math.sqrt(2))
    return np.asarray(1 - value / GRIEWANK_TOP)


@dataclass(frozen=True)
class Named:
    """A test function with its dimension and where its maximum lies in the unit cube, and lies again."""

    name: str
    function: Function
    n_dims: int
    optimum: tuple[float, ...]
    others: tuple[tuple[float, ...], ...] = ()

    @property
    def maximum(self) -> float:
        """Its largest value."""
        return float(self.function(np.array(self.optimum)))


FUNCTIONS = {
    f.name: f
    for f in (
        Named("garland", garland, 1, (math.pi / 6,)),
        Named("double-sine", double_sine, 1, (0.5,)),
        Named(
            "himmelblau",
            himmelblau,
            2,
            (0.8, 0.7),
            ((0.2194881914, 0.8131312517), (0.1220689741, 0.1716814009), (0.858442834, 0.3151873473)),
        ),
        Named("rastrigin", rastrigin, 10, (0.5,) * 10),
        Named("ackley", ackley, 2, (0.5, 0.5)),
        Named("two-sines", two_sines, 1, (0.86752621,)),
        Named(
            "branin",
            branin,
            2,
            ((math.pi + 5) / 15, 2.275 / 15),
            (((5 - math.pi) / 15, 12.275 / 15), ((3 * math.pi + 5) / 15, 2.475 / 15)),
        ),
        Named("camel", camel, 2, (0.477539495, 0.8563282), ((0.522460505, 0.1436718),)),
        Named("griewank", griewank, 2, (1 / 3, 1 / 3)),
    )
}
