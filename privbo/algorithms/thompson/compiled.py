"""Fits, posteriors and paths as machine code: loops that Numba compiles, one client after another.

A client's n observed values y, less the shared part of their mean, have covariance K = v C + s I + c 11' + b^2 U:
correlations C of squared scaled distances r^2 = sum_k (x_k - x'_k)^2 / l_k^2, a constant's variance c, the multiple b
of the shared part and the covariance U of what is uncertain in it. With a = K^-1 y the negative log
evidence (y' a + log |K|) / 2 changes by (Rasmussen & Williams 2006, eq. 5.9)

    sum_ij G_ij dK_ij,    G = (K^-1 - a a') / 2,

and with f = -2 dc / d(r^2) the derivatives by logarithms are

    log l_k:  v sum_ij G_ij f_ij (x_ik - x_jk)^2 / l_k^2        log v:  v sum_ij G_ij c_ij        log s:  s sum_i G_ii

So a step needs K^-1 and no factor. It comes from block sweeps in place (Gauss-Jordan elimination, whose pivots are
those of Cholesky's factor squared): with P a few pivots' rows and D = K_PP^-1, every other entry becomes
K_ij - K_iP D K_Pj, the rows D K_Pj and the block itself -D; after the last block K is -K^-1.

A client's numbers are made from its own in an order that is fixed by how many values it has: the same alone, among
others, in any thread or process of one machine. Nothing is reordered or contracted ("fast-math" is off), and the
kernels' exponential and the paths' cosine are made here from sums and products, as many at once as a processor has
lanes.

Numba was chosen over a wheel with C: nothing has to be compiled where privbo is installed, and there is one wheel for
all machines. It costs less than a second per process, at the first model, and some seconds for each function at its
first call on a machine; what is compiled then is stored next to this file or in the user's cache.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache, wraps
from pathlib import Path
from typing import TypeVar, cast

import numba
import numpy as np
from numba import boolean, float64, int64, void
from numba.core.typing.templates import Signature

from privbo.protocol.messages import BoolArray, FloatArray

if sys.platform != "win32":
    import fcntl

F = TypeVar("F", bound=Callable[..., object])
_PIVOTS, _POINTS = 8, 64  # worked on at once
_LEAST_EXPONENT, _ROUND, _BIAS, _MANTISSA = -708.0, 1.5 * 2.0**52, 1023, 52
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 0.6931471803691238, 1.9082149292705877e-10
_TAYLOR = tuple(1.0 / math.factorial(k) for k in range(14))
_TURN = 2.0 * math.pi
_SINE = tuple((-1) ** k * _TURN ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(10))  # of a share of a turn
_LINE, _TABLE, _CUBE, _MASK = float64[::1], float64[:, ::1], float64[:, :, ::1], boolean[:, ::1]


def _compiled(signature: Signature) -> Callable[[F], F]:
    """Compile for one signature at the first call, once per machine where it can be kept, else once per process."""

    def compile_(function: F) -> F:
        @cache
        def machine_code() -> Callable[..., object]:
            compiled = numba.njit(nogil=True, error_model="numpy")(function)
            with ExitStack() as alone:
                try:
                    compiled.enable_caching()
                    # One process at a time, so that the others find its code stored; some systems have no such lock.
                    with suppress(OSError):
                        file = alone.enter_context((Path(str(compiled.stats.cache_path)) / "privbo.lock").open("ab"))
                        if sys.platform != "win32":
                            fcntl.flock(file, fcntl.LOCK_EX)
                except RuntimeError as error:
                    if "no locator available" not in str(error):
                        raise
                compiled.compile(signature)
            compiled.disable_compile()
            return cast("F", compiled)

        @wraps(function)
        def call(*arguments: object) -> object:
            return machine_code()(*arguments)

        return cast("F", call)

    return compile_


def _compiled_inside(function: F) -> F:
    """Compile as a part of its callers, with which it is kept."""
    return cast("F", numba.njit(nogil=True, error_model="numpy")(function))


@_compiled_inside
def _exponentials(exponents: FloatArray, powers: FloatArray, scratch: FloatArray, count: int) -> None:
    """exp(x) = 2^k exp(x - k ln 2) of the first numbers, all at most 0; right to an ulp."""
    bits = scratch.view(np.int64)
    for p in range(count):
        exponent = _LEAST_EXPONENT if exponents[p] < _LEAST_EXPONENT else exponents[p]
        rounded = exponent * _LOG2_E + _ROUND  # k stands in its last bits
        k = rounded - _ROUND
        x = (exponent - k * _LN2_HIGH) - k * _LN2_LOW
        series = _TAYLOR[13] * x + _TAYLOR[12]
        series = (series * x + _TAYLOR[11]) * x + _TAYLOR[10]
        series = (series * x + _TAYLOR[9]) * x + _TAYLOR[8]
        series = (series * x + _TAYLOR[7]) * x + _TAYLOR[6]
        series = (series * x + _TAYLOR[5]) * x + _TAYLOR[4]
        series = (series * x + _TAYLOR[3]) * x + _TAYLOR[2]
        powers[p] = (series * x + 1.0) * x + 1.0
        scratch[p] = rounded
    for p in range(count):
        bits[p] = (bits[p] + _BIAS) << _MANTISSA
    for p in range(count):
        powers[p] *= scratch[p]


@_compiled_inside
def _correlate(kernel: int, pairs: FloatArray, count: int) -> None:
    """Correlations at the first squared scaled distances, and f = minus twice their derivative by them.

    The rows of ``pairs`` are the squares, the correlations, f, and one to work in.
    """
    squares, correlation, falling = pairs[0], pairs[1], pairs[2]
    for p in range(count):
        falling[p] = -math.sqrt(kernel * squares[p]) if kernel else -0.5 * squares[p]
    _exponentials(falling, correlation, pairs[3], count)
    for p in range(count):
        shrunk, r = correlation[p], -falling[p]
        if kernel == 0:
            falling[p] = shrunk
        elif kernel == 5:
            correlation[p] = (1.0 + r + squares[p] * (5.0 / 3.0)) * shrunk
            falling[p] = (5.0 / 3.0) * (1.0 + r) * shrunk
        elif kernel == 3:
            correlation[p] = (1.0 + r) * shrunk
            falling[p] = 3.0 * shrunk
        else:  # it has no limit at 0, but its product with a distance has: 0
            falling[p] = shrunk / r if r > 0.0 else 0.0


@_compiled_inside
def _invert(block: FloatArray) -> bool:
    """Minus the inverse of the pivots' block, in place; False where a pivot is not positive."""
    size = len(block)
    for k in range(size):
        if not block[k, k] > 0.0:
            return False
        inverse = 1.0 / block[k, k]
        for i in range(size):
            if i != k:
                factor = block[i, k] * inverse
                for j in range(size):
                    if j != k:
                        block[i, j] -= factor * block[k, j]
        for j in range(size):
            if j != k:
                block[k, j] *= inverse
                block[j, k] *= inverse
        block[k, k] = -inverse
    return True


