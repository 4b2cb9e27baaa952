"""A common setting: public candidates, the clients' ballots over them, and what is chosen.

A broadcast whose arrays hold ``CHOSEN`` announces the run's common setting, a canonical point ``(n_dims,)``.
An algorithm whose own releases name it announces it at no cost. A run with
``final = "common"`` ends with one more release: the server names candidates that follow from releases and
public points only, every client judges them by what it knows, and one noisy sum of ballots leaves the clients. What
has the largest entry is the common setting; taking the largest of released numbers is post-processing and free.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

from privbo.protocol.messages import Ask, BoolArray, Broadcast, FloatArray, Request
from privbo.protocol.space import Space, different

Final: TypeAlias = Literal["common"]
# "useful" leaves out, and does not charge, releases that could change no client's point and no common answer.
ReleaseWhen: TypeAlias = Literal["useful", "always"]
# Names of the arrays in the broadcasts of the final rounds.
CANDIDATES, LAST_ROUND, CHOSEN = "final_candidates", "final_last_round", "final_chosen"
N_CANDIDATES = 16
_SHARPNESS = 3.0
_WIDE = 13  # log2 of the points among which some keep the constraints, of which at least a hundredth of all do


@runtime_checkable
class Proposing(Protocol):
    """A server that can name candidates for a common setting."""

    def propose(self, count: int) -> FloatArray:
        """Give 1 to ``count`` different canonical points, ``(k, n_dims)``, by releases and public points only."""


@runtime_checkable
class Judging(Protocol):
    """A cohort whose clients can judge points that they need not have evaluated."""

    def judge(self, broadcast: Broadcast, units: FloatArray) -> FloatArray:
        """PRIVATE: give every client's expected objective at every point, ``(n, k)``, on any scale of its own.

        NaN where a client knows nothing. ``broadcast`` is the last one of the run's rounds. Judged again, points are
        judged alike, and nothing is evaluated.
        """


def is_of_rounds(ask: Ask) -> bool:
    """Tell whether a question is of the algorithm's own rounds; ballots, of norm 1, say nothing about its clipping."""
    return CANDIDATES not in ask.broadcast.arrays


def ballot_request(n_candidates: int, n_clients: int, noise_scale: float) -> Request:
    """Give the request for the mean ballot, of norm at most 1 for every client.

    Example:
        >>> ballot_request(16, 40, 1.0).dim
        16
    """
    weights = np.full((1, n_clients), 1.0 / n_clients)
    return Request(dim=n_candidates, clipping_norm=1.0, weights=weights, noise_scale=noise_scale)


def ballots(judged: FloatArray) -> FloatArray:
    """PRIVATE: make every client's ballot from what it expects, ``(n, k)``: of norm 1, or NaN for an absence.

    A ballot stands between one vote and the judgement itself: shares exp(3 s), s the judgement at mean 0 and standard
    deviation 1 over the candidates, at mean 0 and norm 1. The sum of all entries does not tell which one is largest, so
    it is taken out before the norm is bounded.

    Example:
        >>> ballots(np.array([[2.0, 1.0], [np.nan, np.nan]])).round(2).tolist()
        [[0.71, -0.71], [nan, nan]]
    """
    known = np.isfinite(judged)
    standard = _centred(_divided(judged, np.abs(np.where(known, judged, 0.0)).max(axis=1, keepdims=True)), known)
    counts = np.maximum(known.sum(axis=1, keepdims=True), 1)
    standard = _divided(standard, np.linalg.norm(standard, axis=1, keepdims=True) / np.sqrt(counts))
    shares = _centred(np.exp(_SHARPNESS * (standard - standard.max(axis=1, keepdims=True))), known)
    made = _divided(shares, np.linalg.norm(shares, axis=1, keepdims=True))
    return np.where(known.any(axis=1, keepdims=True), made, np.nan)


def _divided(values: FloatArray, by: FloatArray) -> FloatArray:
    """Values over a number per row; 0 where it is 0."""
    return np.divide(values, by, out=np.zeros_like(values), where=by > 0.0)


def _centred(values: FloatArray, known: BoolArray) -> FloatArray:
    """Values at mean 0 per row over what is known; 0 elsewhere."""
    kept = np.where(known, values, 0.0)
    means = kept.sum(axis=1, keepdims=True) / np.maximum(known.sum(axis=1, keepdims=True), 1)
    return np.where(known, kept - means, 0.0)


def spread(space: Space, count: int, shift: FloatArray) -> FloatArray:
    """Give public points that fill a space, ``(k, n_dims)`` with 1 <= k <= ``count``, all different.

    Args:
        space: The search space; a finite one of at most ``count`` points is given whole.
        count: Most points.
        shift: By which a Sobol net is moved around the cube, ``(n_dims,)``; public.
    """
    whole = space.grid(count)
    if whole is not None:
        return whole
    from scipy.stats import qmc  # the command line's help does without scipy

    net = qmc.Sobol(space.n_dims, scramble=False)
    if space.is_whole:
        return different(space.snap((net.random_base2(max(0, (count - 1).bit_length()))[:count] + shift) % 1.0))
    found = different(space.snap((net.random_base2(_WIDE) + shift) % 1.0))
    return found[space.allows(found)][:count]
