"""Theorem 1's constants against plain computations, and their way through a client's own model."""

import itertools

import numpy as np
import pytest
import torch

from experiments.baselines.dp_fts_de import Variant
from privbo.algorithms.thompson.own_model import OwnModel, Prior, Theorem1, information_gains, regularisation
from privbo.algorithms.thompson.posterior import kernel_values
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.space import Int, Space
from tests.thompson.conftest import play, setting

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


def test_lambda_and_a_known_noise_contradict():
    with pytest.raises(ConfigurationError, match="give one of them"):
        OwnModel(regularisation="theory", noise_variance=0.1)