@_compiled_inside
def _sweep(matrix: FloatArray, t: int, strips: FloatArray) -> bool:
    """Minus the inverse of a leading matrix, whose lower triangle is used and made; False where it is not positive."""
    rows, products = strips[:_PIVOTS], strips[_PIVOTS : 2 * _PIVOTS]
    for start in range(0, t, _PIVOTS):
        size = min(_PIVOTS, t - start)
        behind, block = start + size, strips[2 * _PIVOTS : 2 * _PIVOTS + size, :size]
        for p in range(size):
            for j in range(start + p):
                rows[p, j] = matrix[start + p, j]
            for i in range(start + p, t):
                rows[p, i] = matrix[i, start + p]
            for q in range(size):
                block[p, q] = rows[p, start + q]
        if not _invert(block):
            return False
        for p in range(_PIVOTS):  # minus the block times the pivots' rows; zero where there are fewer
            for j in range(t):
                products[p, j] = 0.0
            for q in range(size if p < size else 0):
                entry = -block[p, q]
                for j in range(t):
                    products[p, j] += entry * rows[q, j]
        for left, right in ((0, start), (behind, t)):
            for i in range(left, right):
                a, b, c, d = rows[0, i], rows[1, i], rows[2, i], rows[3, i]
                e, f, g, h = rows[4, i], rows[5, i], rows[6, i], rows[7, i]
                for j in range(i + 1):
                    one = (a * products[0, j] + b * products[1, j]) + (c * products[2, j] + d * products[3, j])
                    other = (e * products[4, j] + f * products[5, j]) + (g * products[6, j] + h * products[7, j])
                    matrix[i, j] -= one + other
        for p in range(size):
            for j in range(start):
                matrix[start + p, j] = products[p, j]
            for j in range(p + 1):
                matrix[start + p, start + j] = block[p, j]
            for i in range(behind, t):
                matrix[i, start + p] = products[p, i]
    return True


