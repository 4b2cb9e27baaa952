"""The batched posterior against plain references, exactly: a draw is affine in its normals."""

import dataclasses

import numpy as np
import pytest
import torch

from privbo.algorithms.thompson.draws import common_factor, draw_exact, draw_feature_paths, draw_paths, own_factors
from privbo.algorithms.thompson.posterior import (
    Hyperparameters,
    Observations,
    kernel_values,
    ridge_mean,
    ridge_sample,
    sample_by_cholesky,
    sample_by_matheron,
)

SHAPES = [(3, 8), (8, 3), (5, 5), (1, 6)]
NOISE = 0.04
KERNELS = ["se", "matern52", "matern32", "matern12"]


def _data(n_observations, n_features, n=4, seed=0):
    generator = np.random.default_rng(seed)
    phi = generator.normal(size=(n, n_observations, n_features))
    phi /= np.linalg.norm(phi, axis=-1, keepdims=True)
    return torch.as_tensor(phi), torch.as_tensor(generator.normal(size=(n, n_observations)))


def _reference(phi, y):
    """Mean and covariance of one client's weights, eq. 2 of the paper as printed."""
    sigma = phi.T @ phi + NOISE * np.eye(phi.shape[1])
    return np.linalg.inv(sigma) @ phi.T @ y, NOISE * np.linalg.inv(sigma)


@pytest.mark.parametrize(("t", "m"), SHAPES)
def test_mean_is_the_papers(t, m):
    phi, y = _data(t, m)
    mean = ridge_mean(phi, y, NOISE).numpy()
    for n in range(len(phi)):
        np.testing.assert_allclose(mean[n], _reference(phi[n].numpy(), y[n].numpy())[0], atol=1e-10)


def _moments(draw, dims):
    """Exact mean and covariance of ``draw``, an affine map of standard normals of these lengths."""
    zero = [torch.zeros(1, d, dtype=torch.float64) for d in dims]
    mean = draw(*zero)[0].numpy()
    columns = []
    for which, length in enumerate(dims):
        for i in range(length):
            moved = [z.clone() for z in zero]
            moved[which][0, i] = 1.0
            columns.append(draw(*moved)[0].numpy() - mean)
    map_ = np.array(columns).T
    return mean, map_ @ map_.T


@pytest.mark.parametrize(("t", "m"), SHAPES)
def test_both_draws_have_the_posteriors_moments(t, m):
    phi, y = _data(t, m, n=1)
    mean, covariance = _reference(phi[0].numpy(), y[0].numpy())
    by_cholesky = _moments(lambda z: sample_by_cholesky(phi, y, NOISE, z), (m,))
    by_matheron = _moments(lambda z, e: sample_by_matheron(phi, y, NOISE, z, e), (m, t))
    for found_mean, found_covariance in (by_cholesky, by_matheron):
        np.testing.assert_allclose(found_mean, mean, atol=1e-10)
        np.testing.assert_allclose(found_covariance, covariance, atol=1e-10)


def test_matherons_rule_is_used_for_few_observations_only():
    for (t, m), by_matheron in zip(SHAPES, (True, False, False, True), strict=True):
        phi, y = _data(t, m)
        z, e = torch.randn(4, m, dtype=torch.float64), torch.randn(4, t, dtype=torch.float64)
        draw = ridge_sample(phi, y, NOISE, prior=z, observation_noise=e)
        expected = sample_by_matheron(phi, y, NOISE, z, e) if by_matheron else sample_by_cholesky(phi, y, NOISE, z)
        torch.testing.assert_close(draw, expected)


@pytest.mark.parametrize(("t", "m"), SHAPES)
def test_masked_observations_change_nothing(t, m):
    phi, y = _data(t, m)
    padded = torch.cat([phi, torch.zeros(4, 2, m, dtype=torch.float64)], dim=1)
    values = torch.cat([y, torch.zeros(4, 2, dtype=torch.float64)], dim=1)
    torch.testing.assert_close(ridge_mean(padded, values, NOISE), ridge_mean(phi, y, NOISE))
    empty = ridge_mean(torch.zeros_like(phi), torch.zeros_like(y), NOISE)
    assert (empty == 0).all()


