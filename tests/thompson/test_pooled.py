"""Trust in the pooled function rests on public numbers, and noise alone seldom earns any."""

import dataclasses

import numpy as np
import pytest
import torch

from privbo.algorithms.thompson.evaluations import without_minima
from privbo.algorithms.thompson.pooled import _SHARES, Blur, Blurs, blur, pool, public_points, sharpen
from privbo.algorithms.thompson.ridge import ridge_mean
from privbo.algorithms.thompson.shared_prior import SharedPrior
from tests.thompson.conftest import FINITE, MIXED, PLANE, setting

NOTHING_LOST = Blur(matrix=np.eye(64), norm=1.0)


@pytest.mark.parametrize("space", [PLANE, MIXED, FINITE], ids=["real", "mixed", "finite"])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_heights_are_centred_over_the_space_and_less_certain_with_noise(space, noise):
    where, algorithm = setting(space), SharedPrior()
    features = algorithm.draw_features(where)
    weights = np.random.default_rng(0).standard_normal(64)
    found = pool(features, where, weights, noise, NOTHING_LOST)
    points = public_points(where)
    heights, uncertainty = (part[0] for part in found.function(points[None]))
    assert float(heights.mean()) == pytest.approx(0.0, abs=1e-9)
    raw = features(torch.as_tensor(space.embed(points))) @ torch.as_tensor(weights)
    assert float(torch.corrcoef(torch.stack([raw, heights]))[0, 1]) > 0.95
    known, unknown = float(heights.var()), float(uncertainty.square().sum(1).mean())
    assert unknown > (0.01 if noise else 0.0) * known
    assert 0.1 <= found.rest <= 1.0


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kernel", ["se", "matern12", "matern32", "matern52"])
def test_moments_are_those_of_the_functions(kernel, count):
    """One pass with a triangular root against the functions themselves; at points of all clients, and of each."""
    where, rng = setting(MIXED), np.random.default_rng(1)
    features = SharedPrior(n_features=12, kernel=kernel).draw_features(where)
    found = pool(features, where, rng.standard_normal(12), 0.0, Blur(matrix=np.eye(12), norm=1.0))
    points, known = MIXED.snap(rng.random((count, 70, MIXED.n_dims))), torch.as_tensor(rng.standard_normal((3, 5, 12)))
    expected, uncertainty = found.function(points)
    mean, variance, together = found.moments(points, known)
    torch.testing.assert_close(mean, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(variance, uncertainty.square().sum(-1), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(together, known @ uncertainty.mT, rtol=1e-9, atol=1e-9)


def test_what_is_uncertain_is_what_was_missed():
    """2,000 common functions of the prior that the filter assumes, seen through a blur and noise.

    Every direction's error has the stated variance within a quarter (six standard errors of a mean of squares are .19),
    and planted, twice the noise, does not.
    """
    rng, noise, n_clients = np.random.default_rng(2), 0.02, 10_000
    basis = np.linalg.qr(rng.standard_normal((8, 8)))[0]
    shares = np.linspace(0.9, 0.02, 8)
    blurred = Blur(matrix=basis * shares @ basis.T, norm=1.0)
    common = np.sqrt(rng.choice(_SHARES[4:], (2000, 1))) * rng.standard_normal((2000, 8))

    def missed(stddev):
        noisy = [blurred.matrix @ w + stddev * rng.standard_normal(8) for w in common]
        found = [sharpen(row, noise, blurred, n_clients, 1.0)[:2] for row in noisy]
        errors = np.square((np.array([mean for mean, _ in found]) - common) @ basis).mean(axis=0)
        return errors, np.mean([np.square(root.T @ basis).sum(axis=0) for _, root in found], axis=0)

    errors, stated = missed(noise)
    assert errors == pytest.approx(stated, rel=0.25)
    errors, stated = missed(2 * noise)
    assert errors != pytest.approx(stated, rel=0.25)


@pytest.mark.parametrize("space", [PLANE, MIXED], ids=["real", "mixed"])
def test_noise_alone_seldom_looks_like_a_signal_and_a_signal_does(space):
    """600 draws of pure noise: a gate that opens for one in twelve opens for more than 15 % once in 10^7 runs.

    The planted fault, a gate that forgets the noise, opens always.
    """
    where, rng = setting(space), np.random.default_rng(5)
    features = SharedPrior().draw_features(where)
    noise = rng.standard_normal((600, 64))
    opened = [pool(features, where, row, 1.0, NOTHING_LOST) is not None for row in noise]
    assert np.mean(opened) < 0.15
    assert all(pool(features, where, row, 1e-3, NOTHING_LOST) is not None for row in noise[:20])
    loud = [pool(features, where, 6.0 * row, 1.0, NOTHING_LOST) for row in noise]
    assert np.mean([found is not None for found in loud]) > 0.99


def test_a_blur_is_what_clients_do_to_what_they_have_in_common():
    """4,000 surfaces, each seen by five clients at four points: on average their answers are the blurred surface.

    Answers are regressed on blurred weights: a slope of 1 within a tenth, where chance in 20,000 answers is about .02.
    Planted: what clients have in common is not what they answer with.
    """
    where = setting(PLANE)
    features = SharedPrior(n_features=12).draw_features(where)
    rng = np.random.default_rng(1)
    common = np.repeat(rng.standard_normal((4000, 12)), 5, axis=0)
    phi = features(torch.as_tensor(PLANE.embed(rng.random((20_000, 4, 2)))))
    values = without_minima(np.einsum("ntm,nm->nt", phi.numpy(), common), np.ones((20_000, 4), dtype=bool))
    answers = ridge_mean(phi, torch.as_tensor(values), 0.1).numpy()
    norms = np.linalg.norm(answers, axis=1, keepdims=True)
    answers = answers / np.maximum(norms, 1.0)
    found = blur(features, where, 4, noise=0.1, clipping_norm=1.0)
    expected = common @ found.matrix
    # Standardised surfaces: their own scale is not in an answer.
    points = features(torch.as_tensor(PLANE.embed(public_points(where)))).numpy()
    total = np.square(points - points.mean(axis=0)).sum(axis=1).mean()
    expected = expected / np.sqrt(total)
    slope = (answers * expected).sum() / np.square(expected).sum()
    assert slope == pytest.approx(1.0, abs=0.1)
    assert found.norm == pytest.approx(np.sqrt(np.square(answers).sum(axis=1).mean()), rel=0.05)
    plain = common / np.sqrt(total)
    assert (answers * plain).sum() / np.square(plain).sum() < 0.7


def test_a_blur_is_told_whether_answers_are_clipped():
    """Without privacy nothing is: answers of two points are longer than S, and whoever thinks them clipped finds
    in unlike clients much in common."""
    algorithm, norms = SharedPrior(), []
    for noise in (0.0, 0.1):
        where = dataclasses.replace(setting(PLANE), single_release_noise=lambda noise=noise: noise)
        norms.append(Blurs(algorithm, where, algorithm.draw_features(where)).before(1).norm)
    assert norms[0] > 1.2
    assert norms[1] <= 1.0 + 1e-9


@pytest.mark.parametrize(("noise", "gain"), [(0.0, 0.02), (0.03, 0.01), (1.0, -0.03)])
def test_sharpening_finds_the_common_function_where_noise_allows_and_does_no_harm_where_not(noise, gain):
    """Mean correlation over 60 functions with what was blurred, after and before; a sum of zeros stays one."""
    where, gains = setting(PLANE, n_clients=400), []
    features = SharedPrior().draw_features(where)
    phi = features(torch.as_tensor(PLANE.embed(public_points(where)))).numpy()
    phi = phi - phi.mean(axis=0)
    blurred, total = blur(features, where, 4, noise=0.1), float(np.square(phi).sum(axis=1).mean())
    for seed in range(60):
        rng = np.random.default_rng(seed)
        common, stddev = np.sqrt(rng.random() / total) * rng.standard_normal(64), noise / 8
        weights = blurred.matrix @ common + stddev * rng.standard_normal(64)
        found = sharpen(weights, stddev, blurred, 400, total)[0]
        after, before = (np.corrcoef(phi @ vector, phi @ common)[0, 1] for vector in (found, weights))
        gains.append(after - before)
    np.testing.assert_array_equal(sharpen(np.zeros(64), 0.1, blurred, 400, total)[0], np.zeros(64))
    assert np.mean(gains) > gain
