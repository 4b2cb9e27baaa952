"""Log expected improvement against quadrature, and far beyond where quadrature ends."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from privbo.algorithms.thompson.acquisition import log_expected_improvement, log_improvement


@pytest.mark.parametrize(
    ("mean", "stddev", "best"), [(0.3, 0.5, 0.0), (-1.0, 0.7, 0.4), (2.0, 0.1, 1.0), (0.0, 2.0, 3.0)]
)
def test_it_is_the_logarithm_of_the_expected_improvement(mean, stddev, best):
    def integrand(f):
        return (f - best) * norm.pdf(f, mean, stddev)

    expected, _ = quad(integrand, best, max(best, mean) + 12 * stddev, epsabs=1e-14)
    found = log_expected_improvement(*(torch.tensor([x], dtype=torch.float64) for x in (mean, stddev**2, best)))
    assert float(found) == pytest.approx(math.log(expected), rel=1e-9)


@pytest.mark.parametrize("u", [5.0, 0.0, -0.99, -1.0, -1.01, -5.0, -40.0, -999.0, -1001.0, -1e5, -1e8])
def test_it_keeps_its_digits_however_far_the_best_value_is(u):
    with mpmath.workdps(80):
        exact = mpmath.log(mpmath.npdf(u) + u * mpmath.erfc(-mpmath.mpf(u) / mpmath.sqrt(2)) / 2)
    found = float(log_improvement(torch.tensor([u], dtype=torch.float64)))
    assert found == pytest.approx(float(exact), rel=1e-9, abs=1e-9)


def test_more_is_more_where_expected_improvement_itself_is_zero():
    u = torch.linspace(-2000.0, -30.0, 400, dtype=torch.float64)
    found = log_improvement(u)
    assert bool((found.diff() > 0).all())
    plain = norm.pdf(u.numpy()) + u.numpy() * norm.cdf(u.numpy())
    assert np.count_nonzero(plain > 0) < 20
