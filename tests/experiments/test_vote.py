"""The two prices that ``benchmarks.vote`` compares, each against another way to it."""

from __future__ import annotations

import numpy as np
import pytest

import accountant
from benchmarks.vote import delta, epsilon, row


def test_without_a_maximum_it_is_the_price_of_the_accountant() -> None:
    for mu in (0.1, 0.5, 2.0):
        alone = accountant.epsilon(noise_multiplier=1 / mu, sample_rate=1.0, rounds=1, delta=1e-5)
        assert epsilon(mu, 0.0) == pytest.approx(alone, rel=1e-3)


def test_a_vote_between_two_attains_the_logistic_pair_and_more_candidates_stay_below() -> None:
    """Gumbel noise chooses with probabilities exp(total / b) over their sum; one vote more for candidate 0."""
    rng, shift = np.random.default_rng(0), 0.7
    for level in (0.0, 0.2, 0.5):
        largest = 0.0
        for _ in range(4000):
            logits = rng.normal(size=int(rng.integers(2, 6))) * 2
            moved = logits + shift * (np.arange(len(logits)) == 0)
            p, q = (np.exp(x) / np.exp(x).sum() for x in (moved, logits))
            largest = max(largest, float(np.maximum(p - np.exp(level) * q, 0).sum()))
        bound = delta(level, 0.0, shift)
        assert largest <= bound * (1 + 1e-6)
        assert largest >= 0.98 * bound


def test_the_maximum_is_cheaper_alone_and_little_beside_rounds() -> None:
    found = row(4, 40)
    assert found is not None
    alone_sum, alone_maximum, added_sum, added_maximum = found
    assert 1.5 < alone_sum / alone_maximum < 4
    assert added_maximum < added_sum < 0.25
