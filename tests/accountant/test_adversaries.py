"""Adaptive adversaries against the filters: 10,000 at random and the best possible one, and planted filters that lose.

Exact sums over the finite trees of ``tests.accountant.adversaries``, so no chance is left but the choice of
adversaries. Delta is compared at six epsilons and in both directions of the adjacency.
"""

from __future__ import annotations

import math
from operator import mul

import numpy as np
import pytest

from accountant import gaussian_dp
from accountant.calibrate import largest_count
from accountant.envelope import dominates, envelope, free_places
from accountant.events import Adjacency, compose, repeat
from accountant.filters import fixed_order_filter, gaussian_filter
from accountant.tight import numerical
from tests.accountant.adversaries import Game, achieved, best_possible
from tests.accountant.builders import gaussian, poisson

ZERO = Adjacency.ZERO_OUT
N_ADVERSARIES, DEPTH = 10_000, 4
EPSILONS = np.array([0.2, 0.5, 1.0, 1.5, 2.0, 3.0])


# Slots of which none dominates another, and a menu that fits some, all or none of them.
SLOTS = compose([poisson(0.3, 0.7), poisson(0.9, 2.0), (poisson(0.5, 1.0), 2)])
MENU = [
    poisson(0.3, 0.7), poisson(0.9, 2.0), poisson(0.5, 1.0), poisson(0.3, 2.0),
    poisson(0.5, 2.0), poisson(0.3, 1.0), gaussian(1.0), poisson(0.5, 0.7),
]  # fmt: skip


