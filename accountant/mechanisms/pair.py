"""Dominating pair of one release: the tails of its privacy loss under both hypotheses.

A release is described by two output distributions P and Q such that no two adjacent data
sets are told apart more easily; its privacy loss is L = log(dP/dQ). Dominating pairs
compose (Zhu, Dong, Wang 2022, Theorem 10), so a whole run is as private as the product of
its pairs. All numerical accounting needs of a pair is P(L > l) and Q(L > l) with high
relative accuracy in both tails, and the range of losses that matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
EPS = float(np.finfo(np.float64).eps)
NODES = 160
Parts: TypeAlias = tuple[tuple[float, float], ...]
"""Weights and centers of a mixture."""


class Tails(NamedTuple):
    """Probabilities beyond each loss edge: ``above`` is P(L > l), ``below`` is P(L <= l).

    ``relative_error`` bounds the relative error of all four arrays, edge by edge.
    """

    p_above: FloatArray
    p_below: FloatArray
    q_above: FloatArray
    q_below: FloatArray
    relative_error: FloatArray

    def exchanged(self) -> Tails:
        """Tails of Q against P, beyond these edges with their signs turned."""
        return Tails(self.q_below, self.q_above, self.p_below, self.p_above, self.relative_error)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One direction of a dominating pair.

    Attributes:
        tails: Tails at an increasing array of loss edges.
        loss_range: Losses (low, high) beyond which P has at most the mass of a standard
            normal tail beyond ``t``, each side.
        loss_error: Absolute error of the loss at which an edge really lies (rounding).
        nodes: Losses and log P-weights of a rough quadrature over ``t`` standard
            deviations; steers parameters, proves nothing.
    """

    tails: Callable[[FloatArray], Tails]
    loss_range: Callable[[float], tuple[float, float]]
    loss_error: float
    nodes: Callable[[float], tuple[FloatArray, FloatArray]]


def told(parts: Sequence[tuple[float, Pair]]) -> Pair:
    """The pair of a release that tells which of several it is; weights are equal under both hypotheses and sum to 1."""
    heard = [(weight, pair) for weight, pair in parts if weight > 0.0]
    if len(heard) == 1:
        return heard[0][1]

    def tails(edges: FloatArray) -> Tails:
        each = [pair.tails(edges) for _, pair in heard]
        *masses, _ = (
            sum(w * tail for (w, _), tail in zip(heard, tails, strict=True)) for tails in zip(*each, strict=True)
        )
        return Tails._make([*masses, np.max([one.relative_error for one in each], axis=0) + 8.0 * EPS])

    def loss_range(t: float) -> tuple[float, float]:
        ranges = [pair.loss_range(t) for _, pair in heard]
        return min(low for low, _ in ranges), max(high for _, high in ranges)

    def nodes(t: float) -> tuple[FloatArray, FloatArray]:
        each = [(math.log(weight), *pair.nodes(t)) for weight, pair in heard]
        return np.concatenate([loss for _, loss, _ in each]), np.concatenate([log + mass for log, _, mass in each])

    return Pair(tails=tails, loss_range=loss_range, loss_error=max(p.loss_error for _, p in heard), nodes=nodes)


def ndtr(t: FloatArray | float) -> FloatArray:
    """The normal law's distribution function; SciPy is loaded on first use, for an event alone does not need it."""
    from scipy.special import ndtr as distribution

    return np.asarray(distribution(t), dtype=np.float64)


def normal_error(t: FloatArray) -> FloatArray:
    """Relative error of a normal tail at t: rounding of t^2/2 in the exponent, and ndtr's own."""
    return np.asarray(EPS * (8.0 + 2.0 * np.square(np.minimum(np.abs(t), 40.0))), dtype=np.float64)


def gaussian_tails(p: Parts, q: Parts, z: float, x: FloatArray, relative_error: FloatArray) -> Tails:
    """Tails beyond x of two mixtures of Gaussians of standard deviation z."""
    masses = []
    for parts in (p, q):
        above, below = np.zeros_like(x), np.zeros_like(x)
        for weight, center in parts:
            t = (x - center) / z
            above += weight * ndtr(-t)
            below += weight * ndtr(t)
        masses += [above, below]
    return Tails._make([*masses, relative_error])


def both_directions(
    z: float,
    furthest: float,
    loss: Callable[[FloatArray], FloatArray],
    position: Callable[[FloatArray], FloatArray],
    tails: Callable[[FloatArray], Tails],
    line: Callable[[float, float, float], tuple[FloatArray, FloatArray]],
    loss_error: float,
) -> tuple[Pair, Pair]:
    """P against Q = N(0, z^2), and Q against P, where the loss grows with the output.

    Args:
        z: The noise's standard deviation.
        furthest: The furthest center of P's noise.
        loss: Log ratio of P to Q at an output.
        position: The output that has a loss.
        tails: Tails of P and Q beyond an output.
        line: Points between two outputs, with log weights of Q, whose ``z`` comes last.
        loss_error: As in ``Pair``.
    """

    def one(top: float, *, added: bool) -> Pair:
        def tails_at(edges: FloatArray) -> Tails:
            return tails(position(-edges)).exchanged() if added else tails(position(edges))

        def loss_range(t: float) -> tuple[float, float]:
            low, high = map(float, loss(np.array([-z * t, top + z * t])))
            return (-high, -low) if added else (low, high)

        def nodes(t: float) -> tuple[FloatArray, FloatArray]:
            x, log_weight = line(-z * t, top + z * t, z)
            losses = loss(x)
            return (-losses, log_weight) if added else (losses, log_weight + losses)

        return Pair(tails=tails_at, loss_range=loss_range, loss_error=loss_error, nodes=nodes)

    return one(furthest, added=False), one(0.0, added=True)


def line_nodes(low: float, high: float, z: float) -> tuple[FloatArray, FloatArray]:
    """Points between low and high with log weights of N(0, z^2)."""
    x = np.linspace(low, high, NODES)
    return x, log_weights(x, 0.0, z)


def log_weights(x: FloatArray, center: float, z: float) -> FloatArray:
    """Log weights of N(center, z^2) at points of equal distances."""
    t = (x - center) / z
    return np.asarray(-0.5 * t * t + math.log((x[1] - x[0]) / z) - 0.5 * math.log(2.0 * math.pi), dtype=np.float64)


def with_rest(
    one: FloatArray, log_one: FloatArray, other: FloatArray, log_other: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Nodes of losses of both signs, and what is left of the mass at 0."""
    rest = max(1e-300, 1.0 - float(np.exp(log_one).sum() + np.exp(log_other).sum()))
    return np.concatenate([one, other, [0.0]]), np.concatenate([log_one, log_other, [math.log(rest)]])
