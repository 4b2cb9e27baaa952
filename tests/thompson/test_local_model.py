"""Clients acting alone: every kind of draw on every kind of space, the device; and maxima of functions over a space."""

import dataclasses
import itertools
import sys

import mpmath
import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from experiments.baselines.dp_fts_de import Variant
from privbo.algorithms.thompson import local_model
from privbo.algorithms.thompson.evaluations import Evaluations
from privbo.algorithms.thompson.local_model import LocalModel
from privbo.algorithms.thompson.maximise import Search, candidates, log_expected_improvement, maximise
from privbo.algorithms.thompson.posterior import kernel_values
from privbo.algorithms.thompson.settings import OwnModel, Prior, Theorem1, information_gains, regularisation
from privbo.protocol.messages import PlainEvaluate, Setting
from privbo.protocol.space import Int, Space
from tests.thompson.conftest import FINITE, GRID, MIXED, PLANE, play, setting

OWN = OwnModel(n_features=32, fit_steps=5, n_candidates=64)


def _proposed(own, space, n, t, rows=None, scale=1.0):
    """The points of clients with t random canonical points each."""
    clients, generator = np.arange(n), np.random.default_rng(3)
    units, values = space.snap(generator.random((n, t, space.n_dims))), generator.normal(size=(n, t))
    values = scale * (values - values.mean(axis=1, keepdims=True)) / values.std(axis=1, keepdims=True)
    seen = Evaluations(clients, PlainEvaluate(lambda who, _: values[who, len(seen.rounds)]), space, torch.device("cpu"))
    for index in range(t):
        seen.query(units[:, index], -1, fixed=True)
    where = Setting(space=space, n_clients=n, rounds=4, public_seed=11)
    model = LocalModel(own, where, clients, 5, acquisition="thompson", logits=True)
    return model.propose(seen, 1, rows=rows)


def test_an_inflation_of_nothing_is_the_posterior_mean_whatever_the_draw():
    # With next to no randomness every kind of draw is the exact posterior mean, so all choose its maximiser.
    still, one = (Prior(median=at, spread=1e-3, low=at - 1e-5, high=at + 1e-5) for at in (0.4, 1.0))
    refitted = {"refit_every": 5, "lengthscale": still, "outputscale": one, "noise_variance": 1e-2}
    plain = {"draw": "exact", "refit_every": 0, "n_candidates": 400, "inflation": 1e-9, "fit_steps": 1, "n_features": 8}
    changes = ({}, refitted, {"draw": "paths"})
    first, *others = (_proposed(OwnModel(**plain | change), GRID, n=6, t=9) for change in changes)
    for other in others:
        np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize("draw", ["paths", "exact"])
def test_chunks_change_no_choice(draw, monkeypatch):
    own = dataclasses.replace(OWN, draw=draw)
    whole = _proposed(own, PLANE, n=7, t=5)
    monkeypatch.setitem(local_model._ENTRIES, "cpu", 1)  # less than one client takes
    np.testing.assert_allclose(_proposed(own, PLANE, n=7, t=5), whole, atol=1e-6)
    some = np.array([5, 2])
    np.testing.assert_allclose(_proposed(own, PLANE, n=7, t=5, rows=some), whole[some], atol=1e-6)


_MAKERS = {
    getattr(torch, n)
    for n in ["ones", "zeros", "empty", "full", "eye", "arange", "tensor", "as_tensor", "linspace", "randn", "rand"]
}


class _Placement(TorchFunctionMode):
    """Notes every tensor that our code makes without naming a device."""

    def __init__(self):
        super().__init__()
        self.astray, self.made = [], 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        frame = sys._getframe(1)
        if function in _MAKERS and "/privbo/algorithms/thompson/" in frame.f_code.co_filename:
            self.made += 1
            if kwargs.get("device") is None and not isinstance(args[0], torch.Tensor):
                self.astray.append((frame.f_code.co_name, function.__name__))
        return function(*args, **kwargs)


@pytest.mark.parametrize(
    "own",
    [{}, {"draw": "exact"}, {"draw": "exact", "refit_every": 0}, {"draw": "features", "noise_variance": 0.1}],
    ids=str,
)
@pytest.mark.parametrize("share", ["mean", "sample"])
def test_every_tensor_is_made_on_the_chosen_device(own, share):
    for space, features in ((PLANE, "paired"), (FINITE, "phase")):
        algorithm = Variant(n_features=12, share=share, features=features, own=dataclasses.replace(OWN, **own))
        with _Placement() as placement:
            play(algorithm, setting(space, rounds=2))
        assert placement.made > 10
        assert placement.astray == []