@_compiled_inside
def _gradient(
    kernel: int,
    squares: FloatArray,
    residual: FloatArray,
    value: FloatArray,
    noise: float,
    given: FloatArray,
    uncertain: FloatArray,
    matrix: FloatArray,
    pairs: FloatArray,
    strips: FloatArray,
    weights: FloatArray,
    gradient: FloatArray,
) -> None:
    """The negative log evidence's gradient in logarithms (by the noise itself); zero where K has no factor.

    ``squares`` holds the pairs' squared distances per coordinate, row by row of the strict lower triangle; ``value``
    are length scales and the kernel's variance; ``given`` is the part of K without the kernel, ``uncertain`` is U, for
    which the gradient's last entry stands: sum_ij G_ij U_ij.
    """
    width, t = len(squares), len(residual)
    variance, count, scaled = value[width], t * (t - 1) // 2, pairs[0]
    scaled[:count] = 0.0
    for k in range(width):
        shrink = 1.0 / (value[k] * value[k])
        for p in range(count):
            scaled[p] += squares[k, p] * shrink
    _correlate(kernel, pairs, count)
    correlation, falling = pairs[1], pairs[2]
    p = 0
    for i in range(t):
        for j in range(i):
            matrix[i, j] = variance * correlation[p] + given[i, j]
            p += 1
        matrix[i, i] = variance + given[i, i] + noise
    weights[:] = gradient[:] = 0.0
    if not _sweep(matrix, t, strips):
        return
    for i in range(t):  # the matrix is minus the inverse now
        total = matrix[i, i] * residual[i]
        for j in range(i):
            total += matrix[i, j] * residual[j]
            weights[j] -= matrix[i, j] * residual[i]
        weights[i] -= total
    p, apart, trace, shared = 0, 0.0, 0.0, 0.0
    for i in range(t):
        for j in range(i):
            twice = -matrix[i, j] - weights[i] * weights[j]
            apart += twice * correlation[p]
            falling[p] *= twice
            shared += twice * uncertain[i, j]
            p += 1
        diagonal = 0.5 * (-matrix[i, i] - weights[i] * weights[i])
        trace += diagonal
        shared += diagonal * uncertain[i, i]
    for k in range(width):
        total = 0.0
        for p in range(count):
            total += falling[p] * squares[k, p]
        gradient[k] = variance * (1.0 / (value[k] * value[k])) * total
    gradient[width], gradient[width + 1], gradient[width + 2] = variance * (apart + trace), trace, shared


