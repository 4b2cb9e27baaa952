"""The trade-off of an event: against closed forms, mpmath, single prices, attacks that are played, and other units."""

import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

import accountant
from accountant import Adjacency, NonPrivate, ZeroConcentrated, numerical, repeat, tradeoff
from accountant.curve import of_deltas
from accountant.errors import AccountingError, CalibrationError
from tests.accountant.builders import allocated, fixed, gaussian, laplace, poisson, sampled_laplace, truncated

ADD, ZERO, REPLACE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
RATES = np.array([1e-9, 1e-6, 1e-4, 0.01, 0.1, 0.5, 0.9])
CUT = truncated(40, 0.25, 12, 2.0)
SGD = repeat(poisson(0.25, 2.0), 40)


def test_gaussian_noise_has_its_closed_form_from_both_sides():
    mu = 2.0 / 3.0
    curve = tradeoff(repeat(gaussian(3.0), 4))
    exact = ndtr(ndtri(RATES) + mu)
    assert np.all(curve.attack_success(RATES, attained=True) <= exact)
    assert np.all(exact <= curve.attack_success(RATES))
    np.testing.assert_allclose(curve.attack_success(RATES), exact, rtol=5e-4)
    np.testing.assert_allclose(curve.attack_success(RATES, attained=True), exact, rtol=5e-4)
    assert curve.advantage() == pytest.approx(2.0 * ndtr(mu / 2.0) - 1.0, rel=1e-9)
    pair = tradeoff(repeat(gaussian(3.0), 4), group=2).attack_success(RATES)
    assert np.all(ndtr(ndtri(RATES) + 2.0 * mu) <= pair)
    np.testing.assert_allclose(pair, curve.attack_success(RATES, group=2), rtol=3e-3)


def test_one_laplace_release_has_its_closed_form():
    """With b = 1: the success is e a up to a = 1/(2 e), then 1 - exp(-1) / (4 a), then 1 - (1 - a) / e."""
    curve = tradeoff(laplace(1.0))
    rates = np.append(1e-9, np.linspace(0.01, 0.99, 50))
    near, middle, far = math.e * rates, 1.0 - math.exp(-1.0) / (4.0 * rates), 1.0 - (1.0 - rates) / math.e
    exact = np.where(rates <= 0.5 / math.e, near, np.where(rates <= 0.5, middle, far))
    low, high = curve.attack_success(rates, attained=True), curve.attack_success(rates)
    assert np.all((low <= exact) & (exact <= high))
    np.testing.assert_allclose(low, high, rtol=1e-3)


def test_randomised_response_has_its_closed_form():
    """True with chance p: the success is a p / (1 - p) up to a = 1 - p, then 1 - (1 - a)(1 - p) / p."""
    epsilons = np.linspace(0.0, 2.0, 101)
    p = 1.0 / (1.0 + math.exp(-2.0))
    curve = of_deltas(epsilons, np.maximum(0.0, p - (1.0 - p) * np.exp(epsilons)))
    exact = np.minimum(RATES * p / (1.0 - p), 1.0 - (1.0 - RATES) * (1.0 - p) / p)
    np.testing.assert_allclose(curve.attack_success(RATES), exact, rtol=1e-11)
    assert curve.advantage() == pytest.approx(2.0 * p - 1.0, rel=1e-11)


EVENTS = [
    (SGD, ADD, 2e-3),
    (repeat(poisson(256 / 60_000, 1.1), 14_040), ADD, 2e-3),
    (SGD, REPLACE, 2e-3),
    (repeat(sampled_laplace(0.1, 1.0), 30), ADD, 2e-3),
    (repeat(fixed(40, 4, 2.0), 40), ZERO, 2e-3),
    (allocated(8, 1, 1.0), ZERO, 4e-3),
    (accountant.of_group(SGD, 3, adjacency=ADD), ADD, 2e-3),
    (accountant.compose([SGD, gaussian(5.0), (laplace(9.0), 2)]), ADD, 2e-3),
    (repeat(CUT, 9), ZERO, None),
    (ZeroConcentrated(rho=0.1, xi=0.0), ADD, None),
]


@pytest.mark.parametrize(("event", "adjacency", "width"), EVENTS)
def test_both_ends_agree_with_single_prices_and_each_other(event, adjacency, width):
    curve = tradeoff(event, adjacency=adjacency)
    low, high = curve.attack_success(RATES, attained=True), curve.attack_success(RATES)
    assert np.all((low >= RATES) & (low <= high) & (high <= 1.0))
    if width is not None:
        np.testing.assert_allclose(low, high, rtol=width)
    for delta in (1e-7, 1e-4, 1e-2):
        price = numerical.epsilon_interval(event, delta, adjacency=adjacency)
        assert price.lower <= curve.epsilon(delta) <= 1.004 * price.upper + 1e-9
        assert 0.985 * price.lower <= curve.epsilon(delta, attained=True) <= price.upper
    for epsilon in np.array([0.0, 0.1, 0.5]) * curve.epsilons[-1]:
        price = numerical.delta_interval(event, float(epsilon), adjacency=adjacency)
        assert price.lower <= curve.delta(float(epsilon)) <= 1.02 * price.upper + 1e-12
        assert curve.delta(float(epsilon), attained=True) <= price.upper


