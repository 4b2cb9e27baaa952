"""Adversaries that choose their next release from what they saw, and exactly what they achieve.

Every release's noise is observed through ``BINS`` bins only: a post-processing, so its pair is a pair
of short probability vectors and a whole interaction a finite tree, whose hockey-stick
divergence is an exact finite sum. Whatever a tree achieves, the interaction it was binned from
achieves at least.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from accountant.events import Basic, FixedSizeSampledGaussian, Gaussian

BINS = 6
Admit = Callable[[Any, Basic], Any]
"""The filter's state after a release, None where it refuses it."""


def binned(release: Basic, bins: int = BINS) -> tuple[np.ndarray, np.ndarray]:
    """(P, Q) over bins of equal chance under the even mixture of Q and the unsampled N(1, z^2)."""
    z = release.noise_multiplier
    q = 1.0 if isinstance(release, Gaussian) else release.sample_rate
    assert not isinstance(release, FixedSizeSampledGaussian)
    edges = np.concatenate([[-np.inf], 0.5 + (z + 0.5) * ndtri(np.arange(1, bins) / bins), [np.inf]])
    zero, one = np.diff(ndtr(edges / z)), np.diff(ndtr((edges - 1.0) / z))
    return (1.0 - q) * zero + q * one, zero


@dataclass(frozen=True)
class Game:
    """A filter's states as far as a menu of releases reaches, as a table.

    Attributes:
        after: State after each release, ``(n_states, n_releases)``; -1 where it is refused.
        pairs: Binned (P, Q) of each release, ``(n_releases, 2, bins)``.
    """

    after: np.ndarray
    pairs: np.ndarray

    @classmethod
    def of(cls, start: Hashable, admit: Admit, menu: Sequence[Basic], *, deepest: int, bins: int = BINS) -> Game:
        """Ask the filter itself in every state that ``deepest`` releases can reach."""
        known, edge, rows = {start: 0}, [start], []
        for _ in range(deepest):
            reached = []
            for state in edge:
                row = []
                for release in menu:
                    following = admit(state, release)
                    if following is not None and following not in known:
                        known[following] = len(known)
                        reached.append(following)
                    row.append(-1 if following is None else known[following])
                rows.append(row)
            edge = reached
        rows += [[-1] * len(menu)] * len(edge)
        pairs = np.array([binned(release, bins) for release in menu])
        return cls(after=np.array(rows), pairs=pairs)


def best_possible(game: Game, epsilon: float, *, swapped: bool, points: int = 4001) -> float:
    """The most that any adversary of the game achieves, by dynamic programming over the privacy loss.

    With V_s(g) the largest H_g from state s on: V_s(g) = max over releases of the sum over bins of
    P(b) V_s'(g Q(b) / P(b)), and at least that of stopping, max(0, 1 - g). V is convex in g, so reading
    it between points of a grid in log g gives hardly more than the truth.
    """
    pairs = game.pairs[:, ::-1] if swapped else game.pairs
    log_g = np.linspace(-12.0, 12.0, points)
    stopping = np.maximum(0.0, 1.0 - np.exp(log_g))
    values = np.tile(stopping, (len(game.after), 1))
    ratios = np.log(pairs[:, 1] / pairs[:, 0])
    for state in reversed(range(len(game.after))):  # states are numbered in the order in which they are reached
        for release, following in enumerate(game.after[state]):
            if following >= 0:
                later = np.interp(log_g[:, None] + ratios[release], log_g, values[following])
                values[state] = np.maximum(values[state], later @ pairs[release, 0])
    return float(np.interp(epsilon, log_g, values[0]))
