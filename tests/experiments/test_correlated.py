"""Correlated noise by algebra: the proof's steps, checked on random strategies."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks import correlated

RNG = np.random.default_rng(3)
USED = np.array([2.0, 3.0, 15.0])
WORKLOADS = {"pooled": correlated.pooled(np.array([5.0, 2.0, 1.0])), "means": correlated.prefix_means(3),
             "alone": np.eye(3)}  # fmt: skip


def strategies(n: int, count: int) -> list[np.ndarray]:
    return [np.tril(RNG.standard_normal((n, n))) + np.eye(n) for _ in range(count)]


def test_the_sensitivity_is_that_of_the_worst_rows() -> None:
    for strategy in strategies(3, 10):
        found = correlated.sensitivity(strategy)
        rows = RNG.standard_normal((4000, 3, 3))
        rows /= np.linalg.norm(rows, axis=2, keepdims=True)
        tried = float(np.linalg.norm(strategy @ rows, axis=(1, 2)).max())
        assert tried <= found * (1 + 1e-9)
        signs = [np.linalg.norm(strategy @ np.array(s)) for s in itertools.product((-1.0, 1.0), repeat=3)]
        assert max(signs) <= found * (1 + 1e-9)
        assert tried >= 0.93 * found


@pytest.mark.parametrize("name", WORKLOADS)
def test_no_strategy_beats_the_best_shares(name: str) -> None:
    workload = WORKLOADS[name]
    least = correlated.best_shares(workload, USED)
    for strategy in strategies(3, 50):
        cost = correlated.loss(workload, strategy, USED) * correlated.sensitivity(strategy) ** 2
        assert cost >= least * (1 - 1e-9)
    assert correlated.searched(workload, USED, 0) == pytest.approx(least, rel=5e-3)


def test_shares_that_are_not_the_best_cost_more() -> None:
    """Planted fault: equal shares for a mean that is used at the end, and the sensitivity of one release only."""
    workload = WORKLOADS["pooled"]
    least = correlated.best_shares(workload, USED)
    equal = np.eye(3) / np.sqrt(3.0)
    assert correlated.loss(workload, equal, USED) > 1.05 * least
    assert correlated.loss(workload, np.eye(3), USED) < least
    assert correlated.sensitivity(np.eye(3)) == pytest.approx(np.sqrt(3.0))


def test_bands_help_where_every_client_takes_part_once_and_one_band_is_independent_noise() -> None:
    workload = correlated.prefix_means(12)
    losses = [correlated.banded(workload, bands) for bands in (1, 2, 4)]
    assert losses[0] == pytest.approx(float(np.mean(np.sum(workload**2, axis=1))))
    assert losses[0] > 1.1 * losses[1] > 1.1 * losses[2]
