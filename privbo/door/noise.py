"""Sources of randomness for noise and participation, and which of them give a guarantee.

Noise is drawn on the lattice of integers: the release mechanism works in units of a
power-of-two grid, so that a noisy sum is an exact integer whose possible values do not
depend on anyone's data (``docs/noise.md`` says what that proves). A source therefore
draws *rounded* Gaussians with a standard deviation of about 2^16 grid units.

Three sources: ``SecureNoise`` (the default), ``ExactNoise`` (OpenDP's discrete Gaussian)
and ``SimulatedNoise`` (seeded; never a guarantee).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import Array, BoolArray, IntArray

SMALLEST_SCALE, LARGEST_SCALE = 2.0**10, 2.0**40


class NoiseSource(Protocol):
    """Secret randomness of releases. Implementations never expose or serialise state."""

    @property
    def name(self) -> str:
        """Name of the source in the ledger and in every report: "secure", "exact" or "simulation"."""

    def stream(self, label: str) -> NoiseSource:
        """A source for one release; a seeded source derives it from seed and label alone."""

    def gaussian(self, shape: tuple[int, ...], scale: float) -> IntArray:
        """Independent rounded Gaussians of standard deviation ``scale`` (2^10 to 2^40)."""

    def coins(self, shape: tuple[int, ...], rate: float) -> BoolArray:
        """Independent coins that show True with probability ``rate``, never with more."""

    def subsets(self, shape: tuple[int, int], size: int) -> BoolArray:
        """Rows of membership in independent uniform subsets of exactly ``size``."""


class SecureNoise:
    """Cryptographic noise: every call draws a fresh 256-bit key from the operating system.

    The key expands through ChaCha20 into as many bytes as the call needs and is then
    forgotten. The object holds no state, so a fork, a copy or a resumed run can repeat
    nothing, and coins and noise never share a stream.
    """

    name = "secure"

    def stream(self, label: str) -> Self:  # noqa: ARG002 (nothing is derived from labels)
        """Itself: every call is independent of every other."""
        return self

    def gaussian(self, shape: tuple[int, ...], scale: float) -> IntArray:
        """Rounded Gaussians by Box and Muller's transform with full relative precision in the tail."""
        require_scale(scale)
        size = math.prod(shape)
        half = (size + 1) // 2
        words = np.frombuffer(keystream(os.urandom(32), 24 * half), dtype="<u8").reshape(3, half)
        return lattice_gaussian(words, scale)[:size].reshape(shape)

    def coins(self, shape: tuple[int, ...], rate: float) -> BoolArray:
        """A 64-bit word below floor(rate * 2^64): exact for rate 1, else low by at most 2^-64."""
        if rate >= 1.0:
            return np.ones(shape, dtype=bool)
        return below(_secure_words(math.prod(shape)).reshape(shape), rate)

    def subsets(self, shape: tuple[int, int], size: int) -> BoolArray:
        """Rows of membership in uniform subsets, from 64-bit words."""
        return uniform_subsets(_secure_words, shape, size)


class SimulatedNoise:
    """Seeded numpy noise for experiments: reproducible, hence no privacy guarantee.

    Args:
        seed: Seed of everything it draws; ``stream`` derives one generator per release, so
            that a resumed simulation draws what an uninterrupted one would have drawn.
    """

    name = "simulation"

    def __init__(self, seed: int, *, label: str = "") -> None:
        entropy = [seed, *label.encode()]
        noise, coins = np.random.SeedSequence(entropy).spawn(2)
        self._seed = seed
        self._noise = np.random.default_rng(noise)
        self._coins = np.random.default_rng(coins)

    def stream(self, label: str) -> SimulatedNoise:
        """The source of one release."""
        return SimulatedNoise(self._seed, label=label)

    def gaussian(self, shape: tuple[int, ...], scale: float) -> IntArray:
        """Rounded Gaussians."""
        require_scale(scale)
        return np.asarray(np.rint(self._noise.normal(0.0, scale, shape)).astype(np.int64))

    def coins(self, shape: tuple[int, ...], rate: float) -> BoolArray:
        """Independent coins."""
        return np.asarray(self._coins.random(shape) < rate)

    def subsets(self, shape: tuple[int, int], size: int) -> BoolArray:
        """Uniform subsets."""
        return smallest(self._coins.random(shape), size)


