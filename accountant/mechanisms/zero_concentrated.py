"""A release of which a bound of Rényi divergences is all that is known."""

from __future__ import annotations

from dataclasses import dataclass

from accountant.mechanisms.basic import Adjacency, Basic, DpCall
from accountant.mechanisms.pair import FloatArray


@dataclass(frozen=True, kw_only=True)
class ZeroConcentrated(Basic):
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

    is_attained = False

    rho: float
    xi: float = 0.0

    @property
    def text(self) -> str:
        return f"zero-concentrated, rho {self.rho:.4g}" + (f", xi {self.xi:.4g}" if self.xi else "")

    def renyi_curve(self, orders: FloatArray, adjacency: Adjacency) -> FloatArray:
        return self.xi + self.rho * orders

    def for_group(self, size: int, adjacency: Adjacency) -> ZeroConcentrated:
        """(xi k (1 + 1/2 + ... + 1/k), rho k^2) (Bun and Steinke 2016, Proposition 27)."""
        xi = self.xi * size * sum(1.0 / i for i in range(1, size + 1))
        return ZeroConcentrated(xi=xi, rho=self.rho * size * size)

    def seen_samples(self) -> tuple[Basic, int]:
        return self, 1

    def dp_event(self, factor: float) -> DpCall:
        return DpCall("ZCDpEvent", {"rho": self.rho, "xi": self.xi})
