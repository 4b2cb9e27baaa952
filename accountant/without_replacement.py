"""Sampling a fixed number of clients without replacement: the tight bound and the 2019 one.

Derivation. Let M draw m of n clients uniformly and answer with a Gaussian sum; D and D'
differ in one client, q = m/n. Conditioned on that client being drawn, both runs differ by
at most the replace-one sensitivity s (= 1 here); conditioned on it not being drawn they are
equal, and every sample without the client is one exchange away from a sample with it.
Write M(D) = (1-q) w_0 + q w_1 and M(D') = (1-q) w_0 + q w_1'. Advanced joint convexity
(Balle, Barthe, Gaboardi 2018, Theorem 2) with gamma = 1 + q (g - 1), g >= 1, gives

    H_gamma(M(D) || M(D')) = q H_g(w_1 || (1-b) w_0 + b w_1'),  b = gamma / g,

and w_1 against w_0 and against w_1' are mixtures of pairs at distance at most s (couple the
samples by exchanging one client), so by joint convexity, their Theorem 10,

    H_{1+q(g-1)}(M(D) || M(D')) <= q H_g(N(1, z^2) || N(0, z^2)).                       (1)

The same holds with D and D' exchanged, and H_{1/gamma}(P || Q) = 1 - 1/gamma +
H_gamma(Q || P)/gamma carries it to gamma < 1. With r(x) = 1 - q + q dN(1)/dN(0), the right-hand
side of (1) is E_{N(0)}[(r - gamma)_+]. A pair with exactly this profile is therefore: on
{r > 1} the density N(0) under Q and r N(0) under P; a mirror image of it with P and Q
exchanged; and the rest of the mass, (1-q) (1 - 2 P(N(0, z^2) > 1/2)) >= 0, equal under both
(loss 0). Having the larger profile it dominates M, and dominating pairs compose. From it

    A(a) = E_Q[(dP/dQ)^a] = 1 + E_{N(0)}[phi(r) 1{r>1}] + E_{(1-q) N(0) + q N(1)}[phi(1/r) 1{r>1}],
    phi(t) = t^a - 1 - a (t - 1),

which ``accountant.tight.quadrature`` integrates and ``accountant.tight.pairs`` puts on a lattice.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, logsumexp, ndtr

from accountant.errors import AccountingError

FloatArray = npt.NDArray[np.float64]


def profile(sample_rate: float, noise_multiplier: float, gamma: float) -> float:
    """Upper bound (1) of H_gamma(M(D) || M(D')) for any gamma > 0; delta at gamma = exp(epsilon)."""
    if gamma < 1.0:
        return 1.0 - gamma + gamma * profile(sample_rate, noise_multiplier, 1.0 / gamma)
    log_g = math.log1p((gamma - 1.0) / sample_rate)
    z = noise_multiplier
    above, below = ndtr(0.5 / z - log_g * z), ndtr(-0.5 / z - log_g * z)
    return float(sample_rate * max(0.0, above - math.exp(log_g) * below))


def renyi_bound_2019(sample_rate: float, noise_multiplier: float, orders: npt.ArrayLike) -> FloatArray:
    """Rényi divergence bound at integer orders >= 2 of Wang, Balle, Kasiviswanathan 2019, Theorem 9.

    What widely used libraries ship; kept for comparison. It is 2.3 times looser than
    the tight bound at 10 of 29 and can exceed the unsampled mechanism.
    """
    wanted = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if np.any(wanted < 2.0) or np.any(wanted != np.round(wanted)):
        raise AccountingError(f"the 2019 bound is stated at integer orders >= 2, got {wanted}")
    return np.array([_bound_2019(sample_rate, noise_multiplier, int(order)) for order in wanted])


def _bound_2019(q: float, z: float, order: int) -> float:
    j = np.arange(2, order + 1, dtype=np.float64)
    base = j / (2.0 * z * z)  # Rényi divergence of the Gaussian mechanism at order j
    binomial = gammaln(order + 1.0) - gammaln(j + 1.0) - gammaln(order - j + 1.0)
    log_factor = math.log(2.0) + (j - 1.0) * base
    second = base[0]
    log_expm1 = second + math.log(-math.expm1(-second))
    log_factor[0] = min(math.log(4.0) + log_expm1, second + math.log(2.0))
    return float(logsumexp(np.append(binomial + j * math.log(q) + log_factor, 0.0))) / (order - 1.0)
