"""The pieces of the Rényi quadrature at many digits, where they change from one formula to the next and far beyond.

At integer orders a Poisson sample's moment is a finite sum (Mironov, Talwar, Zhang 2019, equation 6), whatever q, z
and the order; so is the part of a fixed-size sample's that grows.
"""

import math

import mpmath as mp
import numpy as np
import pytest

from accountant.events import (
    Adjacency,
    BestOfRandomRuns,
    FixedSizeSampledGaussian,
    Gaussian,
    Laplace,
    PoissonSampledGaussian,
    compose,
)
from accountant.mechanisms import quadrature
from accountant.mechanisms.selection import TruncatedNegativeBinomial

ZERO, REPLACE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE


def close(found, truth, relative):
    return abs(mp.mpf(float(found)) - truth) <= relative * abs(truth)


# --- pieces ---------------------------------------------------------------------------------


@pytest.mark.parametrize("q", [1e-9, 0.01, 0.5, 1 - 1e-9])
def test_the_mixtures_log_ratio(q):
    mp.mp.dps = 60
    s = np.array([-800.0, -40.0, -3.0, -1e-7, 0.0, 1e-9, 0.4, 29.9, 30.1, 299.0, 301.0, 5000.0])
    for at, log_ratio, shift in zip(s, quadrature.log_mixture(q, s), quadrature.shift(q, s), strict=True):
        truth = mp.log(1 - mp.mpf(q) + mp.mpf(q) * mp.exp(mp.mpf(float(at))))
        assert close(log_ratio, truth, 1e-14 / (1 - q) if at < 0 else 1e-14)
        if at <= 300:
            assert close(shift, mp.mpf(q) * mp.expm1(mp.mpf(float(at))), 1e-14)
        assert np.isfinite(shift)


def test_phi_in_all_its_forms():
    """log((1 + u)^a - 1 - a u): series, difference and quotient, at both sides of every border between them."""
    mp.mp.dps = 200
    orders = np.array([1.0001, 1.5, 2.0, 3.0, 7.7, 200.0, 4096.0, 1e5])
    beside = [0.19999, 0.20001]
    u = [s * b / a for a in (*orders, 1.0) for s in (1, -1) for b in beside]
    u += [1e-80, -1e-12, 1e-5, 0.5, -0.5, -0.99999, 1.0, 1.6, 1.8, 30.0, 1e5, 1e40]
    u = np.array([x for x in u if x > -1])
    grid = quadrature.Grid(log_weight=np.zeros(len(u)), excess=u, log_ratio=np.log1p(u))
    beyond = quadrature.Grid(log_weight=np.zeros(1), excess=np.array([math.exp(300.0)]), log_ratio=np.array([900.0]))
    found = quadrature.log_phi(grid, orders)
    assert found.shape == (len(orders), len(u))
    assert np.all(quadrature.log_phi(quadrature.Grid(log_weight=u, excess=0 * u, log_ratio=0 * u), orders) == -np.inf)
    for row, order in enumerate(orders):
        a = mp.mpf(float(order))
        for column, value in enumerate(u):
            x = mp.mpf(float(value))
            truth = mp.log((1 + x) ** a - 1 - a * x)
            # a difference of order u^2 of terms of size a |u| keeps 15 digits less those of the quotient
            assert abs(mp.mpf(float(found[row, column])) - truth) <= 2e-12 * max(1, abs(truth))
        huge = 900 * a + mp.log1p(-a * mp.exp(-900 * (a - 1)))  # 1 and what u lost at 300 are nothing beside it
        assert close(quadrature.log_phi(beyond, orders)[row, 0], huge, 1e-12)


def test_sums_and_moments_in_logarithms():
    terms = np.array([[-800.0, -801.0, -799.5], [900.0, 5.0, -np.inf]])
    truth = [-800.0 + math.log(1 + math.exp(-1.0) + math.exp(0.5)), 900.0]
    np.testing.assert_allclose(quadrature.log_sum(terms), truth, rtol=1e-14)
    mp.mp.dps = 40
    logs, orders = np.array([-600.0, -40.0, -0.1, 0.0, 0.1, 60.0, 5000.0]), np.array([1.01, 2, 3, 4, 5, 6, 7])
    for log, order, found in zip(logs, orders, quadrature.from_log_excess(logs, orders), strict=True):
        assert close(found, mp.log1p(mp.exp(mp.mpf(float(log)))) / (mp.mpf(float(order)) - 1), 1e-14)


