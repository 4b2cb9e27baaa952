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
    points: FloatArray,
    worked: IntArray,
    means: FloatArray,
    radius: Callable[[FloatArray], FloatArray],
    otherwise: FloatArray,
) -> FloatArray:
    """Give every client the point with the largest lower confidence bound of its own pulls, ``(n, d)``.

    Pulls of one point are pooled whatever node they were made for. Of equal bounds that of the
    point pulled last counts, which is where the others' averages sent the client.

    Args:
        owners: Row of the client of each turn, ``(r,)``.
        points: Its point, ``(r, d)``.
        worked: Pulls of the turn that did not fail, ``(r,)``.
        means: Mean reward of those; NaN where none worked.
        radius: Half-width of a confidence interval after so many pulls.
        otherwise: Points of clients none of whose pulls worked, ``(n, d)``.
    """
    found = otherwise.copy()
    rows = np.flatnonzero(worked > 0)
    if not len(rows):
        return found
    points, owners, worked = points[rows], owners[rows], worked[rows]
    _, places = np.unique(points, axis=0, return_inverse=True)
    pairs, turn = np.unique(owners * len(rows) + places.reshape(-1), return_inverse=True)
    counts = np.bincount(turn, weights=worked).astype(np.float64)
    totals = np.bincount(turn, weights=worked * means[rows]).astype(np.float64)
    lower = totals / counts - radius(counts)
    last = np.zeros(len(pairs), dtype=np.int64)
    np.maximum.at(last, turn, np.arange(len(rows)))
    order = np.lexsort((last, lower, pairs // len(rows)))
    clients = (pairs // len(rows))[order]
    best = order[np.flatnonzero(np.append(np.diff(clients) > 0, True))]
    found[np.unique(clients)] = points[last[best]]
    return found