@_compiled(
    void(int64, float64, float64, boolean, int64, _MASK, _CUBE, _TABLE, _TABLE, _CUBE, _TABLE, _LINE, _LINE, _LINE,
         _TABLE, _LINE)
)  # fmt: skip
def climb(
    kernel: int,
    jitter: float,
    constant: float,
    between: bool,
    steps: int,
    mask: BoolArray,
    points: FloatArray,
    values: FloatArray,
    expected: FloatArray,
    uncertain: FloatArray,
    priors: FloatArray,
    known: FloatArray,
    optimiser: FloatArray,
    slope_prior: FloatArray,
    parameters: FloatArray,
    slopes: FloatArray,
) -> None:
    """Take Adam's steps towards every client's maximum a posteriori; ``parameters`` and ``slopes`` are moved.

    Args:
        kernel: Its entry in ``features.SMOOTHNESS``.
        jitter: Added to every observation variance.
        constant: Variance of a constant.
        between: Whether parameters are x with value low + (high - low) / (1 + exp(-x)); else logarithms, cut off at
            the bounds.
        steps: Of Adam.
        mask: True where there is a value, ``(n, t)``.
        points: As the kernel sees them, ``(n, t, e)``.
        values: Standardised, ``(n, t)``.
        expected: The shared function at the points, ``(n, t)``; of no client where nothing is shared.
        uncertain: Covariance of what is uncertain in it, ``(n, t, t)``; unused where nothing is shared.
        priors: Rows low, high, logarithm of the median and spread of length scales, kernel variance and observation
            variance, ``(4, w + 2)``; w is 1 with one length scale for all.
        known: The observation variances, ``(n,)``; empty where they are fitted.
        optimiser: Adam's rate, its two decays, what it adds to a root, and a distance from the median that is a
            rounding error.
        slope_prior: Mean and standard deviation of the multiple, ``(2,)``.
        parameters: Where the fits stand, ``(n, w + 2)``.
        slopes: Multiples of the shared function, ``(n,)``.
    """
    longest, width, last = points.shape[1], parameters.shape[1] - 2, parameters.shape[1]
    n_pairs = longest * (longest - 1) // 2
    squares, pairs, matrix = np.empty((width, n_pairs)), np.empty((4, n_pairs)), np.empty((longest, longest))
    given, theirs = np.empty((longest, longest)), np.empty((longest, longest))
    strips, weights = np.empty((3 * _PIVOTS, max(longest, _PIVOTS))), np.empty(longest)
    value, chain, away, lows, highs = np.empty(last), np.empty(last), np.empty(last), np.empty(last), np.empty(last)
    which = np.empty(longest, np.int64)
    downhill, averages, residual = np.empty(last + 1), np.empty((2, last + 1)), np.empty(longest)
    # Loops, as each of NumPy's functions takes Numba a tenth of a second.
    for k in range(last):
        chain[k], lows[k], highs[k] = 1.0, math.log(priors[0, k]), math.log(priors[1, k])
    for i in range(len(strips)):
        for j in range(strips.shape[1]):
            strips[i, j] = 0.0
    for i in range(longest):
        for j in range(longest):
            given[i, j], theirs[i, j] = constant, 0.0
    rate, decay, decay_of_squares, tiny, rounding = optimiser
    shares, knows = len(expected) > 0, len(known) > 0
    for client in range(len(points)):
        t, p, at = 0, 0, parameters[client]
        for i in range(longest):
            if mask[client, i]:
                which[t] = i
                t += 1
        for k in range(last + 1):
            averages[0, k] = averages[1, k] = 0.0
        for k in range(width):
            for i in range(n_pairs):
                squares[k, i] = 0.0
        for i in range(t):
            for j in range(i):
                for k in range(points.shape[2]):
                    apart = points[client, which[i], k] - points[client, which[j], k]
                    squares[k if width > 1 else 0, p] += apart**2
                p += 1
            for j in range(i + 1 if shares else 0):
                theirs[i, j] = uncertain[client, which[i], which[j]]
        for step in range(1, steps + 1):
            for k in range(last):
                if between:
                    share, low, high = 1.0 / (1.0 + math.exp(-at[k])), priors[0, k], priors[1, k]
                    value[k] = low + (high - low) * share
                    chain[k] = (high - low) * share * (1.0 - share) / value[k]
                    away[k] = math.log(value[k]) - priors[2, k]
                else:
                    value[k], away[k] = math.exp(at[k]), at[k] - priors[2, k]
                if abs(away[k]) < rounding:
                    away[k] = 0.0
            slope = slopes[client]
            for i in range(t):
                residual[i] = values[client, which[i]]
                if shares:
                    residual[i] -= slope * expected[client, which[i]]
                    for j in range(i + 1):
                        given[i, j] = constant + slope * slope * theirs[i, j]
            noise = known[client] if knows else value[last - 1]
            _gradient(kernel, squares, residual[:t], value, noise + jitter, given, theirs, matrix, pairs, strips,
                      weights, downhill)  # fmt: skip
            downhill[last - 1] *= 0.0 if knows else noise
            for k in range(last):
                downhill[k] = (downhill[k] + away[k] / (priors[3, k] * priors[3, k])) * chain[k]
            if shares:  # the last entry, sum_ij G_ij U_ij so far, becomes that of the multiple of the shared part
                downhill[last] *= 2.0 * slope
                downhill[last] += (slope - slope_prior[0]) / (slope_prior[1] * slope_prior[1])
                for i in range(t):
                    downhill[last] -= expected[client, which[i]] * weights[i]
            unbiased, unbiased_square = 1.0 - decay**step, 1.0 - decay_of_squares**step
            for k in range(last + 1):
                averages[0, k] = decay * averages[0, k] + (1.0 - decay) * downhill[k]
                averages[1, k] = (
                    decay_of_squares * averages[1, k] + (1.0 - decay_of_squares) * downhill[k] * downhill[k]
                )
                move = rate * (averages[0, k] / unbiased) / (math.sqrt(averages[1, k] / unbiased_square) + tiny)
                if k < last:
                    at[k] -= move
                    if not between:
                        at[k] = min(max(at[k], lows[k]), highs[k])
                elif shares:
                    slopes[client] -= move