def _own(kernel, n=3, t=6, c=5, f=2048, seed=0):
    generator = np.random.default_rng(seed)
    mask = np.ones((n, t), dtype=bool)
    mask[1, 2:4] = False
    mask[2, :] = False
    observations = Observations(
        embedded=torch.as_tensor(generator.random((n, t, 2))),
        values=torch.as_tensor(np.where(mask, generator.normal(size=(n, t)), 0.0)),
        mask=torch.as_tensor(mask),
        scale=torch.ones(n, dtype=torch.float64),
    )
    models = Hyperparameters(
        lengthscale=torch.as_tensor(generator.uniform(0.2, 0.6, (n, 2))),
        outputscale=torch.as_tensor(generator.uniform(0.5, 2.0, n)),
        noise=torch.as_tensor(generator.uniform(0.01, 0.1, n)),
    )
    normals = generator.normal(size=(f, 2))
    if kernel != "se":
        freedom = {"matern52": 5, "matern32": 3, "matern12": 1}[kernel]
        normals /= np.sqrt(generator.chisquare(freedom, (f, 1)) / freedom)
    return observations, models, torch.as_tensor(normals), torch.as_tensor(generator.random((n, c, 2)))


def _exact(kernel, observations, models, points, n):
    """Mean and covariance of one client's latent function by the textbook formulas."""
    keep = observations.mask[n].numpy()
    known = observations.embedded[n].numpy()[keep]
    y = observations.values[n].numpy()[keep]
    scale, ell, noise = float(models.outputscale[n]), models.lengthscale[n].numpy(), float(models.noise[n])

    def k(a, b):
        d = np.sqrt((((a[:, None] - b[None]) / ell) ** 2).sum(-1))
        if kernel == "se":
            return scale * np.exp(-0.5 * d**2)
        if kernel == "matern12":
            return scale * np.exp(-d)
        if kernel == "matern32":
            return scale * (1 + np.sqrt(3) * d) * np.exp(-np.sqrt(3) * d)
        return scale * (1 + np.sqrt(5) * d + 5 * d**2 / 3) * np.exp(-np.sqrt(5) * d)

    gain = k(points, known) @ np.linalg.inv(k(known, known) + noise * np.eye(len(known)))
    return gain @ y, k(points, points) - gain @ k(known, points)


@pytest.mark.parametrize("kernel", KERNELS)
def test_path_of_zero_normals_is_the_exact_posterior_mean(kernel):
    observations, models, frequencies, points = _own(kernel)
    paths = draw_paths(
        observations,
        models,
        kernel=kernel,
        frequencies=frequencies,
        prior=torch.zeros(3, 2 * len(frequencies), dtype=torch.float64),
        observation_noise=torch.zeros(3, 6, dtype=torch.float64),
    )
    values = paths(points).numpy()
    for n in range(3):
        mean, _ = _exact(kernel, observations, models, points[n].numpy(), n)
        np.testing.assert_allclose(values[n], mean, atol=1e-9)


def _path_covariance(kernel, observations, models, frequencies, points, n):
    """Exact covariance of a client's path values, over the normals it is made of."""
    one = torch.tensor([n])

    def draw(prior, noise):
        paths = draw_paths(
            observations.rows(one),
            models.rows(one),
            kernel=kernel,
            frequencies=frequencies,
            prior=prior,
            observation_noise=noise,
        )
        return paths(points[n][None])

    return _moments(draw, (2 * len(frequencies), 6))[1]


# 500 frequencies: prior covariances are means of 500 terms within the output scale (< 2), so errors
# have standard deviation below 0.07 and, damped by the data, far less; tolerance is 7 of them at most.
# The frequencies are seeded: a pass is a pass for ever.
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("n", [0, 1, 2])
def test_paths_have_the_exact_posteriors_covariance(kernel, n):
    observations, models, frequencies, points = _own(kernel, f=500)
    found = _path_covariance(kernel, observations, models, frequencies, points, n)
    _, expected = _exact(kernel, observations, models, points[n].numpy(), n)
    np.testing.assert_allclose(found, expected, atol=0.2 if n == 2 else 0.1)


def test_paths_without_observation_noise_are_caught():
    observations, models, frequencies, points = _own("se", f=500)
    loud = Hyperparameters(lengthscale=models.lengthscale, outputscale=models.outputscale, noise=torch.full((3,), 1.0))
    _, expected = _exact("se", observations, loud, points[0].numpy(), 0)
    found = _path_covariance("se", observations, models, frequencies, points, 0)
    assert np.abs(found - expected).max() > 0.1


