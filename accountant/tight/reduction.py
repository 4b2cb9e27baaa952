"""Random allocation reduced to a Poisson sample: certified upper ends of a run that is one such event alone.

Let Q = N(0, z^2 I) over T rounds, P_j the uniform mixture over j-subsets S of N(1_S, z^2 I), and F the law of T
rounds of a Poisson sample at any rate: F = s P_>=k + (1-s) P_<k with s = P(Bin(T, rate) >= k), each a mixture of P_j.

dP_k/dQ is a symmetric polynomial of exp(x_i / z^2) with positive terms, so it grows with every x_i, and the best
tests of P_k against Q are upper sets A, those of Q against P_k lower sets. P_j(A) grows with j for upper sets (a shift
by more ones) and falls for lower ones. With g = e^epsilon, for every s that is no larger than the true one,

- upper: s (P_k(A) - g Q(A)) <= s P_>=k(A) + (1-s) (P_<k(A) - Q(A)) - s g Q(A) <= F(A) - (1 + s (g-1)) Q(A), so
  delta(epsilon) <= H_{1 + s (g-1)}(F || Q) / s;
- lower: s P_k(A) >= s P_>=k(A) >= F(A) - (1-s) Q(A), so with c = s + g (1-s) Q(A) - g P_k(A) <= (c Q(A) - g F(A)) / s
  and delta(epsilon) <= (c / s) H_{g / c}(Q || F).

F and Q are T times the Poisson sample's pair. Any rate is valid, the best is taken; for k = 1 nothing is lost as it
falls to 0. (The first for k = 1: Feldman and Shenfeld 2025.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from scipy.special import betainc

from accountant.events import Adjacency, PoissonSampledGaussian, RandomAllocationGaussian
from accountant.tight.pairs import pairs_of
from accountant.tight.refine import Direction, OutOfRangeError, delta_ends, epsilon_ends

_MULTIPLES = (1e-3, 1e-2, 0.1, 0.5, 1.0, 1.5)  # of the rate k / T
_SAFE = 1.0 - 1e-9


def upper_epsilon(event: RandomAllocationGaussian, delta: float) -> float:
    """An upper epsilon at ``delta``; infinite where no rate tried gives one."""
    best = math.inf
    for share, removed, added in _reductions(event):
        try:
            epsilon = math.log1p(math.expm1(epsilon_ends(removed, share * delta)[1]) / share) * (1.0 + 1e-12)
            if epsilon < best and _added(added, share, epsilon) <= delta:
                best = epsilon
        except (OutOfRangeError, OverflowError):
            continue
    return best


def upper_delta(event: RandomAllocationGaussian, epsilon: float) -> float:
    """An upper delta at ``epsilon``, at most 1."""
    best = 1.0
    for share, removed, added in _reductions(event):
        try:
            level = math.log1p(share * math.expm1(epsilon)) * (1.0 - 1e-12)
            worse = max(delta_ends(removed, level, 1.0)[1] / share, _added(added, share, epsilon))
        except (OutOfRangeError, OverflowError):
            continue
        best = min(best, worse)
    return best


def _reductions(event: RandomAllocationGaussian) -> Iterator[tuple[float, Direction, Direction]]:
    """Shares s with both directions of the Poisson sample's rounds."""
    rounds, k = event.n_rounds, event.participations
    for multiple in _MULTIPLES:
        rate = multiple * k / rounds
        if rate < 1.0:
            share = float(betainc(k, rounds - k + 1, rate)) * _SAFE
            poisson = PoissonSampledGaussian(sample_rate=rate, noise_multiplier=event.noise_multiplier)
            removed, added = pairs_of(poisson, Adjacency.ZERO_OUT)
            if share > 1e-6:
                yield share, ((removed, rounds),), ((added, rounds),)


def _added(added: Direction, share: float, epsilon: float) -> float:
    """The bound of the other direction's delta; the level is moved down by its rounding."""
    weight = share * math.exp(-epsilon) + 1.0 - share  # c / g
    level = max(0.0, -math.log(weight) - 1e-15)
    return delta_ends(added, level, 1.0)[1] * weight * math.exp(epsilon) / share * (1.0 + 1e-12)
