"""Filters: how much fits under them, what they guarantee, and why the best order of what was spent is none."""

import math
from dataclasses import replace
from functools import cache
from operator import mul

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from accountant import calibrate, filters, gaussian_dp, renyi
from accountant.envelope import Envelope, dominates, envelope, free_places
from accountant.errors import AccountingError, EventError
from accountant.events import Adjacency, BestOfRandomRuns, Composed, NonPrivate, ZeroConcentrated, compose, repeat
from accountant.filters import fixed_order_filter, gaussian_filter, quote
from accountant.tight import numerical
from tests.accountant.adversaries import strongest
from tests.accountant.builders import allocated, fixed, gaussian, laplace, lengths, poisson, sampled_laplace, truncated
from tests.accountant.oracles import bisected, profile

ZERO, REPLACE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
ROUND = poisson(0.25, 1.0)


def most(guard, event):
    """How often an event fits under a filter's bound."""
    return calibrate.largest_count(lambda count: guard.cost(repeat(event, count)) <= guard.bound, 10**4)


def test_a_fixed_order_filter_never_passes_its_epsilon():
    guard = fixed_order_filter(epsilon=8.4, delta=200**-1.1, plan=repeat(ROUND, 40), adjacency=ZERO)
    count = most(guard, ROUND)
    assert 35 <= count <= 40
    assert renyi.epsilon(repeat(ROUND, count), guard.delta, adjacency=ZERO) <= 8.4
    assert guard.epsilon_of(guard.cost(repeat(ROUND, count))) <= 8.4 == guard.epsilon_of(guard.bound)
    assert most(guard, gaussian(0.1)) == 0


def test_a_gaussian_filter_is_exact_and_charges_a_sample_as_everybody():
    guard = gaussian_filter(epsilon=2.6, delta=1e-5)
    loud = gaussian(5.0)
    menu = (loud, poisson(0.01, 5.0), fixed(40, 1, 5.0), ROUND, laplace(1e9))
    assert [most(guard, event) for event in menu] == [10, 10, 10, 0, 0]
    assert gaussian_dp.epsilon(repeat(loud, 11), 1e-5, adjacency=ZERO) > 2.6
    tighter = gaussian_dp.epsilon(repeat(loud, 10), 1e-9, adjacency=ZERO)
    assert guard.epsilon_at(1e-5) == 2.6
    assert tighter <= guard.epsilon_at(1e-9) < 1.01 * tighter


def test_the_order_of_a_plan_is_the_one_at_which_most_of_it_fits_and_can_be_named_again():
    plan = poisson(0.01, 0.8, 1000)
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
    event = fixed(5, 2, 1)
    with pytest.raises(EventError, match="add-or-remove-one"):
        fixed_order_filter(epsilon=9.0, delta=1e-5, plan=event, adjacency=Adjacency.ADD_OR_REMOVE_ONE)


@pytest.mark.parametrize(
    ("release", "budget", "tight", "by_plan", "by_budget"),
    [(gaussian(10.85), 4.0, 3.984, 4.307, 4.307), (poisson(0.1, 0.936156), 8.0, 8.000, 8.981, 10.959)],
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
    rare_but_loud = poisson(1e-3, 0.8)
    steady = poisson(0.5, 8.0)
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


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-300), (1e200, 1e-5), (math.inf, 1e-5)])
def test_a_target_beyond_every_multiplier_is_refused_with_a_remedy(epsilon, delta):
    with pytest.raises(AccountingError, match=f"delta={delta:g} is out of reach; take epsilon from 1e-10 to"):
        gaussian_filter(epsilon=epsilon, delta=delta)


# ---- envelopes: which release a slot dominates, held against their pairs' profiles, and how slots are taken


GAMMAS = np.exp(np.array([0.0, 0.05, 0.2, 0.5, 1.0, 2.0, 4.0]))


@cache
def profiles(event, adjacency) -> list[np.ndarray]:
    """H_g of an event's pairs at ``GAMMAS``, of both directions of the adjacency."""
    pairs = event.pairs(adjacency)
    return [profile(pair, GAMMAS) for pair in (pairs[0], pairs[-1])]