@_compiled_inside
def _scale(points: FloatArray, lengthscales: FloatArray, start: int, size: int, scaled: FloatArray) -> None:
    """Divide some points by the length scales, one row for each coordinate."""
    for k in range(len(lengthscales)):
        scale = 1.0 / lengthscales[k]
        for p in range(size):
            scaled[k, p] = points[start + p, k] * scale


@_compiled_inside
def _distances(known: FloatArray, scaled: FloatArray, size: int, squares: FloatArray) -> None:
    """Squared distances of some scaled points from one with a value."""
    for p in range(size):
        squares[p] = 0.0
    for k in range(len(known)):
        for p in range(size):
            squares[p] += (scaled[k, p] - known[k]) ** 2


@_compiled_inside
def _condition(
    root: FloatArray,
    weights: FloatArray,
    covariance: FloatArray,
    total: FloatArray,
    means: FloatArray,
    explained: FloatArray,
) -> None:
    """Add means k' a and explained variances |W k|^2, from covariances with the points that have values."""
    size = len(means)
    for i in range(len(weights)):
        for p in range(size):
            means[p] += weights[i] * covariance[i * size + p]
    for i in range(len(root)):
        total[:size] = 0.0
        for j in range(i + 1):
            for p in range(size):
                total[p] += root[i, j] * covariance[j * size + p]
        for p in range(size):
            explained[p] += total[p] * total[p]


@_compiled(void(int64, float64, _CUBE, _CUBE, _TABLE, _TABLE, _LINE, _CUBE, _CUBE, _TABLE, _TABLE))
def expect(
    kernel: int,
    constant: float,
    known: FloatArray,
    roots: FloatArray,
    weights: FloatArray,
    lengthscales: FloatArray,
    variances: FloatArray,
    points: FloatArray,
    together: FloatArray,
    means: FloatArray,
    explained: FloatArray,
) -> None:
    """Add every client's posterior mean, and the variance that its values explain, at some points.

    Args:
        kernel: Its entry in ``features.SMOOTHNESS``.
        constant: Variance of a constant.
        known: Points with values, divided by the length scales, ``(n, t, e)``.
        roots: Lower triangular W with W' W the values' inverse covariance, ``(n, t, t)``; ``(n, 0, 0)`` for means only.
        weights: The values' inverse covariance times the values, ``(n, t)``.
        lengthscales: ``(n, e)``.
        variances: Of the kernels, ``(n,)``.
        points: ``(n, c, e)``, or ``(1, c, e)`` for all.
        together: Covariances of what is uncertain in the shared part, ``(n, t, c)``; of no client where nothing is
            shared.
        means: Added to, ``(n, c)``.
        explained: Added to, ``(n, c)``; ``(n, 0)`` for means only.
    """
    t, count = known.shape[1], points.shape[1]
    pairs, total, scaled = np.empty((4, t * _POINTS)), np.empty(_POINTS), np.empty((known.shape[2], _POINTS))
    for client in range(len(known)):
        whose = client if len(points) > 1 else 0
        for start in range(0, count, _POINTS):
            size = min(_POINTS, count - start)
            _scale(points[whose], lengthscales[client], start, size, scaled)
            for i in range(t):
                _distances(known[client, i], scaled, size, pairs[0, i * size :])
            _correlate(kernel, pairs, t * size)
            for i in range(t):
                for p in range(size):
                    pairs[1, i * size + p] = constant + variances[client] * pairs[1, i * size + p]
            if len(together):
                for i in range(t):
                    for p in range(size):
                        pairs[1, i * size + p] += together[client, i, start + p]
            mean, squares = means[client, start : start + size], explained[client, start : start + size]
            _condition(roots[client], weights[client], pairs[1], total, mean, squares)


