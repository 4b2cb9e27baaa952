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
from tests.thompson.conftest import FINITE, play, setting

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


@pytest.mark.parametrize("draw", ["paths", "exact", "features"])
def test_zero_inflation_of_the_theorem_is_the_posterior_mean(draw):
    """With B = sigma = 0 draws do not vary, so every client that saw the same acts the same."""

    def flat(clients, units):
        return np.exp(-8 * (units**2).sum(axis=1))

    where = setting(FINITE, n_clients=12, rounds=1)
    still = Variant(
        n_features=8, n_init=1, own=own(draw=draw, inflation=Theorem1(norm_bound=0.0, noise_stddev=0.0))
    ).local()
    _, cohort = play(still, where, flat)
    units = cohort.history().units
    for a, b in itertools.combinations(range(12), 2):
        if (units[a, 0] == units[b, 0]).all():
            np.testing.assert_array_equal(units[a, 1], units[b, 1])
    assert len(np.unique(units[:, 0], axis=0)) < 12


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


@pytest.mark.parametrize(
    "make",
    [
        lambda: Theorem1(norm_bound=-1.0),
        lambda: Theorem1(failure=1.0),
        lambda: OwnModel(regularisation=0.0),
        lambda: OwnModel(regularisation="theory", noise_variance=0.1),
    ],
)
def test_impossible_constants_are_refused(make):
    with pytest.raises(ConfigurationError):
        make()
