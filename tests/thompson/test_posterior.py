"""Own models' posteriors and draws against plain references, exactly: a draw is affine in its normals."""

import dataclasses

import numpy as np
import pytest
import torch

from privbo.algorithms.thompson import compiled
from privbo.algorithms.thompson.features import draw_frequencies
from privbo.algorithms.thompson.fits import fit, start
from privbo.algorithms.thompson.posterior import (
    Observations,
    common_factor,
    condition,
    draw_exact,
    draw_feature_paths,
    draw_paths,
    kernel_values,
    own_factors,
)
from privbo.algorithms.thompson.settings import OwnModel
from tests.thompson.conftest import hyperparameters, moments, observed, shared
from tests.thompson.test_features import _correlation

KERNELS = ["se", "matern52", "matern32", "matern12"]


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
    models = hyperparameters(
        generator.uniform(0.2, 0.6, (n, 2)), generator.uniform(0.5, 2.0, n), generator.uniform(0.01, 0.1, n)
    )
    normals = draw_frequencies(generator, f, 2, kernel)
    return observations, models, torch.as_tensor(normals), torch.as_tensor(generator.random((n, c, 2)))


def _exact(kernel, observations, models, points, n):
    """Mean and covariance of one client's latent function by the textbook formulas."""
    keep = observations.mask[n].numpy()
    known = observations.embedded[n].numpy()[keep]
    y = observations.values[n].numpy()[keep]
    scale, ell, noise = float(models.outputscale[n]), models.lengthscale[n].numpy(), float(models.noise[n])

    def k(a, b):
        return scale * _correlation(kernel, np.sqrt((((a[:, None] - b[None]) / ell) ** 2).sum(-1)))

    gain = k(points, known) @ np.linalg.inv(k(known, known) + noise * np.eye(len(known)))
    return gain @ y, k(points, points) - gain @ k(known, points)


def _paths(kernel, observations, models, frequencies, prior, noise):
    """Paths with nothing but a kernel."""
    basis = torch.zeros(*noise.shape, 1, dtype=torch.float64)
    return draw_paths(
        observations,
        models,
        kernel=kernel,
        frequencies=frequencies,
        prior=prior,
        observation_noise=noise,
        basis=basis,
        multiples=torch.zeros(len(noise), 1, dtype=torch.float64),
        compiled=True,
    )


def _path_moments(kernel, observations, models, frequencies, points, n):
    """Exact mean and covariance of a client's path values, over the normals it is made of."""
    one = torch.tensor([n])

    def draw(prior, noise):
        return _paths(kernel, observations.rows(one), models.rows(one), frequencies, prior, noise)(points[n][None])

    return moments(draw, (2 * len(frequencies), 6))


# 500 frequencies: prior covariances are means of 500 terms within the output scale (< 2), so errors
# have standard deviation below 0.07 and, damped by the data, far less; tolerance is 7 of them at most.
# The frequencies are seeded: a pass is a pass for ever.
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("n", [0, 1, 2])
def test_paths_have_the_exact_posteriors_moments(kernel, n):
    observations, models, frequencies, points = _own(kernel, f=500)
    mean, covariance = _path_moments(kernel, observations, models, frequencies, points, n)
    expected_mean, expected = _exact(kernel, observations, models, points[n].numpy(), n)
    np.testing.assert_allclose(mean, expected_mean, atol=1e-9)
    np.testing.assert_allclose(covariance, expected, atol=0.2 if n == 2 else 0.1)


def test_paths_without_observation_noise_are_caught():
    observations, models, frequencies, points = _own("se", f=500)
    loud = dataclasses.replace(models, noise=torch.full((3,), 1.0))
    _, expected = _exact("se", observations, loud, points[0].numpy(), 0)
    _, found = _path_moments("se", observations, models, frequencies, points, 0)
    assert np.abs(found - expected).max() > 0.1


def _exact_moments(observations, models, n, known, points):
    """Moments of a client's exact draw over the normals it is made of."""
    one = torch.tensor([n])

    def draw(prior, noise):
        return draw_exact(
            observations.rows(one), models.noise[one], known=known, points=points, prior=prior, observation_noise=noise
        )

    return moments(draw, (known.shape[-1], observations.values.shape[1]))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("n", [0, 1, 2])
