import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from privbo.thompson import hyperparameters as module
from privbo.thompson.hyperparameters import fit, start
from privbo.thompson.posterior import Hyperparameters, Observations, kernel_values


def _observations(lengthscale, n=3, t=12, seed=0, mask=None):
    """Draws from a Matern process, the same for every client but for the points."""
    generator = np.random.default_rng(seed)
    points = torch.as_tensor(generator.random((n, t, 2)))
    scaled = points / torch.tensor(lengthscale, dtype=torch.float64)
    covariance = kernel_values("matern52", scaled, scaled) + 1e-4 * torch.eye(t, dtype=torch.float64)
    values = (torch.linalg.cholesky(covariance) @ torch.as_tensor(generator.normal(size=(n, t, 1))))[..., 0]
    mask = torch.ones(n, t, dtype=torch.bool) if mask is None else mask
    return Observations(embedded=points, values=torch.where(mask, values, 0.0), mask=mask)


def _reference(observations, models, n):
    """Log evidence plus log prior densities of the logarithms, by scipy, for one client."""
    keep = observations.mask[n]
    points = observations.embedded[n][keep] / models.lengthscale[n]
    covariance = models.outputscale[n] * kernel_values("matern52", points[None], points[None])[0]
    covariance = covariance + models.noise[n] * torch.eye(int(keep.sum()), dtype=torch.float64)
    evidence = multivariate_normal(cov=covariance.numpy()).logpdf(observations.values[n][keep].numpy())
    logs = [
        (models.lengthscale[n].log().numpy(), module._LENGTHSCALE),
        (models.outputscale[n : n + 1].log().numpy(), module._OUTPUTSCALE),
        (models.noise[n : n + 1].log().numpy(), module._NOISE),
    ]
    return evidence + sum(-0.5 * (((x - m) / s) ** 2).sum() for x, (m, s) in logs)


def _ragged(n, t):
    mask = torch.ones(n, t, dtype=torch.bool)
    mask[1, t // 2 :] = False
    return mask


def _log_posterior(observations, models):
    covariance, likelihood = module._model(len(models.noise), 2, "matern52", torch.device("cpu"))
    covariance.base_kernel.lengthscale = models.lengthscale[:, None]
    covariance.outputscale = models.outputscale
    likelihood.noise = models.noise[:, None]
    return module._log_posterior(covariance, likelihood, observations).detach().numpy()


def test_objective_matches_scipy_up_to_a_constant_per_client():
    observations = _observations([0.3, 0.5], mask=_ragged(3, 12))
    generator = np.random.default_rng(1)
    pairs = []
    for _ in range(2):
        models = Hyperparameters(
            lengthscale=torch.as_tensor(generator.uniform(0.2, 1.0, (3, 2))),
            outputscale=torch.as_tensor(generator.uniform(0.5, 2.0, 3)),
            noise=torch.as_tensor(generator.uniform(0.01, 0.2, 3)),
        )
        pairs.append((_log_posterior(observations, models), [_reference(observations, models, n) for n in range(3)]))
    (a, reference_a), (b, reference_b) = pairs
    np.testing.assert_allclose(a - b, np.subtract(reference_a, reference_b), rtol=1e-8)


def test_fit_comes_close_to_the_best_of_a_long_search():
    observations = _observations([0.3, 0.5], n=8)
    found = _log_posterior(observations, fit(observations, kernel="matern52", steps=40))
    best = _log_posterior(observations, fit(observations, kernel="matern52", steps=300))
    first = _log_posterior(observations, start(8, 2, torch.device("cpu")))
    assert (best - found < 0.5).all()
    assert (best - found).mean() < 0.1 * (best - first).mean() + 0.05


def test_fit_tells_short_from_long_length_scales():
    short = fit(_observations([0.1, 0.1], n=10, t=40), kernel="matern52", steps=60)
    long = fit(_observations([1.0, 1.0], n=10, t=40), kernel="matern52", steps=60)
    assert short.lengthscale.max() < long.lengthscale.min()


@pytest.mark.parametrize("kernel", ["se", "matern52"])
def test_a_client_is_fitted_alone_as_in_a_batch(kernel):
    observations = _observations([0.3, 0.5], n=5, mask=_ragged(5, 12))
    together = fit(observations, kernel=kernel, steps=25)
    for n in range(5):
        alone = fit(observations.rows(torch.tensor([n])), kernel=kernel, steps=25)
        torch.testing.assert_close(alone.lengthscale[0], together.lengthscale[n], rtol=1e-6, atol=0)
        torch.testing.assert_close(alone.outputscale[0], together.outputscale[n], rtol=1e-6, atol=0)
        torch.testing.assert_close(alone.noise[0], together.noise[n], rtol=1e-6, atol=0)


def test_no_observation_leaves_the_priors():
    mask = torch.zeros(2, 3, dtype=torch.bool)
    found = fit(_observations([0.3, 0.3], n=2, t=3, mask=mask), kernel="se", steps=200)
    prior = start(2, 2, torch.device("cpu"))
    torch.testing.assert_close(found.lengthscale, prior.lengthscale, rtol=1e-3, atol=0)
    torch.testing.assert_close(found.noise, prior.noise, rtol=1e-3, atol=0)
