"""Surfaces that are drawn: Gaussian processes of a given correlation between clients, and shifted test functions."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

import privbo as pb
from experiments.problems.clients import named
from experiments.problems.surfaces import Surfaces, on_points, spread_out
from privbo.protocol.messages import FloatArray, IntArray
from privbo.protocol.space import Space

_FEATURES = 256


def gaussian_process(
    seed: int, n_clients: int, n_dims: int, correlation: float, lengthscale: float = 0.2, noise: float = 0.0
) -> Surfaces:
    """Draw clients' surfaces ``sqrt(r) f + sqrt(1 - r) f_n`` of correlation r from a Matern-5/2 process.

    Args:
        seed: Of the draws.
        n_clients: N.
        n_dims: Of the cube.
        correlation: r, between the surfaces of two clients.
        lengthscale: In one dimension; it grows with the root of their number.
        noise: See ``Surfaces``.

    Raises:
        ConfigurationError: If the correlation is not in [0, 1].
    """
    if not 0 <= correlation <= 1:
        raise pb.ConfigurationError(f"correlation={correlation!r} must lie in [0, 1]")
    return replace(_process(seed, n_clients, n_dims, correlation, lengthscale), noise=noise)


# Many arms in turn play the same clients, and finding their best values takes longer than most runs.
@lru_cache(maxsize=2)
def _process(seed: int, n_clients: int, n_dims: int, correlation: float, lengthscale: float) -> Surfaces:
    generator = np.random.default_rng([seed, 71])
    # Matern-5/2 is a mixture of squared exponentials: normal frequencies over the root of a chi-square / 5.
    scale = np.sqrt(generator.chisquare(5, (_FEATURES, 1)) / 5) * lengthscale * math.sqrt(n_dims)
    frequencies = generator.standard_normal((_FEATURES, n_dims)) / scale
    phases = generator.uniform(0, 2 * np.pi, _FEATURES)
    common, own = generator.standard_normal(_FEATURES), generator.standard_normal((n_clients, _FEATURES))
    weights = math.sqrt(2 / _FEATURES) * (math.sqrt(correlation) * common + math.sqrt(1 - correlation) * own)

    def values(clients: IntArray, units: FloatArray) -> FloatArray:
        waves = np.cos(units @ frequencies.T + phases)
        return np.asarray((waves * weights[clients]).sum(axis=1))

    space = Space({f"x{i}": pb.Real(0.0, 1.0) for i in range(n_dims)})
    name = f"GP {n_dims}-D, correlation {correlation:g}"
    heights = lambda points: weights @ np.cos(points @ frequencies.T + phases).T  # noqa: E731 (a line says it)
    return spread_out(name, seed, space, values, heights)


def shifted(seed: int, function: str, n_clients: int, shift: float = 0.1, noise: float = 0.0) -> Surfaces:
    """Give test functions of which every client's is moved by a normal shift, and all of a seed's by a common one.

    Args:
        seed: Of the shifts.
        function: Name of the test function.
        n_clients: N.
        shift: Standard deviation of a client's shift per coordinate of the cube.
        noise: See ``Surfaces``.
    """
    return replace(_shifted(seed, function, n_clients, shift), noise=noise)


@lru_cache(maxsize=2)
def _shifted(seed: int, function: str, n_clients: int, shift: float) -> Surfaces:
    test = named(function)
    generator = np.random.default_rng([seed, 73])
    # Otherwise every seed would have its optimum in the same place, where a search may happen to begin.
    common = generator.uniform(-0.15, 0.15, test.n_dims)
    moves = common + shift * generator.standard_normal((n_clients, test.n_dims))

    def values(clients: IntArray, units: FloatArray) -> FloatArray:
        inside = 1.0 - np.abs(1.0 - np.abs(units - moves[clients]) % 2.0)  # mirrored where it would leave the cube
        return test.function(inside)

    space = Space({f"x{i}": pb.Real(0.0, 1.0) for i in range(test.n_dims)})
    name = f"{function}, shifts {shift:g}"
    return spread_out(name, seed, space, values, partial(on_points, values, n_clients))
