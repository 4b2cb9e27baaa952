"""Own models' posteriors, and ridge weights, against plain references, exactly: a draw is affine in its normals."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch

from experiments.baselines.dp_fts_de import Variant
from privbo.algorithms.thompson import compiled
from privbo.algorithms.thompson.features import draw_frequencies
from privbo.algorithms.thompson.fits import fit, start
from privbo.algorithms.thompson.posterior import (
    GrowingRidge,
    common_factor,
    condition,
    draw_exact,
    draw_feature_paths,
    draw_paths,
    kernel_values,
    own_factors,
    ridge_mean,
    ridge_sample,
)
from privbo.algorithms.thompson.settings import OwnModel
from tests.thompson.conftest import hyperparameters, machine_code, moments, observed, play, setting, shared
from tests.thompson.test_features import _correlation

KERNELS = ["se", "matern52", "matern32", "matern12"]


def _own(kernel, t=6, f=2048):
    """Three clients, the last of which knows nothing, their models, frequencies, and points."""
    generator, seen = np.random.default_rng(0), observed(n=3, t=t)
    seen.mask[2], seen.values[2] = False, 0.0
    scales, *rest = (generator.uniform(*ends) for ends in ((0.2, 0.6, (3, 2)), (0.5, 2.0, 3), (0.5, 1.0, 3)))
    normals = draw_frequencies(generator, f, 2, kernel)
    return seen, hyperparameters(scales, *rest), torch.as_tensor(normals), torch.as_tensor(generator.random((3, 5, 2)))


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


# 500 frequencies: prior covariances are means of 500 terms within the output scale (< 2), so errors
# have standard deviation below 0.07 and, damped by the data, far less; tolerance is 7 of them at most.
# The frequencies are seeded: a pass is a pass for ever.
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("n", [0, 1, 2])
def test_paths_have_the_exact_posteriors_moments(kernel, n):
    observations, models, frequencies, points = _own(kernel, f=500)
    seen, one = observations.rows(torch.tensor([n])), models.rows(torch.tensor([n]))
    mean, covariance = moments(lambda z, e: _paths(kernel, seen, one, frequencies, z, e)(points[n][None]), (1000, 6))
    expected_mean, expected = _exact(kernel, observations, models, points[n].numpy(), n)
    np.testing.assert_allclose(mean, expected_mean, atol=1e-9)
    np.testing.assert_allclose(covariance, expected, atol=0.2 if n == 2 else 0.1)


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
        made = partial(draw_exact, seen.rows(torch.tensor([n])), of.noise[n : n + 1], known=known, points=wanted)
        found = moments(lambda z, e, made=made: made(prior=z, observation_noise=e), (known.shape[-1], 6))
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

        of_one, at = (observations.rows(one), models.rows(one)), points[n][None]
        made = partial(draw_feature_paths, *of_one, frequencies=frequencies, compiled=True)
        mean, covariance = moments(lambda z, e, made=made, at=at: made(prior=z, observation_noise=e)(at), (8, t))
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
    seen, own = observed(n=3, t=t, e=3), OwnModel(kernel=kernel)
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


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("t", [0, 1, 7, 70])
def test_paths_are_those_of_torch(kernel, t):
    rng, seen, points = np.random.default_rng(t), observed(n=3, t=t, e=3), torch.rand((3, 130, 3), dtype=torch.float64)
    models = hyperparameters(rng.uniform(0.1, 1.0, (3, 3)))
    paths = _paths(
        kernel, seen, models, *(torch.tensor(rng.standard_normal(shape)) for shape in ((20, 3), (3, 40), (3, t)))
    )
    oracle = dataclasses.replace(
        paths, compiled=False, correction=dataclasses.replace(paths.correction, compiled=False)
    )
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


# ---- ridge weights, also while histories grow

SHAPES = [(3, 8), (8, 3), (5, 5), (1, 6)]
NOISE = 0.04


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
def test_means_and_draws_have_the_posteriors_moments_and_masked_observations_say_nothing(t, m):
    """By Matheron's rule with fewer observations than features, else by Cholesky's factor."""
    phi, y = _data(t, m)
    mean = ridge_mean(phi, y, NOISE)
    for n in range(len(phi)):
        expected, covariance = _reference(phi[n].numpy(), y[n].numpy())
        one = phi[n : n + 1], y[n : n + 1], NOISE
        drawn, spread = moments(lambda z, e, one=one: ridge_sample(*one, prior=z, observation_noise=e), (m, t))
        for found in (mean[n].numpy(), drawn):
            np.testing.assert_allclose(found, expected, atol=1e-10)
        np.testing.assert_allclose(spread, covariance, atol=1e-10)
    padded = torch.cat([phi, torch.zeros(4, 2, m, dtype=torch.float64)], dim=1)
    values = torch.cat([y, torch.zeros(4, 2, dtype=torch.float64)], dim=1)
    torch.testing.assert_close(ridge_mean(padded, values, NOISE), mean)
    assert (ridge_mean(torch.zeros_like(phi), torch.zeros_like(y), NOISE) == 0).all()


def _histories(n=5, t=14, m=8, seed=0):
    """Unit features; one client repeats a point, another misses observations."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(n, t, m))
    features /= np.linalg.norm(features, axis=-1, keepdims=True)
    features[1, 3:9] = features[1, 2]
    values = generator.normal(size=(n, t))
    features[2, [0, 4, 5]], values[2, [0, 4, 5]] = 0.0, 0.0
    return torch.as_tensor(features), torch.as_tensor(values)


