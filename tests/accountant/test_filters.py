"""Filters: what they admit, what they guarantee, and an adaptive adversary that beats what is no filter."""

import math

import numpy as np
import pytest

from accountant import filters, gaussian_dp, renyi
from accountant.envelope import envelope
from accountant.errors import AccountingError, EventError
from accountant.events import (
    Adjacency,
    Composed,
    FixedSizeSampledGaussian,
    Gaussian,
    Laplace,
    NonPrivate,
    PoissonSampledGaussian,
    compose,
    repeat,
)
from accountant.filters import Spent, fixed_order_filter, gaussian_filter, quote
from accountant.tight import numerical

ZERO = Adjacency.ZERO_OUT
ROUND = PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=1.0)


def charge_until_refused(guard, event, limit=10_000):
    spent, count = Spent(adjacency=ZERO), 0
    while count < limit and guard.admits(spent, event):
        spent, count = spent.add(event), count + 1
    return spent, count


def test_spent_adds_up_like_the_composition():
    other = Gaussian(noise_multiplier=3.0)
    spent = Spent(adjacency=ZERO).add(ROUND).add(other, 4).add(compose([ROUND, (other, 2)]))
    whole = compose([(ROUND, 2), (other, 6)])
    np.testing.assert_allclose(spent.curve, renyi.curve(whole, filters.ORDERS, adjacency=ZERO), rtol=1e-12)
    assert spent.releases == 8
    assert spent.mu_squared == pytest.approx(2 / 1.0**2 + 6 / 3.0**2)  # as if everybody took part
    assert spent.add(Laplace(scale_multiplier=1.0)).mu_squared == math.inf
    assert spent.epsilon(1e-5) == pytest.approx(renyi.epsilon(whole, 1e-5, adjacency=ZERO), rel=0.02)
    assert spent.epsilon(1e-5) >= renyi.epsilon(whole, 1e-5, adjacency=ZERO)


def test_nothing_spent_costs_nothing_and_gaussians_stay_exact():
    assert Spent(adjacency=ZERO).epsilon(1e-5) == 0.0
    spent = Spent(adjacency=ZERO).add(Gaussian(noise_multiplier=5.0), 10)
    assert spent.epsilon(1e-5) == pytest.approx(
        gaussian_dp.epsilon(repeat(Gaussian(noise_multiplier=5.0), 10), 1e-5, adjacency=ZERO), rel=1e-9
    )


@pytest.mark.parametrize("z", [0.3, 4.0, 2e3])
def test_what_gaussians_spent_is_rounded_up_like_the_accountants_own_answer(z):
    event = Gaussian(noise_multiplier=z)
    spent = Spent(adjacency=ZERO).add(event).add(event, 3)
    for delta in (0.01, 1e-9):
        wanted = gaussian_dp.epsilon(repeat(event, 4), delta, adjacency=ZERO)
        assert spent.epsilon(delta) == pytest.approx(wanted, rel=2e-13, abs=0.0)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_every_event_costs_what_it_costs_under_the_adjacency(adjacency):
    for event in (ROUND, Gaussian(noise_multiplier=2.0), Laplace(scale_multiplier=1.5)):
        found = Spent(adjacency=adjacency).add(event, 2).curve
        np.testing.assert_array_equal(found, 2 * event.renyi_curve(filters.ORDERS, adjacency))
    zero, one = (filters.cost(ROUND, which).curve for which in (ZERO, Adjacency.REPLACE_ONE))
    assert np.all(one < 0.99 * zero)  # of the same multiplier; the same noise is half of it there


def test_a_fixed_order_filter_never_passes_its_epsilon():
    guard = fixed_order_filter(epsilon=8.4, delta=200**-1.1, plan=repeat(ROUND, 40), adjacency=ZERO)
    spent, count = charge_until_refused(guard, ROUND)
    assert 35 <= count <= 40
    assert spent.epsilon(guard.delta) <= 8.4
    assert not guard.admits(spent, Gaussian(noise_multiplier=0.1))
    assert guard.admits(spent, Gaussian(noise_multiplier=1e6))


