import dataclasses

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from privbo.algorithms.thompson.hyperparameters import fit, start
from privbo.algorithms.thompson.own_model import OwnModel, Prior
from privbo.algorithms.thompson.posterior import Observations, kernel_values

OWN = OwnModel()


def _own(**change):
    return dataclasses.replace(OWN, **change)


def _observations(lengthscale, n=3, t=12, seed=0, mask=None):
    """Draws from a Matern process, the same for every client but for the points."""
    generator = np.random.default_rng(seed)
    points = torch.as_tensor(generator.random((n, t, 2)))
    scaled = points / torch.tensor(lengthscale, dtype=torch.float64)
    covariance = kernel_values("matern52", scaled, scaled) + 1e-4 * torch.eye(t, dtype=torch.float64)
    values = (torch.linalg.cholesky(covariance) @ torch.as_tensor(generator.normal(size=(n, t, 1))))[..., 0]
    mask = torch.ones(n, t, dtype=torch.bool) if mask is None else mask
    return Observations(
        embedded=points, values=torch.where(mask, values, 0.0), mask=mask, scale=torch.ones(n, dtype=torch.float64)
    )


def _reference(observations, models, n):
    """Log evidence plus log prior densities of the logarithms, by scipy, for one client."""
    keep = observations.mask[n]
    points = observations.embedded[n][keep] / models.lengthscale[n]
    covariance = models.outputscale[n] * kernel_values("matern52", points[None], points[None])[0]
    covariance = covariance + models.noise[n] * torch.eye(int(keep.sum()), dtype=torch.float64)
    evidence = multivariate_normal(cov=covariance.numpy()).logpdf(observations.values[n][keep].numpy())
    logs = [
        (models.lengthscale[n].log().numpy(), OWN.lengthscale),
        (models.outputscale[n : n + 1].log().numpy(), OWN.outputscale),
        (models.noise[n : n + 1].log().numpy(), OWN.noise),
    ]
    return evidence + sum(-0.5 * (((x - np.log(p.median)) / p.spread) ** 2).sum() for x, p in logs)


def _ragged(n, t):
    mask = torch.ones(n, t, dtype=torch.bool)
    mask[1, t // 2 :] = False
    return mask


def test_a_long_fit_is_a_maximum_of_the_posterior_by_scipy():
    """Moving any hyperparameter of any client by a tenth lowers what scipy says of it."""
    observations = _observations([0.3, 0.5], mask=_ragged(3, 12))
    found = fit(observations, _own(fit_steps=400))
    for n in range(3):
        best = _reference(observations, found, n)
        for name in ("lengthscale", "outputscale", "noise"):
            for factor in (0.9, 1.1):
                moved = dataclasses.replace(found, **{name: factor * getattr(found, name)})
                assert _reference(observations, moved, n) < best - 1e-4


def test_fit_comes_close_to_the_best_of_a_long_search():
    observations = _observations([0.3, 0.5], n=8)
    fits = [fit(observations, _own(fit_steps=40)), fit(observations, _own(fit_steps=300))]
    models = [*fits, start(OWN, 8, 2, torch.device("cpu"))]
    found, best, first = (np.array([_reference(observations, m, n) for n in range(8)]) for m in models)
    assert (best - found < 0.5).all()
    assert (best - found).mean() < 0.1 * (best - first).mean() + 0.05


def test_fit_tells_short_from_long_length_scales():
    short = fit(_observations([0.1, 0.1], n=10, t=40), _own(fit_steps=60))
    long = fit(_observations([1.0, 1.0], n=10, t=40), _own(fit_steps=60))
    assert short.lengthscale.max() < long.lengthscale.min()


@pytest.mark.parametrize("kernel", ["se", "matern52", "matern32", "matern12"])
def test_a_client_is_fitted_alone_as_in_a_batch(kernel):
    observations = _observations([0.3, 0.5], n=5, mask=_ragged(5, 12))
    together = fit(observations, _own(kernel=kernel, fit_steps=25))
    for n in range(5):
        alone = fit(observations.rows(torch.tensor([n])), _own(kernel=kernel, fit_steps=25))
        torch.testing.assert_close(alone.lengthscale[0], together.lengthscale[n], rtol=1e-6, atol=0)
        torch.testing.assert_close(alone.outputscale[0], together.outputscale[n], rtol=1e-6, atol=0)
        torch.testing.assert_close(alone.noise[0], together.noise[n], rtol=1e-6, atol=0)


def test_no_observation_leaves_the_priors():
    mask = torch.zeros(2, 3, dtype=torch.bool)
    found = fit(_observations([0.3, 0.3], n=2, t=3, mask=mask), _own(kernel="se", fit_steps=200))
    prior = start(OWN, 2, 2, torch.device("cpu"))
    torch.testing.assert_close(found.lengthscale, prior.lengthscale, rtol=1e-3, atol=0)
    torch.testing.assert_close(found.noise, prior.noise, rtol=1e-3, atol=0)


def test_without_ard_all_coordinates_share_a_length_scale():
    observations = _observations([0.2, 1.0], n=3, t=30)
    shared = fit(observations, _own(ard=False, fit_steps=60)).lengthscale
    torch.testing.assert_close(shared[:, 0], shared[:, 1])
    own = fit(observations, _own(fit_steps=60)).lengthscale
    assert (own[:, 0] < own[:, 1]).all()


def test_known_noise_is_used_as_it_is_in_the_units_of_the_objective():
    observations = dataclasses.replace(
        _observations([0.3, 0.5]), scale=torch.tensor([1.0, 2.0, 100.0], dtype=torch.float64)
    )
    found = fit(observations, _own(noise_variance=0.04, fit_steps=3))
    torch.testing.assert_close(found.noise, torch.tensor([0.04, 0.01, OWN.noise.low], dtype=torch.float64))


def test_bounds_hold():
    narrow = Prior(median=0.4, spread=0.7, low=0.35, high=0.45)
    found = fit(_observations([0.05, 3.0], n=4, t=30), _own(lengthscale=narrow, fit_steps=80)).lengthscale
    assert (found >= 0.35).all()
    assert (found <= 0.45).all()


def test_a_tight_prior_wins_over_the_data():
    tight = Prior(median=1.0, spread=0.01, low=0.02, high=10.0)
    found = fit(_observations([0.1, 0.1], n=4, t=20), _own(lengthscale=tight, fit_steps=80)).lengthscale
    torch.testing.assert_close(found, torch.ones(4, 2, dtype=torch.float64), atol=0.1, rtol=0)