def lies_below(release, slot) -> bool:
    """Whether a release's profile lies nowhere above a slot's, in any direction of any adjacency."""
    both = [np.array([profiles(event, adjacency) for adjacency in (ZERO, REPLACE)]) for event in (release, slot)]
    return bool(np.all(both[0] <= both[1] + 1e-9))


RATES, NOISES = st.sampled_from([0.025, 0.1, 0.25, 0.6, 1.0]), st.sampled_from([0.6, 1.0, 1.7, 3.0])
EVENTS = st.one_of(
    st.builds(gaussian, NOISES),
    st.builds(poisson, RATES, NOISES),
    st.builds(fixed, st.just(40), st.sampled_from([1, 4, 10, 24, 40]), NOISES),
    st.builds(laplace, NOISES),
)


@settings(max_examples=120, deadline=None)
@given(slot=EVENTS, release=EVENTS)
def test_whatever_a_slot_is_said_to_dominate_has_no_larger_profile_in_any_direction(slot, release):
    assert not dominates(slot, release) or lies_below(release, slot)
    assert dominates(slot, slot)


def test_a_release_takes_the_cheapest_slot_that_covers_it_and_keeps_it():
    slots = compose([(poisson(0.1, 1.0), 2), (poisson(0.1, 4.0), 1), (gaussian(1.0), 1)])
    reserved = envelope(slots, adjacency=ZERO)
    assert [slot for slot, _ in reserved.slots] == [poisson(0.1, 4.0), poisson(0.1, 1.0), gaussian(1.0)]
    assert reserved.event == slots
    places = free_places(reserved)
    assert places.free == (1, 2, 1)
    quiet = poisson(0.05, 8.0)
    assert places.take(quiet).free == (0, 2, 1)
    assert places.take(repeat(quiet, 2)).free == (0, 1, 1)
    assert places.take(repeat(quiet, 4)).free == (0, 0, 0)
    assert places.take(repeat(quiet, 5)) is None
    assert places.take(compose([quiet, gaussian(2.0)])).free == (0, 2, 0)
    assert places.take(compose([quiet, (gaussian(2.0), 2)])) is None
    assert places.take(Composed()) == places


SELECTION = BestOfRandomRuns(run=gaussian(9.0), eta=1.0, gamma=0.1)
SAMPLES = [poisson(0.25, 1.0), poisson(0.1, 1.0), poisson(0.25, 9.0), fixed(40, 10, 1.0), fixed(40, 4, 3.0)]
CUTS, HALF = [(0.25, 0.9), (0.3, 1.0)], sampled_laplace(0.5, 1.0)
LOUDER = [sampled_laplace(0.6, 1.0), sampled_laplace(0.5, 0.9)]
SLOTS_AND_RELEASES = [  # a slot, what takes it, and what does not
    (gaussian(1.0), SAMPLES, [laplace(1.0)]),
    (poisson(1.0, 1.0), SAMPLES, []),
    (fixed(40, 10, 1.0), SAMPLES, []),
    # a sample of fixed size costs the same in both directions
    (SAMPLES[0], [SAMPLES[1]], [poisson(0.26, 1.0), poisson(0.25, 0.99), SAMPLES[3]]),
    (truncated(40, 0.25, 12, 1.0), [truncated(40, 0.25, 12, 1.5)], [truncated(40, q, 12, z) for q, z in CUTS]),
    (allocated(10, 1, 1.0), [allocated(10, 1, 2.0)], [allocated(10, 1, 0.8), allocated(10, 2, 1.0)]),
    (allocated(10, 3, 1.0), [allocated(10, 3, 1.0)], []),
    (lengths(1.0), [lengths(1.1)], [lengths(0.9)]),
    (HALF, [sampled_laplace(0.25, 1.0), sampled_laplace(0.5, 3.0)], [*LOUDER, laplace(1.0)]),
    (laplace(1.0), [sampled_laplace(0.9, 1.0)], [laplace(0.95)]),
    (sampled_laplace(1.0, 1.0), [laplace(1.0)], []),
    (ZeroConcentrated(rho=0.5, xi=0.1), [ZeroConcentrated(rho=0.4)], [ZeroConcentrated(rho=0.6)]),
    (SELECTION, [SELECTION], [replace(SELECTION, run=gaussian(2.0))]),
]
COVERED = [(slot, release) for slot, takes, _ in SLOTS_AND_RELEASES for release in takes]
UNCOVERED = [(slot, release) for slot, _, others in SLOTS_AND_RELEASES for release in others]