def test_a_gaussian_filter_is_exact_and_charges_a_sample_as_everybody():
    guard = gaussian_filter(epsilon=2.6, delta=1e-5)
    _, count = charge_until_refused(guard, Gaussian(noise_multiplier=5.0))
    assert count == 10
    assert gaussian_dp.epsilon(repeat(Gaussian(noise_multiplier=5.0), 11), 1e-5, adjacency=ZERO) > 2.6
    assert not guard.admits(Spent(adjacency=ZERO), ROUND)  # z = 1 once
    _, sampled = charge_until_refused(guard, PoissonSampledGaussian(sample_rate=0.01, noise_multiplier=5.0))
    fixed = FixedSizeSampledGaussian(n_clients=40, sample_size=1, noise_multiplier=5.0)
    assert (sampled, charge_until_refused(guard, fixed)[1]) == (10, 10)
    assert not guard.admits(Spent(adjacency=ZERO), Laplace(scale_multiplier=1e9))
    tighter = gaussian_dp.epsilon(repeat(Gaussian(noise_multiplier=5.0), 10), 1e-9, adjacency=ZERO)
    assert guard.epsilon_at(1e-5) == 2.6
    assert tighter <= guard.epsilon_at(1e-9) < 1.01 * tighter


def test_the_order_of_a_plan_is_the_one_at_which_most_of_it_fits_and_can_be_named_again():
    plan = repeat(PoissonSampledGaussian(sample_rate=0.01, noise_multiplier=0.8), 1000)
    found = fixed_order_filter(epsilon=3.0, delta=1e-5, plan=plan, adjacency=ZERO)
    assert fixed_order_filter(epsilon=3.0, delta=1e-5, order=found.order, adjacency=ZERO) == found
    fits = [
        fixed_order_filter(epsilon=3.0, delta=1e-5, order=order, adjacency=ZERO).bound
        / filters.cost(plan, ZERO).curve[index]
        for index, order in enumerate(filters.ORDERS)
        if renyi.epsilon_offsets(np.array([order]), 1e-5)[0] < 3.0
    ]
    assert found.bound / filters.cost(plan, ZERO).curve[found.index] == max(fits)
    with pytest.raises(AccountingError, match=r"order=7\.0 is none of the ledger's; the nearest is 6.65"):
        fixed_order_filter(epsilon=3.0, delta=1e-5, order=7.0, adjacency=ZERO)
    with pytest.raises(AccountingError, match=r"Rényi order 1\.5 leaves no room for epsilon=3 at delta=1e-05"):
        fixed_order_filter(epsilon=3.0, delta=1e-5, order=1.5, adjacency=ZERO)


@pytest.mark.parametrize("plan", [None, repeat(ROUND, 3)])
def test_a_budget_too_small_for_any_order_is_refused(plan):
    with pytest.raises(AccountingError, match="no Rényi order"):
        fixed_order_filter(epsilon=1e-9, delta=1e-5, plan=plan, adjacency=ZERO)


def test_non_private_is_never_admitted():
    for guard in (
        fixed_order_filter(epsilon=100, delta=1e-5, adjacency=ZERO),
        gaussian_filter(epsilon=100, delta=1e-5),
    ):
        assert not guard.admits(Spent(adjacency=ZERO), NonPrivate())


def test_unsound_events_are_refused():
    event = FixedSizeSampledGaussian(n_clients=5, sample_size=2, noise_multiplier=1)
    with pytest.raises(EventError, match="add-or-remove-one"):
        Spent(adjacency=Adjacency.ADD_OR_REMOVE_ONE).add(event)


@pytest.mark.parametrize(
    ("release", "budget", "tight", "by_plan", "by_budget"),
    [
        (Gaussian(noise_multiplier=10.85), 4.0, 3.984, 4.307, 4.307),
        (PoissonSampledGaussian(sample_rate=0.1, noise_multiplier=0.936156), 8.0, 8.000, 8.981, 10.959),
    ],
)
def test_what_five_runs_of_twenty_rounds_cost_under_each_rule(release, budget, tight, by_plan, by_budget):
    """The table of docs/accountants.md."""
    whole = repeat(release, 100)
    assert numerical.epsilon(whole, 1e-5, adjacency=ZERO) == pytest.approx(tight, abs=6e-4)
    assert envelope(whole, adjacency=ZERO).epsilon_at(1e-5) == numerical.epsilon(whole, 1e-5, adjacency=ZERO)
    for plan, cost in ((repeat(release, 20), by_plan), (None, by_budget)):
        guard = fixed_order_filter(epsilon=budget, delta=1e-5, plan=plan, adjacency=ZERO)
        spent = Spent(adjacency=ZERO).add(whole)
        assert budget - guard.bound + spent.curve[guard.index] == pytest.approx(cost, abs=6e-4)
        assert not guard.admits(Spent(adjacency=ZERO), whole)