def _grown(features, noise, upto=None):
    n, t, m = features.shape
    ridge = GrowingRidge(n_clients=n, capacity=t, n_features=m, noise=noise)
    for index in range(t if upto is None else upto):
        ridge.append(features[:, index])
    return ridge


@pytest.mark.parametrize("noise", [1.0, 0.1, 1e-6])
def test_every_prefix_has_the_weights_of_a_fresh_factorisation(noise):
    features, values = _histories()
    ridge = _grown(features, noise)
    generator = torch.Generator().manual_seed(0)
    for t in (1, 2, 7, 14):
        prior = torch.randn(5, 8, dtype=torch.float64, generator=generator)
        e = torch.randn(5, t, dtype=torch.float64, generator=generator)
        drawn = ridge.sample(values[:, :t], prior=prior, observation_noise=e)
        phi, imagined = features[:, :t], (features[:, :t] @ prior[..., None])[..., 0] + noise**0.5 * e
        gram = phi @ phi.mT + noise * torch.eye(t, dtype=torch.float64)
        surprise = torch.linalg.solve(gram, (values[:, :t] - imagined)[..., None])
        expected = prior + (phi.mT @ surprise)[..., 0]
        # With noise 1e-6 and a repeated point the Gram matrix has condition 7e6.
        torch.testing.assert_close(drawn, expected, rtol=1e-5, atol=1e-7)


def test_an_answer_does_not_depend_on_earlier_answers():
    """As after a restart: to the last bit, or a vector sent again would be another one."""
    features, values = _histories(n=7)
    prior, e = torch.as_tensor(np.random.default_rng(1).normal(size=(7, 22))).split([8, 14], dim=1)

    def draw(ridge, t):
        return ridge.sample(values[:, :t], prior=prior, observation_noise=e[:, :t])

    step_by_step, at_once = _grown(features, 0.1, 0), _grown(features, 0.1)
    for t in range(1, 15):
        step_by_step.append(features[:, t - 1])
        answer = draw(step_by_step, t)
        assert torch.equal(draw(step_by_step, t), answer)
        assert torch.equal(draw(_grown(features, 0.1, t), t), answer)
    assert torch.equal(draw(at_once, 14), answer)
    assert torch.equal(draw(step_by_step, 5), draw(at_once, 5))
    assert torch.equal(draw(step_by_step, 14), answer)


@pytest.mark.parametrize("share", ["mean", "sample"])
def test_a_run_answers_the_same_with_and_without_growing_factors(share):
    """In a run so long that its factors would fill the memory every answer is factorised anew."""
    own = OwnModel(n_features=32, fit_steps=2, n_candidates=64)
    algorithm = Variant(n_features=40, share=share, own=own, noise=0.1)
    kept, answers = [], []
    for where in (setting(rounds=14), setting(rounds=2_000_000)):
        kept.append(GrowingRidge.pays(where.n_clients, algorithm.n_init + where.rounds, algorithm.n_features))
        with machine_code(used=True):
            answers.append([answer for _, answer in play(algorithm, where, until=setting().rounds)[0]])
    assert kept == [True, False]
    np.testing.assert_allclose(answers[0], answers[1], atol=1e-7)


def test_factors_are_kept_of_long_histories_as_far_as_one_run_has_memory():
    assert GrowingRidge.pays(n_clients=10_000, capacity=50, n_features=64)
    assert not GrowingRidge.pays(n_clients=100_000, capacity=50, n_features=64)
    assert not GrowingRidge.pays(n_clients=10_000, capacity=12, n_features=64)


def test_a_long_history_costs_no_more_memory_than_its_features():
    """A factor per observation would be a gigabyte here."""
    n, t, m = 4, 6_000, 8
    ridge = GrowingRidge(n_clients=n, capacity=t, n_features=m, noise=0.1)
    assert sum(part.nbytes for part in vars(ridge).values() if isinstance(part, np.ndarray)) < 2 * 8 * n * t * m
