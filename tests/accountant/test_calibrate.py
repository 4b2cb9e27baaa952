"""Calibration meets its target from the safe side and does not overshoot."""

import pytest

from accountant import calibrate, moments, renyi
from accountant import epsilon as tightest
from accountant.errors import AccountingError, CalibrationError
from accountant.events import Adjacency, Gaussian, NonPrivate, PoissonSampledGaussian, compose, repeat

ZERO = Adjacency.ZERO_OUT
DELTA = 1e-5


def poisson(q, z, count=1):
    return repeat(PoissonSampledGaussian(sample_rate=q, noise_multiplier=z), count)


@pytest.mark.parametrize("accountant", [tightest.epsilon, renyi.epsilon, moments.epsilon])
@pytest.mark.parametrize("target", [1.0, 10.0])
def test_noise_multiplier(accountant, target):
    def plan(z):
        return compose([poisson(0.1, z, 30), poisson(0.4, 2 * z, 10), Gaussian(noise_multiplier=5 * z)])

    z = calibrate.noise_multiplier(plan, epsilon=target, delta=DELTA, adjacency=ZERO, accountant=accountant)
    assert accountant(plan(z), DELTA, adjacency=ZERO) <= target
    assert accountant(plan(z * 0.998), DELTA, adjacency=ZERO) > target * 0.9985


def test_command_line_example():
    z = calibrate.noise_multiplier(lambda z: poisson(0.25, z, 40), epsilon=4, delta=0.00294352, adjacency=ZERO)
    cost = tightest.epsilon(poisson(0.25, z, 40), 0.00294352, adjacency=ZERO)
    assert 3.99 <= cost <= 4


def test_sample_rate_and_rounds_and_delta():
    q = calibrate.sample_rate(1.0, rounds=40, epsilon=4.0, delta=DELTA, adjacency=ZERO)
    assert 3.99 <= tightest.epsilon(poisson(q, 1.0, 40), DELTA, adjacency=ZERO) <= 4.0
    count = calibrate.rounds(1.0, sample_rate=0.25, epsilon=4.0, delta=1e-3, adjacency=ZERO)
    assert tightest.epsilon(poisson(0.25, 1.0, count), 1e-3, adjacency=ZERO) <= 4.0
    assert tightest.epsilon(poisson(0.25, 1.0, count + 1), 1e-3, adjacency=ZERO) > 4.0 * 0.998
    delta = calibrate.delta(1.0, sample_rate=0.25, rounds=40, epsilon=7.06, adjacency=ZERO)
    assert delta == pytest.approx(200**-1.1, rel=0.02)
    epsilon = calibrate.epsilon(1.0, sample_rate=0.25, rounds=40, delta=200**-1.1, adjacency=ZERO)
    assert epsilon == pytest.approx(7.054, rel=2e-3)


def test_everything_affordable_is_rate_one():
    assert calibrate.sample_rate(50.0, rounds=3, epsilon=4.0, delta=DELTA, adjacency=ZERO) == 1.0
    assert calibrate.rounds(0.1, sample_rate=1.0, epsilon=0.1, delta=DELTA, adjacency=ZERO) == 0


def test_remaining_schedule():
    charged = poisson(0.25, 1.0, 10)
    z = calibrate.remaining_noise_multiplier(
        charged, lambda z: poisson(0.25, z, 30), epsilon=7.0, delta=DELTA, adjacency=ZERO
    )
    total = compose([charged, poisson(0.25, z, 30)])
    assert 6.98 <= tightest.epsilon(total, DELTA, adjacency=ZERO) <= 7.0
    with pytest.raises(CalibrationError, match="spent already"):
        calibrate.remaining_noise_multiplier(
            charged, lambda z: poisson(0.25, z, 30), epsilon=1.0, delta=DELTA, adjacency=ZERO
        )


def test_impossible_targets():
    with pytest.raises(CalibrationError, match="no noise multiplier"):
        calibrate.noise_multiplier(lambda z: NonPrivate(), epsilon=1, delta=DELTA, adjacency=ZERO)
    for epsilon in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(AccountingError):
            calibrate.noise_multiplier(lambda z: poisson(1, z), epsilon=epsilon, delta=DELTA, adjacency=ZERO)
    with pytest.raises(AccountingError, match="delta"):
        calibrate.rounds(1.0, sample_rate=0.1, epsilon=1.0, delta=0.0, adjacency=ZERO)
