"""Trust in the pooled function rests on public numbers, and noise alone seldom earns any."""

import numpy as np
import pytest
import torch

from privbo.algorithms.thompson.pooled import blur, pool, public_points, sharpen, trust
from privbo.algorithms.thompson.posterior import ridge_mean
from privbo.algorithms.thompson.shared_prior import SharedPrior
from tests.thompson.conftest import FINITE, MIXED, PLANE, setting


@pytest.mark.parametrize("space", [PLANE, MIXED, FINITE], ids=["real", "mixed", "finite"])
def test_heights_are_standardised_over_the_space(space):
    where, algorithm = setting(space), SharedPrior()
    features = algorithm.draw_features(where)
    weights = np.random.default_rng(0).standard_normal(64)
    found = pool(features, where, weights, 0.0)
    points = public_points(where)
    heights = found.heights(points[None])[0]
    assert float(heights.mean()) == pytest.approx(0.0, abs=1e-9)
    assert float(heights.square().mean()) == pytest.approx(1.0, abs=1e-9)
    assert found.slope.mean == 0.98
    raw = features(torch.as_tensor(space.embed(points))) @ torch.as_tensor(weights)
    assert float(torch.corrcoef(torch.stack([raw, heights]))[0, 1]) == pytest.approx(1.0)


def test_trust_grows_with_the_signal():
    found = [trust(1.0, noise) for noise in (0.8, 0.5, 0.3, 0.1, 0.0)]
    assert found == sorted(found)
    assert found[0] == 0.0
    assert trust(0.0, 0.0) == 0.0


@pytest.mark.parametrize("space", [PLANE, MIXED], ids=["real", "mixed"])
def test_noise_alone_seldom_looks_like_a_signal_and_a_signal_does(space):
    """600 draws of pure noise: a gate that opens for one in twelve opens for more than 15 % once in 10^7 runs.

    The planted fault, a gate that forgets the noise, opens always.
    """
    where, rng = setting(space), np.random.default_rng(5)
    features = SharedPrior().draw_features(where)
    noise = rng.standard_normal((600, 64))
    opened = [pool(features, where, row, 1.0) is not None for row in noise]
    assert np.mean(opened) < 0.15
    assert all(pool(features, where, row, 1e-3) is not None for row in noise[:20])
    loud = [pool(features, where, 6.0 * row, 1.0) for row in noise]
    assert np.mean([found is not None for found in loud]) > 0.99


def test_a_blur_is_what_clients_do_to_what_they_have_in_common():
    """20,000 clients with one function, three uniform points each: their mean answer is the blurred function.

    Chance in their mean is below a hundredth; the blur itself is a mean over 128 designs, so a tenth or so of its
    length is chance. Planted: what they have in common is not what they answer with.
    """
    where = setting(PLANE)
    features = SharedPrior(n_features=12).draw_features(where)
    rng = np.random.default_rng(1)
    common = rng.standard_normal(12)
    phi = features(torch.as_tensor(PLANE.embed(rng.random((20_000, 3, 2)))))
    values = phi @ torch.as_tensor(common)
    answer = ridge_mean(phi, values - values.mean(dim=1, keepdim=True), 0.1).numpy().mean(axis=0)
    expected = blur(features, where, 3, 0.1) @ common
    assert np.linalg.norm(answer - expected) < 0.15 * np.linalg.norm(expected)
    assert np.linalg.norm(answer - common) > 0.3 * np.linalg.norm(expected)


@pytest.mark.parametrize(("noise", "gain"), [(0.0, 0.02), (0.03, 0.01), (1.0, -0.03)])
def test_sharpening_finds_the_common_function_where_noise_allows_and_does_no_harm_where_not(noise, gain):
    """Mean correlation over 60 functions with what was blurred, after and before; a sum of zeros stays one."""
    where, gains = setting(PLANE, n_clients=400), []
    features = SharedPrior().draw_features(where)
    phi = features(torch.as_tensor(PLANE.embed(public_points(where)))).numpy()
    phi = phi - phi.mean(axis=0)
    blurred = blur(features, where, 4, 0.1)
    for seed in range(60):
        rng = np.random.default_rng(seed)
        common, stddev = rng.standard_normal(64) / 8, noise / 8
        weights = blurred @ common + stddev * rng.standard_normal(64)
        found = sharpen(weights, stddev, blurred, 400)
        after, before = (np.corrcoef(phi @ vector, phi @ common)[0, 1] for vector in (found, weights))
        gains.append(after - before)
    np.testing.assert_array_equal(sharpen(np.zeros(64), 0.1, blurred, 400), np.zeros(64))
    assert np.mean(gains) > gain
