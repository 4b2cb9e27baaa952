"""One release on a lattice of losses k h: a worse pair from above, a coarser one from below.

Upper. The hockey stick H(g) = sup over A of P(A) - g Q(A) is convex in g. It is computed at the lattice's g = exp(k h)
and joined by straight lines: that is the hockey stick of a pair on the lattice, which dominates as no line lies below
H (the "connect the dots" of Doroshenko et al. 2022). Where the lines' slopes change the pair has its masses. Added
variance is at most h^2/4 a release, the mean moves by O(h^2). Beyond the top H stays constant: the top's value is mass
of infinite loss. delta(epsilon) is linear in dQ/dP beyond epsilon, so a top (``cap``) well above epsilon costs
nothing, and rare large losses need no lattice of their own. Mass below the bottom is lifted to it, which only costs
more. Every value is computed too large by its error's bound; as lines join the values, and not masses, the errors of
neighbouring cells do not add up.

Lower. The number of the cell that a loss falls in is a function of the output, so sums of
cell numbers are tests of P against Q, and any test bounds delta(epsilon) from below:
P(A) - exp(epsilon) Q(A). Nothing is approximated but the power of the test. (A loss below the
lattice's bottom is in no cell: A leaves such outputs out, whatever the other releases say.)

Rounding. Every number above is widened by its error bound in the safe direction, so both statements hold for the
numbers as computed. An edge may lie off by an error of its loss; what a set that begins there lacks of H is no more
than that error of the mass between.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from accountant.mechanisms.pair import EPS, FloatArray, Pair

_NEAR: Final = 16


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Masses on consecutive lattice points ``start``, ``start + 1``, ..., made ``count`` times."""

    start: int
    masses: FloatArray
    count: int


@dataclass(frozen=True, kw_only=True)
class UpperCells:
    """A dominating release: P-masses on the lattice, and the P-mass of infinite loss."""

    cells: Cells
    infinite: float


@dataclass(frozen=True, kw_only=True)
class LowerCells:
    """A test's cells: a lower bound of P's masses; an upper bound of Q's, each times exp(k h)."""

    p: Cells
    q_scaled: Cells


@dataclass(frozen=True, kw_only=True)
class Extent:
    """Losses that one release's lattice holds: ``t`` standard deviations of P, within ``bottom`` .. ``cap``.

    Any choice is valid: what lies beyond the cap is split between it and infinity, what lies below the bottom is
    lifted to it.
    """

    t: float
    bottom: float = -math.inf
    cap: float = math.inf

    def of(self, pair: Pair) -> tuple[float, float]:
        """Lowest and highest loss."""
        low, high = pair.loss_range(self.t)
        return min(max(low, self.bottom), self.cap), min(max(high, self.bottom), self.cap)


def _lattice(pair: Pair, spacing: float, extent: Extent) -> npt.NDArray[np.int64]:
    low, high = extent.of(pair)
    return np.arange(math.floor(low / spacing), math.ceil(high / spacing) + 1)


def upper_cells(pair: Pair, count: int, *, spacing: float, extent: Extent) -> UpperCells:
    """The dominating lattice release."""
    ks = _lattice(pair, spacing, extent)
    ks = np.append(ks, ks[-1] + 1)  # where losses are bounded no error of an edge reaches this one
    edges = np.asarray(spacing * ks, dtype=np.float64)
    ratio, rounding = np.exp(edges), 8.0 * EPS * (1.0 + np.abs(edges))
    sticks = _sticks(pair, edges, spacing)
    first, last = (float(sticks[at]) - min(0.0, math.expm1(edges[at])) for at in (0, -1))
    n_low = min(int(np.count_nonzero(ks < 0)), len(ks) - 1)
    # minus the slopes of H between the edges; below loss 0, where they are nearly 1, what they lack of 1
    slopes = np.diff(sticks) / (ratio[:-1] * math.expm1(spacing))
    lacking = np.append(sticks[0] / ratio[0], slopes[:n_low])[: n_low + 1 if n_low else 0]
    falling = np.append((1.0 - first) / ratio[0], -slopes[n_low:])[1 if n_low else 0 :]
    lacking -= rounding[0] * np.abs(lacking)
    falling += rounding[-1] * np.abs(falling)
    # where rounding made H concave a steeper line to the same right end lies above; beyond the top H is constant
    falling = np.maximum.accumulate(np.append(falling, 0.0)[::-1])[::-1]
    lacking = np.minimum.accumulate(np.append(lacking, 1.0 - falling[0] + EPS)[::-1])[::-1]
    masses = ratio * (1.0 + rounding) * np.append(np.diff(lacking), -np.diff(falling))
    infinite = count * last * (1.0 + 4.0 * EPS)
    return UpperCells(cells=Cells(start=int(ks[0]), masses=masses, count=count), infinite=infinite)