def test_risk_and_advantage_are_points_of_the_same_curve():
    curve = tradeoff(SGD)
    assert curve.bayes_risk(0.5) == pytest.approx(0.5 * (1.0 - curve.advantage()), rel=1e-12)
    assert curve.bayes_risk(0.01) == pytest.approx(0.01, rel=1e-3)
    prior = np.array([0.0, 0.2, 0.8, 1.0])
    least = np.min(
        prior[:, None] * (1.0 - curve.attack_success(grid := np.linspace(0.0, 1.0, 2001)))
        + (1.0 - prior[:, None]) * grid,
        axis=1,
    )
    np.testing.assert_allclose(curve.bayes_risk(prior), least, rtol=2e-3, atol=1e-12)
    assert np.all(curve.bayes_risk(prior) <= curve.bayes_risk(prior, attained=True))


def test_the_ends_of_what_is_possible():
    nothing, everything = tradeoff(accountant.Composed()), tradeoff(NonPrivate())
    np.testing.assert_array_equal(nothing.attack_success(RATES, attained=True), RATES)
    np.testing.assert_allclose(nothing.attack_success(RATES), RATES, rtol=1e-9)
    np.testing.assert_array_equal(everything.attack_success(RATES), 1.0)
    assert (everything.bayes_risk(0.5), everything.epsilon(0.1), nothing.advantage()) == (0.0, math.inf, 0.0)
    quiet, loud = tradeoff(gaussian(1e30)), tradeoff(gaussian(1e-20))
    assert 0.0 < quiet.advantage() < 1e-30
    assert loud.attack_success(1e-9) == 1.0
    assert tradeoff(SGD, least=1e-30).attack_success(1e-30) < 1e-3 * tradeoff(SGD).attack_success(1e-30)


@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan])
def test_rates_out_of_range_are_refused(bad):
    curve = tradeoff(gaussian(3.0))
    for method, name in ((curve.attack_success, "fpr"), (curve.bayes_risk, "prior"), (curve.epsilon, "delta")):
        with pytest.raises(AccountingError, match=rf"{name}=.* must lie in \[0, 1\]"):
            method(bad)
    with pytest.raises(AccountingError, match=r"least=0\.0 must be above 0"):
        tradeoff(SGD, least=0.0)


@pytest.mark.parametrize(("tpr", "at_fpr"), [(0.05, 0.01), (0.01, 1e-5)])
def test_noise_is_found_for_a_success_rate(tpr, at_fpr):
    z = accountant.noise_multiplier(tpr=tpr, at_fpr=at_fpr, sample_rate=0.25, rounds=40)
    curve = tradeoff(noise_multiplier=z, sample_rate=0.25, rounds=40)
    assert curve.attack_success(at_fpr, attained=True) <= tpr
    assert 0.996 * tpr <= curve.attack_success(at_fpr) <= 1.004 * tpr


def test_noise_is_found_for_an_advantage_and_other_targets_are_refused():
    z = accountant.noise_multiplier(advantage=0.1, rounds=4)
    assert 2.0 * ndtr(1.0 / z) - 1.0 == pytest.approx(0.1, rel=1e-5)
    for given in ({}, {"epsilon": 1.0}, {"tpr": 0.1, "at_fpr": 0.01, "delta": 1e-5}):
        with pytest.raises(AccountingError, match="name epsilon and delta, or tpr and at_fpr, or advantage"):
            accountant.noise_multiplier(rounds=4, **given)
    with pytest.raises(CalibrationError, match=r"success 0\.1 above its false alarms 0.2"):
        accountant.noise_multiplier(rounds=4, tpr=0.1, at_fpr=0.2)
    with pytest.raises(CalibrationError, match=r"success at 0\.5 with 0\.499999999 false alarms; let the two differ"):
        accountant.noise_multiplier(rounds=1, tpr=0.5, at_fpr=0.499999999)


def test_it_is_drawn_and_written():
    from matplotlib.figure import Figure

    curve = accountant.Accountant().compose(SGD).tradeoff()
    axes = curve.plot(Figure().subplots())
    assert [line.get_label() for line in axes.lines] == ["no attack finds more", "an attack finds as many", "guessing"]
    written = curve.to_dict()
    assert written["right_guess"] == 1.0 - curve.bayes_risk(0.5)
    assert len(written["false_alarms"]) == len(written["caught_upper"]) == 21
