"""Exploring starts: spread for one client, spread for all, the same for a client alone."""

import numpy as np
import pytest
from scipy.stats import qmc

from privbo.algorithms.thompson.design import first_points
from tests.thompson.conftest import FINITE, MIXED, PLANE, setting


@pytest.mark.parametrize("space", [PLANE, MIXED, FINITE], ids=["real", "mixed", "finite"])
def test_a_client_alone_starts_where_it_starts_among_others(space):
    where = setting(space, n_clients=30)
    whole = first_points(where, np.arange(30), 3)
    assert whole.shape == (30, 3, space.n_dims)
    np.testing.assert_array_equal(whole, space.snap(whole))
    for client in (0, 7, 29):
        np.testing.assert_array_equal(first_points(where, np.array([client]), 3)[0], whole[client])


def test_all_starts_together_fill_the_space_more_evenly_than_chance():
    where = setting(PLANE, n_clients=64)
    ours = first_points(where, np.arange(64), 2).reshape(-1, 2)
    chance = [qmc.discrepancy(np.random.default_rng(i).random((128, 2))) for i in range(50)]
    assert qmc.discrepancy(ours) < 0.5 * min(chance)


def test_two_points_of_a_client_lie_apart():
    points = first_points(setting(PLANE, n_clients=64), np.arange(64), 2)
    around = np.abs(points[:, 0] - points[:, 1])
    around = np.minimum(around, 1 - around)  # the sequence is shifted around the cube
    assert np.linalg.norm(around, axis=1).min() > 0.45


def test_a_finite_space_is_not_asked_twice():
    points = first_points(setting(FINITE, n_clients=50), np.arange(50), 8)
    assert all(len(np.unique(row, axis=0)) == 8 for row in points)
    more = first_points(setting(FINITE, n_clients=3), np.arange(3), 12)  # the space has ten points
    assert all(len(np.unique(row, axis=0)) >= 8 for row in more)


def test_other_seeds_start_elsewhere():
    one, other = (first_points(setting(public_seed=seed), np.arange(6), 2) for seed in (1, 2))
    assert not np.allclose(one, other)