def keystream(key: bytes, n_bytes: int) -> bytes:
    """The first ``n_bytes`` of ChaCha20's stream (RFC 8439) under ``key``, counter and nonce zero."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    if n_bytes > 2**36:
        raise ConfigurationError(f"{n_bytes} bytes of one key stream were asked for; draw at most 2^36 at once")
    return Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(n_bytes))


def lattice_gaussian(words: npt.NDArray[np.uint64], scale: float) -> IntArray:
    """Rounded Gaussians from random words by Box and Muller's transform.

    Args:
        words: Uniform 64-bit words, ``(3, n)``.
        scale: Standard deviation in grid units.

    Returns:
        ``2 n`` integers.
    """
    # The radius needs -2 log U with a small *relative* error everywhere: U is t/2 or
    # 1 - t/2 by a fair bit, and t has 128 random bits, so neither end is granular.
    t = (words[0].astype(np.float64) + words[1].astype(np.float64) * 2.0**-64 + 2.0**-65) * 2.0**-64
    upper = (words[2] & np.uint64(1)).astype(bool)
    energy = np.where(upper, -np.log1p(-0.5 * t), -np.log(0.5 * t))
    radius = np.sqrt(2.0 * energy) * scale
    # 53 bits of the angle are left of the word; the offset keeps it symmetric.
    angle = ((words[2] >> np.uint64(11)).astype(np.float64) + 0.5) * (2.0 * math.pi * 2.0**-53)
    pair = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))
    return np.asarray(np.rint(pair), dtype=np.int64)


def _secure_words(n: int) -> npt.NDArray[np.uint64]:
    return np.frombuffer(keystream(os.urandom(32), 8 * n), dtype="<u8")


def below(words: npt.NDArray[np.uint64], rate: float) -> BoolArray:
    """Coins from uniform 64-bit words: those below floor(rate * 2^64), for a rate below 1."""
    numerator, denominator = float(rate).as_integer_ratio()
    return np.asarray(words < np.uint64((numerator << 64) // denominator))


def uniform_subsets(draw: Callable[[int], npt.NDArray[np.uint64]], shape: tuple[int, int], size: int) -> BoolArray:
    """Membership of the ``size`` smallest of every row of random words; a tie draws all of them again.

    Args:
        draw: Draws so many uniform 64-bit words.
        shape: Rows and members of a row.
        size: Members of every subset.

    Raises:
        ConfigurationError: If a row has not that many.
    """
    words = draw(math.prod(shape)).reshape(shape)
    while np.any(np.diff(np.sort(words, axis=1), axis=1) == 0):
        words = draw(math.prod(shape)).reshape(shape)
    return smallest(words, size)


def smallest(keys: Array, size: int) -> BoolArray:
    """Membership of the ``size`` smallest keys of every row, same shape as ``keys``.

    Raises:
        ConfigurationError: If a row has not that many.
    """
    if not 0 < size <= keys.shape[1]:
        raise ConfigurationError(f"a subset of {size} out of {keys.shape[1]} does not exist; change the sample size")
    chosen = np.zeros(keys.shape, dtype=bool)
    np.put_along_axis(chosen, np.argpartition(keys, size - 1, axis=1)[:, :size], True, axis=1)
    return chosen


def require_scale(scale: float) -> None:
    """Refuse noise too coarse to be a Gaussian's, or too wide for 64 bits.

    Raises:
        ConfigurationError: If ``scale`` lies outside [2^10, 2^40].
    """
    if not SMALLEST_SCALE <= scale <= LARGEST_SCALE:
        raise ConfigurationError(
            f"noise of {scale!r} grid units lies outside [2^10, 2^40]; choose the grid with lattice_step"
        )


class ExactNoise(SecureNoise):
    """Discrete Gaussian noise by OpenDP (the extra ``exact``); participation as in ``SecureNoise``.

    Its sampler uses integer and rational arithmetic only, so the distribution drawn from *is*
    the stated one. It is about three hundred times slower than ``SecureNoise``.

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

    def gaussian(self, shape: tuple[int, ...], scale: float) -> IntArray:
        """Independent discrete Gaussians."""
        require_scale(scale)
        dp = self._opendp
        space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T=float)
        drawn = dp.m.make_gaussian(*space, scale=float(scale))([0] * math.prod(shape))
        return np.asarray(drawn, dtype=np.int64).reshape(shape)
