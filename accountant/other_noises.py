"""Events of other noises than the Gaussian, and of none; ``accountant.events`` has all events."""

from __future__ import annotations

import math
from dataclasses import dataclass

from accountant.fields import as_float


@dataclass(frozen=True, kw_only=True)
class ZeroConcentrated:
    """A mechanism of which a bound of Rényi divergences is all that is known: at most xi + rho a at every order a > 1.

    So-called (xi, rho)-zCDP (Bun and Steinke 2016), for mechanisms that are no event here, such as discrete noise. It
    is priced through its Rényi curve; the lower end is that of the Gaussian of this rho, which satisfies the bound.
    What is done to the mechanism's input, a sample for instance, is not described by it.

    Proof: docs/proofs/zero-concentrated.md.

    .. versionadded:: 0.3.0

    Attributes:
        rho: Positive; 1 / (2 z^2) for Gaussian noise, continuous or discrete.
        xi: At least 0.

    Example:
        >>> from accountant import Adjacency, Gaussian, renyi
        >>> foreign, gaussian = ZeroConcentrated(rho=0.125), Gaussian(noise_multiplier=2.0)
        >>> prices = [renyi.epsilon(event, 1e-5, adjacency=Adjacency.ZERO_OUT) for event in (foreign, gaussian)]
        >>> prices[0] == prices[1]
        True
    """

    rho: float
    xi: float = 0.0

    def __post_init__(self) -> None:
        as_float(self, "rho", 0.0, math.inf)
        as_float(self, "xi", -math.ulp(0.0), math.inf)


@dataclass(frozen=True, kw_only=True)
class Laplace:
    """A query answered with Laplace noise in every coordinate; everybody takes part.

    The worst pair is Laplace(0, b) against Laplace(1, b), under every adjacency.

    Proof: docs/proofs/laplace.md.

    Attributes:
        scale_multiplier: b, noise scale over L1 sensitivity under the stated adjacency.

    Example:
        >>> from accountant import Adjacency, numerical
        >>> event = Laplace(scale_multiplier=2.0)
        >>> 0.499 < numerical.epsilon(event, 1e-9, adjacency=Adjacency.ZERO_OUT) < 0.501
        True
    """

    scale_multiplier: float

    def __post_init__(self) -> None:
        as_float(self, "scale_multiplier", 0.0, math.inf)


@dataclass(frozen=True, kw_only=True)
class PoissonSampledLaplace:
    """Every unit joins independently with probability q, in secret; then a sum with Laplace noise in every coordinate.

    The sum must not be divided by the realised number of participants. Worst pairs, exact (``accountant.tight.laplace``
    has the proof; for queries of a number also Zhu, Dong, Wang 2022, Theorem 11):

    - add-or-remove-one and zero-out: (1-q) Laplace(0, b) + q Laplace(1, b) against Laplace(0, b), in
      both directions;
    - replace-one (sensitivity 2C, so each contribution has L1 norm at most 1/2):
      (1-q) Laplace(0, b) + q Laplace(1/2, b) against (1-q) Laplace(0, b) + q Laplace(-1/2, b).

    Proof: docs/proofs/laplace.md.

    .. versionadded:: 0.3.0

    Attributes:
        sample_rate: q in (0, 1].
        scale_multiplier: b, noise scale over L1 sensitivity under the stated adjacency.

    Example:
        >>> from accountant import Adjacency, numerical
        >>> event = PoissonSampledLaplace(sample_rate=0.1, scale_multiplier=2.0)
        >>> round(numerical.epsilon(event, 1e-9, adjacency=Adjacency.ZERO_OUT), 3)  # log(1 + 0.1 (exp(1/2) - 1))
        0.063
    """

    sample_rate: float
    scale_multiplier: float

    def __post_init__(self) -> None:
        as_float(self, "sample_rate", 0.0, 1.0)
        as_float(self, "scale_multiplier", 0.0, math.inf)


@dataclass(frozen=True, kw_only=True)
class NonPrivate:
    """A release without any guarantee; its epsilon is infinite under every accountant.

    Proof: docs/proofs/plans.md.

    Example:
        >>> from accountant import Adjacency, moments
        >>> moments.epsilon(NonPrivate(), 1e-5, adjacency=Adjacency.ZERO_OUT)
        inf
    """