def test_the_best_order_of_what_was_spent_is_no_fixed_order():
    """Reading the smallest epsilon over orders admits spending that the order fixed beforehand refuses."""
    rare_but_loud = PoissonSampledGaussian(sample_rate=1e-3, noise_multiplier=0.8)
    steady = PoissonSampledGaussian(sample_rate=0.5, noise_multiplier=8.0)
    refused = 0
    for planned, made in [(rare_but_loud, steady), (steady, rare_but_loud)]:
        guard = fixed_order_filter(epsilon=1.5, delta=1e-6, plan=planned, adjacency=ZERO)
        low, high = 0, 10**7
        while high - low > 1:
            middle = (low + high) // 2
            reading = Spent(adjacency=ZERO).add(made, middle).epsilon(1e-6)
            low, high = (middle, high) if reading <= 1.5 else (low, middle)
        assert low > 0
        refused += not guard.admits(Spent(adjacency=ZERO), made, low)
    assert refused == 2


def test_quote_of_a_followed_plan_is_the_plans():
    plan = repeat(ROUND, 40)
    stopped_early = quote(repeat(ROUND, 25), 1e-5, adjacency=ZERO, plan=plan, followed=True)
    assert stopped_early.guaranteed == numerical.epsilon(plan, 1e-5, adjacency=ZERO)
    assert stopped_early.as_if_non_adaptive < stopped_early.guaranteed


def test_quote_refuses_the_reading_once_the_plan_was_left():
    plan = repeat(ROUND, 40)
    left = quote(repeat(ROUND, 25), 1e-5, adjacency=ZERO, plan=plan, followed=False)
    assert left.guaranteed == math.inf
    assert left.as_if_non_adaptive is None
    guard = fixed_order_filter(epsilon=9.0, delta=1e-5, adjacency=ZERO)
    guarded = quote(repeat(ROUND, 2), 1e-5, adjacency=ZERO, plan=plan, followed=False, admitted_by=guard)
    assert guarded.guaranteed == 9.0
    assert "FixedOrderFilter" in guarded.because
    for delta in (1e-9, 1e-3):  # the bound at its order holds at every delta
        elsewhere = quote(Composed(), delta, adjacency=ZERO, plan=None, followed=False, admitted_by=guard).guaranteed
        wanted = renyi.epsilon_at_orders(np.array([guard.bound]), np.array([guard.order]), delta)[0]
        assert elsewhere == wanted == guard.epsilon_at(delta)
    assert guard.epsilon_at(1e-9) > guard.epsilon_at(1e-5) == 9.0 > guard.epsilon_at(1e-3)


@pytest.mark.parametrize(
    "change", [{"delta": 0.0}, {"delta": 1.0}, {"delta": math.nan}, {"epsilon": -1.0}, {"epsilon": math.nan}]
)
def test_a_guarantee_out_of_range_is_refused_by_name(change):
    settings, name = {"epsilon": 2.0, "delta": 1e-5} | change, next(iter(change))
    for build in (lambda: fixed_order_filter(**settings, adjacency=ZERO), lambda: gaussian_filter(**settings)):
        with pytest.raises(AccountingError, match=f"^{name} must"):
            build()
    if name == "delta":
        for spent in (Spent(adjacency=ZERO), Spent(adjacency=ZERO).add(ROUND)):
            with pytest.raises(AccountingError, match=r"^delta must"):
                spent.epsilon(change["delta"])


def test_without_a_plan_nothing_was_followed():
    found = quote(ROUND, 1e-5, adjacency=ZERO, plan=None, followed=True)
    assert (found.guaranteed, found.as_if_non_adaptive) == (math.inf, None)
    assert "nothing" in found.because


def test_a_remembered_price_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        filters.cost(ROUND, ZERO).curve[0] = 0.0
    free = filters.cost(NonPrivate(), ZERO)
    assert (set(free.curve.tolist()), free.mu_squared) == ({math.inf}, math.inf)
