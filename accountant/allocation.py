"""Rényi divergences of random allocation: every unit takes part in exactly k of T rounds, at secret random times.

With Q = N(0, z^2 I) over T rounds, w_i = dN(e_i, z^2 I)/dQ and R = (w_1 + ... + w_T) / T the pair for k = 1 is P = R Q
against Q. At integer orders (w_i independent, E w^j = exp(j (j-1) / (2 z^2)), multinomial theorem)

    E_Q[R^a] = a! T^-a [x^a] (sum over j of x^j exp(j (j-1) / (2 z^2)) / j!)^T,                                   (1)

a power of a polynomial with positive terms, so nothing cancels. Between integers log E_Q[R^a] is convex in a, so the
chord is above it. Exchanged, log E_Q[R^-b] with b = a - 1, by Gamma(b) R^-b = int u^(b-1) exp(-u R) du,

    E_Q[R^-b] = 1/Gamma(b) int exp(b y) phi(e^y / T)^T dy,   phi(v) = E exp(-v w),                                   (2)

whose integrand is log-concave in y: exp(-e^x) is the survival function of a Gumbel law, and phi(e^y) that of it
with Gaussian noise. Where (2) is not evaluated, Jensen's inequality bounds it: log R >= mean of log w_i, so
D_a(Q || P) <= 1/(2 z^2) + (a - 1) / (2 T z^2). No order costs more than taking part openly, a k / (2 z^2).

For k > 1 deal the rounds at random into k blocks, of T // k rounds or one more, and draw one round of each: a uniform
k-subset, whatever the blocks' sizes. Telling the blocks only helps the adversary (joint quasi-convexity), and given
them the rounds are k independent allocations of one, whose divergences add up.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import gammaln

from accountant.divergence import FloatArray

_LARGEST_ORDER = 256  # beyond it an order is answered by taking part openly
_ROUNDING = 1e-13  # of the terms' logarithms, booked as cost
_FAR = 45.0  # an integrand is followed until it has fallen by exp(-45)
_LEAST_PHI = 1e-4  # below it phi loses digits
_LEAST_NOISE = 0.05  # below it the inner quadrature needs too many points


def allocation_divergence(rounds: int, participations: int, z: float, orders: FloatArray) -> FloatArray:
    """The larger direction's divergence of ``participations`` of ``rounds``, at real orders above 1."""
    short, longer = participations - rounds % participations, rounds % participations
    size = rounds // participations
    total = short * _one(size, z, orders)
    if longer:
        total = total + longer * _one(size + 1, z, orders)
    return np.asarray(np.minimum(total, participations * orders / (2.0 * z * z)), dtype=np.float64)


def _one(rounds: int, z: float, orders: FloatArray) -> FloatArray:
    """One participation in so many rounds."""
    openly = orders / (2.0 * z * z)
    if rounds == 1:
        return openly
    few = orders <= _LARGEST_ORDER
    out = openly.copy()
    if np.any(few):
        top = 2 ** math.ceil(math.log2(max(2.0, float(orders[few].max()))))
        at_integers = _log_moments(rounds, z, top)
        a = orders[few]
        log_moment = np.interp(a, np.arange(1, top + 1), at_integers[1:])
        removed = log_moment / (a - 1.0)
        added = np.array([_added(rounds, z, max(1.0, float(order) - 1.0)) for order in a])
        out[few] = np.minimum(openly[few], np.maximum(removed, added))
    return np.asarray(out, dtype=np.float64)


@lru_cache(maxsize=64)
def _log_moments(rounds: int, z: float, top: int) -> FloatArray:
    """Upper bounds of log E_Q[R^a] at a = 0, 1, ..., top, by (1)."""
    j = np.arange(top + 1, dtype=np.float64)
    base = j * (j - 1.0) / (2.0 * z * z) - gammaln(j + 1.0)
    power = np.where(j == 0.0, 0.0, -np.inf)
    left = rounds
    while left:
        if left & 1:
            power = _product(power, base)
        left >>= 1
        if left:
            base = _product(base, base)
    log_moment = gammaln(j + 1.0) - j * math.log(rounds) + power
    size = gammaln(j + 1.0) + j * (1.0 + math.log(rounds)) + j * j / (2.0 * z * z)
    value = np.maximum(log_moment, 0.0) + _ROUNDING * size
    value[:2] = 0.0
    return np.asarray(value, dtype=np.float64)


