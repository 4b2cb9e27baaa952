"""Synthetic clients of the DP-FTS-DE paper."""

import numpy as np
import pytest

import privbo as pb
from experiments.problems.synthetic import heterogeneous, homogeneous
from privbo.protocol.messages import ClientHistory


def test_synthetic_clients_are_the_papers():
    same = homogeneous(3, n_clients=50)
    base = same.table.mean(axis=0)
    assert set(np.round(np.abs(same.table - np.median(same.table, axis=0)), 9).ravel()) <= {0.0, 0.02, 0.04}
    assert np.abs(base).max() < 1.05
    shared, mixed, independent = (heterogeneous(3, n_clients=30, alpha=a).table for a in (0.0, 0.7, 1.0))
    np.testing.assert_array_equal(shared, np.repeat(shared[:1], 30, axis=0))
    np.testing.assert_allclose(mixed, 0.7 * independent + 0.3 * shared, atol=1e-12)
    assert independent.min() == 0.0
    assert independent.max() == 1.0
    with pytest.raises(pb.ConfigurationError, match="alpha"):
        heterogeneous(3, alpha=1.5)


def test_synthetic_noise_has_the_papers_variance_and_regret_has_none():
    world = homogeneous(1, n_clients=2)
    units = np.full((2, 1), 0.25)
    drawn = np.array([world.observe(np.array([0, 1]), units) for _ in range(2000)]) - world.table[:, 250]
    # Standard deviation of a sample variance of 4,000 normals is 2.2 % of it; 12 % is more than five of them.
    assert drawn.var() == pytest.approx(0.01, rel=0.12)
    again = homogeneous(1, n_clients=2)
    assert again.observe(np.array([1]), units[:1])[0] == drawn[0, 1] + world.table[1, 250]
    history = ClientHistory(
        units=np.array([[[0.25]], [[0.75]]]), values=np.zeros((2, 1)), rounds=np.array([1]), recommended=units
    )
    expected = world.table.max(axis=1) - np.array([world.table[0, 250], world.table[1, 750]])
    np.testing.assert_allclose(world.losses(history)[:, 0], expected)
