"""Geometry of a request's public weights: all that sensitivity depends on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privbo.door.clipping import LARGEST_BOUND, SMALLEST_BOUND
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray


@dataclass(frozen=True, kw_only=True)
class WeightGeometry:
    """Geometry of a matrix of public weights ``(n_blocks, n_clients)``.

    Attributes:
        n_blocks: P, number of weighted sums released together.
        n_clients: N, number of registered clients.
        largest_weight: phi_max, the largest entry.
        largest_norms: ``||w[:, n]||_2`` of the two clients where it is largest, ascending; one where N is 1.
        largest_total: max over b of ``sum over n of w[b, n]``.
    """

    n_blocks: int
    n_clients: int
    largest_weight: float
    largest_norms: tuple[float, ...]
    largest_total: float

    @staticmethod
    def of(weights: FloatArray) -> WeightGeometry:
        """Geometry of validated weights.

        Raises:
            ConfigurationError: If the weights are not a matrix of finite numbers in
                [0, 1e100] of which one is positive.
        """
        weights = require_weights(weights)
        norms = np.sort(np.linalg.norm(weights, axis=0))
        return WeightGeometry(
            n_blocks=weights.shape[0],
            n_clients=weights.shape[1],
            largest_weight=float(weights.max()),
            largest_norms=tuple(norms[-2:].tolist()),
            largest_total=float(weights.sum(axis=1).max()),
        )


def require_weights(weights: FloatArray) -> FloatArray:
    """The weights, if they can be used.

    Raises:
        ConfigurationError: As ``WeightGeometry.of``.
    """
    if not isinstance(weights, np.ndarray) or weights.ndim != 2 or weights.dtype != np.float64 or 0 in weights.shape:
        raise ConfigurationError(
            f"weights of type {getattr(weights, 'dtype', type(weights).__name__)} and shape "
            f"{getattr(weights, 'shape', None)} must be a float64 matrix (n_blocks >= 1, n_clients >= 1)"
        )
    if not np.all(np.isfinite(weights)) or weights.min() < 0 or weights.max() > LARGEST_BOUND:
        raise ConfigurationError(
            f"weights between {weights.min()!r} and {weights.max()!r} must be finite and lie in "
            f"[0, {LARGEST_BOUND:g}]; they are the server's own numbers, so nothing is released"
        )
    if weights.max() < SMALLEST_BOUND:
        raise ConfigurationError("all weights are zero, so there is nothing to release; drop the request")
    return weights