def _product(f: FloatArray, g: FloatArray) -> FloatArray:
    """Logs of the coefficients of a product, up to the same degree."""
    n = len(f)
    index = np.arange(n)[:, None] - np.arange(n)[None, :]
    terms = np.where(index >= 0, f[None, :] + g[index], -np.inf)
    peak = terms.max(axis=1)
    return np.asarray(peak + np.log(np.exp(terms - peak[:, None]).sum(axis=1)), dtype=np.float64)


@lru_cache(maxsize=4096)
def _added(rounds: int, z: float, b: float) -> float:
    """Upper bound of log E_Q[R^-b] / b: (2), or Jensen's."""
    jensen = (1.0 + b / rounds) / (2.0 * z * z)
    if z < _LEAST_NOISE:
        return jensen

    end, at_end, slope = _phi_end(z)
    if -rounds * slope < 1.05 * b:  # the peak lies where phi has no digits left
        return jensen

    def log_integrand(y: FloatArray) -> FloatArray:
        log_v = y - math.log(rounds)
        beyond = at_end + slope * (log_v - end)
        logs = np.where(log_v > end, beyond, _log_phi(z, np.minimum(log_v, end)))
        return np.asarray(b * y + rounds * logs, dtype=np.float64)

    low = (math.lgamma(b + 1.0) - _FAR) / b  # below it lies less than exp(-45) of the integral, which is at least 1
    high = max(low, end + math.log(rounds)) + _FAR / (-rounds * slope - b)
    coarse = np.linspace(low, high, 513)
    values = log_integrand(coarse)
    peak = int(np.argmax(values))
    inside = np.flatnonzero(values >= values[peak] - _FAR)
    low, high = float(coarse[max(inside[0] - 1, 0)]), float(coarse[min(inside[-1] + 1, 512)])
    # |integrand| grows by at most cos(x)^-b at distance x from the line: at x = 1/sqrt(b + 1) the step leaves exp(-40)
    step = 0.15 / math.sqrt(b + 1.0)
    y = np.asarray(low + step * np.arange(math.ceil((high - low) / step) + 1), dtype=np.float64)
    logs = log_integrand(y)
    top = float(logs.max())
    total = step * float(np.exp(logs - top).sum())
    # where the chord's extension begins the slope jumps by less than itself: the rule may lack step^2 / 8 of the jump
    total += (
        0.125 * step**2 * rounds * -slope * math.exp(min(0.0, b * (end + math.log(rounds)) + rounds * at_end - top))
    )
    log_moment = top + math.log(total) - math.lgamma(b)
    slack = 1e-12 * (1.0 + b * (1.0 + math.log(rounds)))
    return float(min(jensen, (max(0.0, log_moment) + slack) / b))


@lru_cache(maxsize=256)
def _phi_end(z: float) -> tuple[float, float, float]:
    """Where phi falls to its last good digits: log v there, log phi, and a slope that it exceeds nowhere beyond."""
    low, high = -50.0, 50.0 / z + 1.0 / (z * z)
    for _ in range(60):
        middle = 0.5 * (low + high)
        large = _log_phi(z, np.array([middle]))[0] > math.log(_LEAST_PHI)
        low, high = (middle, high) if large else (low, middle)
    before, at = _log_phi(z, np.array([low - 0.05, low]))
    return low, float(at), float((at - before) / 0.05)  # log phi is concave: it stays below its chord's extension


def _log_phi(z: float, log_v: FloatArray) -> FloatArray:
    """Log of E exp(-v w), log w normal with mean -1/(2 z^2) and variance 1/z^2: trapezoid, rounded up."""
    step = min(0.25, 0.2 * z)
    t = np.arange(-12.0, 12.0 + 1.0 / z + step, step)
    weight = np.exp(-0.5 * t * t) * step / math.sqrt(2.0 * math.pi)
    exponent = np.minimum(log_v[:, None] + (t / z - 0.5 / (z * z))[None, :], 50.0)
    missing = -np.expm1(-np.exp(exponent)) @ weight
    return np.asarray(np.log1p(-np.minimum(missing * (1.0 - 1e-12), 1.0 - 1e-15)), dtype=np.float64)
