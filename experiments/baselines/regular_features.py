"""Regular Fourier features: a kernel's Fourier series, for shared vectors with nothing random in their features."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import torch

from privbo.algorithms.thompson.features import SMOOTHNESS, FourierFeatures, Kernel
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray

# Beyond the cube a lattice's functions repeat after this many length scales, at which a kernel has
# fallen to a few thousandths.
_MARGIN = 4.0
_LARGEST_LATTICE = 2_000_000


@dataclass(frozen=True, kw_only=True)
class RegularFeatures(FourierFeatures):
    """Paired features with a share ``(n,)`` of the kernel's variance at every frequency, with sum one."""

    powers: FloatArray

    @property
    def digest(self) -> str:
        """SHA-256 of the map."""
        return hashlib.sha256(super().digest.encode() + self.powers.astype("<f8").tobytes()).hexdigest()

    def __call__(self, embedded: torch.Tensor) -> torch.Tensor:
        """Features ``(..., n_features)`` of embedded points ``(..., n_embedded)``, each of norm 1."""
        shares = torch.as_tensor(np.tile(self.powers, 2) * len(self.powers), device=embedded.device)
        return super().__call__(embedded).mul_(shares.sqrt())


def regular_features(count: int, n_embedded: int, lengthscale: float, kernel: Kernel) -> RegularFeatures:
    """Fourier series of the kernel on a box around the cube: its ``count`` lowest frequencies.

    The kernel, made periodic a few length scales outside the cube, is a series over a lattice
    of frequencies whose powers are its spectral density there (regular Fourier features,
    Hensman et al. 2018). What is cut off is given back by scaling the powers to sum one.

    Raises:
        ConfigurationError: If the lattice is too large; random features suit many dimensions.
    """
    radius = 1
    while True:
        side = 2 * radius + 1
        if side**n_embedded > _LARGEST_LATTICE:
            raise ConfigurationError(
                f"regular features in {n_embedded} dimensions need a lattice of {side**n_embedded}; "
                'use features="paired" there'
            )
        lattice = np.indices((side,) * n_embedded).reshape(n_embedded, -1).T - radius
        half = lattice[len(lattice) // 2 :]  # zero and one of every pair of opposite frequencies
        squares = (half**2).sum(axis=1)
        if np.count_nonzero(squares <= radius**2) >= count:
            break
        radius += 1
    chosen = half[np.argsort(squares, kind="stable")[:count]]
    frequencies = np.asarray(chosen * (2.0 * math.pi / (1.0 + _MARGIN * lengthscale)), dtype=np.float64)
    powers = _spectrum(kernel, (frequencies**2).sum(axis=1) * lengthscale**2, n_embedded)
    powers[1:] *= 2.0  # every other frequency stands for its opposite too
    return RegularFeatures(frequencies=frequencies, powers=powers / powers.sum())


def _spectrum(kernel: Kernel, squares: FloatArray, n_embedded: int) -> FloatArray:
    """Spectral density at squared frequencies in units of the length scale, up to a factor."""
    if kernel == "se":
        return np.asarray(np.exp(-0.5 * squares))
    freedom = SMOOTHNESS[kernel]
    return np.asarray((1.0 + squares / freedom) ** (-0.5 * (freedom + n_embedded)))
