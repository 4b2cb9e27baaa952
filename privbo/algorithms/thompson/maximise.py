"""Maxima of many functions over one space: dense candidates, then batched local refinement.

Works on the canonical points of any space, so integers and categories need no special
case; a finite space is searched whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import torch
from scipy.special import ndtri
from scipy.stats import qmc

from privbo.protocol.messages import FloatArray
from privbo.protocol.space import Space

_ENOUGH, _WIDE = 16, 8192  # points that keep constraints, and the points among which they are looked for
# Values (n, c) of n functions at their points (n, c, n_dims), or at shared points (1, c, n_dims).
Functions: TypeAlias = Callable[[FloatArray], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Search:
    """Effort of a search for a maximum.

    Attributes:
        n_candidates: Shared quasi-random candidates; also the largest finite space searched whole.
        n_starts: Best candidates that are refined.
        n_neighbours: Points tried around every start in one refinement.
        n_refinements: Refinements, each at half the radius of the one before.
    """

    n_candidates: int = 1024
    n_starts: int = 4
    n_neighbours: int = 16
    n_refinements: int = 6


def maximise(functions: Functions, space: Space, search: Search, generator: np.random.Generator) -> FloatArray:
    """The best canonical point found for every function, ``(n, n_dims)``.

    Args:
        functions: Evaluated in batches; shared candidates are passed as ``(1, c, n_dims)``.
        space: Where to look.
        search: How hard.
        generator: Of the public candidates; nothing else is random here.
    """
    grid = space.grid(search.n_candidates)
    pool = grid if grid is not None else candidates(space, search.n_candidates, generator)
    values = functions(pool[None])
    if grid is not None:
        return np.asarray(pool[values.argmax(dim=1).cpu().numpy()])
    best = values.topk(min(search.n_starts, len(pool)), dim=1)
    points, heights = pool[best.indices.cpu().numpy()], best.values
    radius = len(pool) ** (-1.0 / space.n_dims)
    for step in range(search.n_refinements):
        offsets = radius * 0.5**step * _cloud(search.n_neighbours, space.n_dims)
        points, heights = _refine(functions, space, points, heights, offsets)
    winner = heights.argmax(dim=1).cpu().numpy()
    return np.asarray(points[np.arange(len(points)), winner])


def _refine(
    functions: Functions, space: Space, points: FloatArray, heights: torch.Tensor, offsets: FloatArray
) -> tuple[FloatArray, torch.Tensor]:
    """Move every start to the best of its neighbours, if that is better."""
    n, n_starts, n_dims = points.shape
    tried = space.snap(points[:, :, None, :] + offsets)
    values = functions(tried.reshape(n, -1, n_dims)).reshape(n, n_starts, -1)
    if space.constraints:
        values = values.masked_fill(torch.as_tensor(~space.allows(tried), device=values.device), -torch.inf)
    best = values.max(dim=2)
    better = best.values > heights
    chosen = np.take_along_axis(tried, best.indices.cpu().numpy()[:, :, None, None], axis=2)[:, :, 0, :]
    moved = np.where(better.cpu().numpy()[:, :, None], chosen, points)
    return moved, torch.where(better, best.values, heights)


def candidates(space: Space, count: int, generator: np.random.Generator) -> FloatArray:
    """Canonical quasi-random points, ``(count, n_dims)``: a Sobol net shifted at random around the cube.

    Of a space with constraints those that keep them, which may be fewer.
    """
    shift = generator.random(space.n_dims)
    points = space.snap((_net(count, space.n_dims) + shift) % 1.0)
    if not space.constraints:
        return points
    allowed = points[space.allows(points)]
    if len(allowed) >= min(count, _ENOUGH):
        return allowed
    wide = space.snap((_net(_WIDE, space.n_dims) + shift) % 1.0)
    return wide[space.allows(wide)][:count]


@lru_cache(maxsize=32)
def _net(count: int, n_dims: int) -> FloatArray:
    sobol = qmc.Sobol(n_dims, scramble=False).random_base2(max(0, (count - 1).bit_length()))
    return np.asarray(sobol[:count])


@lru_cache(maxsize=32)
def _cloud(count: int, n_dims: int) -> FloatArray:
    """Fixed quasi-normal offsets of unit scale, ``(count, n_dims)``."""
    uniform = qmc.Halton(n_dims, scramble=False).random(count + 1)[1:]
    return np.asarray(ndtri(uniform))
