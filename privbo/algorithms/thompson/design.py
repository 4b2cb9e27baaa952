"""Exploring starts: the first points of every client, spread over the space for each of them.

A client's points are those of a Sobol sequence, scrambled by a public stream for every client anew: the first two lie
in different halves of every coordinate, the first four in different quarters. Clients' points must not be one
sequence that is cut up: its neighbours are as far apart in every client, so that a first release would compare points
at one distance only and say little of what clients have in common.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import qmc

from privbo.algorithms.thompson.exploration import Regions
from privbo.algorithms.thompson.streams import Stream, client_streams, public_words
from privbo.protocol.messages import FloatArray, IntArray, Setting
from privbo.protocol.space import Space

_DRAWS = 4096  # among which one keeps the constraints, of which at least a hundredth do
_TRIES = 100  # random points that may replace one a client has already


def first_points(setting: Setting, clients: IntArray, count: int) -> FloatArray:
    """The first ``count`` canonical points of some clients, ``(n, count, n_dims)``; public.

    A client's points differ from each other as far as the space has so many.
    """
    space = setting.space
    points = space.snap(_scrambled(setting, clients, count))
    if space.constraints:
        some = np.flatnonzero(~space.allows(points).all(axis=1))
        streams = client_streams(setting.public_seed, clients[some], 0, Stream.REPLACEMENT)
        for row, generator in zip(some, streams, strict=True):
            for index in np.flatnonzero(~space.allows(points[row])):
                drawn = space.snap(generator.random((_DRAWS, space.n_dims)))
                points[row, index] = drawn[space.allows(drawn)][0]
    if any(parameter.n_values == np.inf for parameter in space.parameters.values()):
        return points  # only of finitely many values can points coincide
    repeats = [(points[:, :index] == points[:, [index]]).all(axis=2).any(axis=1) for index in range(1, count)]
    some = np.flatnonzero(np.any(repeats, axis=0))
    for row, generator in zip(some, client_streams(setting.public_seed, clients[some], 0, Stream.INITIAL), strict=True):
        _spread(points[row], space, generator)
    return points


def _scrambled(setting: Setting, clients: IntArray, count: int) -> FloatArray:
    """A Sobol sequence's first points, scrambled for every client (Owen 1995), ``(n, count, n_dims)``.

    All clients' scrambles are one public stream, level by level and then the last digits; of it only the part from the
    first to the last of these clients is drawn.
    """
    n_dims, levels = setting.space.n_dims, (count - 1).bit_length()
    net = qmc.Sobol(n_dims, scramble=False).random(1 << levels)[:count]
    cells = (net * (1 << levels)).astype(np.int64)
    taken = np.zeros((len(clients), count, n_dims), dtype=np.int64)
    if not len(clients):
        return taken.astype(np.float64)
    low, high = int(clients.min()), int(clients.max()) + 1
    for level in range(levels):
        each, before = n_dims << level, setting.n_clients * n_dims * ((1 << level) - 1)
        flips = _coins(setting.public_seed, before + low * each, (high - low) * each)
        above, digit = cells >> (levels - level), cells >> (levels - level - 1) & 1
        own = flips.reshape(high - low, 1 << level, n_dims)[clients - low]
        taken = 2 * taken + (digit ^ np.take_along_axis(own, np.broadcast_to(above, taken.shape), axis=1))
    each, before = count * n_dims, (setting.n_clients * n_dims * ((1 << levels) - 1) + 1) // 2
    words = public_words(setting.public_seed, Stream.INITIAL, before + low * each, (high - low) * each)
    digits = ((words >> np.uint64(11)) * 2.0**-53).reshape(high - low, count, n_dims)[clients - low]
    return np.asarray((taken + digits) / (1 << levels))


def _coins(seed: int, first: int, count: int) -> IntArray:
    """Fair coins of the public stream, from the ``first`` on: every word of it gives two, its lower half's first."""
    words = public_words(seed, Stream.INITIAL, first // 2, (first % 2 + count + 1) // 2)
    halves = words.astype("<u8").view("<u4")[first % 2 :][:count]
    return (halves >> np.uint32(31)).astype(np.int64)


def first_in_regions(
    regions: Regions, homes: IntArray, count: int, space: Space, draws: FloatArray
) -> tuple[FloatArray, IntArray]:
    """Points that ``Regions.sample`` gives every client from its first draws, and clients for whom those are too few.

    Args:
        regions: Of the space.
        homes: Region of every client, ``(n,)``.
        count: Points of each.
        space: The search space.
        draws: From [0, 1), ``(n, 4 * count * n_dims)``.

    Returns:
        Canonical points, ``(n, count, n_dims)``; rows that are short, which hold nothing of use.
    """
    corner = np.unravel_index(homes, regions.splits)
    edges = [np.array(one) for one in regions.edges]
    low = np.stack([one[i] for one, i in zip(edges, corner, strict=True)], axis=-1)[:, None]
    high = np.stack([one[i + 1] for one, i in zip(edges, corner, strict=True)], axis=-1)[:, None]
    drawn = space.snap(low + draws.reshape(len(homes), -1, space.n_dims) * (high - low))
    stays = (regions.index(drawn) == homes[:, None]) & space.allows(drawn)
    order = np.argsort(~stays, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(drawn, order[..., None], axis=1), np.flatnonzero(stays.sum(axis=1) < count)


def _spread(row: FloatArray, space: Space, generator: np.random.Generator) -> None:
    """Replace points that stand before in a client's row by random others."""
    for index in range(1, len(row)):
        for _ in range(_TRIES):
            if not (row[:index] == row[index]).all(axis=1).any():
                break
            drawn = space.snap(generator.random(space.n_dims))
            row[index] = drawn if space.allows(drawn) else row[index]