def test_exact_draws_have_the_exact_posteriors_moments(kernel, n):
    """At a client's own points, and on a grid whose factor all clients share."""
    observations, models, _, points = _own(kernel)
    factors = own_factors(torch.cat([points, observations.embedded], dim=1), models, kernel)[n : n + 1]
    axis, scale = torch.linspace(0, 1, 7, dtype=torch.float64), float(models.outputscale[0])
    grid, where = torch.cartesian_prod(axis, axis), torch.arange(18).reshape(3, 6) * 2
    factor = common_factor(grid.numpy().tobytes(), 2, 0.4, scale, kernel, "cpu")
    common = hyperparameters(np.full((3, 2), 0.4), models.outputscale[0], models.noise)
    on_grid = dataclasses.replace(observations, embedded=grid[where])
    for seen, of, at, known, wanted in (
        (observations, models, points[n], factors[:, 5:], factors[:, :5]),
        (on_grid, common, grid, factor[where[n : n + 1]], factor),
    ):
        found = _exact_moments(seen, of, n, known, wanted)
        for ours, theirs in zip(found, _exact(kernel, seen, of, at.numpy(), n), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_a_smooth_kernel_needs_few_directions():
    assert common_factor(np.linspace(0, 1, 1000).tobytes(), 1, 0.1, 1.0, "se", "cpu").shape[1] < 30


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
                frequencies=frequencies,
                prior=prior,
                observation_noise=e,
                compiled=True,
            )
            return paths(points[n][None])

        mean, covariance = moments(draw, (8, t))
        np.testing.assert_allclose(mean, expected_mean, atol=1e-9)
        np.testing.assert_allclose(covariance, expected, atol=1e-9)


