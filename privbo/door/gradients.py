"""The door for gradients: a noisy sum of records' clipped gradients, on the same grid as every release.

DP-SGD's arithmetic with secret noise. Gradients are clipped in real arithmetic, truncated
toward zero to multiples of a power of two and summed as integers, so one record moves the
sum by at most the clipping norm, exactly; the noise is an integer too (``docs/noise.md``).
What it can't promise is that frameworks compute one record's gradient to the last bit
independently of the other records in its batch.
"""

from __future__ import annotations

import math

import numpy as np

from privbo.door import sums
from privbo.door.clipping import clip_rows
from privbo.door.noise import NoiseSource
from privbo.protocol.messages import FloatArray

# Coarser than a release's grid: a training makes millions of numbers, and what rounding in the
# noise transform can add to epsilon shrinks with the cell (docs/noise.md).
_GRID_BITS = 10


def noisy_gradient_sum(
    gradients: FloatArray, *, clipping_norm: float, noise_multiplier: float, noise: NoiseSource
) -> FloatArray:
    """Sum of clipped gradients plus Gaussian noise of ``noise_multiplier`` times ``clipping_norm``.

    Proof: docs/proofs/poisson.md.

    Args:
        gradients: One row per sampled record, ``(n, dim)``; perhaps none. A row that is not
            finite contributes nothing.
        clipping_norm: Bound on one row's norm.
        noise_multiplier: z under add-or-remove-one.
        noise: Secret source.

    Returns:
        ``(dim,)``; noise is in every entry, whoever was sampled.
    """
    stddev = noise_multiplier * clipping_norm
    step = math.ldexp(1.0, math.frexp(stddev)[1] - 1 - _GRID_BITS)
    everyone = np.ones((1, len(gradients)), dtype=bool)
    total = sums.lattice_sums(np.ones((1, len(gradients))), clip_rows(gradients, clipping_norm), everyone, step)[0, 0]
    return np.asarray((total + noise.gaussian(total.shape, stddev / step)).astype(np.float64) * step)
