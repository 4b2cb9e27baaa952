"""Clipping that holds exactly, and what it did (private).

The naive rule ``v * (bound / ||v||)`` leaves a norm above the bound in about 2 % of
random vectors, because three roundings follow each other. Here the factor is lowered by
more than those roundings can add, so the bound holds in real arithmetic for the very
floats that are returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privbo.protocol.messages import FloatArray
from privbo.protocol.settings import plain

UNIT_ROUNDOFF = 2.0**-53
SMALLEST_BOUND, LARGEST_BOUND = 1e-100, 1e100


def row_norms(rows: FloatArray) -> FloatArray:
    """L2 norm of every row; infinite or NaN where the row or its squared norm is not finite."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return np.asarray(np.sqrt(np.einsum("nd,nd->n", rows, rows)))


def clip_rows(rows: FloatArray, bound: float) -> FloatArray:
    """Every row scaled to a norm of at most ``bound``; rows without a finite norm become zero.

    The norm of a returned row is at most ``bound`` in exact arithmetic and as evaluated
    in floating point. Rows are copied, never changed in place.

    Args:
        rows: Clients' vectors, ``(n, dim)``, float64.
        bound: Largest norm, between 1e-100 and 1e100.

    Returns:
        The clipped rows, ``(n, dim)``, finite.

    Example:
        >>> clip_rows(np.array([[3.0, 4.0], [0.3, 0.4], [np.nan, 0.0]]), 1.0).round(6)
        array([[0.6, 0.8],
               [0.3, 0.4],
               [0. , 0. ]])
    """
    norms = row_norms(rows)
    present = np.isfinite(norms)
    # A sum of dim squares is off by a relative dim * u at most, whatever its order; its
    # root, the quotient and the product add a few u more. The limit is lowered by twice that.
    slack = 2.0 * (rows.shape[1] + 16) * UNIT_ROUNDOFF
    limit = bound * (1.0 - slack)
    exceeds = present & (norms > limit)
    clipped = np.where(present[:, None], rows, 0.0)
    clipped[exceeds] *= (limit / norms[exceeds])[:, None]
    return clipped


NORM_LEVELS = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
BOUND_FACTORS = tuple(2.0 ** (k / 2) for k in range(-6, 7))


@dataclass(frozen=True, kw_only=True)
class ClipMeasures:
    """PRIVATE: how clipping met the vectors of some of the clients in one round; those of all groups add up.

    Computed from raw answers and from the secret participants, and covered by no epsilon: it stays where the answers
    are. All norms are of single clients' vectors.

    Attributes:
        bound: The clipping bound.
        n_clients: Clients of the group.
        n_participants: Of them.
        norms: Of the contributing participants' vectors.
        whole: Their weighted sum over the rate, ``(n_blocks, dim)``.
        lost: What clipping took away from it.
        taken_at: What other bounds would have taken away, ``(n_factors, n_blocks, dim)``.
        kept_at: What they would have left.
    """

    bound: float
    n_clients: int
    n_participants: int
    norms: FloatArray
    whole: FloatArray
    lost: FloatArray
    taken_at: FloatArray
    kept_at: FloatArray

    @staticmethod
    def together(parts: Sequence[ClipMeasures]) -> ClipMeasures:
        """Measures of all clients of groups that have none in common."""
        added = {name: sum(getattr(part, name) for part in parts) for name in _ADDED}
        return ClipMeasures(bound=parts[0].bound, norms=np.concatenate([part.norms for part in parts]), **added)

    def statistics(self) -> dict[str, Any]:
        """Give plain values for the private side of a run's record, by name.

        ====================  ====================================================================================
        ``bound``             the bound every vector was clipped to, S / sqrt(n_blocks); None where there is none
        ``n_absent``          participants that contributed nothing: missing, malformed or not finite
        ``clipped_share``     share of contributing participants whose vector was shortened
        ``norm_quantiles``    of the contributing vectors' norms at ``norm_levels``; empty if there are none
        ``bias``              norm of (weighted sum of clipped vectors - weighted sum of vectors), all blocks together,
                              after division by the rate
        ``signal_by_block``   norm of every block's weighted sum of vectors, after division by the rate
        ``bias_by_block``     ``bias`` of every block
        ``bias_at``           ``bias`` as it would have been with the bound times each of ``bound_factors``; empty
                              where nothing was clipped by design
        ``kept_at``           norm of the weighted sum of clipped vectors, as it would have been with those bounds
        ====================  ====================================================================================
        """
        there = len(self.norms)
        found = {
            "bound": self.bound,
            "n_clients": self.n_clients,
            "n_participants": self.n_participants,
            "n_absent": self.n_participants - there,
            "clipped_share": np.mean(self.norms > self.bound) if there else 0.0,
            "norm_quantiles": np.quantile(self.norms, NORM_LEVELS) if there else (),
            "bias": np.linalg.norm(self.lost),
            "signal_by_block": row_norms(self.whole),
            "bias_by_block": row_norms(self.lost),
            "bias_at": [np.linalg.norm(sums) for sums in self.taken_at],
            "kept_at": [np.linalg.norm(sums) for sums in self.kept_at],
            "norm_levels": NORM_LEVELS,
            "bound_factors": BOUND_FACTORS,
        }
        return {name: plain(value) for name, value in found.items()}


_ADDED = ("n_clients", "n_participants", "whole", "lost", "taken_at", "kept_at")


def measure_clipping(
    rows: FloatArray, clipped: FloatArray, *, participants: np.ndarray, weights: FloatArray, bound: float, rate: float
) -> ClipMeasures:
    """PRIVATE measures of clipping of some clients from their raw and clipped rows.

    Args:
        rows: Raw vectors, ``(n_clients, dim)``; not finite where absent.
        clipped: What ``clip_rows`` made of them.
        participants: Secret participation, ``(n_clients,)`` booleans.
        weights: ``(n_blocks, n_clients)``.
        bound: The clipping bound.
        rate: The sample rate the sums are divided by.
    """
    norms = row_norms(rows)
    counted = np.asarray(participants, dtype=bool) & np.isfinite(norms)
    weighed, there, lengths = weights[:, counted] / rate, rows[counted], norms[counted]
    factors = BOUND_FACTORS if np.isfinite(bound) else ()
    shares = [np.minimum(1.0, factor * bound / np.maximum(lengths, SMALLEST_BOUND)) for factor in factors]
    shape = (len(factors), len(weights), rows.shape[1])
    return ClipMeasures(
        bound=bound,
        n_clients=len(rows),
        n_participants=int(np.sum(participants)),
        norms=lengths,
        whole=weighed @ there,
        lost=weighed @ (clipped[counted] - there),
        taken_at=np.reshape([(weighed * (share - 1.0)) @ there for share in shares], shape),
        kept_at=np.reshape([(weighed * share) @ there for share in shares], shape),
    )