def costs(event, epsilon: float) -> numerical.Interval:
    return numerical.delta_interval(event, epsilon, adjacency=ZERO)


@pytest.mark.parametrize(("slot", "release"), COVERED)
def test_a_release_alike_but_quieter_takes_a_slot_and_costs_no_more(slot, release):
    assert dominates(slot, release)
    assert dominates(slot, slot)
    places = free_places(envelope(repeat(slot, 2), adjacency=ZERO)).take(release)
    assert places is not None
    assert places.free == (1,)
    assert places.take(repeat(release, 2)) is None
    for epsilon in (0.1, 0.5, 2.0):
        assert costs(release, epsilon).lower <= costs(slot, epsilon).upper * (1 + 1e-9)
        assert renyi.delta(release, epsilon, adjacency=ZERO) <= renyi.delta(slot, epsilon, adjacency=ZERO) * (1 + 1e-9)


@pytest.mark.parametrize(("slot", "release"), UNCOVERED)
def test_a_release_that_tells_more_than_its_slot_is_refused(slot, release):
    assert not dominates(slot, release)
    assert free_places(envelope(slot, adjacency=ZERO)).take(release) is None
    dearer = any(costs(release, epsilon).upper > costs(slot, epsilon).upper for epsilon in (0.1, 0.5, 2.0, 6.0))
    assert dearer or not lies_below(release, slot)


def test_a_slot_of_which_only_a_curve_is_known_makes_the_price_renyis():
    reserved = envelope(compose([(gaussian(4.0), 3), ZeroConcentrated(rho=0.05)]), adjacency=ZERO)
    assert reserved.epsilon_at(1e-5) == renyi.epsilon(reserved.event, 1e-5, adjacency=ZERO)
    assert free_places(reserved).take(ZeroConcentrated(rho=0.02)).free == (3, 0)


def test_kinds_of_noise_are_no_slots_for_each_other():
    kinds = [gaussian(1.0), lengths(1.0), sampled_laplace(0.5, 1.0), SELECTION]
    kinds += [truncated(40, 0.25, 12, 1.0), allocated(10, 1, 1.0)]
    for slot in kinds:
        assert [dominates(slot, release) for release in kinds] == [release == slot for release in kinds]


def test_what_has_no_guarantee_is_neither_slot_nor_release():
    with pytest.raises(AccountingError, match=r"NonPrivate\(\) can be no slot of an envelope"):
        envelope(compose([gaussian(1.0), NonPrivate()]), adjacency=ZERO)
    assert free_places(envelope(gaussian(0.1), adjacency=ZERO)).take(NonPrivate()) is None
    with pytest.raises(AccountingError, match="without slots admits nothing"):
        Envelope(slots=(), adjacency=ZERO)
    with pytest.raises(EventError, match="add-or-remove-one"):
        envelope(fixed(40, 10, 1.0), adjacency=Adjacency.ADD_OR_REMOVE_ONE)
    with pytest.raises(EventError, match="add-or-remove-one"):
        free_places(envelope(gaussian(1.0), adjacency=Adjacency.ADD_OR_REMOVE_ONE)).take(fixed(40, 10, 1.0))


# ---- the best possible adaptive adversary against the filters, and planted filters that lose to it

DEPTH = 4
EPSILONS = (0.2, 0.5, 1.0, 1.5, 2.0, 3.0)


# Slots of which none dominates another, and a menu that fits some, all or none of them.
SLOTS = compose([poisson(0.3, 0.7), poisson(0.9, 2.0), (poisson(0.5, 1.0), 2)])
MENU = [
    poisson(0.3, 0.7), poisson(0.9, 2.0), poisson(0.5, 1.0), poisson(0.3, 2.0),
    poisson(0.5, 2.0), poisson(0.3, 1.0), gaussian(1.0), poisson(0.5, 0.7),
]  # fmt: skip


