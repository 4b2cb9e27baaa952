"""Finitely many disjoint sets of outputs, called cells, with certified masses under the laws of two neighbours.

A union of cells is a test whatever the cells are, so a lower end needs no more than their masses: those under P
rounded down, those under Q rounded up. Outputs in no cell belong to no test. Cells of a number with Gaussian or
Laplace noise are intervals between doubles; which doubles decides how good the test is, never whether it holds.

A tail is computed with a relative error of at most EPS (16 + 4 t^2), t its place in units of the noise: the place is
rounded by 2 EPS, which moves a normal tail by t^2 + 2 times that, and erfc and exp err by a few units of the last
place. A mass is a difference of two tails on the side where they are small, and both errors are booked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Parts = Sequence[tuple[float, float]]
"""A mixture's parts: weights and centers."""

EPS = float(np.finfo(np.float64).eps)
TINY = 1e-300
_POINTS = 4096  # edges of one release
_REACH = 20.0  # standard deviations beyond the outermost centers
_UNHEARD = 40.0  # a normal tail is less than any double there, a Laplace tail's error grows no more than linearly
_MOST_CELLS = 8192  # of a release in a composition


@dataclass(frozen=True, kw_only=True)
class Masses:
    """Bounds of the masses of some cells under one law.

    Attributes:
        least: They are at least this.
        most: They are at most this.
    """

    least: FloatArray
    most: FloatArray


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Disjoint sets of outputs.

    Attributes:
        p: Positive masses, at most those under P.
        q: Positive masses, at least those under Q.
    """

    p: FloatArray
    q: FloatArray

    @property
    def losses(self) -> FloatArray:
        """Log ratios of the masses, by which tests are ordered."""
        return np.log(self.p) - np.log(self.q)

    def epsilon(self, delta: float) -> float:
        """An epsilon that some test shows at ``delta``: log((P(A) - delta) / Q(A))."""
        p, q = self._tests()
        shown = p > delta * (1.0 + 4.0 * EPS)
        if not np.any(shown):
            return 0.0
        found = float(np.max(np.log(p[shown] - delta * (1.0 + 4.0 * EPS)) - np.log(q[shown])))
        return max(0.0, found - 4.0 * EPS * (-2.0 * math.log(TINY) + abs(found)))  # of two logarithms

    def delta(self, epsilon: float) -> float:
        """A delta that some test shows at ``epsilon``: P(A) - exp(epsilon) Q(A)."""
        if not len(self.p):
            return 0.0
        p, q = self._tests()
        logs = np.minimum(epsilon * (1.0 + 4.0 * EPS) + np.log(q), 1.0)
        return max(0.0, float(np.max(p - np.exp(logs) * (1.0 + 1e-12))) * (1.0 - 1e-12))

    def merged(self) -> Cells:
        """Not so many cells: those of about one loss are made one."""
        if len(self.p) <= _MOST_CELLS:
            return self
        order = np.argsort(self.losses)
        starts = np.arange(0, len(order), math.ceil(len(order) / _MOST_CELLS))
        rounding = EPS * len(order) / len(starts)
        p, q = (np.add.reduceat(values[order], starts) for values in (self.p, self.q))
        return Cells(p=p * (1.0 - 2.0 * rounding), q=q * (1.0 + 2.0 * rounding))

    def _tests(self) -> tuple[FloatArray, FloatArray]:
        """Masses of all cells of at least each loss."""
        order = np.argsort(-self.losses)
        rounding = 2.0 * EPS * len(order)
        return np.cumsum(self.p[order]) * (1.0 - rounding), np.cumsum(self.q[order]) * (1.0 + rounding)


def cells(p: Masses, q: Masses) -> Cells:
    """The cells that P certainly meets."""
    met = p.least > 0.0
    return Cells(p=p.least[met], q=np.maximum(q.most[met], TINY))


def normal_edges(*laws: Parts, scale: float) -> FloatArray:
    """Edges of cells for Gaussian noise of this standard deviation."""
    centers = [center for parts in laws for _, center in parts]
    return np.linspace(min(centers) - _REACH * scale, max(centers) + _REACH * scale, _POINTS)


def laplace_edges(*laws: Parts) -> FloatArray:
    """Edges of cells for Laplace noise: beyond the outermost centers the loss is constant."""
    centers = [center for parts in laws for _, center in parts]
    return np.linspace(min(centers), max(centers), _POINTS)


def normal_tail(t: FloatArray) -> FloatArray:
    """P(N(0, 1) > t) for t >= 0, by the standard library."""
    return np.fromiter(map(math.erfc, (t / math.sqrt(2.0)).tolist()), dtype=np.float64, count=len(t)) / 2.0


def laplace_tail(t: FloatArray) -> FloatArray:
    """P(Laplace(0, 1) > t) for t >= 0."""
    return np.asarray(0.5 * np.exp(-t), dtype=np.float64)


def normal_masses(parts: Parts, scale: float, edges: FloatArray) -> Masses:
    """Masses below the first edge, between all edges, and beyond the last, of a mixture of Gaussians."""
    return _summed([_between(normal_tail, center, scale, edges) for _, center in parts], parts)


def laplace_masses(parts: Parts, scale: float, edges: FloatArray) -> Masses:
    """The same of a mixture of Laplace laws."""
    return _summed([_between(laplace_tail, center, scale, edges) for _, center in parts], parts)


def _summed(each: list[Masses], parts: Parts) -> Masses:
    weights = [weight for weight, _ in parts]
    rounding = EPS * (4.0 + 2.0 * len(weights))
    least = sum((w * one.least for w, one in zip(weights, each, strict=True)), np.zeros_like(each[0].least))
    most = sum((w * one.most for w, one in zip(weights, each, strict=True)), np.zeros_like(each[0].most))
    return Masses(
        least=np.maximum(least * (1.0 - rounding) - TINY, 0.0),
        most=most * (1.0 + rounding) + TINY,  # the tail that underflowed is smaller than this
    )


def _between(tail: Callable[[FloatArray], FloatArray], center: float, scale: float, edges: FloatArray) -> Masses:
    t = (edges - center) / scale
    small = tail(np.abs(t))
    above, below = np.where(t >= 0.0, small, 1.0 - small), np.where(t >= 0.0, 1.0 - small, small)
    error = EPS * (16.0 + 4.0 * np.square(np.minimum(np.abs(t), _UNHEARD)))
    above, below = np.concatenate([[1.0], above, [0.0]]), np.concatenate([[0.0], below, [1.0]])
    error = np.concatenate([[0.0], error, [0.0]])
    right = np.concatenate([[False], t >= 0.0])
    mass = np.where(right, above[:-1] - above[1:], np.diff(below))
    slack = np.where(
        right, error[:-1] * above[:-1] + error[1:] * above[1:], error[:-1] * below[:-1] + error[1:] * below[1:]
    )
    return Masses(least=mass - slack, most=mass + slack)
