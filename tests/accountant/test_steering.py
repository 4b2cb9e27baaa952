"""Where to compute: tilt, spacing and window of Gaussian losses, which have closed forms.

A wrong place costs width or time, never a bound; these tests say that the place is a good one.
"""

import math

import numpy as np
import pytest

from accountant.events import Adjacency, Gaussian, PoissonSampledGaussian
from accountant.tight import refine
from accountant.tight.refine import Rough, rough, spacing_for, tilt_for_delta, tilt_for_epsilon, window_for


def gaussian(mu, count=1):
    """Losses of count Gaussian releases of total mu: N(mu^2 / 2, mu^2) in all."""
    (pair,) = Gaussian(noise_multiplier=math.sqrt(count) / mu).pairs(Adjacency.ZERO_OUT)
    return rough([(pair, count)], 12.0)


def small():
    """Two parts of unlike weight, one of them made three times."""
    masses = np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]])
    return Rough(
        loss=np.array([[-1.0, 0.5, 2.0], [0.0, 1.0, 3.0]]), log_mass=np.log(masses), counts=np.array([3.0, 1.0])
    )


@pytest.mark.parametrize("theta", [-0.5, 0.0, 0.7, 20.0, 900.0])
def test_moments_are_direct_sums(theta):
    found, total, mean, variance, added = small(), 0.0, 0.0, 0.0, 0.0
    for loss, log_mass, count in zip(found.loss, found.log_mass, found.counts, strict=True):
        terms = log_mass + theta * loss
        weight = np.exp(terms - terms.max())
        total += count * (math.log(weight.sum()) + terms.max())
        weight /= weight.sum()
        mean += count * float(weight @ loss)
        variance += count * float(weight @ loss**2 - (weight @ loss) ** 2)
        upper, lower = np.minimum(0.6**2 / 6, abs(loss) * 0.6), np.minimum(0.6**2 / 12, loss**2)
        added += count * float(weight @ (upper + lower))
    assert found.log_mgf(theta) == pytest.approx(total, rel=1e-12, abs=1e-12)
    assert found.tilted_moments(theta) == pytest.approx((mean, variance), rel=1e-9, abs=1e-12)
    assert found.added_variance(theta, 0.6) == pytest.approx(added, rel=1e-12)


def test_a_release_of_small_losses_gains_no_more_variance_than_they_have():
    losses = np.array([[-1e-3, 1e-3]])
    found = Rough(loss=losses, log_mass=np.log(np.array([[0.5, 0.5]])), counts=np.array([7.0]))
    assert found.added_variance(0.0, 0.5) == pytest.approx(7 * (1e-3 * 0.5 + 1e-6), rel=1e-12)


def test_parts_of_unlike_length_share_an_array():
    pair, other = (
        event.pairs(Adjacency.ZERO_OUT)[0]
        for event in (Gaussian(noise_multiplier=2.0), PoissonSampledGaussian(sample_rate=0.1, noise_multiplier=1.0))
    )
    short = refine.Pair(
        tails=pair.tails,
        loss_range=pair.loss_range,
        loss_error=0.0,
        nodes=lambda t: tuple(x[:5] for x in pair.nodes(t)),
    )
    found = rough([(other, 2), (short, 3)], 9.0)
    assert found.counts.tolist() == [2.0, 3.0]
    np.testing.assert_array_equal(found.loss[0], other.nodes(9.0)[0])
    np.testing.assert_array_equal(found.log_mass[0], other.nodes(9.0)[1])
    np.testing.assert_array_equal(found.loss[1, :5], pair.nodes(9.0)[0][:5])
    np.testing.assert_array_equal(found.log_mass[1, :5], pair.nodes(9.0)[1][:5])
    assert np.all(np.exp(found.log_mass[1, 5:]) == 0.0)
    assert np.all(found.loss[1, 5:] == 0.0)


@pytest.mark.parametrize("mu", [0.02, 1.0, 6.0])
@pytest.mark.parametrize("count", [1, 100])
def test_tilts_are_chernoffs(mu, count):
    """Log mgf t (t + 1) mu^2 / 2: the best tilt is sqrt(2 log(1 / delta)) / mu, or eps / mu^2 - 1/2."""
    moments = gaussian(mu, count)
    for delta in (0.1, 1e-5):
        log_inverse = math.log(1 / delta)
        theta, epsilon = tilt_for_delta(moments, delta)
        assert theta == pytest.approx(math.sqrt(2 * log_inverse) / mu, rel=0.02)
        assert epsilon == pytest.approx(0.5 * mu * mu + mu * math.sqrt(2 * log_inverse), rel=1e-3)
    for deviations in (1.0, 4.0):
        epsilon = 0.5 * mu * mu + deviations * mu
        theta, log_delta = tilt_for_epsilon(moments, epsilon)
        assert theta == pytest.approx(deviations / mu, rel=0.02)
        assert log_delta == pytest.approx(-0.5 * deviations**2, rel=1e-2, abs=1e-4)


@pytest.mark.parametrize("least", [4.0**-9, 4.0**-7.3, 0.1, 1.0, 3.0, 700.0, 4.0**9.4, 4.0**12, 4.0**20])
def test_a_minimum_is_found_within_the_powers_searched(least):
    asked = []

    def objective(tilt):
        asked.append(tilt)
        return math.log(tilt / least) ** 2

    found = refine._minimise(objective)
    assert math.log(found / min(max(least, 4.0**-8), 4.0**18)) == pytest.approx(0.0, abs=0.01)
    assert len(asked) <= 48


def test_the_spacing_moves_epsilon_by_what_it_may():
    moments = gaussian(1.0, 100)
    for theta, tolerance in ((2.0, 1e-3), (30.0, 1e-5)):
        spacing = spacing_for(moments, theta, tolerance)
        moved = 0.5 * (theta + 1) * moments.added_variance(theta, spacing)
        assert 0.995 * tolerance <= moved <= tolerance
    assert spacing_for(moments, 2.0, 1e9) == pytest.approx(1.0, rel=1e-3)
    assert spacing_for(moments, 2.0, 0.0) == pytest.approx(1e-9, rel=1e-3)


@pytest.mark.parametrize(("mu", "theta", "spacing"), [(1.0, 3.0, 0.01), (0.1, 20.0, 1e-4), (4.0, 0.5, 0.3)])
def test_a_window_holds_all_but_e_to_minus_23(mu, theta, spacing):
    """The tilted sum is N(mu^2 (1/2 + theta), mu^2): sqrt(46) standard deviations to both sides."""
    window = window_for(gaussian(mu, 400), theta, spacing)
    center, reach = mu * mu * (0.5 + theta), math.sqrt(2 * 23.0) * mu
    bottom, top = spacing * window.start, spacing * (window.start + window.size)
    assert center - 1.05 * reach - 6 * spacing <= bottom <= center - 0.99 * reach - 3 * spacing
    assert center + 0.99 * reach + 3 * spacing <= top <= center + 1.25 * reach + 12 * spacing
    natural = math.sqrt(2 * 23.0) / mu
    assert window.up == pytest.approx(natural, rel=1e-2)
    assert window.down == pytest.approx(-natural, rel=1e-2)
    tiny = window_for(gaussian(1e-6, 1), 1.0, 0.5)
    assert tiny.size >= 16
    assert tiny.start <= -3
