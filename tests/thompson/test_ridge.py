"""Ridge weights against plain references, exactly: a draw is affine in its normals; and while histories grow."""

import numpy as np
import pytest
import torch

from experiments.baselines.dp_fts_de import Variant
from privbo.algorithms.thompson.posterior import GrowingRidge, ridge_mean, ridge_sample
from privbo.algorithms.thompson.settings import OwnModel
from tests.thompson.conftest import machine_code, moments, play, setting

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
        expected = ridge_mean(features[:, :t], values[:, :t], noise)
        # With noise 1e-6 and a repeated point the Gram matrix has condition 7e6.
        nothing = torch.zeros(5, 8, dtype=torch.float64), torch.zeros(5, t, dtype=torch.float64)
        mean = ridge.sample(values[:, :t], prior=nothing[0], observation_noise=nothing[1])
        torch.testing.assert_close(mean, expected, rtol=1e-5, atol=1e-7)
        prior = torch.randn(5, 8, dtype=torch.float64, generator=generator)
        e = torch.randn(5, t, dtype=torch.float64, generator=generator)
        drawn = ridge.sample(values[:, :t], prior=prior, observation_noise=e)
        phi, imagined = features[:, :t], (features[:, :t] @ prior[..., None])[..., 0] + noise**0.5 * e
        gram = phi @ phi.mT + noise * torch.eye(t, dtype=torch.float64)
        surprise = torch.linalg.solve(gram, (values[:, :t] - imagined)[..., None])
        expected = prior + (phi.mT @ surprise)[..., 0]
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


def test_a_row_that_is_not_appended_is_caught():
    features, values = _histories()
    ridge = _grown(features, 0.1, upto=13)
    ridge.count = 14
    nothing = torch.zeros(5, 22, dtype=torch.float64).split([8, 14], dim=1)
    mean = ridge.sample(values, prior=nothing[0], observation_noise=nothing[1])
    assert (mean - ridge_mean(features, values, 0.1)).abs().max() > 1e-3


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
