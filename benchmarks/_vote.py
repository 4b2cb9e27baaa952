"""What a common choice costs: the noisy sum of ballots that the door makes, beside a noisy maximum that it does not.

python -m benchmarks._vote

Clients vote for one of K candidates: for the best with probability one half, for each other equally often. For either
mechanism the largest noise is found with which the best is chosen nine times out of ten, and its epsilon at delta 1e-5:
alone, and added to rounds that cost epsilon 2 on their own.

Sum: normal noise on every total; a vote at mean 0 has norm sqrt(1 - 1/K). Maximum: the index of the largest total plus
Gumbel noise of scale b. A vote moves the odds of any set of outcomes by at most exp(1/b), so a set of probability a
gets at most that of a half-line of probability a under a logistic law that is moved by 1/b: the pair Logistic(1/b)
against Logistic(0), which composes with normal rounds whatever they chose.
"""

from __future__ import annotations

import sys

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from privbo.protocol.messages import FloatArray

DELTA, ROUNDS, RIGHT = 1e-5, 2.0, 0.9
_QUANTILES = (np.arange(100_000) + 0.5) / 100_000
_ELECTIONS = 4000


def delta(epsilon: float, mu: float, shift: float) -> float:
    """Give delta of a Gaussian release of distance ``mu`` and a logistic one of distance ``shift`` together."""
    losses = np.zeros(1)
    if shift:
        x = np.log(_QUANTILES / (1.0 - _QUANTILES))  # of Logistic(shift), which is moved by shift
        losses = shift + 2.0 * (np.logaddexp(0.0, -(x + shift)) - np.logaddexp(0.0, -x))
    left = epsilon - losses
    if not mu:
        return float(np.maximum(0.0, -np.expm1(left)).mean())
    curve = norm.cdf(mu / 2 - left / mu) - np.exp(left + norm.logcdf(-mu / 2 - left / mu))
    return float(curve.mean())


def epsilon(mu: float, shift: float) -> float:
    """Give epsilon at delta 1e-5 of both together."""
    return float(brentq(lambda e: delta(e, mu, shift) - DELTA, 0.0, 200.0, xtol=1e-5))


def largest_noise(totals: FloatArray, noise: FloatArray) -> float:
    """Give the scale of the noise with which candidate 0 is chosen nine times out of ten, over many elections."""

    def short(log: float) -> float:
        return float(((totals + np.exp(log) * noise).argmax(axis=1) == 0).mean() - RIGHT)

    return float(np.exp(brentq(short, -7.0, 9.0, xtol=1e-3)))


def row(n_candidates: int, n_clients: int) -> tuple[float, ...] | None:
    """Give epsilon alone and added, by sum and by maximum; None where even without noise the choice is worse."""
    rng = np.random.default_rng([n_candidates, n_clients])
    shares = np.r_[0.5, np.full(n_candidates - 1, 0.5 / (n_candidates - 1))]
    totals = rng.multinomial(n_clients, shares, size=_ELECTIONS).astype(np.float64)
    if (totals.argmax(axis=1) == 0).mean() < RIGHT:
        return None
    mu = np.sqrt(1 - 1 / n_candidates) / largest_noise(totals, rng.normal(size=totals.shape))
    shift = 1.0 / largest_noise(totals, rng.gumbel(size=totals.shape))
    rounds = float(brentq(lambda m: epsilon(m, 0.0) - ROUNDS, 0.01, 5.0))
    added = epsilon(float(np.hypot(rounds, mu)), 0.0) - ROUNDS, epsilon(rounds, shift) - ROUNDS
    return epsilon(mu, 0.0), epsilon(0.0, shift), *added


def main() -> None:
    """Print the table."""
    sys.stdout.write(
        "| K | N | alone, sum | alone, maximum | added, sum | added, maximum |\n|---|---|---|---|---|---|\n"
    )
    for n_candidates in (4, 16, 64):
        for n_clients in (12, 40, 200, 1000):
            found = row(n_candidates, n_clients)
            cells = ["-"] * 4 if found is None else [f"{value:.3g}" for value in found]
            sys.stdout.write(f"| {n_candidates} | {n_clients} | {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main()
