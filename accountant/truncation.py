"""Chances in a Poisson sample that is cut to a size: binomial tails, bounded from the safe side.

Let X be the number of the other N - 1 units whose coins came up, T the event X >= B, t = P(T). Without T nobody is cut.
Given T, the batch has B members whether our unit's coin came up or not; the unit is in it with probability

    q_T = q E[B / (X + 1) | X >= B] = (B / N) P(Bin(N, q) > B) / t.

Given T the others in the batch are a uniform B-subset S of all N - 1 if the unit is not in it, and S without a uniform
member j if it is. Given S and j as well, everything measured from S without j and w the contribution of j, the
release is (1 - q_T) N(w) + q_T N(v) with the unit's contribution v. It is held against

- zero-out, where the unit tosses its coin and contributes zero: (1 - q_T) N(w) + q_T N(0); the worst w is found in
  ``accountant.tight.displacing``;
- add-or-remove-one, where j is always in: N(w). v - w is at most twice a contribution: a Poisson sample's pair at
  rate q_T and noise multiplier z / 2, both directions;
- replace-one, where contributions have length 1/2: (1 - q_T) N(w) + q_T N(v'). For g >= 1 the worst is v' = w = -v
  (turn them there as in ``accountant.tight.pairs``), either way round: a sample of fixed size at rate q_T and
  multiplier z.

The Rényi curve takes a sample of fixed size at multiplier z / 2 for the first two, which is simple and much looser.

Tails come from the incomplete beta function; what it may lack is booked as a third share.
"""

from __future__ import annotations

from dataclasses import dataclass

from scipy.special import betainc, betaincc

from accountant.events import TruncatedPoissonSampledGaussian

_ERROR = 1e-9  # relative, far above the incomplete beta function's; tests/accountant/test_truncated.py has digits
_LEAST = 1e-300


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
    n, q, size = event.n_clients, event.sample_rate, event.batch_size
    if size >= n:
        return Shares(uncut=1.0, unsure=0.0, cut=0.0, cut_rate=q, least_rate=q)
    cut, uncut = float(betainc(size, n - size, q)), float(betaincc(size, n - size, q))
    unsure = min(1.0, 2.0 * _ERROR * min(cut, uncut) + _LEAST)
    more = float(betainc(size + 1, n - size, q))  # P(Bin(N, q) > B)
    cut_rate = min(q, (size / n) * more / cut * (1.0 + 4.0 * _ERROR)) if cut > 0.0 else q
    return Shares(
        uncut=max(0.0, uncut - 0.5 * unsure),
        unsure=unsure,
        cut=max(0.0, cut - 0.5 * unsure),
        cut_rate=cut_rate,
        least_rate=(q * uncut + (size / n) * more) * (1.0 - 4.0 * _ERROR),
    )
