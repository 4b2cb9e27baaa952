"""Gaussian noise at full participation, and what a bound of Rényi divergences alone is known of."""

from __future__ import annotations

import numpy as np

from accountant.mechanisms.basic import Adjacency, Basic, DpCall
from accountant.mechanisms.pair import EPS, FloatArray, Pair, Tails, line_nodes, ndtr, normal_error


class Gaussian(Basic):
    """A vector query answered with Gaussian noise in every coordinate; all clients take part.

    The worst pair is N(0, z^2) against N(1, z^2), under every adjacency.

    Proof: docs/proofs/gaussian-sum.md.

    Attributes:
        noise_multiplier: z, noise standard deviation over L2 sensitivity; positive.

    Example:
        >>> from accountant import Adjacency, gaussian_dp
        >>> event = Gaussian(noise_multiplier=2.0)
        >>> round(gaussian_dp.epsilon(event, 1e-5, adjacency=Adjacency.ZERO_OUT), 3)
        1.993
    """

    words = "Gaussian, multiplier {noise_multiplier:.4g}"
    sampling = "none: every client takes part in every release"
    is_attained = True
    sample_rate = 1.0

    noise_multiplier: float

    gaussian_releases = 1
    is_gaussian = True

    def pairs(self, adjacency: Adjacency) -> tuple[Pair, ...]:
        return (gaussian_pair(1.0 / self.noise_multiplier),)

    def renyi_curve(self, orders: FloatArray, adjacency: Adjacency) -> FloatArray:
        return gaussian_curve(self.noise_multiplier, orders)

    def for_group(self, size: int, adjacency: Adjacency) -> Gaussian:
        return Gaussian(noise_multiplier=self.noise_multiplier / size)

    def seen_samples(self) -> tuple[Basic, int]:
        return self, 1

    def dp_event(self, factor: float) -> DpCall:
        return DpCall("GaussianDpEvent", {"noise_multiplier": factor * self.noise_multiplier})


def gaussian_curve(z: float, orders: FloatArray) -> FloatArray:
    """A / (2 z^2)."""
    return orders / (2.0 * z * z)


def gaussian_pair(mu: float) -> Pair:
    """P = N(mu, 1) against Q = N(0, 1): the loss is N(mu^2/2, mu^2) under P; symmetric."""

    def tails(edges: FloatArray) -> Tails:
        p, q = edges / mu - 0.5 * mu, edges / mu + 0.5 * mu
        return Tails(ndtr(-p), ndtr(p), ndtr(-q), ndtr(q), normal_error(np.abs(p) + mu))

    def loss_range(t: float) -> tuple[float, float]:
        return 0.5 * mu * mu - mu * t, 0.5 * mu * mu + mu * t

    def nodes(t: float) -> tuple[FloatArray, FloatArray]:
        x, log_weight = line_nodes(-t, t, 1.0)
        return 0.5 * mu * mu + mu * x, log_weight

    return Pair(tails=tails, loss_range=loss_range, loss_error=16.0 * EPS * (1.0 + mu * mu), nodes=nodes)


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
