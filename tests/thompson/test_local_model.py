"""Clients acting alone: every kind of draw on every kind of space, and the device setting."""

import dataclasses
import itertools
import sys

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from experiments.baselines.dp_fts_de import Variant
from privbo.algorithms.thompson import local_model
from privbo.algorithms.thompson.evaluations import Evaluations
from privbo.algorithms.thompson.local_model import LocalModel
from privbo.algorithms.thompson.posterior import kernel_values
from privbo.algorithms.thompson.settings import OwnModel, Prior, Theorem1, information_gains, regularisation
from privbo.protocol.messages import PlainEvaluate, Setting
from privbo.protocol.space import Int, Space
from tests.thompson.conftest import FINITE, GRID, PLANE, play, setting

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
    found = []
    for draw, refit_every in (("exact", 0), ("exact", 5), ("paths", 0)):
        own = OwnModel(draw=draw, refit_every=refit_every, n_candidates=400, inflation=1e-9, fit_steps=1, n_features=8)
        if refit_every:
            still = Prior(median=0.4, spread=1e-3, low=0.39999, high=0.40001)
            one = Prior(median=1.0, spread=1e-3, low=0.99999, high=1.00001)
            own = dataclasses.replace(own, lengthscale=still, outputscale=one, noise_variance=1e-2)
        found.append(_proposed(own, GRID, n=6, t=9))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


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
