"""Fits and posteriors of many clients against autograd and dense formulas."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from privbo.algorithms.thompson.beliefs import posterior
from privbo.algorithms.thompson.own_model import OwnModel, Prior
from privbo.algorithms.thompson.posterior import Observations, kernel_values
from privbo.algorithms.thompson.regression import at_start, fit
from privbo.algorithms.thompson.shared_part import Shared, SlopePrior

CPU = torch.device("cpu")


def observed(n=5, t=7, e=3, masked=True, seed=0):
    rng = np.random.default_rng(seed)
    mask = np.ones((n, t), dtype=bool)
    if masked:
        mask[1, 2] = mask[3, :4] = False
    embedded = rng.random((n, t, e))
    values = np.where(mask, np.sin(4 * embedded.sum(-1)) + 0.1 * rng.standard_normal((n, t)), 0.0)
    return Observations(
        embedded=torch.tensor(embedded),
        values=torch.tensor(values),
        mask=torch.tensor(mask),
        scale=torch.ones(n, dtype=torch.float64),
    )


def public(embedded, mean=0.6):
    """A shared function that is uncertain in two directions."""
    angles = embedded.sum(-1)
    uncertainty = torch.stack([0.5 * torch.sin(2 * angles), 0.3 * torch.cos(5 * angles)], dim=-1)
    return Shared(heights=torch.cos(3 * angles), uncertainty=uncertainty, slope=SlopePrior(mean=mean, stddev=0.3))


def correlations(kernel, squares):
    if kernel == "se":
        return torch.exp(-squares / 2)
    if kernel == "matern12":
        return torch.exp(-(squares + 1e-20).sqrt())
    # Autograd has no derivative of a distance at zero.
    r = (squares + 1e-20).sqrt() * math.sqrt(5 if kernel == "matern52" else 3)
    return (1 + r + (r**2 / 3 if kernel == "matern52" else 0)) * torch.exp(-r)


def loss(logs, slope, seen, own, shared):
    """The negative log posterior by the definitions, summed over the clients."""
    total = torch.zeros((), dtype=torch.float64)
    for i, known in enumerate(seen.mask):
        x, y = seen.embedded[i, known] / logs[i, :-2].exp(), seen.values[i, known]
        k = 1.0 + logs[i, -2].exp() * correlations(own.kernel, (x[:, None] - x[None]).square().sum(-1))
        k = k + (logs[i, -1].exp() + 1e-8) * torch.eye(len(x), dtype=torch.float64)
        mean = torch.zeros_like(y)
        if shared is not None:
            mean = slope[i] * shared.heights[i, known]
            k = k + slope[i] ** 2 * shared.uncertainty[i, known] @ shared.uncertainty[i, known].T
            total = total + 0.5 * ((slope[i] - shared.slope.mean) / shared.slope.stddev) ** 2
        total = total - torch.distributions.MultivariateNormal(mean, k).log_prob(y)
    priors = [*[own.lengthscale] * (logs.shape[1] - 2), own.outputscale, own.noise]
    for j, prior in enumerate(priors):
        total = total + 0.5 * (((logs[:, j] - math.log(prior.median)) / prior.spread) ** 2).sum()
    return total


@pytest.mark.parametrize("kernel", ["se", "matern52", "matern32", "matern12"])
@pytest.mark.parametrize("ard", [True, False])
@pytest.mark.parametrize("with_mean", [True, False])
def test_a_fit_takes_the_steps_of_adam_on_the_log_posterior(kernel, ard, with_mean):
    """The definition differentiated by torch and stepped by torch's own Adam ends at the same numbers."""
    wide = Prior(median=0.4, spread=0.7, low=1e-3, high=1e3)
    own, seen, shared = OwnModel(kernel=kernel, ard=ard, lengthscale=wide), observed(), None
    first = at_start(own, 5, 3, CPU)
    logs, slope = first.logs.clone().requires_grad_(), torch.zeros(5, dtype=torch.float64, requires_grad=True)
    if with_mean:
        shared = public(seen.embedded)
        slope = torch.full((5,), 0.6, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([logs, slope], lr=0.15)
    for _ in range(12):
        adam.zero_grad()
        loss(logs, slope, seen, own, shared).backward()
        adam.step()
    found = fit(first, seen, own, steps=12, shared=shared)
    torch.testing.assert_close(found.logs, logs.detach(), atol=1e-6, rtol=0)
    assert bool(found.slope.isnan().all()) == (not with_mean)
    if with_mean:
        torch.testing.assert_close(found.slope, slope.detach(), atol=1e-6, rtol=0)
        assert float((found.slope - 0.6).abs().min()) > 1e-3


def test_posteriors_are_those_of_the_dense_formula_and_masked_points_say_nothing():
    own, seen = OwnModel(), observed()
    shared = public(seen.embedded, mean=0.5)
    found = fit(at_start(own, 5, 3, CPU), seen, own, steps=10, shared=shared)
    residual = dataclasses.replace(seen, values=seen.values - found.slope[:, None] * shared.heights)
    at = torch.rand((1, 11, 3), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    there = public(at).uncertainty
    mean, variance = posterior(found, residual, own, shared)(at, there)
    for i in range(5):
        known = seen.mask[i]
        scale = found.logs[i, :-2].exp()
        x, z = seen.embedded[i, known] / scale, at[0] / scale
        os = found.logs[i, -2].exp()
        k = os * kernel_values("matern52", x[None], x[None])[0]
        spread, beyond = found.slope[i] * shared.uncertainty[i, known], found.slope[i] * there[0]
        k = 1.0 + k + spread @ spread.T + (found.logs[i, -1].exp() + 1e-8) * torch.eye(len(x), dtype=torch.float64)
        c = 1.0 + os * kernel_values("matern52", z[None], x[None])[0] + beyond @ spread.T
        torch.testing.assert_close(mean[i], c @ torch.linalg.solve(k, residual.values[i, known]), atol=1e-9, rtol=0)
        expected = 1.0 + os + beyond.square().sum(1) - (c * torch.linalg.solve(k, c.T).T).sum(1)
        torch.testing.assert_close(variance[i], expected, atol=1e-9, rtol=0)