def strongest(game: Game, rng: np.random.Generator, depth: int = DEPTH, n: int = N_ADVERSARIES) -> np.ndarray:
    """The largest delta of ``n`` random adversaries at each epsilon."""
    found = [
        achieved(game, EPSILONS, n_adversaries=500, depth=depth, rng=rng, swapped=bool(chunk % 2)).max(axis=0)
        for chunk in range(n // 500)
    ]
    return np.max(found, axis=0)


def envelope_game(admit=lambda places, release: places.take(release), bins: int = 6) -> Game:
    start = free_places(envelope(SLOTS, adjacency=ZERO))
    return Game.of(start, admit, MENU, deepest=DEPTH, bins=bins)


def test_no_adversary_passes_the_price_of_an_envelope():
    bound = np.array([numerical.delta(SLOTS, epsilon, adjacency=ZERO) for epsilon in EPSILONS])
    found = strongest(envelope_game(), np.random.default_rng(20260101))
    assert np.all(found <= bound)
    assert np.all(found[:3] > (0.9 * bound)[:3])  # with six bins of every output, close enough to notice a fault


def test_the_best_possible_adversary_of_an_envelope_uses_every_slot_as_it_is():
    fine = envelope_game(bins=40)
    for epsilon in EPSILONS:
        bound = numerical.delta(SLOTS, epsilon, adjacency=ZERO)
        best = max(best_possible(fine, epsilon, swapped=swapped) for swapped in (False, True))
        assert 0.95 * bound < best <= bound


def louder(places, release):
    """Planted: looks at the noise alone, and takes whatever rate."""
    quiet = getattr(release, "noise_multiplier", math.inf)
    for index, (slot, _) in enumerate(places.envelope.slots):
        if places.free[index] and quiet >= slot.noise_multiplier:
            return places.take(slot)
    return None


def lenient(places, release):
    """Planted: a release quieter than its slot by a third or more leaves the slot free; asked once too often, too."""
    after = places.take(release)
    if after is None:
        return None
    (index,) = [i for i, (old, new) in enumerate(zip(places.free, after.free, strict=True)) if old != new]
    spare = release.noise_multiplier >= 1.5 * places.envelope.slots[index][0].noise_multiplier
    return places if spare else after


def swapping(places, release):
    """Planted: asks whether some slot dominates the release, and books the cheapest free one."""
    if not any(dominates(slot, release) for slot, _ in places.envelope.slots):
        return None
    return next((places.take(slot) for (slot, _), n in zip(places.envelope.slots, places.free, strict=True) if n), None)


@pytest.mark.parametrize("planted", [louder, swapping])
def test_an_envelope_that_admits_what_no_free_slot_dominates_is_noticed(planted):
    bound = np.array([numerical.delta(SLOTS, epsilon, adjacency=ZERO) for epsilon in EPSILONS])
    found = strongest(envelope_game(planted), np.random.default_rng(1), n=2_000)
    assert np.any(found > 1.01 * bound)


def test_an_envelope_that_gives_slots_back_is_noticed():
    weak = compose([poisson(0.5, 1.0)])
    start = free_places(envelope(weak, adjacency=ZERO))
    menu = [poisson(0.5, 1.0), poisson(0.5, 1.5)]

    def admit(state, release):  # the planted filter's state does not change, so made releases are counted beside it
        made, places = state
        after = lenient(places, release)
        return None if after is None or made == DEPTH else (made + 1, after)

    bound = np.array([numerical.delta(weak, epsilon, adjacency=ZERO) for epsilon in EPSILONS])
    found = strongest(Game.of((0, start), admit, menu, deepest=DEPTH), np.random.default_rng(2), n=2_000)
    assert np.any(found > 1.01 * bound)


RATES = [gaussian(2.0), gaussian(3.0), poisson(0.5, 1.5), poisson(0.25, 2.0)]


def made(guard):
    """A filter over what was made, as the ledger's: its state is the number of each release."""

    def admit(counts, release):
        after = tuple(count + (other == release) for count, other in zip(counts, RATES, strict=True))
        return after if sum(map(mul, after, map(guard.cost, RATES))) <= guard.bound else None

    return admit


GUARDS = {
    "gaussian": gaussian_filter(epsilon=2.0, delta=0.02),
    "renyi": fixed_order_filter(epsilon=2.0, delta=0.02, adjacency=ZERO),
    "renyi for a plan": fixed_order_filter(epsilon=2.0, delta=0.02, plan=RATES[2], adjacency=ZERO),
}


@pytest.mark.parametrize("name", GUARDS)
def test_no_adversary_passes_the_bound_of_a_filter_that_adds_up(name):
    guard = GUARDS[name]
    game = Game.of((0, 0, 0, 0), made(guard), RATES, deepest=DEPTH)
    assert np.any(game.after[0] >= 0)
    deltas = [delta_at(guard, epsilon) for epsilon in EPSILONS]
    assert np.all(strongest(game, np.random.default_rng(3)) <= deltas)


def delta_at(guard, epsilon: float) -> float:
    """The delta at which a filter guarantees epsilon, by bisection of what it says at every delta."""
    low, high = -60.0, 0.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if guard.epsilon_at(math.exp(middle)) <= epsilon else (middle, high)
    return math.exp(high)


def test_a_gaussian_filter_that_charges_a_sample_by_its_rate_is_noticed():
    """Planted: mu^2 q^2, as the central limit has it for rare samples."""
    guard = gaussian_filter(epsilon=1.0, delta=1e-3)
    rare = [poisson(0.02, 0.3), poisson(0.02, 0.5)]

    def admit(counts, release):
        spent = sum(n * (r.sample_rate / r.noise_multiplier) ** 2 for n, r in zip(counts, rare, strict=True))
        if spent + (release.sample_rate / release.noise_multiplier) ** 2 > guard.bound:
            return None
        return tuple(count + (other == release) for count, other in zip(counts, rare, strict=True))

    found = strongest(Game.of((0, 0), admit, rare, deepest=DEPTH), np.random.default_rng(4), n=2_000)
    whole = gaussian(guard.bound**-0.5)
    assert np.any(found > [1.01 * gaussian_dp.delta(whole, epsilon, adjacency=ZERO) for epsilon in EPSILONS])


def test_prices_of_unlike_kinds_by_their_own_plans_are_overtaken():
    """Planted: two kinds exchange at the prices of their fixed plans, of which 97 % are admitted."""
    kinds, delta = (poisson(0.25, 2.0), poisson(0.05, 0.8)), 1e-5
    epsilon = numerical.epsilon(repeat(kinds[0], 16), delta, adjacency=ZERO)
    fit = [
        largest_count(lambda n, kind=kind: numerical.delta(repeat(kind, n), epsilon, adjacency=ZERO) <= delta, 10**4)
        for kind in kinds
    ]
    prices = [1.0 / (0.97 * (n + 1)) for n in fit]

    def admit(counts, release):
        after = tuple(count + (other == release) for count, other in zip(counts, kinds, strict=True))
        return after if sum(map(mul, after, prices)) <= 1.0 else None

    game = Game.of((0, 0), admit, kinds, deepest=max(fit) + 1, bins=60)
    assert best_possible(game, epsilon, swapped=False) > 1.2 * delta
    for kind in kinds:  # alone either kind keeps the bound
        alone = Game.of((0, 0), admit, [kind], deepest=max(fit) + 1, bins=60)
        assert best_possible(alone, epsilon, swapped=False) <= delta