@_compiled_inside
def _add_waves(amplitude: float, turns: FloatArray, size: int, total: FloatArray) -> None:
    """Add an amplitude times the cosines of some angles, given in turns: sines of what is left to a quarter of one.

    The cosine is right to 1e-15; of angles past 2^51 turns, of which only whole turns are known, it is 1 or -1.
    """
    for p in range(size):
        apart = abs(turns[p] - ((turns[p] + _ROUND) - _ROUND))  # from whole turns
        x = 0.25 - min(apart, 0.5)
        y = x * x
        series = _SINE[9] * y + _SINE[8]
        series = (series * y + _SINE[7]) * y + _SINE[6]
        series = (series * y + _SINE[5]) * y + _SINE[4]
        series = (series * y + _SINE[3]) * y + _SINE[2]
        total[p] += amplitude * (x * ((series * y + _SINE[1]) * y + _SINE[0]))


@_compiled(void(_TABLE, _TABLE, _TABLE, _TABLE, _CUBE, _TABLE))
def add_prior_paths(
    frequencies: FloatArray,
    amplitudes: FloatArray,
    phases: FloatArray,
    lengthscales: FloatArray,
    points: FloatArray,
    values: FloatArray,
) -> None:
    """Add every client's draw from its prior at some points, a sum of waves: sum_f A_f cos(w_f x / l + b_f).

    Args:
        frequencies: w, ``(f, e)``.
        amplitudes: A, ``(n, f)``.
        phases: b, ``(n, f)``.
        lengthscales: l, ``(n, e)``.
        points: x, ``(n, c, e)``, or ``(1, c, e)`` for all.
        values: Added to, ``(n, c)``.
    """
    count, scaled, turns = points.shape[1], np.empty((points.shape[2], _POINTS)), np.empty(_POINTS)
    for client in range(len(values)):
        whose = client if len(points) > 1 else 0
        for start in range(0, count, _POINTS):
            size = min(_POINTS, count - start)
            _scale(points[whose], lengthscales[client], start, size, scaled)
            for f in range(len(frequencies)):
                phase = phases[client, f] / _TURN
                for p in range(size):
                    turns[p] = phase
                for k in range(len(scaled)):
                    frequency = frequencies[f, k] / _TURN
                    for p in range(size):
                        turns[p] += frequency * scaled[k, p]
                _add_waves(amplitudes[client, f], turns, size, values[client, start : start + size])


@_compiled_inside
def _add_products(row: FloatArray, values: FloatArray, total: FloatArray) -> None:
    """Add the sum over j of row_j times row j of the values, eight of them at once."""
    size, j = len(total), 0
    while j + 8 <= len(values):
        a, b, c, d, e, f, g, h = (
            row[j],
            row[j + 1],
            row[j + 2],
            row[j + 3],
            row[j + 4],
            row[j + 5],
            row[j + 6],
            row[j + 7],
        )
        for p in range(size):
            one = (a * values[j, p] + b * values[j + 1, p]) + (c * values[j + 2, p] + d * values[j + 3, p])
            other = (e * values[j + 4, p] + f * values[j + 5, p]) + (g * values[j + 6, p] + h * values[j + 7, p])
            total[p] += one + other
        j += 8
    while j < len(values):
        for p in range(size):
            total[p] += row[j] * values[j, p]
        j += 1


@_compiled(void(int64, _TABLE, _LINE, _TABLE, _CUBE, _CUBE, _TABLE, _TABLE, _CUBE))
def pool(
    kernel: int,
    between: FloatArray,
    lengthscales: FloatArray,
    weights: FloatArray,
    known: FloatArray,
    points: FloatArray,
    means: FloatArray,
    variances: FloatArray,
    together: FloatArray,
) -> None:
    """Add the pooled function's mean and variance at some points, and its covariance with points that have values.

    All are made of weights' products with k, the kernel's values at m points: the first one is the mean, the sum of the
    others' squares the variance.

    Args:
        kernel: Its entry in ``features.SMOOTHNESS``.
        between: The m points, divided by the length scales, ``(m, e)``.
        lengthscales: ``(e,)``.
        weights: Of the kernel's values, ``(1 + r, m)``.
        known: The r products where there are values, ``(n, t, r)``.
        points: ``(n, c, e)``, or ``(1, c, e)`` for all.
        means: Added to, ``(n or 1, c)``.
        variances: Added to, ``(n or 1, c)``.
        together: Added to, ``(n, t, c)``.
    """
    m, width, count = len(between), len(weights) - 1, points.shape[1]
    pairs, scaled, parts = np.empty((4, m * _POINTS)), np.empty((between.shape[1], _POINTS)), np.empty(width * _POINTS)
    for whose in range(len(points)):
        clients = (whose, whose + 1) if len(points) > 1 else (0, len(known))
        for start in range(0, count, _POINTS):
            size = min(_POINTS, count - start)
            _scale(points[whose], lengthscales, start, size, scaled)
            for i in range(m):
                _distances(between[i], scaled, size, pairs[0, i * size :])
            _correlate(kernel, pairs, m * size)
            values, products = pairs[1, : m * size].reshape(m, size), parts[: width * size].reshape(width, size)
            products[:] = 0.0
            _add_products(weights[0], values, means[whose, start : start + size])
            for i in range(width):
                _add_products(weights[1 + i], values, products[i])
                for p in range(size):
                    variances[whose, start + p] += products[i, p] * products[i, p]
            for client in range(clients[0], clients[1]):
                for i in range(known.shape[1]):
                    _add_products(known[client, i], products, together[client, i, start : start + size])


