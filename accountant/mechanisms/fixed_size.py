"""Gaussian sum over a secret sample of a fixed size, drawn without replacement.

Let M draw m of n clients uniformly and answer with a Gaussian sum; D and D'
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
    phi(t) = t^a - 1 - a (t - 1).

The same pair is put on a lattice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from accountant.mechanisms.basic import Adjacency, Basic, DpCall
from accountant.mechanisms.gaussian import Gaussian, gaussian_curve, gaussian_pair
from accountant.mechanisms.pair import EPS, FloatArray, Pair, Tails, line_nodes, with_rest
from accountant.mechanisms.poisson import sampled_loss, sampled_loss_error, sampled_position, sampled_tails
from accountant.mechanisms.quadrature import (
    LOG_SQRT_2PI,
    MARGIN,
    Grid,
    capped,
    from_log_excess,
    log_mixture,
    log_phi,
    log_sum,
    panels,
    shift,
    top_of,
)


@dataclass(frozen=True, kw_only=True)
class FixedSizeSampledGaussian(Basic):
    """Exactly ``sample_size`` of ``n_clients`` units take part, drawn uniformly, in secret.

    Without unit n another unit takes the slot, so the noise multiplier is relative to
    the shift *between two occupants of one slot* (``replace-one`` sensitivity), under
    zero-out as well. Undefined under add-or-remove-one, where n_clients itself differs.
    What is known of the pair is its profile: with q = sample_size / n_clients,
    H_{1+q(g-1)}(P || Q) <= q * H_g(N(1, z^2) || N(0, z^2)) for g >= 1, in both directions
    (Balle, Barthe, Gaboardi 2018, Theorem 10).

    Proof: docs/proofs/fixed-size.md.

    Attributes:
        n_clients: Number of units the sample is drawn from; public.
        sample_size: Number of units drawn, 1 to ``n_clients``.
        noise_multiplier: z, noise standard deviation over that sensitivity; positive.

    Example:
        >>> FixedSizeSampledGaussian(n_clients=40, sample_size=10, noise_multiplier=1.0).sample_rate
        0.25
    """

    words = "fixed-size-sampled Gaussian, {sample_size} of {n_clients}, multiplier {noise_multiplier:.4g}"
    sampling = "fixed size: a secret subset of {sample_size} of {n_clients} clients"
    is_attained = True
    unsound: ClassVar = {
        Adjacency.ADD_OR_REMOVE_ONE: "has no meaning under add-or-remove-one: the sample is drawn from a public number "
        "of clients, so neighbours differ in who occupies a slot; state replace-one or zero-out"
    }

    n_clients: int
    sample_size: int
    noise_multiplier: float

    @property
    def sample_rate(self) -> float:
        """q, the chance that one given unit is drawn."""
        return self.sample_size / self.n_clients

    gaussian_releases = 1

    @property
    def is_gaussian(self) -> bool:
        return self.sample_size == self.n_clients

    def pairs(self, adjacency: Adjacency) -> tuple[Pair, ...]:
        return (fixed_size_pair(self.sample_rate, self.noise_multiplier),)

    def renyi_curve(self, orders: FloatArray, adjacency: Adjacency) -> FloatArray:
        return fixed_size_curve(self.sample_rate, self.noise_multiplier, orders)

    def seen_samples(self) -> tuple[Basic, int]:
        return Gaussian(noise_multiplier=self.noise_multiplier), 1

    def dp_event(self, factor: float) -> DpCall:
        event = self.seen_samples()[0].dp_event(2.0)  # another client takes the slot, under every adjacency
        sample = {"source_dataset_size": self.n_clients, "sample_size": self.sample_size, "event": event}
        return DpCall("SampledWithoutReplacementDpEvent", sample)


def fixed_size_curve(q: float, z: float, orders: FloatArray) -> FloatArray:
    """Rényi divergence at rate q."""
    if q == 1.0:
        return gaussian_curve(z, orders)
    return capped(lambda few: _divergence(q, z, few), orders, z, min(1.0, z) / 24.0)


@lru_cache(maxsize=64)
def _half_line(z: float, top: float) -> tuple[FloatArray, FloatArray]:
    """Gauss-Legendre points and log weights on t >= 1/(2z), up to every peak at order ``top``."""
    width = min(1.0, z)
    return panels(0.5 / z, width, math.ceil((top / z + 1.0 / z + MARGIN) / width))


def _divergence(q: float, z: float, orders: FloatArray) -> FloatArray:
    """A - 1 of the pair above, summed over its two halves."""
    t, log_dt = _half_line(z, top_of(orders))
    s = t / z - 0.5 / (z * z)
    log_base = log_dt - LOG_SQRT_2PI - 0.5 * t * t
    above = Grid(log_weight=log_base, excess=shift(q, s), log_ratio=log_mixture(q, s))
    terms = [log_sum(log_phi(grid, orders) + grid.log_weight) for grid in (above, above.exchanged())]
    return from_log_excess(np.logaddexp(*terms), orders)


def fixed_size_pair(q: float, z: float) -> Pair:
    """The pair whose profile is q H_g(base) at 1 + q (g - 1); derived above."""
    if q == 1.0:
        return gaussian_pair(1.0 / z)

    def tails(edges: FloatArray) -> Tails:
        side = sampled_tails(q, z, sampled_position(q, z, np.abs(edges)))
        right = edges >= 0.0
        return Tails(
            p_above=np.where(right, side.p_above, 1.0 - side.q_above),
            p_below=np.where(right, 1.0 - side.p_above, side.q_above),
            q_above=np.where(right, side.q_above, 1.0 - side.p_above),
            q_below=np.where(right, 1.0 - side.q_above, side.p_above),
            relative_error=side.relative_error + EPS,
        )

    def loss_range(t: float) -> tuple[float, float]:
        low, high = sampled_loss(q, z, np.array([max(0.5, z * t), 1.0 + z * t]))
        return -float(low), float(high)

    def nodes(t: float) -> tuple[FloatArray, FloatArray]:
        x, log_zero = line_nodes(0.5, 1.0 + z * t, z, 0.0)
        loss = sampled_loss(q, z, x)
        return with_rest(loss, log_zero + loss, -loss, log_zero)

    return Pair(tails=tails, loss_range=loss_range, loss_error=sampled_loss_error(q), nodes=nodes)
