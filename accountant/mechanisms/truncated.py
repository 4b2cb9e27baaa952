"""Gaussian sum over a Poisson sample that is cut to a size.

Its chances are binomial tails, bounded from the safe side.

Let X be the number of the other N - 1 units whose coins came up, T the event X >= B, t = P(T). Without T no unit is
cut. Given T, the batch has B members whether our unit's coin came up or not; the unit is in it with probability

    q_T = q E[B / (X + 1) | X >= B] = (B / N) P(Bin(N, q) > B) / t.

Given T the others in the batch are a uniform B-subset S of all N - 1 if the unit is not in it, and S without a uniform
member j if it is. Given S and j as well, everything measured from S without j and w the contribution of j, the
release is (1 - q_T) N(w) + q_T N(v) with the unit's contribution v. It is held against

- zero-out, where the unit tosses its coin and contributes zero: (1 - q_T) N(w) + q_T N(0); the worst w is found
  below;
- add-or-remove-one, where j is always in: N(w). v - w is at most twice a contribution: a Poisson sample's pair at
  rate q_T and noise multiplier z / 2, both directions;
- replace-one, where contributions have length 1/2: (1 - q_T) N(w) + q_T N(v'). For g >= 1 the worst is v' = w = -v
  (turn them there as in ``accountant.mechanisms.sampled``), either way round: a sample of fixed size at rate q_T and
  multiplier z.

The Rényi curve takes a sample of fixed size at multiplier z / 2 for the first two, which is simple and much looser.
Under zero-out it takes the following where that is less. With f convex and f(1) = f'(1) = 0, as x^a - 1 - a (x - 1), a
divergence is an integral over g of f''-weighted H_g, less (1 - g)_+, which is nowhere negative. So A - 1 is at most
that of the pair on one side of g = 1 and that of the pair on the other, each taken whole (below: opposed, and the
Poisson sample's). Of the opposed pair, joint convexity leaves q (exp(a (a - 1) / (2 z^2)) - 1).

Tails come from the incomplete beta function; what it may lack is booked as a third share.

Zero-out, a full batch in which a unit, when drawn, takes another's place. Noise has standard deviation z, and no
contribution is longer than 1. A batch of B is drawn, unit n in it with chance q whatever its data. Draw B of the others
and one place j of theirs, which n takes when it is in. Given these (joint convexity), with w the contribution at place
j and everything measured from the other B - 1,

    P = (1-q) N(w) + q N(v)   with n's contribution v, against   Q = (1-q) N(w) + q N(0)   with zero.

For g >= 1, H_g(P || Q) = sup over sets A of q E_v[A] - g q E_0[A] - (g-1) (1-q) E_w[A]. This is a E_v - b E_0 - c E_w
with a, b, c >= 0, and the best A has outward normals in the cone of -v and w - v: by the argument of
``accountant.mechanisms.sampled`` for replace-one turning w away from v only helps, and then lengthening either, up to w
= -v of length 1.

For g >= 1, H_g(Q || P) = sup of q E_0[A] - g q E_v[A] - (g-1) (1-q) E_w[A], and the best A has outward normals in the
cone of v and w. Turn w towards v: its velocity u has u.v >= 0 and u.w = 0, so that E_w[A] falls and the whole grows;
so does lengthening v = w, up to length 1: then Q against P is the Poisson sample's pair, (1-q) N(0) + q N(1) against
N(0).

So the largest profile of P against Q is that of the opposed pair at g >= 1 and, as H_g(P || Q) = 1 - g + g H_{1/g}(Q
|| P), that of N(0) against (1-q) N(0) + q N(1) at g < 1. As a supremum of profiles it is one: it jumps at loss 0
only, where what is left of the mass is equal under both. A larger q dominates a smaller one: that is a mixture of it
and of N(w) against itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from accountant.mechanisms.basic import Adjacency, Basic, DpCall
from accountant.mechanisms.gaussian import Gaussian, gaussian_curve, gaussian_pair
from accountant.mechanisms.pair import (
    EPS,
    NODES,
    FloatArray,
    Pair,
    Tails,
    gaussian_tails,
    log_weights,
    normal_error,
    told,
    with_rest,
)
from accountant.mechanisms.quadrature import from_log_excess, log_mixture
from accountant.mechanisms.sampled import PoissonSampledGaussian, fixed_size_curve, fixed_size_pair, sampled_pairs

_ERROR = 1e-9  # relative, far above the incomplete beta function's; tests/accountant/test_truncated.py has digits
_ERROR_OF_MANY = 1e-6  # of more than a million units
_LEAST = 1e-300


class TruncatedPoissonSampledGaussian(Basic):
    """Every unit joins with probability q, in secret; of more than B a uniform B stay; then a Gaussian sum.

    A bounded batch: no release has more than ``batch_size`` participants. The sum must not be divided by the realised
    number of participants. The noise multiplier is relative to the *Poisson* sensitivity (one contribution, or twice
    that under replace-one). What dominates is, with t the chance that at least B of the other N - 1 units
    join and q_T the chance of staying in such a batch (``accountant.mechanisms.truncated``),

    - with probability 1 - t a Poisson sample at rate q: fewer than B others joined, so no unit is cut and the others'
      coins are independent of our unit's;
    - with probability t a full batch in which our unit is with chance q_T, and another in its place where it is not,
      so that two contributions move (``accountant.mechanisms.truncated`` has the pair of every adjacency).

    Which of the two it is depends on the others' coins alone, hence has the same law in both data sets; telling it
    only helps the adversary (joint convexity). Of the
    pair that dominates the upper end of an interval is taken; the lower end is what data sets attain in which all
    others contribute zero, or oppose the unit (``accountant.verify.lower``). Both ends lie far apart where a batch is
    full about as often as not: units that oppose show that a full batch was changed, and hide a change of any other.
    40 releases at N = 40, q = 1/4, z = 2, delta = 1e-5 under zero-out cost 3.95 to 4.01 with B = 16, 3.79 to
    4.43 with B = 12, and 3.19 to 3.45 with B = 5.

    Proof: docs/proofs/truncated-poisson.md.

    .. versionadded:: 0.3.0

    Attributes:
        n_clients: N, number of units that toss coins, of the larger data set under add-or-remove-one.
        sample_rate: q in (0, 1].
        batch_size: B, the largest number of participants, at least 1; at N or above no unit is ever cut.
        noise_multiplier: z, noise standard deviation over that sensitivity; positive.

    Example:
        >>> from accountant import Adjacency, numerical
        >>> bounded = TruncatedPoissonSampledGaussian(
        ...     n_clients=1000, sample_rate=0.05, batch_size=80, noise_multiplier=1.0
        ... )
        >>> poisson = PoissonSampledGaussian(sample_rate=0.05, noise_multiplier=1.0)
        >>> prices = [numerical.epsilon(event, 1e-5, adjacency=Adjacency.ZERO_OUT) for event in (bounded, poisson)]
        >>> 1.0 <= prices[0] / prices[1] < 1.01
        True
    """

    words = (
        "Poisson-sampled Gaussian cut to {batch_size} participants, rate {sample_rate:.4g}, "
        "multiplier {noise_multiplier:.4g}"
    )
    sampling = (
        "truncated Poisson: every client by its own secret coin, rate {sample_rate:.4g}, and at "
        "most {batch_size} of them"
    )
    is_attained = False

    n_clients: int
    sample_rate: float
    batch_size: int
    noise_multiplier: float

    def pairs(self, adjacency: Adjacency) -> tuple[Pair, ...]:
        """Of the release that tells whether its sample is cut; a full batch at the whole rate dominates both."""
        found, z = shares(self), self.noise_multiplier
        both = self._poisson.pairs(adjacency)
        unsure, cut = (_full_batch(rate, z, adjacency) for rate in (self.sample_rate, found.cut_rate))
        return tuple(
            told([(found.uncut, both[min(at, len(both) - 1)]), (found.unsure, unsure[at]), (found.cut, cut[at])])
            for at in range(1 if adjacency == Adjacency.REPLACE_ONE else 2)
        )

    def renyi_curve(self, orders: FloatArray, adjacency: Adjacency) -> FloatArray:
        """Of the release that tells whether its sample is cut: A - 1 is the weighted sum of its parts'."""
        found, z = shares(self), self.noise_multiplier
        parts = [(found.uncut, _log_excess(self._poisson.renyi_curve(orders, adjacency), orders))]
        parts += [(found.unsure, _full_batch_excess(self.sample_rate, z, orders, adjacency))]
        parts += [(found.cut, _full_batch_excess(found.cut_rate, z, orders, adjacency))]
        logs = [math.log(weight) + log_excess for weight, log_excess in parts if weight]
        return from_log_excess(np.logaddexp.reduce(logs, axis=0), orders)

    def seen_samples(self) -> tuple[Basic, int]:
        return Gaussian(noise_multiplier=self.noise_multiplier), 1

    def dp_event(self, factor: float) -> DpCall:
        sample = {"dataset_size": self.n_clients, "sampling_probability": self.sample_rate}
        noise = {"truncated_batch_size": self.batch_size, "noise_multiplier": factor * self.noise_multiplier}
        return DpCall("TruncatedSubsampledGaussianDpEvent", sample | noise)

    @property
    def _poisson(self) -> PoissonSampledGaussian:
        """The release, were no unit cut."""
        return PoissonSampledGaussian(sample_rate=self.sample_rate, noise_multiplier=self.noise_multiplier)


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Weights that sum to 1, and rates.

    Attributes:
        uncut: Lower bound of 1 - t: the sample is a Poisson sample.
        unsure: Weight of which it is not known whether the sample is cut.
        cut: Lower bound of t.
        cut_rate: Upper bound of q_T, at most q.
        least_rate: Lower bound of the chance of being in the batch, (1 - t) q + t q_T.
    """

    uncut: float
    unsure: float
    cut: float
    cut_rate: float
    least_rate: float


def shares(event: TruncatedPoissonSampledGaussian) -> Shares:
    """The shares of ``event``.

    Example:
        >>> found = shares(
        ...     TruncatedPoissonSampledGaussian(n_clients=3, sample_rate=0.5, batch_size=1, noise_multiplier=1.0)
        ... )
        >>> [round(value, 4) for value in (found.uncut, found.cut, found.cut_rate, found.least_rate)]
        [0.25, 0.75, 0.2222, 0.2917]
    """
    from scipy.special import betainc, betaincc

    n, q, size = event.n_clients, event.sample_rate, event.batch_size
    if size >= n:
        return Shares(uncut=1.0, unsure=0.0, cut=0.0, cut_rate=q, least_rate=q)
    cut, uncut = float(betainc(size, n - size, q)), float(betaincc(size, n - size, q))
    cut, uncut = (cut, 1.0 - cut) if cut < uncut else (1.0 - uncut, uncut)  # as they are they may miss 1 together
    error = _ERROR if n <= 10**6 else _ERROR_OF_MANY
    unsure = min(1.0, 2.0 * error * min(cut, uncut) + _LEAST)
    more = float(betainc(size + 1, n - size, q))  # P(Bin(N, q) > B)
    cut_rate = min(q, (size / n) * more / cut * (1.0 + 4.0 * error)) if cut > 0.0 else q
    return Shares(
        uncut=max(0.0, uncut - 0.5 * unsure),
        unsure=unsure,
        cut=max(0.0, cut - 0.5 * unsure),
        cut_rate=cut_rate,
        least_rate=(q * uncut + (size / n) * more) * (1.0 - 4.0 * error),
    )


def _full_batch(rate: float, z: float, adjacency: Adjacency) -> tuple[Pair, Pair]:
    """Both directions of a batch that is full whether our unit is in it or not."""
    adding = adjacency == Adjacency.ADD_OR_REMOVE_ONE
    if rate >= 1.0:
        return (gaussian_pair(2.0 / z if adding else 1.0 / z),) * 2
    if adding:
        return sampled_pairs(rate, 0.5 * z)
    if adjacency == Adjacency.ZERO_OUT:
        return displacing(rate, z, *sampled_pairs(rate, z))
    return (fixed_size_pair(rate, z),) * 2


def _log_excess(divergences: FloatArray, orders: FloatArray) -> FloatArray:
    """log(A - 1), where A = exp((a - 1) D)."""
    growth = (orders - 1.0) * divergences
    return np.asarray(growth + np.log(np.maximum(-np.expm1(-growth), _LEAST)), dtype=np.float64)


def _full_batch_excess(rate: float, z: float, orders: FloatArray, adjacency: Adjacency) -> FloatArray:
    """log(A - 1) of such a batch: a sample of fixed size, or under zero-out both sides of loss 0, if that is less."""
    fixed = fixed_size_curve(rate, z if adjacency == Adjacency.REPLACE_ONE else 0.5 * z, orders)
    if adjacency != Adjacency.ZERO_OUT:
        return _log_excess(fixed, orders)
    opposed = math.log(rate) + _log_excess(gaussian_curve(z, orders), orders)
    sampled = PoissonSampledGaussian(sample_rate=rate, noise_multiplier=z).renyi_curve(orders, adjacency)
    both = np.logaddexp(opposed, _log_excess(sampled, orders))
    return np.asarray(np.minimum(_log_excess(fixed, orders), both), dtype=np.float64)


def displacing(q: float, z: float, removed: Pair, added: Pair) -> tuple[Pair, Pair]:
    """Both directions at chance ``q`` below 1; ``removed`` and ``added`` are the Poisson sample's at the same rate."""

    def loss_at(x: FloatArray) -> FloatArray:
        """Of (1-q) N(-1) + q N(1) against (1-q) N(-1) + q N(0); positive and rising from x = 1/2 on."""
        return log_mixture(q, 2.0 * x / (z * z)) - log_mixture(q, (x + 0.5) / (z * z))

    def opposed(losses: FloatArray) -> Tails:
        """Of these beyond losses of at least 0.

        With u = exp(x / z^2) the loss exceeds log g where q u^2 - g q exp(1 / (2 z^2)) u - (g - 1) (1 - q) > 0, beyond
        the one positive root.
        """
        log_half = losses + 0.5 / (z * z) - math.log(2.0)
        with np.errstate(divide="ignore"):
            log_rest = losses + np.log(-np.expm1(-losses)) + math.log1p(-q) - math.log(q)
        x = z * z * np.logaddexp(log_half, 0.5 * np.logaddexp(2.0 * log_half, log_rest))
        p, q_ = ((1.0 - q, -1.0), (q, 1.0)), ((1.0 - q, -1.0), (q, 0.0))
        return gaussian_tails(p, q_, z, x, normal_error(np.abs((x + 1.0) / z) + 1.0 / z))

    def loss_range(t: float) -> tuple[float, float]:
        return added.loss_range(t)[0], float(loss_at(np.array([1.0 + z * t]))[0])

    def exchanged_range(t: float) -> tuple[float, float]:
        return -float(loss_at(np.array([max(0.5, z * t)]))[0]), removed.loss_range(t)[1]

    def nodes(t: float) -> tuple[FloatArray, FloatArray]:
        x = np.linspace(0.5, 1.0 + z * t, NODES)
        log_p = np.logaddexp(math.log1p(-q) + log_weights(x, -1.0, z), math.log(q) + log_weights(x, 1.0, z))
        return with_rest(loss_at(x), log_p, *_side(added, t, -1.0))

    def exchanged_nodes(t: float) -> tuple[FloatArray, FloatArray]:
        x = np.linspace(0.5, max(0.6, z * t), NODES)
        log_q = np.logaddexp(math.log1p(-q) + log_weights(x, -1.0, z), math.log(q) + log_weights(x, 0.0, z))
        return with_rest(-loss_at(x), log_q, *_side(removed, t, 1.0))

    error = removed.loss_error + 16.0 * EPS * (2.0 + 1.0 / (z * z) - math.log(q))
    return (
        Pair(
            tails=lambda edges: _either(edges, opposed(np.maximum(edges, 0.0)), added.tails(np.minimum(edges, 0.0))),
            loss_range=loss_range,
            loss_error=error,
            nodes=nodes,
        ),
        Pair(
            tails=lambda edges: _either(
                edges, removed.tails(np.maximum(edges, 0.0)), opposed(np.maximum(-edges, 0.0)).exchanged()
            ),
            loss_range=exchanged_range,
            loss_error=error,
            nodes=exchanged_nodes,
        ),
    )


def _either(edges: FloatArray, right: Tails, left: Tails) -> Tails:
    """One pair's tails beyond losses of at least 0, another's below."""
    return Tails(*(np.where(edges >= 0.0, *both) for both in zip(right, left, strict=True)))


def _side(pair: Pair, t: float, sign: float) -> tuple[FloatArray, FloatArray]:
    """A pair's nodes on one side of loss 0."""
    loss, log_mass = pair.nodes(t)
    kept = sign * loss > 0.0
    return loss[kept], log_mass[kept]
