"""One release on a lattice of losses k h: a worse pair from above, a coarser one from below.

Upper. In each cell [k h, (k+1) h] the mass is split between both ends so that its P- and
its Q-mass are kept. As dP/dQ under Q is thereby spread with its mean kept, and the hockey
stick is convex in dP/dQ, the result dominates the pair (the "connect the dots" of
Doroshenko et al. 2022, written for masses instead of profiles). Added variance is at most
h^2/4 a release, the mean moves by O(h^2). What lies beyond the top is a cell like the others
whose upper end is infinite loss: delta(epsilon) is linear in dQ/dP beyond epsilon, so a top
(``cap``) well above epsilon costs nothing, and rare large losses need no lattice of their own.
Mass below the bottom is lifted to it, which only costs more.

Lower. The number of the cell that a loss falls in is a function of the output, so sums of
cell numbers are tests of P against Q, and any test bounds delta(epsilon) from below:
P(A) - exp(epsilon) Q(A). Nothing is approximated but the power of the test. (A loss below the
lattice's bottom is in no cell: A leaves such outputs out, whatever the other releases say.)

Rounding. Every computed mass is widened by its error bound in the safe direction, so both
statements hold for the numbers as computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from accountant.tight.pair import EPS, FloatArray, Pair, Tails


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
    loss_error: float


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


def _differences(above: FloatArray, below: FloatArray, error: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mass of each cell between consecutive edges and a bound of its rounding error."""
    lower_half = below[1:] < 0.5
    mass = np.where(lower_half, below[1:] - below[:-1], above[:-1] - above[1:])
    tail = np.where(lower_half, below[1:] + below[:-1], above[:-1] + above[1:])
    return np.maximum(mass, 0.0), tail * np.maximum(error[1:], error[:-1])


def _loss_error(pair: Pair, ks: npt.NDArray[np.int64], spacing: float) -> float:
    return pair.loss_error + 16.0 * EPS * spacing * float(max(abs(int(ks[0])), abs(int(ks[-1]))))


def upper_cells(pair: Pair, count: int, *, spacing: float, extent: Extent) -> UpperCells:
    """The dominating lattice release."""
    ks = _lattice(pair, spacing, extent)
    edges = np.asarray(spacing * ks, dtype=np.float64)
    tails: Tails = pair.tails(edges)
    p, p_error = _cells_and_rest(tails.p_above, tails.p_below, tails.relative_error)
    q, q_error = _cells_and_rest(tails.q_above, tails.q_below, tails.relative_error)
    ratio = np.exp(edges)
    rounding = 4.0 * EPS * (1.0 + np.abs(edges)) * (p + ratio * q)
    step = np.full(len(ks), -math.expm1(-spacing))
    step[-1] = 1.0  # from the top to infinity
    mass = p + p_error
    up = np.clip((p - ratio * q + p_error + ratio * q_error + rounding) / step, 0.0, mass)
    masses = mass - up
    masses[1:] += up[:-1]
    masses[0] += float(tails.p_below[0]) * (1.0 + float(tails.relative_error[0]))
    return UpperCells(
        cells=Cells(start=int(ks[0]), masses=masses, count=count),
        infinite=count * float(up[-1]),
        loss_error=count * _loss_error(pair, ks, spacing),
    )


def _cells_and_rest(above: FloatArray, below: FloatArray, error: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mass and error of each cell, and last of what lies above all of them."""
    mass, wrong = _differences(above, below, error)
    return np.append(mass, above[-1]), np.append(wrong, above[-1] * error[-1])


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
