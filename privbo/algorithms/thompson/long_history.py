"""Points of a long history that a client's model is made of: its best, its newest, and others spread over the space.

The cost of a model grows with the cube of its points. Of more than ``OwnModel.max_points``, ``OwnModel.kept`` says
which: equal parts are those with the largest values and the newest, and the rest are chosen one after the other, each
the farthest from those that were chosen before. Which they are depends on the client's own history alone.
``docs/scale.md`` has the regret of each rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import torch

from privbo.algorithms.thompson.own_model import OwnModel, Part
from privbo.algorithms.thompson.posterior import Observations
from privbo.protocol.messages import FloatArray, IntArray


def narrowed(observations: Observations, units: FloatArray, own: OwnModel) -> tuple[Observations, FloatArray]:
    """Give the part of clients' histories that is modelled, at most ``own.max_points`` points of each.

    Args:
        observations: Histories of n clients of t points.
        units: The points in the cube, ``(n, t, n_dims)``.
        own: How many, and which.
    """
    if own.max_points is None or units.shape[1] <= own.max_points:
        return observations, units
    values = np.where(observations.mask.cpu().numpy(), observations.values.cpu().numpy(), -np.inf)
    kept = kept_points(units, values, own.max_points, own.kept)
    index = torch.as_tensor(kept, device=observations.values.device)
    wide = index[..., None].expand(-1, -1, observations.embedded.shape[-1])
    narrow = dataclasses.replace(
        observations,
        embedded=observations.embedded.gather(1, wide),
        values=observations.values.gather(1, index),
        mask=observations.mask.gather(1, index),
    )
    return narrow, np.take_along_axis(units, kept[..., None], axis=1)


def kept_points(units: FloatArray, values: FloatArray, count: int, parts: Collection[Part]) -> IntArray:
    """Choose points of every client, in the order in which they were evaluated, ``(n, count)``.

    Args:
        units: ``(n, t, n_dims)`` with t > ``count``.
        values: ``(n, t)``; minus infinity where there is none, which is chosen last.
        count: How many.
        parts: Rules, of equal parts; a point that two of them name leaves room for one more that is spread.
    """
    n, t = values.shape
    rows, known = np.arange(n), values > -np.inf
    chosen = np.zeros((n, t), dtype=bool)
    orders = {"best": values, "newest": np.where(known, np.arange(t), -1)}
    for part in parts:
        if part in orders:
            top = np.argsort(-orders[part], axis=1, kind="stable")[:, : count // len(parts)]
            np.put_along_axis(chosen, top, values=True, axis=1)
    distances = np.full((n, t), np.inf)
    first = np.argsort(~chosen, axis=1, kind="stable")
    made = chosen.sum(axis=1)
    for column in range(made.max(initial=0) if (made < count).any() else 0):
        has = chosen[rows, first[:, column]]
        _nearer(distances, has, units, first[:, column])
    while (short := chosen.sum(axis=1) < count).any():
        score = np.where(chosen, -2.0, np.where(known, distances, -1.0))
        place = score.argmax(axis=1)
        chosen[rows[short], place[short]] = True
        _nearer(distances, short, units, place)
    return np.asarray(np.nonzero(chosen)[1].reshape(n, count))


def _nearer(distances: FloatArray, some: npt.NDArray[np.bool_], units: FloatArray, place: IntArray) -> None:
    """Lower some clients' squared distances to their chosen points by one more of these."""
    points = units[some, place[some]]
    found = np.zeros((len(points), units.shape[1]))
    for dim in range(units.shape[2]):  # one coordinate after another: no sum depends on how many clients there are
        found += (units[some, :, dim] - points[:, None, dim]) ** 2
    distances[some] = np.minimum(distances[some], found)
