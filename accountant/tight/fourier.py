"""Sums of many lattice variables by one FFT, with a bound of everything that went wrong.

Masses are tilted before they are transformed: p~(k) proportional to p(k) exp(theta k h), so
that the part of the sum which decides delta(epsilon) is the bulk and not a tail lost in
rounding (as in saddle-point methods; theta is the optimal Rényi order minus 1). Where most
of a release's tilted mass lies at one point only the rest is transformed: what a million
releases lose is then in proportion to what they do, not to their number. Bounded are, for
the tilted sum,

- in its l1 norm, mass outside the window, which the cyclic transform folds in (Chernoff
  bounds of the very masses that are transformed), and rounding of the tilts,
- in its l2 norm (Parseval), rounding of the forward transforms (elementwise at most
  c log2(n) eps times the mass transformed, Higham 2002, Theorem 24.2) and of their powers,
- at every point, rounding of the inverse transform,
- relative to every point, what the norms of all releases lose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import fft

from accountant.mechanisms.pair import EPS, FloatArray
from accountant.tight.lattice import Cells

_FFT_CONSTANT = 8.0
_FADED = 60.0  # minus the log of a modulus that adds nothing: frequencies are left out there


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
    """The sum's tilted masses: mass at k is exp(log_scale - theta k h) tilted[k - start].

    Attributes:
        window: The points of ``tilted``.
        tilted: Masses, at least 0.
        log_scale: Log of what they were divided by.
        outside: Error in the l1 norm, points outside the window included.
        spread: Error in the l2 norm.
        each: Error of any one point.
        relative: Error of any point, relative to its mass.
    """

    window: Window
    tilted: FloatArray
    log_scale: float
    outside: float
    spread: float = 0.0
    each: float = 0.0
    relative: float = 0.0


def _log_mgf_of(parts: Sequence[Cells], spacing: float) -> Callable[[float], FloatArray]:
    """Log of the sum over cells of mass exp(tilt loss) by tilt, one number per part; all cells are in one array."""
    sizes = [len(part.masses) for part in parts]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    loss = np.concatenate([spacing * (part.start + np.arange(len(part.masses))) for part in parts])
    with np.errstate(divide="ignore"):
        log_mass = np.maximum(np.log(np.concatenate([part.masses for part in parts])), -1e6)

    def log_mgf(tilt: float) -> FloatArray:
        terms = log_mass + tilt * loss
        peaks = np.maximum.reduceat(terms, starts)
        sums = np.add.reduceat(np.exp(terms - np.repeat(peaks, sizes)), starts)
        return np.asarray(np.log(sums) + peaks, dtype=np.float64)

    return log_mgf


def tilted_sum(
    parts: Sequence[Cells], *, spacing: float, theta: float, window: Window, outside: float | None = None
) -> TiltedSum:
    """The distribution of the sum of all parts, each so many times, tilted by ``theta``.

    With ``outside`` the window is first moved and cut to where Chernoff's bounds leave exp(-outside) on either side.
    """
    log_mgf_at, counts = _log_mgf_of(parts, spacing), np.array([part.count for part in parts], dtype=np.float64)
    log_mgf = log_mgf_at(theta)
    log_scale = float(counts @ log_mgf)
    above, below = (float(counts @ log_mgf_at(theta + extra)) - log_scale for extra in (window.up, window.down))
    if outside is not None:
        window = _fitted(window, spacing, (above + outside) / window.up, (below + outside) / window.down)
    size = window.size
    # Chernoff's bounds of what lies above the window's top and below its bottom; sums of n cells err by n eps
    slop = EPS * float(counts @ np.abs(log_mgf)) + EPS * sum(len(part.masses) for part in parts) * float(counts.sum())
    lost = math.exp(min(0.0, above + slop - window.up * spacing * (window.start + size)))
    lost += math.exp(min(0.0, below + slop - window.down * spacing * (window.start - 1)))
    norms, shift, laws = 0.0, 0, []
    for part, log_norm in zip(parts, log_mgf, strict=True):
        tilted, log_rest, rounding = _tilt(part, theta * spacing, log_norm)
        peak = int(np.argmax(tilted))
        laws.append((tilted, peak, part.count))
        lost += math.expm1(min(1.0, part.count * rounding))
        log_scale += part.count * log_rest
        norms += part.count * EPS * (8.0 + math.log2(size) + abs(log_norm))
        shift += (part.start + peak) * part.count
    spectrum, spread, each = _product(laws, size)
    values = np.roll(fft.irfft(spectrum, size), (shift - window.start) % size)
    return TiltedSum(
        window=window,
        tilted=np.maximum(values, 0.0),
        log_scale=log_scale,
        outside=lost,
        spread=spread,
        each=each,
        relative=2.0 * norms,
    )


def _product(laws: Sequence[tuple[FloatArray, int, int]], size: int) -> tuple[npt.NDArray[np.complex128], float, float]:
    """Transform of the sum of all laws, about their largest cells; its error in the l2 norm, and at any one point.

    It is kept as its log, with a bound of its modulus and of its relative error, at the frequencies at which something
    is left of it.

    Args:
        laws: Masses, their largest cell, and their number.
        size: Of the window.
    """
    forward, spectrum = _FFT_CONSTANT * EPS * math.log2(size), np.zeros(size // 2 + 1, dtype=np.complex128)
    heard, log_value = np.arange(len(spectrum)), spectrum.copy()
    log_bound, relative, grown = np.zeros(len(spectrum)), np.zeros(len(spectrum)), 0.0
    for tilted, peak, count in laws:
        excess, transformed = _excess(tilted, peak, size)
        own, here = (forward + 4.0 * EPS) * transformed, excess[heard]
        modulus = np.sqrt(np.square(1.0 + here.real) + np.square(here.imag)) * (1.0 + 4.0 * EPS) + own
        log_bound = log_bound + count * np.log(modulus)
        left = np.nonzero(log_bound > -_FADED)[0]
        heard, log_bound, modulus = heard[left], log_bound[left], modulus[left]
        log, log_error = _log(here[left])
        log_value = log_value[left] + count * log
        relative = relative[left] + count * (own / modulus + 2.0 * log_error)
        if len(laws) > 1:  # rounding of their running sum
            relative += EPS * len(laws) * count * np.abs(log)
        grown += count * own  # log of how much rounding may have made any modulus grow beyond 1
    # the most that any one point, or all in the l2 norm, can owe to frequencies that were left out
    faded = (len(spectrum) - len(heard)) * math.exp(grown - 0.99 * _FADED)
    spectrum[heard], bound = np.exp(log_value), np.exp(log_bound)
    spread = math.sqrt(2.0 / size * float(np.sum(np.square(bound * relative)))) + faded
    return spectrum, spread, 2.0 / size * float(np.sum(bound)) * (forward + 8.0 * EPS) + faded


def _tilt(part: Cells, step: float, log_norm: float) -> tuple[FloatArray, float, float]:
    """Tilted masses that sum to 1; the log of what ``log_norm`` lacked for it; the rounding of all, in the l1 norm."""
    exponent = step * (part.start + np.arange(len(part.masses)))
    with np.errstate(divide="ignore"):
        argument = np.log(part.masses) + (exponent - log_norm)
    tilted = np.exp(argument)
    total = float(np.sum(tilted))  # pairwise: off by log2(n) eps, where log_norm may be off by n
    tilted /= total
    sizes = np.abs(exponent) + np.minimum(np.abs(argument), 750.0)
    return tilted, math.log(total), EPS * float(tilted @ sizes)


def _excess(tilted: FloatArray, peak: int, size: int) -> tuple[npt.NDArray[np.complex128], float]:
    """A law's transform about its largest cell, less 1; and the mass that was transformed.

    Where the largest cell holds half the mass it is what the rest leaves of 1.
    """
    rest, share = tilted.copy(), 1.0
    if tilted[peak] >= 0.5:
        rest[peak] = 0.0
        share = float(np.sum(rest))
    folded = np.append(rest, np.zeros(-len(rest) % size)).reshape(-1, size).sum(axis=0)  # as a cyclic transform sees it
    return fft.rfft(np.roll(folded, -peak % size)) - share, share


def _log(excess: npt.NDArray[np.complex128]) -> tuple[npt.NDArray[np.complex128], FloatArray]:
    """log(1 + excess), relatively accurate where that is small, and a bound of its error."""
    x, y = excess.real, excess.imag
    small = np.abs(excess) < 0.5
    modulus = np.log(np.maximum(np.abs(1.0 + excess), 1e-300))
    near = 0.5 * np.log1p(np.where(small, x * (2.0 + x) + y * y, 0.0))
    value = np.where(small, near, modulus) + 1j * np.arctan2(y, 1.0 + x)
    error = EPS * np.where(small, 40.0 * np.abs(excess), 8.0 + 4.0 * (np.abs(modulus) + math.pi))
    return value, error


def _fitted(window: Window, spacing: float, top: float, bottom: float) -> Window:
    """The window from ``bottom`` to ``top``, at most twice as large as it was."""
    start = math.floor(bottom / spacing) - 2
    size = fft.next_fast_len(max(16, math.ceil(top / spacing) + 2 - start), real=True)
    return Window(start=start, size=min(size + size % 2, 2 * window.size), up=window.up, down=window.down)
