"""Exploring starts: spread for one client, spread for all, the same for a client alone."""

import tracemalloc

import numpy as np
import pytest
from scipy.stats import qmc

from privbo.algorithms.thompson.exploration import first_points
from privbo.algorithms.thompson.streams import Stream, public_stream
from tests.thompson.conftest import FINITE, MIXED, PLANE, setting


@pytest.mark.parametrize("space", [PLANE, MIXED, FINITE], ids=["real", "mixed", "finite"])
def test_a_client_alone_starts_where_it_starts_among_others(space):
    where = setting(space, n_clients=30)
    whole = first_points(where, np.arange(30), 3)
    assert whole.shape == (30, 3, space.n_dims)
    np.testing.assert_array_equal(whole, space.snap(whole))
    for client in (0, 7, 29):
        np.testing.assert_array_equal(first_points(where, np.array([client]), 3)[0], whole[client])


def test_two_points_of_a_client_lie_in_different_halves_and_four_in_different_quarters():
    points = first_points(setting(PLANE, n_clients=64), np.arange(64), 4)
    assert (np.sort((points[:, :2] * 2).astype(int), axis=1) == np.array([0, 1])[:, None]).all()
    assert (np.sort((points * 4).astype(int), axis=1) == np.arange(4)[:, None]).all()


def test_clients_pairs_compare_points_at_all_distances():
    """Planted: of one sequence that is cut up every client's pair is as far apart."""
    points = first_points(setting(PLANE, n_clients=64), np.arange(64), 2)
    cut = qmc.Sobol(2, scramble=False).random(128).reshape(64, 2, 2)
    spread, planted = (np.abs(pairs[:, 0] - pairs[:, 1]).std(axis=0) for pairs in (points, cut))
    assert (spread > 0.15).all()
    assert (planted < 0.01).all()


def test_a_finite_space_is_not_asked_twice():
    points = first_points(setting(FINITE, n_clients=50), np.arange(50), 8)
    assert all(len(np.unique(row, axis=0)) == 8 for row in points)
    more = first_points(setting(FINITE, n_clients=3), np.arange(3), 12)  # the space has ten points
    assert all(len(np.unique(row, axis=0)) >= 8 for row in more)


def test_other_seeds_start_elsewhere():
    one, other = (first_points(setting(public_seed=seed), np.arange(6), 2) for seed in (1, 2))
    assert not np.allclose(one, other)


def drawn_for_all(seed, n_clients, count, n_dims):
    """The definition: everybody's flips, level by level, and everybody's last digits from one generator."""
    generator, levels = public_stream(seed, Stream.INITIAL), (count - 1).bit_length()
    cells = (qmc.Sobol(n_dims, scramble=False).random(1 << levels)[:count] * (1 << levels)).astype(np.int64)
    taken = np.zeros((n_clients, count, n_dims), dtype=np.int64)
    for level in range(levels):
        above, digit = cells >> (levels - level), cells >> (levels - level - 1) & 1
        flips = generator.integers(2, size=(n_clients, 1 << level, n_dims))
        taken = 2 * taken + (digit ^ np.take_along_axis(flips, np.broadcast_to(above, taken.shape), axis=1))
    return (taken + generator.random(taken.shape)) / (1 << levels)


@pytest.mark.parametrize("n_clients", [1, 7, 30])
@pytest.mark.parametrize("count", [1, 2, 3, 8, 9])
def test_groups_draw_their_own_points_and_they_are_those_of_all(n_clients, count):
    where = setting(PLANE, n_clients=n_clients, public_seed=11)
    whole = PLANE.snap(drawn_for_all(11, n_clients, count, PLANE.n_dims))
    for group in (np.arange(n_clients), np.arange(n_clients // 2, n_clients), np.arange(n_clients)[::-3]):
        np.testing.assert_array_equal(first_points(where, group, count), whole[group])
    assert first_points(where, np.arange(0), count).shape == (0, count, PLANE.n_dims)


def test_a_groups_points_take_its_own_share_of_memory():
    """Everybody's, of a million clients, would be hundreds of megabytes."""
    where = setting(PLANE, n_clients=1_000_000)
    tracemalloc.start()
    try:
        first_points(where, np.arange(999_000, 1_000_000), 10)
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()
