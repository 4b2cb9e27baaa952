"""Trust in the pooled function rests on public numbers, and noise alone seldom earns any."""

import numpy as np
import pytest
import torch

from privbo.algorithms.thompson.pooled import pool, public_points, trust
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
    """600 draws of pure noise: a gate that opens for one in five opens for more than 28 % once in 10^6 runs.

    The planted fault, a gate that forgets the noise, opens always.
    """
    where, rng = setting(space), np.random.default_rng(5)
    features = SharedPrior().draw_features(where)
    noise = rng.standard_normal((600, 64))
    opened = [pool(features, where, row, 1.0) is not None for row in noise]
    assert np.mean(opened) < 0.28
    assert all(pool(features, where, row, 1e-3) is not None for row in noise[:20])
    loud = [pool(features, where, 6.0 * row, 1.0) for row in noise]
    assert np.mean([found is not None for found in loud]) > 0.99
