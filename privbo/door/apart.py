"""Releases that sites make themselves: every site adds noise to its own block before anything leaves it.

A site's half charges its own ledger and stores what it sends before it sends it (``privbo.flower.site``), so noise is
drawn once. The server puts the blocks together. For a site that is absent it adds the same noise to zero, as the
door does for an absent client.

Proof: docs/proofs/one-record.md.
"""

from __future__ import annotations

import numpy as np

from privbo.door.clipping import clip_rows
from privbo.door.mechanism import PrivateSum
from privbo.door.noise import NoiseSource
from privbo.door.sums import hidden, lattice_units
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, IntArray, Request

_FARTHEST = 64.0  # noise standard deviations, which no noise reaches


def blocks_of(weights: FloatArray) -> IntArray:
    """Give the block of every client, ``(n_clients,)``, where each has a block of its own.

    Args:
        weights: Public weights, ``(n_blocks, n_clients)``.

    Raises:
        ConfigurationError: If a block sums two clients, or a client enters no block or two.

    Example:
        >>> blocks_of(np.eye(3)).tolist()
        [0, 1, 2]
    """
    entered = weights > 0
    if weights.shape[0] != weights.shape[1] or np.any(entered.sum(axis=0) != 1) or np.any(entered.sum(axis=1) != 1):
        raise ConfigurationError(
            f"privacy.trust='sites': this algorithm sums {weights.shape[1]} sites into {weights.shape[0]} blocks, and "
            "a site can add noise to a block of its own only; use MultiTask(), or set privacy.trust='server'"
        )
    return np.asarray(np.argmax(entered, axis=0))


def own_blocks(
    mechanism: PrivateSum, request: Request, rows: FloatArray, clients: IntArray, noise: NoiseSource
) -> FloatArray:
    """Give the released blocks of some clients, ``(n, dim)``: clipped, on the grid, under their noise.

    Args:
        mechanism: Of the whole release.
        request: What is asked for.
        rows: Their vectors, ``(n, dim)``, not finite where absent.
        clients: Their numbers, ``(n,)``.
        noise: Their secret source, for this round.

    Raises:
        ConfigurationError: If the request has no block of its own for every client.
    """
    blocks = blocks_of(request.weights)[clients]
    weights = request.weights[blocks, clients][None]
    units = lattice_units(weights, clip_rows(rows, mechanism.applied_bound), mechanism.grid_step())
    return hidden(mechanism, units, noise)


def joined_blocks(mechanism: PrivateSum, request: Request, rows: FloatArray, noise: NoiseSource) -> IntArray:
    """Put what sites released into a release, in grid units, ``(n_blocks * dim,)``.

    Args:
        mechanism: Of the whole release.
        request: What was asked for.
        rows: What every client sent, ``(n_clients, dim)``. A row that is not finite, or farther out than the bound
            and all noise, counts as absent.
        noise: Source of the noise for absent clients.
    """
    blocks, largest = blocks_of(request.weights), float(request.weights.max()) * mechanism.vector_bound
    farthest = largest + _FARTHEST * mechanism.noise_stddev()
    there = (np.isfinite(rows) & (np.abs(rows) <= farthest)).all(axis=1)
    totals = noise.gaussian(rows.shape, mechanism.grid_scale())
    totals[there] = np.rint(rows[there] / mechanism.grid_step()).astype(np.int64)
    return np.asarray(totals[np.argsort(blocks)].reshape(-1), dtype=np.int64)