POINTS = np.linspace(0, 1, 9)
COVARIANCE = np.exp(-0.5 * ((POINTS[:, None] - POINTS) / 0.2) ** 2)


def gain(chosen, noise):
    inside = COVARIANCE[np.ix_(chosen, chosen)]
    return 0.5 * np.linalg.slogdet(np.eye(len(chosen)) + inside / noise)[1]


@pytest.mark.parametrize("noise", [0.1, 1.5])
def test_information_gains_bound_every_set_of_queries(noise):
    bounds = information_gains(COVARIANCE, noise, 4)
    assert bounds[0] == 0.0
    for t in (1, 2, 3, 4):
        best = max(gain(list(c), noise) for c in itertools.combinations_with_replacement(range(9), t))
        assert best <= bounds[t] <= best / (1 - np.exp(-1)) + 1e-9


def test_beta_and_lambda_are_the_theorems():
    theorem = Theorem1(norm_bound=2.0, noise_stddev=0.5, failure=0.2)
    assert theorem.beta(3.0) == pytest.approx(2.0 + 0.5 * np.sqrt(2 * (3.0 + 1.0 + np.log(20.0))))
    assert regularisation(40) == 1.05
    algorithm = Variant(noise="theory", own=OwnModel(regularisation="theory"))
    assert algorithm.regularisation(40) == algorithm.own.fixed_noise(40) == 1.05


def own(**changes):
    fixed = {"kernel": "se", "refit_every": 0, "lengthscale": Prior(median=0.3, spread=0.5, low=0.01, high=3.0)}
    return OwnModel(**(fixed | changes))


def test_the_theorem_and_a_constant_equal_to_it_do_the_same():
    space = Space({"x": Int(0, 15), "y": Int(0, 9)})
    where = setting(space, n_clients=5, rounds=1)
    theorem = Theorem1(norm_bound=1.0, noise_stddev=1.0)
    points = torch.as_tensor(space.embed(space.grid()))[None] / 0.3
    gains = information_gains(kernel_values("se", points, points)[0].numpy(), 1e-2, 2)  # after two initial points
    beta = theorem.beta(float(gains[2]))
    assert beta > 3.0

    def queries(inflation):
        _, cohort = play(Variant(n_features=8, own=own(inflation=inflation)).local(), where)
        return cohort.history().units

    np.testing.assert_array_equal(queries(theorem), queries(beta))
    assert not np.array_equal(queries(theorem), queries(1.0))


def test_lambda_replaces_the_fitted_noise():
    where = setting(n_clients=4, rounds=8)
    algorithm = Variant(n_features=8, noise="theory", own=OwnModel(fit_steps=2, regularisation="theory")).local()
    _, cohort = play(algorithm, where)
    np.testing.assert_array_equal(cohort.snapshot()["noise"], np.full(4, 1.25))


# ---- maxima of functions over a space, and log expected improvement against quadrature and far beyond where that ends


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


def test_rough_paths_are_maximised_to_one_percent_and_refinement_never_goes_down():
    """Planted: few candidates without refinement."""
    functions, best = _rough_paths(8)

    def reached(**settings):
        found = maximise(functions, PLANE, Search(**settings), _generator())
        return functions(found[:, None, :])[:, 0].numpy()

    few = {"n_candidates": 64, "n_refinements": 0}
    assert np.mean(reached(n_candidates=512) / best) > 0.99 > np.mean(reached(**few) / best)
    small = {"n_candidates": 32, "n_starts": 3, "n_neighbours": 8}
    heights = [reached(**small, n_refinements=count) for count in range(5)]
    assert (np.diff(heights, axis=0) >= -1e-12).all()
    assert (heights[-1] > heights[0]).any()


@pytest.mark.parametrize("u", [5.0, 0.0, -0.99, -1.0, -1.01, -5.0, -40.0, -999.0, -1001.0, -1e5, -1e8])
def test_log_expected_improvement_keeps_its_digits_however_far_the_best_value_is(u):
    """The mean is u standard deviations of .5 above the best value: E max(f - best, 0) = .5 (phi(u) + u Phi(u))."""
    with mpmath.workdps(80):
        exact = mpmath.log((mpmath.npdf(u) + u * mpmath.erfc(-mpmath.mpf(u) / mpmath.sqrt(2)) / 2) / 2)
    numbers = (torch.tensor([x], dtype=torch.float64) for x in (0.5 * u, 0.25, 0.0))
    assert float(log_expected_improvement(*numbers)) == pytest.approx(float(exact), rel=1e-9, abs=1e-9)
