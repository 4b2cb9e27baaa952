"""Filters: how much fits under them, what they guarantee, and why the best order of what was spent is none."""

import math

import numpy as np
import pytest

from accountant import calibrate, filters, gaussian_dp, renyi
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
    repeat,
)
from accountant.filters import fixed_order_filter, gaussian_filter, quote
from accountant.tight import numerical

ZERO = Adjacency.ZERO_OUT
ROUND = PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=1.0)


def most(guard, event):
    """How often an event fits under a filter's bound."""
    return calibrate.largest_count(lambda count: guard.cost(repeat(event, count)) <= guard.bound, 10**4)


def test_a_fixed_order_filter_never_passes_its_epsilon():
    guard = fixed_order_filter(epsilon=8.4, delta=200**-1.1, plan=repeat(ROUND, 40), adjacency=ZERO)
    count = most(guard, ROUND)
    assert 35 <= count <= 40
    assert renyi.epsilon(repeat(ROUND, count), guard.delta, adjacency=ZERO) <= 8.4
    assert guard.epsilon_of(guard.cost(repeat(ROUND, count))) <= 8.4 == guard.epsilon_of(guard.bound)
    assert most(guard, Gaussian(noise_multiplier=0.1)) == 0


def test_a_gaussian_filter_is_exact_and_charges_a_sample_as_everybody():
    guard = gaussian_filter(epsilon=2.6, delta=1e-5)
    loud = Gaussian(noise_multiplier=5.0)
    fixed = FixedSizeSampledGaussian(n_clients=40, sample_size=1, noise_multiplier=5.0)
    sampled = PoissonSampledGaussian(sample_rate=0.01, noise_multiplier=5.0)
    assert [most(guard, event) for event in (loud, sampled, fixed, ROUND)] == [10, 10, 10, 0]
    assert most(guard, Laplace(scale_multiplier=1e9)) == 0
    assert gaussian_dp.epsilon(repeat(loud, 11), 1e-5, adjacency=ZERO) > 2.6
    tighter = gaussian_dp.epsilon(repeat(loud, 10), 1e-9, adjacency=ZERO)
    assert guard.epsilon_at(1e-5) == 2.6
    assert tighter <= guard.epsilon_at(1e-9) < 1.01 * tighter


def test_the_order_of_a_plan_is_the_one_at_which_most_of_it_fits_and_can_be_named_again():
    plan = repeat(PoissonSampledGaussian(sample_rate=0.01, noise_multiplier=0.8), 1000)
    found = fixed_order_filter(epsilon=3.0, delta=1e-5, plan=plan, adjacency=ZERO)
    assert fixed_order_filter(epsilon=3.0, delta=1e-5, order=found.order, adjacency=ZERO) == found
    others = [
        fixed_order_filter(epsilon=3.0, delta=1e-5, order=order, adjacency=ZERO)
        for order in filters.ORDERS
        if renyi.epsilon_offsets(np.array([order]), 1e-5)[0] < 3.0
    ]
    assert found.bound / found.cost(plan) == max(other.bound / other.cost(plan) for other in others)
    with pytest.raises(AccountingError, match=r"order=7\.0 is none of the ledger's; the nearest is 6.65"):
        fixed_order_filter(epsilon=3.0, delta=1e-5, order=7.0, adjacency=ZERO)
    with pytest.raises(AccountingError, match=r"Rényi order 1\.5 leaves no room for epsilon=3 at delta=1e-05"):
        fixed_order_filter(epsilon=3.0, delta=1e-5, order=1.5, adjacency=ZERO)


@pytest.mark.parametrize("plan", [None, repeat(ROUND, 3)])
def test_a_budget_too_small_for_any_order_is_refused(plan):
    with pytest.raises(AccountingError, match="no Rényi order"):
        fixed_order_filter(epsilon=1e-9, delta=1e-5, plan=plan, adjacency=ZERO)


def test_what_is_not_private_costs_infinity_and_an_unsound_plan_is_refused():
    guard = fixed_order_filter(epsilon=100, delta=1e-5, adjacency=ZERO)
    assert guard.cost(NonPrivate()) == gaussian_filter(epsilon=100, delta=1e-5).cost(NonPrivate()) == math.inf
    event = FixedSizeSampledGaussian(n_clients=5, sample_size=2, noise_multiplier=1)
    with pytest.raises(EventError, match="add-or-remove-one"):
        fixed_order_filter(epsilon=9.0, delta=1e-5, plan=event, adjacency=Adjacency.ADD_OR_REMOVE_ONE)


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
        assert guard.epsilon_of(guard.cost(whole)) == pytest.approx(cost, abs=6e-4)
        assert guard.cost(whole) > guard.bound


def test_the_best_order_of_what_was_spent_is_no_fixed_order():
    """Reading the smallest epsilon over orders admits spending that the order fixed beforehand refuses."""
    rare_but_loud = PoissonSampledGaussian(sample_rate=1e-3, noise_multiplier=0.8)
    steady = PoissonSampledGaussian(sample_rate=0.5, noise_multiplier=8.0)
    for planned, made in [(rare_but_loud, steady), (steady, rare_but_loud)]:
        guard = fixed_order_filter(epsilon=1.5, delta=1e-6, plan=planned, adjacency=ZERO)
        curve = renyi.curve(made, filters.ORDERS, adjacency=ZERO)
        read = calibrate.largest_count(
            lambda n, curve=curve: renyi.epsilon_at_orders(n * curve, filters.ORDERS, 1e-6).min() <= 1.5, 10**7
        )
        assert read > 0
        assert guard.cost(repeat(made, read)) > guard.bound


def test_a_quote_is_of_a_plan_or_a_filter():
    plan, guard = repeat(ROUND, 40), fixed_order_filter(epsilon=9.0, delta=1e-5, adjacency=ZERO)
    stopped_early = quote(repeat(ROUND, 25), 1e-5, adjacency=ZERO, plan=plan, followed=True)
    assert stopped_early.guaranteed == numerical.epsilon(plan, 1e-5, adjacency=ZERO)
    assert stopped_early.as_if_non_adaptive < stopped_early.guaranteed
    for left in (
        quote(repeat(ROUND, 25), 1e-5, adjacency=ZERO, plan=plan, followed=False),
        quote(ROUND, 1e-5, adjacency=ZERO, plan=None, followed=True),
    ):
        assert (left.guaranteed, left.as_if_non_adaptive) == (math.inf, None)
        assert "nothing" in left.because
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
