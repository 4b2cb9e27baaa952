"""Private selection: the price of releasing only the best of a secret, random number of runs.

Papernot and Steinke 2022. Draw K, make K runs of one mechanism, each of a candidate chosen
uniformly with replacement, release the best one. Only that one is paid for, but at more
than its own price. With the Rényi curve of *one* run (its judged score included) given as a
function of the order, and K truncated negative binomial (eta, gamma), Theorem 2 says: for
every order l and every other order m,

    eps'(l) = eps(l) + (1+eta)(1 - 1/m) eps(m) + (1+eta) log(1/gamma)/m + log E[K]/(l-1).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from accountant.errors import EventError

FloatArray = npt.NDArray[np.float64]
Curve = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True, kw_only=True)
class TruncatedNegativeBinomial:
    """K >= 1; eta = 1 is the geometric distribution, eta = 0 the logarithmic one.

    Attributes:
        eta: Shape, > -1.
        gamma: Success probability in (0, 1); smaller means more runs.
    """

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        if not (self.eta > -1.0 and math.isfinite(self.eta)) or not 0.0 < self.gamma < 1.0:
            raise EventError(f"eta={self.eta!r} must be > -1 and gamma={self.gamma!r} lie in (0, 1)")

    @property
    def mean(self) -> float:
        """Expected number of runs."""
        if self.eta == 0.0:
            return (1.0 / self.gamma - 1.0) / math.log(1.0 / self.gamma)
        return self.eta * (1.0 - self.gamma) / (self.gamma * (1.0 - math.pow(self.gamma, self.eta)))

    def quantile(self, u: float) -> int:
        """K by inversion of P(k) = (1-gamma)^k / (gamma^-eta - 1) prod_{l<k} (l+eta)/(l+1), u in [0, 1)."""
        k = 1
        if self.eta == 0.0:
            mass = (1.0 - self.gamma) / math.log(1.0 / self.gamma)
        else:
            mass = (1.0 - self.gamma) * self.eta / (math.pow(self.gamma, -self.eta) - 1.0)
        # Rounding may leave a rest of u that no mass takes up; subnormal numbers would not shrink to zero.
        while u > mass > sys.float_info.min:
            u -= mass
            mass *= (1.0 - self.gamma) * (k + self.eta) / (k + 1.0)
            k += 1
        return k

    def curve(self, one_run: Curve, orders: FloatArray) -> FloatArray:
        """Rényi curve of the selection at ``orders`` > 1 (Theorem 2; the second order is optimised)."""
        others = second_orders()
        log_gamma = math.log(1.0 / self.gamma)
        extra = (1.0 + self.eta) * ((1.0 - 1.0 / others) * one_run(others) + log_gamma / others)
        return np.asarray(one_run(orders) + extra.min() + math.log(self.mean) / (orders - 1.0))


def gamma_of(mean: float, *, eta: float) -> float:
    """Gamma at which K has this mean > 1; the shortest decimal that has it exactly, else rounded to more runs.

    Raises:
        EventError: ``eta`` or ``mean`` out of range.
    """
    if not mean > 1.0 or not math.isfinite(mean):
        raise EventError(f"mean={mean!r} of the number of runs must be above 1 and finite")

    def excess(log_gamma: float) -> float:
        return math.log(TruncatedNegativeBinomial(eta=eta, gamma=math.exp(log_gamma)).mean / mean)

    low = -1.0
    while excess(low) < 0.0:
        low *= 2.0
    root = math.exp(brentq(excess, low, -1e-12, xtol=1e-15)) if excess(-1e-12) < 0.0 else math.exp(-1e-12)
    for digits in range(1, 18):
        gamma = float(f"{root:.{digits}g}")
        if gamma < 1.0 and TruncatedNegativeBinomial(eta=eta, gamma=gamma).mean == mean:
            return gamma
    return root * (1.0 - 1e-12)


def second_orders() -> FloatArray:
    """Orders among which Theorem 2's second one is chosen: 1.05 to 1024, denser where optima lie."""
    return np.asarray(1.0 + np.geomspace(0.05, 1023.0, 96))