# --- whole curves ---------------------------------------------------------------------------


def test_orders_beyond_the_grid_cost_what_everybody_costs():
    """Up to half of z, the step and 50,000 points; the last order before it is still a sample's."""
    for event, last in (
        (PoissonSampledGaussian(sample_rate=0.01, noise_multiplier=1.0), 0.45 * 25_000),
        (PoissonSampledGaussian(sample_rate=0.01, noise_multiplier=0.5), 0.5 * 0.24 * 25_000),
        (FixedSizeSampledGaussian(n_clients=100, sample_size=1, noise_multiplier=1.0), 25_000 / 24),
        (FixedSizeSampledGaussian(n_clients=100, sample_size=1, noise_multiplier=3.0), 3 * 25_000 / 24),
    ):
        z = event.noise_multiplier
        orders = np.array([2.0, 0.999 * last, 1.001 * last])
        found = event.renyi_curve(orders, ZERO)
        assert found[2] == orders[2] / (2 * z * z)
        sampled = orders[1] / (2 * z * z) + math.log(0.01) * orders[1] / (orders[1] - 1)  # the largest term alone
        assert found[1] == pytest.approx(sampled, rel=1e-9)
        assert found[0] < 0.1 * orders[0] / (2 * z * z)


@pytest.mark.parametrize("z", [0.07, 0.09])
def test_at_little_noise_the_whole_peak_of_the_largest_order_is_inside(z):
    """There the largest term q^a exp(a (a - 1) / (2 z^2)) is all, whichever way clients are sampled."""
    orders = np.array([1.5, 2.0, 3.0, 4.0])
    wanted = orders / (2 * z * z) + orders / (orders - 1) * math.log(0.25)
    for event in (
        FixedSizeSampledGaussian(n_clients=8, sample_size=2, noise_multiplier=z),
        PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=z),
    ):
        for few in (orders, orders[:2]):
            np.testing.assert_allclose(event.renyi_curve(few, ZERO), wanted[: len(few)], rtol=1e-12)


@pytest.mark.parametrize("b", [0.004, 0.3, 1.0, 40.0, 999.0, 1e5])
def test_laplace_has_a_closed_form(b):
    """Mironov 2017, Table II, at 60 digits; orders on both sides of a / b = 1e-3 and of (a - 1) / b = 1."""
    mp.mp.dps = 60
    orders = np.array(
        [1.0001, 1.5, 2.0, 9.0, 0.999e-3 * b, 1.001e-3 * b, 1 + 2.0**-8, 1 + 0.999 * b, 1 + 1.001 * b, 300.0]
    )
    orders = orders[orders > 1]
    for order, value in zip(orders, Laplace(scale_multiplier=b).renyi_curve(orders, ZERO), strict=True):
        a, x = mp.mpf(float(order)), 1 / mp.mpf(b)
        moment = a / (2 * a - 1) * mp.exp((a - 1) * x) + (a - 1) / (2 * a - 1) * mp.exp(-a * x)
        assert close(value, mp.log(moment) / (a - 1), 2e-13)
        assert value <= 1 / b


@pytest.mark.parametrize("adjacency", [ZERO, REPLACE])
def test_a_selections_curve_is_asked_of_its_run(adjacency):
    run = compose([(PoissonSampledGaussian(sample_rate=0.3, noise_multiplier=2.0), 3), Gaussian(noise_multiplier=4.0)])
    event, orders = BestOfRandomRuns(run=run, eta=0.5, gamma=0.1), np.array([2.0, 8.0])

    def cost(at):
        return sum(count * part.renyi_curve(at, adjacency) for part, count in run.parts)

    wanted = TruncatedNegativeBinomial(eta=0.5, gamma=0.1).curve(cost, orders)
    np.testing.assert_allclose(event.renyi_curve(orders, adjacency), wanted, rtol=1e-14)
