"""Dominating pair of one release: the tails of its privacy loss under both hypotheses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
EPS = float(np.finfo(np.float64).eps)
NODES = 160


@dataclass(frozen=True, kw_only=True)
class Tails:
    """Probabilities beyond each loss edge: ``above`` is P(L > l), ``below`` is P(L <= l).

    ``relative_error`` bounds the relative error of all four arrays, edge by edge.
    """

    p_above: FloatArray
    p_below: FloatArray
    q_above: FloatArray
    q_below: FloatArray
    relative_error: FloatArray

    def exchanged(self) -> Self:
        """Tails of Q against P, beyond these edges with their signs turned."""
        return type(self)(
            p_above=self.q_below,
            p_below=self.q_above,
            q_above=self.p_below,
            q_below=self.p_above,
            relative_error=self.relative_error,
        )


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
        each = [(weight, pair.tails(edges)) for weight, pair in heard]

        def total(name: str) -> FloatArray:
            return np.asarray(sum(weight * getattr(one, name) for weight, one in each), dtype=np.float64)

        return Tails(
            p_above=total("p_above"),
            p_below=total("p_below"),
            q_above=total("q_above"),
            q_below=total("q_below"),
            relative_error=np.max([one.relative_error for _, one in each], axis=0) + 8.0 * EPS,
        )

    def loss_range(t: float) -> tuple[float, float]:
        ranges = [pair.loss_range(t) for _, pair in heard]
        return min(low for low, _ in ranges), max(high for _, high in ranges)

    def nodes(t: float) -> tuple[FloatArray, FloatArray]:
        each = [(math.log(weight), *pair.nodes(t)) for weight, pair in heard]
        return np.concatenate([loss for _, loss, _ in each]), np.concatenate([log + mass for log, _, mass in each])

    return Pair(tails=tails, loss_range=loss_range, loss_error=max(p.loss_error for _, p in heard), nodes=nodes)
