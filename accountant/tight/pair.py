"""Dominating pair of one release: the tails of its privacy loss under both hypotheses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
