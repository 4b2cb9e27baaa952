"""Public candidates for a common setting: the heights of a shared function, or points that fill the space."""

from __future__ import annotations

import numpy as np

from privbo.algorithms.thompson.pooled import Heights, public_points
from privbo.algorithms.thompson.streams import Stream, public_stream
from privbo.protocol.common import spread
from privbo.protocol.messages import FloatArray, Setting

_APART = 0.5  # least distance of candidates, over that of as many points in a grid


def peaks(setting: Setting, heights: Heights | None, count: int) -> FloatArray:
    """Give up to ``count`` points, ``(k, n_dims)``: the highest of a shared function that are apart from each other.

    Args:
        setting: Of the run.
        heights: Of the shared function; None where it can't be told from its noise, and points fill the space instead.
        count: Most points.
    """
    if heights is None:
        shift = public_stream(setting.public_seed, Stream.FEATURES, 2).random(setting.space.n_dims)
        return spread(setting.space, count, shift)
    points = public_points(setting)
    found = heights(points[None])[0].cpu().numpy()
    order = points[np.argsort(-found, kind="stable")]
    embedded = setting.space.embed(order)
    least = _APART * count ** (-1.0 / setting.space.n_dims)
    chosen: list[int] = []
    for place, here in enumerate(embedded):
        if len(chosen) == count:
            break
        if not chosen or np.linalg.norm(embedded[chosen] - here, axis=1).min() >= least:
            chosen.append(place)
    return np.asarray(order[chosen])
