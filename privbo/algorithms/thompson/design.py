"""Exploring starts: the first points of every client, spread over the space by all clients together.

Client n takes the n-th block of one Sobol sequence that is shifted by the public seed. A block
of few points is spread by itself, and all blocks together are the sequence, so that a
federation's first release has seen the whole space however few points a client can afford.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.stats import qmc

from privbo.algorithms.thompson.streams import Stream, client_streams, public_stream
from privbo.protocol.messages import FloatArray, IntArray, Setting
from privbo.protocol.space import Space

_DRAWS = 4096  # among which one keeps the constraints, of which at least a hundredth do
_TRIES = 100  # random points that may replace one a client has already


def first_points(setting: Setting, clients: IntArray, count: int) -> FloatArray:
    """The first ``count`` canonical points of some clients, ``(n, count, n_dims)``; public.

    A client's points differ from each other as far as the space has so many.
    """
    space, first, last = setting.space, int(clients.min(initial=0)), int(clients.max(initial=0))
    sobol = qmc.Sobol(space.n_dims, scramble=False)
    if first:
        sobol.fast_forward(first * count)
    wanted = (last - first + 1) * count
    net = sobol.random(1 << (wanted - 1).bit_length())[:wanted].reshape(-1, count, space.n_dims)
    shift = public_stream(setting.public_seed, Stream.INITIAL).random(space.n_dims)
    points = space.snap((net[clients - first] + shift) % 1.0)
    if space.constraints:
        _replace(points, space, client_streams(setting.public_seed, clients, 0, Stream.REPLACEMENT))
    if not _is_coarse(space):
        return points
    for row, generator in zip(points, client_streams(setting.public_seed, clients, 0, Stream.INITIAL), strict=True):
        _spread(row, space, generator)
    return points


def _replace(points: FloatArray, space: Space, generators: Iterator[np.random.Generator]) -> None:
    """Put random points that keep the constraints in the place of those that do not."""
    for row, generator in zip(points, generators, strict=True):
        for index in np.flatnonzero(~space.allows(row)):
            drawn = space.snap(generator.random((_DRAWS, space.n_dims)))
            row[index] = drawn[space.allows(drawn)][0]


def _is_coarse(space: Space) -> bool:
    """Whether every parameter has a finite number of values, so that points can coincide."""
    return all(parameter.n_values < np.inf for parameter in space.parameters.values())


def _spread(row: FloatArray, space: Space, generator: np.random.Generator) -> None:
    """Replace points that stand before in a client's row by random others."""
    for index in range(1, len(row)):
        for _ in range(_TRIES):
            if not (row[:index] == row[index]).all(axis=1).any():
                break
            drawn = space.snap(generator.random(space.n_dims))
            row[index] = drawn if space.allows(drawn) else row[index]
