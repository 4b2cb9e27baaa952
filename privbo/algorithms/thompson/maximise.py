"""Maxima of functions over one space: dense candidates, then batched local refinement; and the acquisition function.

Works on the canonical points of any space, so integers and categories need no special
case; a finite space is searched whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import torch
from scipy.special import ndtri
from scipy.stats import qmc

from privbo.algorithms.thompson.streams import Stream, public_stream
from privbo.protocol.common import spread
from privbo.protocol.messages import FloatArray, Setting
from privbo.protocol.processes import limited_loaded_threads
from privbo.protocol.space import Space

_ENOUGH, _WIDE = 16, 8192  # points that keep constraints, and the points among which they are looked for
_POINTS = 1024  # over which functions are compared
_APART = 0.5  # least distance of candidates for a common setting, over that of as many points in a grid
_LOG_ROOT_2_PI, _ROOT_HALF_PI = 0.5 * math.log(2.0 * math.pi), math.sqrt(0.5 * math.pi)
# Below -1 the sum loses digits and the scaled complementary error function takes over; below -1000 its
# own difference does, and the leading terms of the series are closer.
_DIRECT, _SERIES = -1.0, -1e3
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


@limited_loaded_threads(1)
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
    points, reached = pool[best.indices.cpu().numpy()], best.values
    radius = len(pool) ** (-1.0 / space.n_dims)
    for step in range(search.n_refinements):  # every start moves to the best of its neighbours, if that is better
        tried = space.snap(points[:, :, None, :] + radius * 0.5**step * _cloud(search.n_neighbours, space.n_dims))
        values = functions(tried.reshape(len(tried), -1, space.n_dims)).reshape(tried.shape[:3])
        if space.constraints:
            values = values.masked_fill(torch.as_tensor(~space.allows(tried), device=values.device), -torch.inf)
        nearby = values.max(dim=2)
        better = nearby.values > reached
        chosen = np.take_along_axis(tried, nearby.indices.cpu().numpy()[:, :, None, None], axis=2)[:, :, 0, :]
        points = np.where(better.cpu().numpy()[:, :, None], chosen, points)
        reached = torch.where(better, nearby.values, reached)
    winner = reached.argmax(dim=1).cpu().numpy()
    return np.asarray(points[np.arange(len(points)), winner])


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


def log_expected_improvement(mean: torch.Tensor, variance: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
    """Logarithm of E max(f - best, 0) for normal f, whatever the distance, as broadcast.

    With s the standard deviation and u = (mean - best) / s it is log(phi(u) + u Phi(u)) + log s. It neither underflows
    nor flattens (Ament et al. 2023, eq. 9): expected improvement is exactly zero in floating point over most of a
    space, where its logarithm still says which point is the better one.

    Args:
        mean: Of f.
        variance: Of f, positive.
        best: Value to be improved upon.

    Example:
        >>> import torch
        >>> mean, one = torch.tensor([0.0, -40.0], dtype=torch.float64), torch.ones(2, dtype=torch.float64)
        >>> [round(x, 4) for x in log_expected_improvement(mean, one, 0.0 * one).tolist()]
        [-0.9189, -808.2986]
    """
    stddev = variance.sqrt()
    u = (mean - best) / stddev
    near = u.clamp_min(_DIRECT)
    found: torch.Tensor = ((-0.5 * near.square() - _LOG_ROOT_2_PI).exp() + near * torch.special.ndtr(near)).log()
    if bool((u <= _DIRECT).any()):
        far = -u.clamp_max(_DIRECT)
        # phi(u) + u Phi(u) = phi(u) (1 - |u| sqrt(pi / 2) erfcx(|u| / sqrt 2)): phi(u) (1 / u^2 - 3 / u^4 + ...).
        scaled = 1.0 - far * _ROOT_HALF_PI * torch.special.erfcx(far / math.sqrt(2.0))
        inverse = far.square().reciprocal()
        share = torch.where(far > -_SERIES, inverse - 3.0 * inverse.square(), scaled)
        found = torch.where(u > _DIRECT, found, -0.5 * far.square() - _LOG_ROOT_2_PI + share.log())
    return found + stddev.log()


def public_points(setting: Setting) -> FloatArray:
    """Points over which functions are compared: a small space whole, else a net; public."""
    grid = setting.space.grid(_POINTS)
    if grid is not None:
        return grid
    return candidates(setting.space, _POINTS, public_stream(setting.public_seed, Stream.FEATURES, 1))


@limited_loaded_threads(1)
def peaks(setting: Setting, values: Functions | None, count: int) -> FloatArray:
    """Give up to ``count`` points, ``(k, n_dims)``: the largest of a shared function that are apart from each other.

    Args:
        setting: Of the run.
        values: Of the shared function; None where it can't be told from its noise, and points fill the space instead.
        count: Most points.
    """
    if values is None:
        shift = public_stream(setting.public_seed, Stream.FEATURES, 2).random(setting.space.n_dims)
        return spread(setting.space, count, shift)
    points = public_points(setting)
    order = points[np.argsort(-values(points[None])[0].cpu().numpy(), kind="stable")]
    embedded = setting.space.embed(order)
    least = _APART * count ** (-1.0 / setting.space.n_dims)
    chosen: list[int] = []
    for place, here in enumerate(embedded):
        if len(chosen) == count:
            break
        if not chosen or np.linalg.norm(embedded[chosen] - here, axis=1).min() >= least:
            chosen.append(place)
    return np.asarray(order[chosen])
