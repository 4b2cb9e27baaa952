"""Noise from OpenDP's discrete Gaussian, which is sampled exactly (the extra ``exact``).

Its sampler uses integer and rational arithmetic only, so the distribution drawn from *is*
the stated one. It is about three hundred times slower than ``SecureNoise``.
"""

from __future__ import annotations

import math

import numpy as np

from privbo.door.noise import BoolArray, SecureNoise, require_scale
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import IntArray


class ExactNoise:
    """Discrete Gaussian noise by OpenDP; participation as in ``SecureNoise``.

    Raises:
        ConfigurationError: If OpenDP is not installed.
    """

    name = "exact"

    def __init__(self) -> None:
        try:
            import opendp.prelude as dp
        except ImportError as error:
            raise ConfigurationError("exact noise needs OpenDP; install privbo[exact] or use secure noise") from error
        dp.enable_features("contrib")
        self._opendp = dp
        self._participation = SecureNoise()

    def stream(self, label: str) -> ExactNoise:  # noqa: ARG002 (nothing is derived from labels)
        """Itself: OpenDP draws from the operating system every time."""
        return self

    def gaussian(self, shape: tuple[int, ...], scale: float) -> IntArray:
        """Independent discrete Gaussians."""
        require_scale(scale)
        dp = self._opendp
        space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T=float)
        drawn = dp.m.make_gaussian(*space, scale=float(scale))([0] * math.prod(shape))
        return np.asarray(drawn, dtype=np.int64).reshape(shape)

    def coins(self, shape: tuple[int, ...], rate: float) -> BoolArray:
        """Coins of ``SecureNoise``."""
        return self._participation.coins(shape, rate)

    def subsets(self, shape: tuple[int, int], size: int) -> BoolArray:
        """Subsets of ``SecureNoise``."""
        return self._participation.subsets(shape, size)
