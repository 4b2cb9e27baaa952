"""The arithmetic of a release: integer sums on a grid, integer noise, division by the rate.

This is the only code that turns clients' vectors into public numbers. It takes a batch of
participations, so that an audit can run many trials through the very same lines; a real
release is a batch of one.
"""

from __future__ import annotations

import numpy as np

from privbo.door.mechanism import PrivateSum
from privbo.door.noise import BoolArray, NoiseSource
from privbo.protocol.messages import FloatArray, IntArray


def lattice_sums(
    weights: FloatArray,
    clipped: FloatArray,
    participation: BoolArray,
    step: float,
    *,
    entries_at_once: int = 2**22,
) -> IntArray:
    """Exact sums of weighted vectors, each truncated toward zero to multiples of ``step``.

    Truncation moves every coordinate toward zero, so no norm grows; integer addition has
    no rounding and no order.

    Args:
        weights: ``(n_blocks, n_clients)``.
        clipped: Clipped vectors, ``(n_clients, dim)``, finite.
        participation: ``(n_trials, n_clients)``.
        step: A power of two.
        entries_at_once: Weighted entries held in memory; the sums do not depend on it.

    Returns:
        Sums in units of ``step``, ``(n_trials, n_blocks, dim)``.
    """
    (n_blocks, n_clients), dim, n_trials = weights.shape, clipped.shape[1], len(participation)
    totals = np.zeros((n_trials, n_blocks * dim), dtype=np.int64)
    chunk = max(1, entries_at_once // (n_blocks * dim))
    for start in range(0, n_clients, chunk):
        part = slice(start, start + chunk)
        units = lattice_units(weights[:, part], clipped[part], step)
        totals += participation[:, part].astype(np.int64) @ units
    return totals.reshape(n_trials, n_blocks, dim)


def lattice_units(weights: FloatArray, clipped: FloatArray, step: float) -> IntArray:
    """Weighted vectors, truncated toward zero to multiples of ``step``, ``(n_clients, n_blocks * dim)``."""
    weighted = weights.T[:, :, None] * clipped[:, None, :]
    return np.trunc(weighted / step).astype(np.int64).reshape(len(weighted), -1)


def draw_participation(mechanism: PrivateSum, n_trials: int, noise: NoiseSource) -> BoolArray:
    """Draw who takes part, ``(n_trials, n_clients)``: secret, and never derived from answers."""
    return mechanism.sample.draw(n_trials, noise)


def noisy_sums(
    mechanism: PrivateSum,
    weights: FloatArray,
    clipped: FloatArray,
    participation: BoolArray,
    noise: NoiseSource,
) -> FloatArray:
    """Released values of clipped vectors, ``(n_trials, n_blocks, dim)``.

    Noise is drawn for every entry of every trial, whoever takes part and whatever they
    sent; a trial without participants is noise only.
    """
    return hidden(mechanism, lattice_sums(weights, clipped, participation, mechanism.grid_step()), noise)


def hidden(mechanism: PrivateSum, totals: IntArray, noise: NoiseSource) -> FloatArray:
    """Released values of sums in units of the grid, of whatever shape: their noise is added to them."""
    noisy = totals + noise.gaussian(totals.shape, mechanism.grid_scale())
    return np.asarray(noisy.astype(np.float64) * mechanism.grid_step() / mechanism.rate)
