"""One release on a lattice of losses k h: a worse pair from above, a coarser one from below.

Upper. In each cell [k h, (k+1) h] the mass is split between both ends so that its P- and
its Q-mass are kept. As dP/dQ under Q is thereby spread with its mean kept, and the hockey
stick is convex in dP/dQ, the result dominates the pair (the "connect the dots" of
Doroshenko et al. 2022, written for masses instead of profiles). Added variance is at most
h^2/4 a release, the mean moves by O(h^2). Mass beyond the top becomes infinite loss, mass
below the bottom is lifted to it; both only cost more.

Lower. The number of the cell that a loss falls in is a function of the output, so sums of
cell numbers are tests of P against Q, and any test bounds delta(epsilon) from below:
P(A) - exp(epsilon) Q(A). Nothing is approximated but the power of the test.

Rounding. Every computed mass is widened by its error bound in the safe direction, so both
statements hold for the numbers as computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from accountant.tight.pairs import EPS, FloatArray, Pair, Tails


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


def _lattice(pair: Pair, spacing: float, t: float) -> npt.NDArray[np.int64]:
    low, high = pair.loss_range(t)
    return np.arange(math.floor(low / spacing), math.ceil(high / spacing) + 1)


def _differences(above: FloatArray, below: FloatArray, error: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mass of each cell between consecutive edges and a bound of its rounding error."""
    lower_half = below[1:] < 0.5
    mass = np.where(lower_half, below[1:] - below[:-1], above[:-1] - above[1:])
    tail = np.where(lower_half, below[1:] + below[:-1], above[:-1] + above[1:])
    return np.maximum(mass, 0.0), tail * np.maximum(error[1:], error[:-1])


def _loss_error(pair: Pair, ks: npt.NDArray[np.int64], spacing: float) -> float:
    return pair.loss_error + 16.0 * EPS * spacing * float(max(abs(int(ks[0])), abs(int(ks[-1]))))


def upper_cells(pair: Pair, count: int, *, spacing: float, t: float) -> UpperCells:
    """The dominating lattice release; ``t`` says how far into P's tails the lattice reaches."""
    ks = _lattice(pair, spacing, t)
    edges = np.asarray(spacing * ks, dtype=np.float64)
    tails: Tails = pair.tails(edges)
    p, p_error = _differences(tails.p_above, tails.p_below, tails.relative_error)
    q, q_error = _differences(tails.q_above, tails.q_below, tails.relative_error)
    ratio = np.exp(edges[:-1])
    rounding = 4.0 * EPS * (1.0 + np.abs(edges[:-1])) * (p + ratio * q)
    up = (p - ratio * q + p_error + ratio * q_error + rounding) / -math.expm1(-spacing)
    mass = p + p_error
    up = np.clip(up, 0.0, mass)
    masses = np.zeros(len(ks))
    masses[1:] += up
    masses[:-1] += mass - up
    masses[0] += float(tails.p_below[0]) * (1.0 + float(tails.relative_error[0]))
    return UpperCells(
        cells=Cells(start=int(ks[0]), masses=masses, count=count),
        infinite=count * float(tails.p_above[-1]) * (1.0 + float(tails.relative_error[-1])),
        loss_error=count * _loss_error(pair, ks, spacing),
    )


def lower_cells(pair: Pair, count: int, *, spacing: float, t: float) -> LowerCells:
    """The cells of width ``spacing`` around every lattice point; the outermost are unbounded."""
    ks = _lattice(pair, spacing, t)
    tails = pair.tails(np.asarray(spacing * (ks[:-1] + 0.5), dtype=np.float64))
    error = np.concatenate([[0.0], tails.relative_error, [0.0]])
    p, p_error = _differences(*_closed(tails.p_above, tails.p_below), error)
    q, q_error = _differences(*_closed(tails.q_above, tails.q_below), error)
    scaled = (q + q_error) * np.exp(spacing * ks) * (1.0 + 4.0 * EPS * (1.0 + spacing * np.abs(ks)))
    return LowerCells(
        p=Cells(start=int(ks[0]), masses=np.maximum(p - p_error, 0.0), count=count),
        q_scaled=Cells(start=int(ks[0]), masses=scaled, count=count),
    )


def _closed(above: FloatArray, below: FloatArray) -> tuple[FloatArray, FloatArray]:
    return np.concatenate([[1.0], above, [0.0]]), np.concatenate([[0.0], below, [1.0]])