@_compiled_inside
def _rotate(factor: FloatArray, row: FloatArray) -> None:
    """Make R' R + row' row of R' R, in place; R is upper triangular, its rows one after the other."""
    place, m = 0, len(row)
    for k in range(m):
        behind, left = factor[place + 1 : place + m - k], row[k + 1 :]
        diagonal = factor[place]
        length = math.sqrt(diagonal * diagonal + row[k] * row[k])
        shrink, sine, cosine = diagonal / length, row[k] / diagonal, length / diagonal
        factor[place] = length
        for i in range(len(behind)):
            behind[i] = (behind[i] + sine * left[i]) * shrink
            left[i] = cosine * left[i] - sine * behind[i]
        place += m - k


@_compiled_inside
def _solve(factor: FloatArray, vector: FloatArray) -> None:
    """Make (R' R)^-1 v of v, in place."""
    place, m = 0, len(vector)
    for k in range(m):
        behind, left = factor[place + 1 : place + m - k], vector[k + 1 :]
        vector[k] /= factor[place]
        for i in range(len(behind)):
            left[i] -= behind[i] * vector[k]
        place += m - k
    for k in range(m - 1, -1, -1):
        place -= m - k
        behind, left = factor[place + 1 : place + m - k], vector[k + 1 :]
        vector[k] = (vector[k] - _product(behind, left)) / factor[place]


@_compiled_inside
def _product(left: FloatArray, right: FloatArray) -> float:
    """Sum of products, four at once."""
    a = b = c = d = 0.0
    whole = len(left) // 4
    for i in range(whole):
        a += left[4 * i] * right[4 * i]
        b += left[4 * i + 1] * right[4 * i + 1]
        c += left[4 * i + 2] * right[4 * i + 2]
        d += left[4 * i + 3] * right[4 * i + 3]
    for i in range(4 * whole, len(left)):
        a += left[i] * right[i]
    return (a + b) + (c + d)


@_compiled(void(_CUBE, _TABLE, int64, float64, _TABLE, _TABLE))
def draw_weights(
    features: FloatArray, factors: FloatArray, factored: int, noise: float, values: FloatArray, weights: FloatArray
) -> None:
    """Draw every client's weights of features by Matheron's rule; ``factors`` take in the rows that they lack.

    Args:
        features: Phi, ``(n, capacity, m)``; zero rows where a value is missing.
        factors: R with R' R = Phi' Phi + lambda I of the first rows, row after row, ``(n, m (m + 1) / 2)``.
        factored: Number of those rows; with 0 the factors are made anew.
        noise: lambda.
        values: y - sqrt(lambda) e, of the first t rows, ``(n, t)``.
        weights: lambda times a draw from the prior, which the draw takes the place of, ``(n, m)``.
    """
    m = features.shape[2]
    row = np.empty(m)
    for client in range(len(values)):
        factor, weight, place = factors[client], weights[client], 0
        if factored == 0:
            factor[:] = 0.0
            for k in range(m):
                factor[place] = math.sqrt(noise)
                place += m - k
        for t in range(factored, values.shape[1]):
            for k in range(m):
                row[k] = features[client, t, k]
            _rotate(factor, row)
        for t in range(values.shape[1]):
            for k in range(m):
                weight[k] += values[client, t] * features[client, t, k]
        _solve(factor, weight)