def test_kernel_values_match_gpytorch():
    from gpytorch.kernels import MaternKernel, RBFKernel

    a, b = torch.rand(2, 4, 3, dtype=torch.float64), torch.rand(2, 5, 3, dtype=torch.float64)
    for name, peer in (
        ("se", RBFKernel().double()),
        ("matern52", MaternKernel(nu=2.5).double()),
        ("matern32", MaternKernel(nu=1.5).double()),
        ("matern12", MaternKernel(nu=0.5).double()),
    ):
        peer.lengthscale = 0.4
        expected = peer(a, b).to_dense().detach()
        torch.testing.assert_close(kernel_values(name, a / 0.4, b / 0.4), expected, atol=1e-7, rtol=1e-7)


def _exact_moments(observations, models, n, known, points):
    """Moments of a client's exact draw over the normals it is made of."""
    one = torch.tensor([n])

    def draw(prior, noise):
        return draw_exact(
            observations.rows(one), models.noise[one], known=known, points=points, prior=prior, observation_noise=noise
        )

    return _moments(draw, (known.shape[-1], observations.values.shape[1]))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("n", [0, 1, 2])
def test_exact_draws_have_the_exact_posteriors_moments(kernel, n):
    observations, models, _, points = _own(kernel)
    factors = own_factors(torch.cat([points, observations.embedded], dim=1), models, kernel)[n : n + 1]
    mean, covariance = _exact_moments(observations, models, n, factors[:, 5:], factors[:, :5])
    expected_mean, expected_covariance = _exact(kernel, observations, models, points[n].numpy(), n)
    np.testing.assert_allclose(mean, expected_mean, atol=1e-6)
    np.testing.assert_allclose(covariance, expected_covariance, atol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("n", [0, 1, 2])
def test_exact_draws_on_a_common_grid_have_the_exact_posteriors_moments(kernel, n):
    observations, models, _, _ = _own(kernel)
    axis = torch.linspace(0, 1, 7, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    where = torch.arange(18).reshape(3, 6) * 2
    on_grid = dataclasses.replace(observations, embedded=grid[where])
    common = Hyperparameters(
        lengthscale=models.lengthscale[:1].expand(3, 2),
        outputscale=models.outputscale[:1].expand(3),
        noise=models.noise,
    )
    factor = common_factor(grid, common.lengthscale[:1], float(common.outputscale[0]), kernel)
    mean, covariance = _exact_moments(on_grid, common, n, factor[where[n : n + 1]], factor)
    expected_mean, expected_covariance = _exact(kernel, on_grid, common, grid.numpy(), n)
    np.testing.assert_allclose(mean, expected_mean, atol=1e-6)
    np.testing.assert_allclose(covariance, expected_covariance, atol=1e-6)


def test_a_smooth_kernel_needs_few_directions():
    grid = torch.linspace(0, 1, 1000, dtype=torch.float64)[:, None]
    factor = common_factor(grid, torch.tensor([[0.1]], dtype=torch.float64), 1.0, "se")
    assert factor.shape[1] < 30


@pytest.mark.parametrize("t", [4, 12])
def test_feature_draws_have_the_moments_of_equation_2(t):
    observations, models, frequencies, points = _own("se", t=t, f=4)

    def features(x, n):
        angles = x / models.lengthscale[n].numpy() @ frequencies.numpy().T
        return np.concatenate([np.cos(angles), np.sin(angles)], axis=-1) * np.sqrt(float(models.outputscale[n]) / 4)

    for n in range(2):
        one, keep = torch.tensor([n]), observations.mask[n].numpy()
        phi = features(observations.embedded[n].numpy()[keep], n)
        noise = float(models.noise[n])
        inverse = np.linalg.inv(phi.T @ phi + noise * np.eye(8))
        expected_mean = features(points[n].numpy(), n) @ inverse @ phi.T @ observations.values[n].numpy()[keep]
        expected = noise * features(points[n].numpy(), n) @ inverse @ features(points[n].numpy(), n).T

        def draw(prior, e, one=one, n=n):
            paths = draw_feature_paths(
                observations.rows(one),
                models.rows(one),
                kernel="se",
                frequencies=frequencies,
                prior=prior,
                observation_noise=e,
            )
            return paths(points[n][None])

        mean, covariance = _moments(draw, (8, t))
        np.testing.assert_allclose(mean, expected_mean, atol=1e-9)
        np.testing.assert_allclose(covariance, expected, atol=1e-9)
