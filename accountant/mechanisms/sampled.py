"""Gaussian sum over a secret sample: of a Poisson sample, or of a fixed size, drawn without replacement.

**Poisson sample, replace-one.** With g_v the density of N(v, z^2 I) and |x|, |x'| <= 1/2, the
pair (1-q) g_0 + q g_x against (1-q) g_0 + q g_x' is dominated by the opposed one, x' = -x of
full length. For gamma >= 1 its divergence is max over sets A of a E_x[A] - b E_0[A] - c E_x'[A]
with a, b, c >= 0. The best A has outward normals n in the cone of -x and x' - x. Turn x' away
from x: its velocity v has v.x' = 0 and v.x <= 0, so n.v >= 0 and E_x'[A] falls, H grows. Once
opposed, A is a half-line and lengthening either vector only helps. gamma < 1 is the same
statement with P and Q exchanged.

**Fixed size.** Let M draw m of n clients uniformly and answer with a Gaussian sum; D and D'
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
from functools import lru_cache, partial
from typing import ClassVar

import numpy as np

from accountant.mechanisms.basic import Adjacency, Basic, DpCall
from accountant.mechanisms.gaussian import Gaussian, gaussian_curve, gaussian_pair
from accountant.mechanisms.mixture import joined
from accountant.mechanisms.pair import (
    EPS,
    FloatArray,
    Pair,
    Tails,
    both_directions,
    gaussian_tails,
    line_nodes,
    normal_error,
    with_rest,
)
from accountant.mechanisms.quadrature import (
    LOG_SQRT_2PI,
    MARGIN,
    Grid,
    capped,
    divergence,
    from_log_excess,
    line,
    log_mixture,
    log_phi,
    log_sum,
    panels,
    shift,
    step_of,
    top_of,
)


class PoissonSampledGaussian(Basic):
    """Every unit joins independently with probability q, in secret; then a Gaussian sum.

    The sum must not be divided by the realised number of participants. Worst pairs:

    - add-or-remove-one and zero-out: (1-q) N(0, z^2) + q N(1, z^2) against N(0, z^2), in
      both directions;
    - replace-one (sensitivity 2C, so each contribution has norm at most 1/2):
      (1-q) N(0, z^2) + q N(1/2, z^2) against (1-q) N(0, z^2) + q N(-1/2, z^2).

    Proof: docs/proofs/poisson.md.

    Attributes:
        sample_rate: q in (0, 1].
        noise_multiplier: z, noise standard deviation over L2 sensitivity; positive.

    Example:
        >>> PoissonSampledGaussian(sample_rate=1.5, noise_multiplier=1.0)
        Traceback (most recent call last):
        accountant.errors.EventError: PoissonSampledGaussian.sample_rate must lie in (0, 1], got 1.5
    """

    words = "Poisson-sampled Gaussian, rate {sample_rate:.4g}, multiplier {noise_multiplier:.4g}"
    sampling = "Poisson: every client by its own secret coin, rate {sample_rate:.4g}"
    is_attained = True

    sample_rate: float
    noise_multiplier: float

    gaussian_releases = 1

    @property
    def is_gaussian(self) -> bool:
        return self.sample_rate == 1.0

    def pairs(self, adjacency: Adjacency) -> tuple[Pair, ...]:
        q, z = self.sample_rate, self.noise_multiplier
        if q == 1.0:
            return (gaussian_pair(1.0 / z),)
        return (opposed_pair(q, z),) if adjacency == Adjacency.REPLACE_ONE else sampled_pairs(q, z)

    def renyi_curve(self, orders: FloatArray, adjacency: Adjacency) -> FloatArray:
        q, z = self.sample_rate, self.noise_multiplier
        if q == 1.0:
            return gaussian_curve(z, orders)
        grid_of = _opposed_grid if adjacency == Adjacency.REPLACE_ONE else _poisson_grid
        return capped(lambda few: divergence(grid_of(q, z, top_of(few)), few), orders, z, step_of(z))

    def for_group(self, size: int, adjacency: Adjacency) -> Basic | None:
        q, z = self.sample_rate, self.noise_multiplier
        if q == 1.0:
            return Gaussian(noise_multiplier=z / size)
        return None if adjacency is Adjacency.REPLACE_ONE else joined(z, {0.0: 1.0 - q, 1.0: q}, size)

    def seen_samples(self) -> tuple[Basic, int]:
        return Gaussian(noise_multiplier=self.noise_multiplier), 1

    def dp_event(self, factor: float) -> DpCall:
        event = self.seen_samples()[0].dp_event(factor)
        return DpCall("PoissonSampledDpEvent", {"sampling_probability": self.sample_rate, "event": event})


def sampled_loss(q: float, z: float, x: FloatArray) -> FloatArray:
    """log(1 - q + q exp(s)), s = (2x - 1) / (2 z^2)."""
    return log_mixture(q, (x - 0.5) / (z * z))


def sampled_position(q: float, z: float, loss: FloatArray) -> FloatArray:
    """The x at which the mixture's loss is ``loss``; -inf at and below log(1 - q)."""
    inside = np.maximum(1.0 + np.expm1(loss) / q, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(z * z * np.log(inside) + 0.5, dtype=np.float64)


def sampled_tails(q: float, z: float, x: FloatArray) -> Tails:
    """P = (1-q) N(0, z^2) + q N(1, z^2) and Q = N(0, z^2) beyond x."""
    p, q_ = ((1.0 - q, 0.0), (q, 1.0)), ((1.0, 0.0),)
    return gaussian_tails(p, q_, z, x, normal_error(np.abs(x / z) + 1.0 / z))


def sampled_loss_error(q: float) -> float:
    """An edge at the low end, where exp(l) - 1 + q cancels, lies off by up to eps q / (1 - q)."""
    return 16.0 * EPS * (2.0 - math.log(q) + q / (1.0 - q))


def sampled_pairs(q: float, z: float) -> tuple[Pair, Pair]:
    """P = (1-q) N(0, z^2) + q N(1, z^2) against Q = N(0, z^2), and the other way."""
    return both_directions(
        z,
        1.0,
        loss=partial(sampled_loss, q, z),
        position=partial(sampled_position, q, z),
        tails=partial(sampled_tails, q, z),
        line=line_nodes,
        loss_error=sampled_loss_error(q),
    )


def opposed_pair(q: float, z: float) -> Pair:
    """P = (1-q) N(0) + q N(1/2) against Q = (1-q) N(0) + q N(-1/2); symmetric."""
    log_scale = math.log(q) - 0.125 / (z * z)

    def loss_at(x: FloatArray) -> FloatArray:
        y = 0.5 * x / (z * z)
        keep = math.log1p(-q)
        return np.asarray(np.logaddexp(keep, log_scale + y) - np.logaddexp(keep, log_scale - y), dtype=np.float64)

    def tails(edges: FloatArray) -> Tails:
        # e^l = (1-q + B e^y) / (1-q + B e^-y) solved for y, B = q exp(-1/(8 z^2))
        inner = (1.0 - q) * np.sinh(0.5 * edges) * math.exp(-log_scale)
        x = 2.0 * z * z * (0.5 * edges + np.arcsinh(inner))
        up, down = ((1.0 - q, 0.0), (q, 0.5)), ((1.0 - q, 0.0), (q, -0.5))
        return gaussian_tails(up, down, z, x, normal_error(np.abs(x / z) + 0.5 / z))

    def loss_range(t: float) -> tuple[float, float]:
        low, high = loss_at(np.array([-z * t, 0.5 + z * t]))
        return float(low), float(high)

    def nodes(t: float) -> tuple[FloatArray, FloatArray]:
        x, log_zero = line_nodes(-z * t, 0.5 + z * t, z)
        log_p = np.logaddexp(math.log1p(-q), log_scale + 0.5 * x / (z * z))
        return loss_at(x), log_zero + log_p

    error = 16.0 * EPS * (2.0 - log_scale)
    return Pair(tails=tails, loss_range=loss_range, loss_error=error, nodes=nodes)


@lru_cache(maxsize=512)
def _poisson_grid(q: float, z: float, top: float) -> Grid:
    """Q = N(0, z^2), r = 1 - q + q exp(s), s = (2x - 1) / (2 z^2).

    The other direction is never larger (Mironov, Talwar, Zhang 2019, Theorem 5).
    """
    t = line(z, top)
    s = t / z - 0.5 / (z * z)
    log_weight = math.log(step_of(z)) - LOG_SQRT_2PI - 0.5 * t * t
    return Grid(log_weight=log_weight, excess=shift(q, s), log_ratio=log_mixture(q, s))


@lru_cache(maxsize=512)
def _opposed_grid(q: float, z: float, top: float) -> Grid:
    """Q = (1-q) N(0) + q N(-1/2), P = (1-q) N(0) + q N(1/2): replace-one; the pair is symmetric."""
    t = line(z, top, lowest=min(-MARGIN, -8.0 - 0.5 / z))
    s_up, s_down = 0.5 * t / z - 0.125 / (z * z), -0.5 * t / z - 0.125 / (z * z)
    log_q = log_mixture(q, s_down)
    log_ratio = log_mixture(q, s_up) - log_q
    near = np.abs(t / z) < 1.0
    # r - 1 = q (e^s_up - e^s_down) / mixture; the hyperbolic sine keeps the digits near t = 0
    excess = np.expm1(np.minimum(log_ratio, 300.0))
    small = 2.0 * q * np.exp(-0.125 / (z * z)) * np.sinh(0.5 * np.where(near, t, 0.0) / z) * np.exp(-log_q)
    excess = np.where(near, small, excess)
    log_weight = math.log(step_of(z)) - LOG_SQRT_2PI - 0.5 * t * t + log_q
    return Grid(
        log_weight=log_weight, excess=excess, log_ratio=np.where(near, np.log1p(np.where(near, excess, 0.0)), log_ratio)
    )


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
        p, q_ = side.p_above, side.q_above
        masses = ((p, 1.0 - q_), (1.0 - p, q_), (q_, 1.0 - p), (1.0 - q_, p))
        return Tails._make([*(np.where(edges >= 0.0, *both) for both in masses), side.relative_error + EPS])

    def loss_range(t: float) -> tuple[float, float]:
        low, high = sampled_loss(q, z, np.array([max(0.5, z * t), 1.0 + z * t]))
        return -float(low), float(high)

    def nodes(t: float) -> tuple[FloatArray, FloatArray]:
        x, log_zero = line_nodes(0.5, 1.0 + z * t, z)
        loss = sampled_loss(q, z, x)
        return with_rest(loss, log_zero + loss, -loss, log_zero)

    return Pair(tails=tails, loss_range=loss_range, loss_error=sampled_loss_error(q), nodes=nodes)