def prices(slots) -> np.ndarray:
    return np.array([numerical.delta(slots, epsilon, adjacency=ZERO) for epsilon in EPSILONS])


def strongest_of_slots(admit, **settings) -> np.ndarray:
    return strongest(free_places(envelope(SLOTS, adjacency=ZERO)), admit, MENU, EPSILONS, deepest=DEPTH, **settings)


def test_the_best_possible_adversary_of_an_envelope_uses_every_slot_as_it_is():
    found, bound = strongest_of_slots(lambda places, release: places.take(release), bins=40), prices(SLOTS)
    assert np.all((0.95 * bound < found) & (found <= bound))


def louder(places, release):
    """Planted: looks at the noise alone, and takes whatever rate."""
    free = (slot for (slot, _), n in zip(places.envelope.slots, places.free, strict=True) if n)
    return next((places.take(slot) for slot in free if release.noise_multiplier >= slot.noise_multiplier), None)


def swapping(places, release):
    """Planted: asks whether some slot dominates the release, and books the cheapest free one."""
    slots = places.envelope.slots
    dominated = any(dominates(slot, release) for slot, _ in slots)
    return next((places.take(slot) for (slot, _), n in zip(slots, places.free, strict=True) if n and dominated), None)


@pytest.mark.parametrize("planted", [louder, swapping])
def test_an_envelope_that_admits_what_no_free_slot_dominates_is_noticed(planted):
    assert np.any(strongest_of_slots(planted) > 1.01 * prices(SLOTS))


def test_an_envelope_that_gives_slots_back_is_noticed():
    """Planted: a release quieter than its slot by a third or more leaves the slot free."""
    weak, quiet = poisson(0.5, 1.0), poisson(0.5, 1.5)

    def admit(state, release):  # the planted filter's state does not change, so made releases are counted beside it
        count, places = state
        after = places.take(release)
        return None if after is None or count == DEPTH else (count + 1, places if release == quiet else after)

    start = (0, free_places(envelope(weak, adjacency=ZERO)))
    assert np.any(strongest(start, admit, [weak, quiet], EPSILONS, deepest=DEPTH) > 1.01 * prices(weak))


RELEASES = [gaussian(2.0), gaussian(3.0), poisson(0.5, 1.5), poisson(0.25, 2.0)]


def strongest_of_sums(cost, bound, menu=RELEASES):
    """Against a filter over what was made, as the ledger's: its state is the number of each release."""

    def admit(counts, release):
        after = tuple(count + (other == release) for count, other in zip(counts, menu, strict=True))
        return after if sum(map(mul, after, map(cost, menu))) <= bound else None

    return strongest((0,) * len(menu), admit, menu, EPSILONS, deepest=DEPTH)


GUARDS = {
    "gaussian": gaussian_filter(epsilon=2.0, delta=0.02),
    "renyi": fixed_order_filter(epsilon=2.0, delta=0.02, adjacency=ZERO),
    "renyi for a plan": fixed_order_filter(epsilon=2.0, delta=0.02, plan=RELEASES[2], adjacency=ZERO),
}


@pytest.mark.parametrize("name", GUARDS)
def test_no_adversary_passes_the_bound_of_a_filter_that_adds_up(name):
    guard = GUARDS[name]
    assert any(guard.cost(release) <= guard.bound for release in RELEASES)
    for epsilon, delta in zip(EPSILONS, strongest_of_sums(guard.cost, guard.bound), strict=True):
        # by bisection of what the filter says at every delta
        assert delta <= math.exp(bisected(lambda d, e=epsilon: guard.epsilon_at(math.exp(d)) <= e, -60.0, 0.0))


def test_a_gaussian_filter_that_charges_a_sample_by_its_rate_is_noticed():
    """Planted: mu^2 q^2, as the central limit has it for rare samples."""
    guard = gaussian_filter(epsilon=1.0, delta=1e-3)
    rare = [poisson(0.02, 0.3), poisson(0.02, 0.5)]

    found = strongest_of_sums(lambda event: (event.sample_rate / event.noise_multiplier) ** 2, guard.bound, rare)
    assert np.any(found > 1.01 * prices(gaussian(guard.bound**-0.5)))
