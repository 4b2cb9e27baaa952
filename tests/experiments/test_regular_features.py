"""A Fourier series of the kernel against the kernel itself."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from experiments.baselines.regular_features import regular_features
from privbo.algorithms.thompson.features import FourierFeatures
from tests.thompson.test_features import _correlation, _draw, _largest_kernel_error


# What a series over a lattice leaves out is computed, not estimated: these errors are exact up to rounding.
@pytest.mark.parametrize(
    ("n_embedded", "n_features", "lengthscale", "kernel", "error"),
    [
        (1, 50, 0.03, "se", 2e-4),
        (2, 64, 0.3, "se", 2e-3),
        (2, 200, 0.3, "matern52", 2e-2),
        (2, 400, 0.3, "matern32", 4e-2),
        (3, 400, 0.3, "se", 1e-2),
    ],
)
def test_few_regular_features_give_the_kernel(n_embedded, n_features, lengthscale, kernel, error):
    points = np.random.default_rng(1).random((200, n_embedded))
    distance = np.linalg.norm(points[:, None] - points[None], axis=-1) / lengthscale
    expected = _correlation(kernel, distance)
    regular, paired = (
        features(torch.as_tensor(points)).numpy()
        for features in (
            regular_features(n_features // 2, n_embedded, lengthscale, kernel),
            _draw(n_features, n_embedded, lengthscale, kernel),
        )
    )
    assert np.abs(regular @ regular.T - expected).max() < error
    assert np.abs(paired @ paired.T - expected).max() > 10 * np.abs(regular @ regular.T - expected).max()


def test_regular_features_without_their_powers_are_caught():
    features = regular_features(32, 2, 0.3, "se")
    flat = FourierFeatures(frequencies=features.frequencies)
    assert _largest_kernel_error(flat, "se", 0.3) > 0.1
    assert flat.digest != features.digest


@given(kernel=st.sampled_from(["se", "matern52", "matern32"]), half=st.integers(1, 20), n_embedded=st.integers(1, 4))
def test_every_point_has_unit_norm(kernel, half, n_embedded):
    phi = regular_features(half, n_embedded, 0.1, kernel)(torch.rand(7, 3, n_embedded, dtype=torch.float64))
    np.testing.assert_allclose(torch.linalg.vector_norm(phi, dim=-1).numpy(), 1.0, rtol=1e-12)