def _sticks(pair: Pair, edges: FloatArray, spacing: float) -> FloatArray:
    """Upper bounds of H(exp(l)) at every edge l; at negative ones of H(exp(l)) - (1 - exp(l)), Q's side of it."""
    tails, ratio, right = pair.tails(edges), np.exp(edges), edges >= 0.0
    p = np.where(right, tails.p_above, tails.p_below)
    q = np.where(right, tails.q_above, tails.q_below) * ratio
    wrong = (tails.relative_error + 4.0 * EPS * (1.0 + np.abs(edges))) * (p + q)
    moved = pair.loss_error + 16.0 * EPS * np.abs(edges)
    aside = math.ceil(2.0 * float(moved.max()) / spacing)  # cells to either side in which an edge may really lie
    p_between = _about(tails.p_above, tails.p_below, tails.relative_error, aside)
    q_between = _about(tails.q_above, tails.q_below, tails.relative_error, aside)
    lacked = np.expm1(np.minimum(moved, 300.0)) * np.minimum(p_between, ratio * q_between)
    sticks = np.where(right, p - q, q - p) + wrong + lacked
    return np.asarray(np.clip(sticks, 0.0, np.where(right, 1.0, ratio)), dtype=np.float64)


def _about(above: FloatArray, below: FloatArray, error: FloatArray, aside: int) -> FloatArray:
    """Mass of so many cells to either side of every edge, rounded up; of many cells that of the smaller tail there."""
    if aside > _NEAR:
        beyond = np.ones(min(aside, len(above)))
        from_low, to_high = np.append(beyond, above)[: len(above)], np.append(below, beyond)[-len(below) :]
        return np.asarray(np.minimum(from_low, to_high) * (1.0 + float(error.max())), dtype=np.float64)
    mass, slack = _cells_and_rest(above, below, error)
    cells = np.append(below[0], mass + slack) * (1.0 + 1e-9)
    return np.convolve(cells, np.ones(2 * aside))[aside : aside + len(above)]


def _cells_and_rest(above: FloatArray, below: FloatArray, error: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mass and error of each cell, and last of what lies above all of them."""
    lower_half = below[1:] < 0.5
    mass = np.where(lower_half, below[1:] - below[:-1], above[:-1] - above[1:])
    tail = np.where(lower_half, below[1:] + below[:-1], above[:-1] + above[1:])
    wrong = tail * np.maximum(error[1:], error[:-1])
    return np.append(np.maximum(mass, 0.0), above[-1]), np.append(wrong, above[-1] * error[-1])


def lower_cells(pair: Pair, count: int, *, spacing: float, extent: Extent) -> LowerCells:
    """The cells of width ``spacing`` around every lattice point; the last is unbounded.

    Outputs whose loss lies below the first cell are in none: no test that is made of these sums rejects there.
    """
    ks = _lattice(pair, spacing, extent)
    tails = pair.tails(np.asarray(spacing * (ks - 0.5), dtype=np.float64))
    p, p_error = _cells_and_rest(tails.p_above, tails.p_below, tails.relative_error)
    q, q_error = _cells_and_rest(tails.q_above, tails.q_below, tails.relative_error)
    scaled = (q + q_error) * np.exp(spacing * ks) * (1.0 + 4.0 * EPS * (1.0 + spacing * np.abs(ks)))
    return LowerCells(
        p=Cells(start=int(ks[0]), masses=np.maximum(p - p_error, 0.0), count=count),
        q_scaled=Cells(start=int(ks[0]), masses=scaled, count=count),
    )
