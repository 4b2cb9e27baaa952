"""Maxima of functions over a space, and log expected improvement against quadrature and far beyond where that ends."""

import mpmath
import numpy as np
import pytest
import torch

from privbo.algorithms.thompson.maximise import Search, candidates, log_expected_improvement, maximise
from tests.thompson.conftest import FINITE, MIXED, PLANE


def _bumps(space, targets):
    """Functions with their maxima at ``targets``, (n, n_dims)."""
    embedded = torch.as_tensor(space.embed(targets))[:, None]

    def functions(units):
        return -(torch.as_tensor(space.embed(units)) - embedded).square().sum(-1)

    return functions


def _generator(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("space", [PLANE, MIXED, FINITE], ids=["plane", "mixed", "finite"])
def test_every_function_gets_its_own_maximiser(space):
    targets = space.snap(np.random.default_rng(1).random((20, space.n_dims)))
    found = maximise(_bumps(space, targets), space, Search(), _generator())
    np.testing.assert_allclose(found, targets, atol=2e-3)
    np.testing.assert_array_equal(space.snap(found), found)


def test_a_finite_space_is_searched_whole():
    grid = FINITE.grid()
    table = np.random.default_rng(2).random((6, len(grid)))

    def functions(units):
        index = [np.flatnonzero((grid == unit).all(axis=1))[0] for unit in units[0]]
        return torch.as_tensor(table[:, index])

    found = maximise(functions, FINITE, Search(n_candidates=64), _generator())
    np.testing.assert_array_equal(found, grid[table.argmax(axis=1)])


def test_candidates_are_canonical_and_differ_by_generator():
    points = candidates(MIXED, 100, _generator())
    assert points.shape == (100, 3)
    np.testing.assert_array_equal(MIXED.snap(points), points)
    assert not np.array_equal(points, candidates(MIXED, 100, _generator(1)))
    np.testing.assert_array_equal(points, candidates(MIXED, 100, _generator()))


def _rough_paths(n, lengthscale=0.1):
    """Sums of random waves whose maxima are hard to find, and their true maxima on a 121 x 121 grid."""
    generator = np.random.default_rng(3)
    waves, heights = generator.normal(size=(n, 2, 128)) / lengthscale, generator.normal(size=(n, 1, 128))
    phases = generator.uniform(0, 2 * np.pi, (n, 1, 128))

    def functions(units):
        return torch.as_tensor((heights * np.cos(units @ waves + phases)).sum(axis=-1))

    axis = np.linspace(0, 1, 121)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(1, -1, 2)
    return functions, functions(grid).max(dim=1).values.numpy()


def _share_reached(search):
    functions, best = _rough_paths(8)
    found = maximise(functions, PLANE, search, _generator())
    reached = functions(found[:, None, :])[:, 0].numpy()
    return float(np.mean(reached / best))


def test_rough_paths_are_maximised_to_one_percent():
    """Planted: few candidates without refinement."""
    assert _share_reached(Search(n_candidates=512)) > 0.99 > _share_reached(Search(n_candidates=64, n_refinements=0))


def test_refinement_never_goes_down():
    functions, _ = _rough_paths(4)
    heights = []
    for n_refinements in range(5):
        search = Search(n_candidates=32, n_starts=3, n_neighbours=8, n_refinements=n_refinements)
        found = maximise(functions, PLANE, search, _generator())
        heights.append(functions(found[:, None, :])[:, 0].numpy())
    assert (np.diff(heights, axis=0) >= -1e-12).all()
    assert (heights[-1] > heights[0]).any()


@pytest.mark.parametrize("u", [5.0, 0.0, -0.99, -1.0, -1.01, -5.0, -40.0, -999.0, -1001.0, -1e5, -1e8])
def test_log_expected_improvement_keeps_its_digits_however_far_the_best_value_is(u):
    """The mean is u standard deviations of .5 above the best value: E max(f - best, 0) = .5 (phi(u) + u Phi(u))."""
    with mpmath.workdps(80):
        exact = mpmath.log((mpmath.npdf(u) + u * mpmath.erfc(-mpmath.mpf(u) / mpmath.sqrt(2)) / 2) / 2)
    numbers = (torch.tensor([x], dtype=torch.float64) for x in (0.5 * u, 0.25, 0.0))
    assert float(log_expected_improvement(*numbers)) == pytest.approx(float(exact), rel=1e-9, abs=1e-9)
