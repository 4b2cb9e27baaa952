"""The moments accountant: integer orders 1 to 32, as the DP-FTS-DE paper prints it.

Log-moments alpha(lambda) = log E[(dP/dQ)^lambda] under P at lambda = 1..32 add up over
releases, and epsilon = min over lambda of (alpha(lambda) + log(1/delta)) / lambda (Abadi et
al. 2016, Theorem 2). Looser than every other accountant here; kept because papers quote
it. Moments of the Poisson-sampled Gaussian are the closed binomial series (Mironov,
Talwar, Zhang 2019, Section 3.3), summed without its cancelling first terms.

Example:
    >>> from accountant import moments, repeat
    >>> rounds = repeat(PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=2.0), 40)
    >>> round(moments.epsilon(rounds, 1e-5, adjacency=Adjacency.ZERO_OUT), 2)
    4.99
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import numpy as np
from scipy.special import gammaln, logsumexp

from accountant.events import Adjacency, Basic, Event, PoissonSampledGaussian, parts, trivial_delta, trivial_epsilon
from accountant.mechanisms.pair import FloatArray

MAX_LAMBDA: Final = 32
_LAMBDAS: Final[FloatArray] = np.arange(1, MAX_LAMBDA + 1, dtype=np.float64)


def log_moments(event: Event, *, adjacency: Adjacency) -> FloatArray:
    """alpha(lambda) for lambda = 1..32, shape ``(32,)``; counts multiply, parts add."""
    total = np.zeros(MAX_LAMBDA)
    for part, count in parts(event):
        total = total + count * _log_moments(part, adjacency)
    return total


def epsilon(event: Event, delta: float, *, adjacency: Adjacency) -> float:
    """Epsilon at ``delta`` by Abadi et al.'s conversion; 0 for nothing, infinite for non-private.

    Raises:
        AccountingError: ``delta`` is not in (0, 1).
        EventError: ``event`` is unknown or unsound under ``adjacency``.
    """
    if (trivial := trivial_epsilon(event, delta, adjacency)) is not None:
        return trivial
    return max(0.0, float(np.min((log_moments(event, adjacency=adjacency) - math.log(delta)) / _LAMBDAS)))


def delta(event: Event, epsilon: float, *, adjacency: Adjacency) -> float:
    """Delta at ``epsilon``, the inverse of ``epsilon``; at most 1."""
    if (trivial := trivial_delta(event, epsilon, adjacency)) is not None:
        return trivial
    exponent = float(np.min(log_moments(event, adjacency=adjacency) - _LAMBDAS * epsilon))
    return math.exp(min(0.0, exponent))


@lru_cache(maxsize=1024)
def _log_moments(event: Basic, adjacency: Adjacency) -> FloatArray:
    if isinstance(event, PoissonSampledGaussian) and event.sample_rate < 1.0 and adjacency != Adjacency.REPLACE_ONE:
        return _poisson_series(event.sample_rate, event.noise_multiplier)
    return _LAMBDAS * event.renyi_curve(_LAMBDAS + 1.0, adjacency)


def _poisson_series(q: float, z: float) -> FloatArray:
    """log(1 + sum_{k=2}^{a} C(a,k) q^k (1-q)^(a-k) expm1(k (k-1) / (2 z^2))) at a = lambda + 1."""
    out = np.empty(MAX_LAMBDA)
    for index, order in enumerate(range(2, MAX_LAMBDA + 2)):
        k = np.arange(2, order + 1, dtype=np.float64)
        binomial = gammaln(order + 1.0) - gammaln(k + 1.0) - gammaln(order - k + 1.0)
        power = k * (k - 1.0) / (2.0 * z * z)
        log_expm1 = power + np.log(-np.expm1(-power))
        out[index] = logsumexp(binomial + k * math.log(q) + (order - k) * math.log1p(-q) + log_expm1)
    return np.where(out < 0.0, np.log1p(np.exp(np.minimum(out, 0.0))), np.logaddexp(0.0, out))
