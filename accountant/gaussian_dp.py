"""Gaussian differential privacy: exact where all clients take part in every release.

A composition of Gaussian mechanisms is exactly as private as one with mu^2 = sum of 1/z^2
(Dong, Roth, Su 2019, Corollary 3.3), and delta(epsilon) has a closed form. For sampled
releases only the central-limit approximation exists. It is not offered: it can lie below the
truth (q=.01, z=1.1, 10,000 releases, delta=1e-5: 5.065 where the truth is 5.19).

Example:
    >>> from accountant import Gaussian, gaussian_dp, repeat
    >>> rounds = repeat(Gaussian(noise_multiplier=4.0), 4)
    >>> round(gaussian_dp.epsilon(rounds, 1e-5, adjacency=Adjacency.ZERO_OUT), 3)
    1.993
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr

from accountant.errors import AccountingError, EventError
from accountant.events import Adjacency, Event, parts, trivial_delta, trivial_epsilon
from accountant.mechanisms.pair import FloatArray

_SAFE = 1.0 + 1e-12  # quoted values err upwards by more than the closed form's rounding


def mu_squared(event: Event) -> float | None:
    """mu^2 of a composition of Gaussian mechanisms at rate 1; None where any part is not one."""
    return mu_squared_at_rate_one(event) if all(part.is_gaussian for part, _ in parts(event)) else None


def mu_squared_at_rate_one(event: Event) -> float:
    """mu^2 of a composition as if all clients took part in every release; infinite where a part is no Gaussian release.

    A sampled release costs at most what the same release of all clients costs (``accountant.envelope`` has the
    proof). A random allocation is a mixture over k-subsets of k such releases, and the hockey stick is jointly convex.
    """
    total = 0.0
    for part, count in parts(event):
        if not part.gaussian_releases:
            return math.inf
        total += count * part.gaussian_releases / part.noise_multiplier**2
    return total


def is_exact(event: Event) -> bool:
    """Tell whether this accountant's answer for ``event`` is exact."""
    return mu_squared(event) is not None


def epsilon(event: Event, delta: float, *, adjacency: Adjacency) -> float:
    """Exact epsilon at ``delta``; 0 for nothing, infinite for non-private.

    Raises:
        AccountingError: ``delta`` is not in (0, 1).
        EventError: A part is no Gaussian mechanism at rate 1, or unsound under ``adjacency``.
    """
    if (trivial := trivial_epsilon(event, delta, adjacency)) is not None:
        return trivial
    return epsilon_of(_required(event), delta)


def epsilon_of(mu_squared: float, delta: float) -> float:
    """Epsilon at ``delta`` of Gaussian releases with a total mu^2, which may be infinite; rounded up."""
    if not mu_squared < math.inf:
        return math.inf
    epsilon = epsilon_from_mu(math.sqrt(mu_squared), delta)
    # Rounding is relative, and absolute where the two terms nearly cancel.
    return epsilon * _SAFE + 1e-14 * (1.0 - math.log(delta)) if epsilon > 0.0 else 0.0


def delta(event: Event, epsilon: float, *, adjacency: Adjacency) -> float:
    """Exact delta at ``epsilon``, the inverse of ``epsilon``."""
    if (trivial := trivial_delta(event, epsilon, adjacency)) is not None:
        return trivial
    mu = math.sqrt(_required(event))
    found = (math.exp(log_delta_from_mu(mu, at)) * (_SAFE + relative_error(mu, at)) for at in (epsilon, 0.0))
    return min(1.0, *found)  # that at 0 is exact where the other's terms cancel


def deltas(event: Event, epsilons: FloatArray, *, adjacency: Adjacency) -> FloatArray:
    """Exact deltas at many epsilons."""
    return np.array([delta(event, float(epsilon), adjacency=adjacency) for epsilon in epsilons])


def _required(event: Event) -> float:
    total = mu_squared(event)
    if total is None:
        raise EventError(f"Gaussian DP holds for Gaussian releases at rate 1 only, got {event!r}; use 'tight'")
    return total


def log_delta_from_mu(mu: float, epsilon: float) -> float:
    """Log delta(epsilon) of a mu-GDP mechanism: Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)."""
    if epsilon == 0.0:
        return math.log(math.erf(mu / math.sqrt(8.0)))
    first, second = _log_terms(mu, epsilon)
    return first + math.log(-math.expm1(min(second - first, -1e-300)))


def _log_terms(mu: float, epsilon: float) -> tuple[float, float]:
    return float(log_ndtr(0.5 * mu - epsilon / mu)), epsilon + float(log_ndtr(-0.5 * mu - epsilon / mu))


def relative_error(mu: float, epsilon: float) -> float:
    """Relative error that delta may carry: the two terms are rounded, and nearly cancel where mu is small."""
    if epsilon == 0.0:
        return 0.0
    first, second = _log_terms(mu, epsilon)
    return 2.0**-51 * (1.0 - first - second + 2.0 * epsilon + mu * mu) / max(first - second, 1e-300)


def epsilon_from_mu(mu: float, delta: float) -> float:
    """The epsilon at which a mu-GDP mechanism has this ``delta``; 0 where the total variation is below it."""
    target = math.log(delta)
    if log_delta_from_mu(mu, 0.0) <= target:
        return 0.0
    # Chernoff: delta <= exp(-(eps - mu^2/2)^2 / (2 mu^2)) beyond the mean
    high = 0.5 * mu * mu + mu * math.sqrt(2.0 * -target) + 1e-300
    if log_delta_from_mu(mu, high) >= target:  # by rounding, where epsilon is so large
        return high
    root = brentq(lambda eps: log_delta_from_mu(mu, eps) - target, 0.0, high, xtol=1e-300, rtol=1e-14)
    return float(root)


def mu_from_epsilon(epsilon: float, delta: float) -> float:
    """The largest mu at which a mu-GDP mechanism is (``epsilon``, ``delta``)-private.

    Raises:
        AccountingError: It is below 1e-12, or ``epsilon`` too large for its logarithms.
    """
    target = math.log(delta)
    low, high = 1e-12, 1.0
    if not log_delta_from_mu(low, epsilon) <= target:
        raise AccountingError(
            f"{epsilon=:g} at {delta=:g} is out of reach; take epsilon from 1e-10 to 1e140, or more delta"
        )
    while log_delta_from_mu(high, epsilon) < target:
        low, high = high, 2.0 * high
    root = float(brentq(lambda mu: log_delta_from_mu(mu, epsilon) - target, low, high, xtol=1e-300, rtol=1e-14))
    return root / _SAFE
