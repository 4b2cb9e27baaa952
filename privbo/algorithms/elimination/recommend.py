"""The point a client would use, by its own pulls alone (private)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from privbo.protocol.messages import FloatArray, IntArray


def judge(
    owners: IntArray, points: FloatArray, worked: IntArray, means: FloatArray, units: FloatArray, n: int
) -> FloatArray:
    """Give every client's mean reward at the point nearest to each of some points that it has pulled, ``(n, k)``.

    Args:
        owners: Row of the client of each turn, ``(r,)``.
        points: Its point, ``(r, d)``.
        worked: Pulls of the turn that did not fail, ``(r,)``.
        means: Mean reward of those; NaN where none worked.
        units: The points, ``(k, d)``.
        n: Number of clients.
    """
    judged = np.full((n, len(units)), np.nan)
    for client in range(n):
        mine = np.flatnonzero((owners == client) & (worked > 0))
        if not len(mine):
            continue
        apart = ((units[:, None] - points[mine]) ** 2).sum(axis=2)
        near = (apart <= apart.min(axis=1, keepdims=True)) * worked[mine]
        judged[client] = near @ means[mine] / near.sum(axis=1)
    return judged


def recommend(
    owners: IntArray,
    places: IntArray,
    worked: IntArray,
    means: FloatArray,
    radius: Callable[[FloatArray], FloatArray],
    points: FloatArray,
    otherwise: FloatArray,
) -> FloatArray:
    """Give every client the point with the largest lower confidence bound of its own pulls, ``(n, d)``.

    Pulls of one point are pooled whatever node they were made for. Of equal bounds that of the
    point pulled last counts, which is where the others' averages sent the client.

    Args:
        owners: Row of the client of each turn, ``(r,)``.
        places: Row of its point in ``points``, ``(r,)``.
        worked: Pulls of the turn that did not fail, ``(r,)``.
        means: Mean reward of those; NaN where none worked.
        radius: Half-width of a confidence interval after so many pulls.
        points: Points, of which some may be the same, ``(p, d)``.
        otherwise: Points of clients none of whose pulls worked, ``(n, d)``.
    """
    found = otherwise.copy()
    rows = np.flatnonzero(worked > 0)
    if not len(rows):
        return found
    points, same = np.unique(points, axis=0, return_inverse=True)
    owners, places, worked = owners[rows], same.reshape(-1)[places[rows]], worked[rows]
    pairs, turn = _numbered(owners * len(points) + places, len(found) * len(points))
    counts = np.bincount(turn, weights=worked).astype(np.float64)
    totals = np.bincount(turn, weights=worked * means[rows]).astype(np.float64)
    lower = totals / counts - radius(counts)
    last = np.zeros(len(pairs), dtype=np.int64)
    last[turn] = np.arange(len(rows))  # of several turns the last one stays
    clients = pairs // len(points)
    starts = np.flatnonzero(np.append(True, np.diff(clients) > 0))
    top = np.repeat(np.maximum.reduceat(lower, starts), np.diff(np.append(starts, len(pairs))))
    best = np.maximum.reduceat(np.where(lower == top, last, -1), starts)
    found[clients[starts]] = points[places[best]]
    return found


def _numbered(numbers: IntArray, size: int) -> tuple[IntArray, IntArray]:
    """``np.unique`` with its inverse of numbers below ``size``; without a sort where most of these occur."""
    if size > 4 * len(numbers):
        found, inverse = np.unique(numbers, return_inverse=True)
        return found, inverse
    there = np.zeros(size, dtype=bool)
    there[numbers] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[numbers]
