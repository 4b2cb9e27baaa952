import dataclasses

import numpy as np
import torch
from scipy.stats import multivariate_normal

from privbo.algorithms.thompson.hyperparameters import fit
from privbo.algorithms.thompson.own_model import OwnModel
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


def test_known_noise_is_used_as_it_is_in_the_units_of_the_objective():
    observations = dataclasses.replace(
        _observations([0.3, 0.5]), scale=torch.tensor([1.0, 2.0, 100.0], dtype=torch.float64)
    )
    found = fit(observations, _own(noise_variance=0.04, fit_steps=3))
    torch.testing.assert_close(found.noise, torch.tensor([0.04, 0.01, OWN.noise.low], dtype=torch.float64))
