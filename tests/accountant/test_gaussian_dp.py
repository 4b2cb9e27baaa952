"""Gaussian DP: exact at rate 1, an approximation with its own name elsewhere."""

import mpmath as mp
import pytest

from accountant import gaussian_dp
from accountant.errors import EventError
from accountant.events import (
    Adjacency,
    BestOfRandomRuns,
    Composed,
    FixedSizeSampledGaussian,
    Gaussian,
    Laplace,
    NonPrivate,
    PoissonSampledGaussian,
    compose,
)

ZERO = Adjacency.ZERO_OUT


def mpmath_delta(mu, epsilon):
    mp.mp.dps = 40
    mu, epsilon = mp.mpf(mu), mp.mpf(epsilon)
    return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize("mu", [1e-4, 0.03, 1.0, 7.0, 60.0])
@pytest.mark.parametrize("delta", [0.3, 1e-5, 1e-100])
def test_against_mpmath(mu, delta):
    event = Gaussian(noise_multiplier=1 / mu)
    epsilon = gaussian_dp.epsilon(event, delta, adjacency=ZERO)
    if epsilon == 0.0:
        assert mpmath_delta(mu, 0) <= delta
        return
    assert mpmath_delta(mu, epsilon) <= delta  # the safe side
    assert mpmath_delta(mu, epsilon * (1 - 1e-8)) > delta
    back = gaussian_dp.delta(event, epsilon, adjacency=ZERO)
    assert back == pytest.approx(float(mpmath_delta(mu, epsilon)), rel=1e-7)


@pytest.mark.parametrize("mu", [1e-4, 0.03, 1.0, 7.0, 60.0])
@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 1.0])
def test_delta_against_mpmath_is_on_the_safe_side_and_at_most_one(mu, epsilon):
    truth = mpmath_delta(mu, epsilon)
    found = gaussian_dp.delta(Gaussian(noise_multiplier=1 / mu), epsilon, adjacency=ZERO)
    assert found <= 1.0
    if truth > 1e-300:
        assert found >= min(truth, 1 - mp.mpf(10) ** -15)
        assert found == pytest.approx(float(truth), rel=1e-7, abs=0.0)


def test_mu_squared_adds_up():
    event = compose([(Gaussian(noise_multiplier=2.0), 3), PoissonSampledGaussian(sample_rate=1, noise_multiplier=0.5)])
    assert gaussian_dp.mu_squared(event) == pytest.approx(3 / 4 + 4)
    one = Gaussian(noise_multiplier=4.75**-0.5)
    assert gaussian_dp.epsilon(event, 1e-5, adjacency=ZERO) == pytest.approx(
        gaussian_dp.epsilon(one, 1e-5, adjacency=ZERO), rel=1e-12
    )


def test_sampled_releases_are_refused():
    with pytest.raises(EventError, match="rate 1"):
        gaussian_dp.epsilon(PoissonSampledGaussian(sample_rate=0.5, noise_multiplier=1), 1e-5, adjacency=ZERO)


@pytest.mark.parametrize("mu", [0.01, 0.9, 3.0, 40.0])
def test_the_largest_mu_of_a_target_is_the_inverse_of_its_epsilon_and_no_larger(mu):
    found = gaussian_dp.mu_from_epsilon(gaussian_dp.epsilon_from_mu(mu, 1e-5), 1e-5)
    assert mu * (1 - 1e-9) <= found <= mu


@pytest.mark.parametrize(
    "other",
    [
        Laplace(scale_multiplier=3.0),
        NonPrivate(),
        PoissonSampledGaussian(sample_rate=0.99, noise_multiplier=2.0),
        FixedSizeSampledGaussian(n_clients=5, sample_size=4, noise_multiplier=2.0),
        BestOfRandomRuns(run=Gaussian(noise_multiplier=2.0), eta=1.0, gamma=0.5),
    ],
    ids=lambda e: type(e).__name__,
)
def test_only_gaussians_that_everybody_takes_part_in_have_a_mu(other):
    whole = [
        (Gaussian(noise_multiplier=2.0), 3),
        PoissonSampledGaussian(sample_rate=1.0, noise_multiplier=2.0),
        FixedSizeSampledGaussian(n_clients=5, sample_size=5, noise_multiplier=2.0),
    ]
    assert gaussian_dp.mu_squared(compose(whole)) == 5 / 4
    assert gaussian_dp.mu_squared(Composed()) == 0.0
    assert gaussian_dp.mu_squared(compose([*whole, other])) is None
