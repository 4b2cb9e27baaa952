"""Sums of many lattice variables by one FFT, with a bound of everything that went wrong.

Masses are tilted before they are transformed: p~(k) proportional to p(k) exp(theta k h), so
that the part of the sum which decides delta(epsilon) is the bulk and not a tail lost in
rounding (as in saddle-point methods; theta is the optimal Rényi order minus 1). The
reported ``error`` bounds, in the l1 norm of the tilted sum,

- mass outside the window, which the cyclic transform folds in (Chernoff bounds of the very
  masses that are transformed), and
- rounding: of the forward transforms (elementwise at most c log2(n) eps, Higham 2002,
  Theorem 24.2), of products and powers of them, and of the inverse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import fft

from accountant.tight.lattice import Cells
from accountant.tight.pairs import EPS, FloatArray

_FFT_CONSTANT = 8.0


@dataclass(frozen=True, kw_only=True)
class Window:
    """Lattice points ``start`` .. ``start + size - 1`` and how they were chosen.

    Attributes:
        start: First lattice point.
        size: Number of points.
        up: Extra tilt t > 0 whose Chernoff bound guards the top.
        down: Extra tilt t < 0 that guards the bottom.
    """

    start: int
    size: int
    up: float
    down: float


@dataclass(frozen=True, kw_only=True)
class TiltedSum:
    """The sum's tilted masses: mass at k is exp(log_scale - theta k h) tilted[k - start]."""

    window: Window
    tilted: FloatArray
    log_scale: float
    error: float


@dataclass(frozen=True, kw_only=True)
class _Flat:
    """All cells of a sum in one array, for log-moment generating functions of the whole."""

    loss: FloatArray
    log_mass: FloatArray
    starts: npt.NDArray[np.int64]
    counts: FloatArray

    def log_mgf(self, tilt: float) -> FloatArray:
        """Log of the sum over cells of mass exp(tilt loss), one number per part."""
        terms = self.log_mass + tilt * self.loss
        peaks = np.maximum.reduceat(terms, self.starts)
        sizes = np.diff(np.append(self.starts, len(terms)))
        sums = np.add.reduceat(np.exp(terms - np.repeat(peaks, sizes)), self.starts)
        return np.asarray(np.log(sums) + peaks, dtype=np.float64)

    def total(self, tilt: float) -> float:
        """The same for the whole composition."""
        return float(self.counts @ self.log_mgf(tilt))


def _flatten(parts: Sequence[Cells], spacing: float) -> _Flat:
    sizes = [len(part.masses) for part in parts]
    with np.errstate(divide="ignore"):
        log_mass = np.log(np.concatenate([part.masses for part in parts]))
    loss = np.concatenate([spacing * (part.start + np.arange(len(part.masses))) for part in parts])
    return _Flat(
        loss=loss,
        log_mass=np.maximum(log_mass, -1e6),
        starts=np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64),
        counts=np.array([part.count for part in parts], dtype=np.float64),
    )


def tilted_sum(parts: Sequence[Cells], *, spacing: float, theta: float, window: Window) -> TiltedSum:
    """The distribution of the sum of all parts, each so many times, tilted by ``theta``."""
    flat = _flatten(parts, spacing)
    log_mgf = flat.log_mgf(theta)
    log_scale = float(flat.counts @ log_mgf)
    size = window.size
    forward = _FFT_CONSTANT * EPS * math.log2(size)
    product: npt.NDArray[np.complex128] = np.ones(size // 2 + 1, dtype=np.complex128)
    log_bound, relative = np.zeros(size // 2 + 1), np.zeros(size // 2 + 1)
    shift = 0
    for part, log_norm in zip(parts, log_mgf, strict=True):
        ks = part.start + np.arange(len(part.masses))
        with np.errstate(divide="ignore"):
            tilted = np.exp(np.log(part.masses) + (theta * spacing * ks - log_norm))
        transform = fft.rfft(_fold(tilted, size))
        # the tilt's own rounding: exp of an argument of this size
        own = forward + EPS * (4.0 + abs(log_norm) + theta * spacing * float(np.max(np.abs(ks))))
        modulus = np.abs(transform)
        power, power_error = _power(transform, modulus, part.count)
        product *= power
        log_bound += part.count * np.log(modulus + own)
        relative += part.count * own / (modulus + own) + power_error
        shift += part.start * part.count
    roll = (window.start - shift) % size
    values = np.roll(fft.irfft(product, size), -roll)
    both_halves = 2.0 * float(np.sum(np.exp(log_bound) * (relative + forward + 4.0 * EPS * len(parts))))
    outside = _outside(flat, log_scale, theta, spacing, window)
    return TiltedSum(
        window=window,
        tilted=np.maximum(values, 0.0),
        log_scale=log_scale,
        error=both_halves + outside,
    )


def _fold(masses: FloatArray, size: int) -> FloatArray:
    """Masses at lattice distance ``size`` added up: what a cyclic transform sees."""
    if len(masses) <= size:
        return np.concatenate([masses, np.zeros(size - len(masses))])
    rows = -(-len(masses) // size)
    padded = np.concatenate([masses, np.zeros(rows * size - len(masses))])
    return np.asarray(padded.reshape(rows, size).sum(axis=0), dtype=np.float64)


def _power(
    values: npt.NDArray[np.complex128], modulus: FloatArray, count: int
) -> tuple[npt.NDArray[np.complex128], FloatArray | float]:
    """The powers values ** count and the relative error of computing it."""
    if count == 1:
        return values, 0.0
    log_modulus = np.log(np.maximum(modulus, 1e-300))
    scaled = np.exp(np.maximum(count * log_modulus, -700.0))
    angle = count * np.angle(values)
    error = EPS * (8.0 + 4.0 * count * (np.abs(log_modulus) + math.pi + 1.0))
    return scaled * (np.cos(angle) + 1j * np.sin(angle)), error


def _outside(flat: _Flat, log_scale: float, theta: float, spacing: float, window: Window) -> float:
    """Chernoff bounds of the tilted mass below and above the window."""
    top = spacing * (window.start + window.size)
    bottom = spacing * (window.start - 1)
    above = flat.total(theta + window.up) - log_scale - window.up * top
    below = flat.total(theta + window.down) - log_scale - window.down * bottom
    return math.exp(min(0.0, above)) + math.exp(min(0.0, below))