def test_posteriors_are_those_of_the_dense_formula_and_masked_points_say_nothing():
    own, seen = OwnModel(), observed(n=5, t=7, e=3)
    part = shared(seen.embedded, seen.mask)
    found = fit(start(own, 5, 3, torch.device("cpu")), seen, own, steps=10, shared=part, compiled=True)
    residual = dataclasses.replace(seen, values=seen.values - found.slope[:, None] * part.mean)
    at = torch.rand((1, 11, 3), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    there = shared(at).uncertainty
    uncertain = there.square().sum(-1), part.uncertainty @ there.mT
    mean, variance = condition(found, residual, own.kernel, part, compiled=True)(at, uncertain)
    for i in range(5):
        known, scale, os = seen.mask[i], found.lengthscale[i], found.outputscale[i]
        x, z = seen.embedded[i, known] / scale, at[0] / scale
        k = os * kernel_values("matern52", x[None], x[None])[0]
        spread, beyond = found.slope[i] * part.uncertainty[i, known], found.slope[i] * there[0]
        k = 1.0 + k + spread @ spread.T + (found.noise[i] + 1e-8) * torch.eye(len(x), dtype=torch.float64)
        c = 1.0 + os * kernel_values("matern52", z[None], x[None])[0] + beyond @ spread.T
        torch.testing.assert_close(mean[i], c @ torch.linalg.solve(k, residual.values[i, known]), atol=1e-9, rtol=0)
        expected = 1.0 + os + beyond.square().sum(1) - (c * torch.linalg.solve(k, c.T).T).sum(1)
        torch.testing.assert_close(variance[i], expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("t", [0, 1, 7, 70])
@pytest.mark.parametrize("share", [False, True])
def test_posteriors_are_those_of_torch(kernel, t, share):
    seen, own = observed(n=3, t=max(t, 2), e=3), OwnModel(kernel=kernel)
    seen = dataclasses.replace(seen, **{name: getattr(seen, name)[:, :t] for name in ("embedded", "values", "mask")})
    theirs = shared(seen.embedded, seen.mask) if share else None
    found = fit(start(own, 3, 3, torch.device("cpu")), seen, own, steps=5, shared=theirs, compiled=True)
    model = condition(found, seen, kernel, theirs, compiled=True)
    points = np.random.default_rng(1).random((3, 130, 3))
    # The oracle's squared distances are differences of squares, whose rounding errors a root makes large.
    close = {"atol": 1e-6 if kernel == "matern12" else 1e-9, "rtol": 0}
    for at in (torch.tensor(points), torch.tensor(points[:1]), seen.embedded):
        there = shared(at).uncertainty
        uncertain = (there.square().sum(-1), theirs.uncertainty @ there.mT) if share else None
        ours = model(at, uncertain)
        torch.testing.assert_close(ours, dataclasses.replace(model, compiled=False)(at, uncertain), **close)


def test_the_exponential_is_right_to_an_ulp():
    """Seen through a correlation: one client, one value of weight one, the squared exponential."""
    one, at = np.ones((1, 1)), np.concatenate([np.linspace(0.0, 37.6, 40_001), [1e-9, 40.0, 1e6]])
    found, explained = np.zeros((2, 1, len(at)))
    points, nothing = at[None, :, None], np.empty((0, 0, 0))
    cube = one[None]
    compiled.expect(0, 0.0, 0.0 * cube, cube, one, one, one[0], points, nothing, found, explained)
    np.testing.assert_allclose(found[0], np.exp(-0.5 * at**2), rtol=1e-15, atol=1e-307)


def _any_paths(kernel, t, n=3, e=3):
    """Paths with any waves, corrected at t points."""
    rng = np.random.default_rng(t)
    seen, models = observed(n=n, t=max(t, 2), e=e), hyperparameters(rng.uniform(0.1, 1.0, (n, e)))
    seen = dataclasses.replace(seen, **{name: getattr(seen, name)[:, :t] for name in ("embedded", "values", "mask")})
    drawn = [torch.tensor(rng.standard_normal(shape)) for shape in ((20, e), (n, 40), (n, t))]
    return seen, _paths(kernel, seen, models, *drawn)


def of_torch(paths):
    return dataclasses.replace(paths, compiled=False, correction=dataclasses.replace(paths.correction, compiled=False))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("t", [0, 1, 7, 70])
def test_paths_are_those_of_torch(kernel, t):
    (seen, paths), points = _any_paths(kernel, t), torch.tensor(np.random.default_rng(1).random((3, 130, 3)))
    oracle = of_torch(paths)
    close = {"atol": 1e-6 if kernel == "matern12" else 1e-8, "rtol": 0}  # as for posteriors
    for at in (points, points[:1], seen.embedded):
        torch.testing.assert_close(paths(at), oracle(at), **close)
    other = dataclasses.replace(oracle, phases=paths.phases + 1e-6)(points)
    assert float((paths(points) - other).abs().max()) > 1e-7  # the comparison tells phases apart


@pytest.mark.parametrize("t", [*range(8, 16), 61, 131, 199])
def test_draws_posteriors_and_small_fits_are_the_same_to_the_last_bit_alone_and_among_others(t):
    """Solvers of torch, its angles, and factors of more than 128 rows round by where numbers lie in memory."""
    rng, seen, own = np.random.default_rng(t), observed(n=7, t=t, e=3), OwnModel()
    models, first = hyperparameters(rng.uniform(0.1, 1.0, (7, 3))), start(own, 7, 3, torch.device("cpu"))
    waves, prior, noise = (torch.tensor(rng.standard_normal(shape)) for shape in ((25, 3), (7, 50), (7, t)))

    def made(rows):
        paths = _paths(own.kernel, seen.rows(rows), models.rows(rows), waves, prior[rows], noise[rows])
        fitted = fit(first.rows(rows), seen.rows(rows), own, steps=3, compiled=False)
        found = condition(first.rows(rows), seen.rows(rows), own.kernel, compiled=False)
        drawn = paths.correction.weights, paths.amplitudes, paths.phases
        return *drawn, fitted.lengthscale, found.covariance_root, found.weights

    whole = made(torch.arange(7))
    for client in range(7):
        for alone, among in zip(made(torch.tensor([client])), whole, strict=True):
            assert torch.equal(alone[0], among[client])


def test_the_cosine_is_right_to_rounding_and_never_above_one_at_any_angle():
    """Seen through a path: one wave of amplitude one, no value."""
    angles = np.concatenate([np.linspace(-40.0, 40.0, 40_001), [1e-300, 1e4, 1e15, -1e15, 1e17, 1e300]])
    one, points, found = np.ones((1, 1)), angles[None, :, None], np.zeros((1, len(angles)))
    compiled.add_prior_paths(one, one, 0.0 * one, one, points, found)
    near = abs(angles) < 41.0
    np.testing.assert_allclose(found[0, near], np.cos(angles[near]), rtol=0, atol=2e-14)  # a rounded angle's own error
    np.testing.assert_allclose(found[0, angles == 1e4], np.cos(1e4), rtol=0, atol=1e-11)
    assert np.isfinite(found).all()
    assert abs(found).max() <= 1.0 + 1e-15
