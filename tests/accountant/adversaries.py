"""Adversaries that choose their next release from what they saw, and exactly what they achieve.

Every release's noise is observed through ``BINS`` bins only: a post-processing, so its pair is a pair
of short probability vectors and a whole interaction a finite tree, whose hockey-stick
divergence is an exact finite sum. Whatever a tree achieves, the interaction it was binned from
achieves at least.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import cache
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


def strongest(
    start: Hashable, admit: Admit, menu: Sequence[Basic], epsilons: Sequence[float], *, deepest: int, bins: int = BINS
) -> np.ndarray:
    """The most that any adversary of so many releases achieves at each epsilon, in either direction.

    By dynamic programming over the privacy loss. With V_s(g) the largest H_g from state s on: V_s(g) = max over
    releases of the sum over bins of P(b) V_s'(g Q(b) / P(b)), and at least that of stopping, max(0, 1 - g). V is
    convex in g, so reading it between points of a grid in log g gives hardly more than the truth.
    """
    pairs = {release: binned(release, bins) for release in menu}
    log_g = np.linspace(-12.0, 12.0, 4001)
    asked = cache(admit)  # the filter itself, once in every state

    @cache
    def values(state: Hashable, left: int, swapped: bool) -> np.ndarray:
        found = np.maximum(0.0, 1.0 - np.exp(log_g))
        for release in menu if left else ():
            if (following := asked(state, release)) is not None:
                p, q = pairs[release][:: -1 if swapped else 1]
                later = np.interp(log_g[:, None] + np.log(q / p), log_g, values(following, left - 1, swapped))
                found = np.maximum(found, later @ p)
        return found

    return np.max([np.interp(epsilons, log_g, values(start, deepest, swapped)) for swapped in (False, True)], axis=0)
