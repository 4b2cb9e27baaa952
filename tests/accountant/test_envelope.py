"""Envelopes: which release a slot dominates, held against profiles computed here, and how slots are taken."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accountant.envelope import Envelope, dominates, envelope, free_places
from accountant.errors import AccountingError, EventError
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
    repeat,
)
from accountant.tight import numerical
from tests.accountant.oracles import fixed_size_profile

ZERO, REPLACE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
N_CLIENTS = 40
GAMMAS = np.exp(np.array([0.0, 0.05, 0.2, 0.5, 1.0, 2.0, 4.0]))


def gaussian(z: float) -> Gaussian:
    return Gaussian(noise_multiplier=z)


def poisson(q: float, z: float) -> PoissonSampledGaussian:
    return PoissonSampledGaussian(sample_rate=q, noise_multiplier=z)


def fixed(m: int, z: float) -> FixedSizeSampledGaussian:
    return FixedSizeSampledGaussian(n_clients=N_CLIENTS, sample_size=m, noise_multiplier=z)


def densities(event, adjacency) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points, and densities of an event's pair there; written down from ``accountant.events``."""
    if isinstance(event, Laplace):
        b = event.scale_multiplier
        x = np.linspace(-40 * b, 1 + 40 * b, 40_001)
        return x, np.exp(-np.abs(x - 1) / b) / (2 * b), np.exp(-np.abs(x) / b) / (2 * b)
    z, q = event.noise_multiplier, getattr(event, "sample_rate", 1.0)
    x = np.linspace(-1 - 12 * z, 1 + 12 * z, 40_001)

    def mixture(shift: float) -> np.ndarray:
        zero, one = (np.exp(-0.5 * ((x - at) / z) ** 2) / (z * math.sqrt(2 * math.pi)) for at in (0.0, shift))
        return (1 - q) * zero + q * one

    return (x, mixture(0.5), mixture(-0.5)) if adjacency is REPLACE else (x, mixture(1.0), mixture(0.0))


@cache
def profile(event, adjacency, *, swapped: bool) -> np.ndarray:
    """H_g of an event's pair at ``GAMMAS``, in one direction of the adjacency."""
    if isinstance(event, FixedSizeSampledGaussian):
        return np.array([fixed_size_profile(event.sample_rate, event.noise_multiplier, g) for g in GAMMAS])
    x, p, q = densities(event, adjacency)
    p, q = (q, p) if swapped else (p, q)
    return np.trapezoid(np.maximum(p - GAMMAS[:, None] * q, 0.0), x, axis=1)


def lies_below(release, slot) -> bool:
    """Whether a release's profile lies nowhere above a slot's, in any direction of any adjacency."""
    return all(
        np.all(profile(release, adjacency, swapped=swapped) <= profile(slot, adjacency, swapped=swapped) + 1e-6)
        for adjacency in (ZERO, REPLACE)
        for swapped in (False, True)
    )


RATES, NOISES = st.sampled_from([0.025, 0.1, 0.25, 0.6, 1.0]), st.sampled_from([0.6, 1.0, 1.7, 3.0])
EVENTS = st.one_of(
    st.builds(gaussian, NOISES),
    st.builds(poisson, RATES, NOISES),
    st.builds(fixed, st.sampled_from([1, 4, 10, 24, 40]), NOISES),
    st.builds(lambda b: Laplace(scale_multiplier=b), NOISES),
)


@settings(max_examples=120, deadline=None)
@given(slot=EVENTS, release=EVENTS)
def test_whatever_a_slot_is_said_to_dominate_has_no_larger_profile_in_any_direction(slot, release):
    assert not dominates(slot, release) or lies_below(release, slot)
    assert dominates(slot, slot)


@pytest.mark.parametrize(
    ("slot", "release"),
    [
        (poisson(0.25, 1.0), poisson(0.26, 1.0)),  # a larger rate
        (poisson(0.25, 1.0), poisson(0.25, 0.99)),  # less noise
        (poisson(0.25, 1.0), fixed(10, 1.0)),  # a sample of fixed size costs the same in both directions
        (poisson(0.25, 1.0), gaussian(2.0)),  # everybody, however quietly
        (fixed(10, 1.0), gaussian(2.0)),
        (Laplace(scale_multiplier=2.0), Laplace(scale_multiplier=1.9)),
        (Laplace(scale_multiplier=2.0), gaussian(1.0)),
    ],
)
def test_what_is_not_dominated_is_refused_and_would_indeed_tell_more(slot, release):
    assert not dominates(slot, release)
    assert not lies_below(release, slot)
    assert free_places(envelope(slot, adjacency=ZERO)).take(release) is None


@pytest.mark.parametrize(
    "release", [poisson(0.25, 1.0), poisson(0.1, 1.0), poisson(0.25, 9.0), fixed(10, 1.0), fixed(4, 3.0)]
)
def test_each_proven_case_is_admitted(release):
    assert dominates(gaussian(1.0), release)
    assert dominates(poisson(1.0, 1.0), release)
    assert dominates(fixed(10, 1.0), release)
    assert dominates(poisson(0.25, 1.0), release) is isinstance(release, PoissonSampledGaussian)
    assert not dominates(gaussian(1.0), Laplace(scale_multiplier=1e9))
    assert not dominates(gaussian(1.0), NonPrivate())


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


def test_what_is_guaranteed_is_the_tight_price_of_all_slots_at_every_delta():
    slots = compose([(poisson(0.1, 1.0), 30), (gaussian(9.0), 3)])
    for delta in (1e-9, 1e-5, 0.01):
        found = envelope(slots, adjacency=ZERO).epsilon_at(delta)
        assert found == numerical.epsilon(slots, delta, adjacency=ZERO)


def test_what_has_no_pair_is_neither_slot_nor_release():
    for bad in (NonPrivate(), BestOfRandomRuns(run=gaussian(9.0), eta=1.0, gamma=0.1)):
        with pytest.raises(AccountingError, match=r"no pair of distributions is known .* use a ledger with the rule"):
            envelope(compose([gaussian(1.0), bad]), adjacency=ZERO)
        assert free_places(envelope(gaussian(0.1), adjacency=ZERO)).take(bad) is None
    with pytest.raises(AccountingError, match="without slots admits nothing"):
        Envelope(slots=(), adjacency=ZERO)
    with pytest.raises(EventError, match="add-or-remove-one"):
        envelope(fixed(10, 1.0), adjacency=Adjacency.ADD_OR_REMOVE_ONE)
    with pytest.raises(EventError, match="add-or-remove-one"):
        free_places(envelope(gaussian(1.0), adjacency=Adjacency.ADD_OR_REMOVE_ONE)).take(fixed(10, 1.0))


def test_five_runs_with_secret_samples_fit_the_tight_price_of_their_releases():
    """At q = .1 and epsilon 8 the Rényi filter asks 8.98 at its best order for what costs 8."""
    run = repeat(poisson(0.1, 0.78), 100)
    bound = numerical.epsilon(repeat(run, 5), 1e-5, adjacency=ZERO)
    places = free_places(envelope(repeat(run, 5), adjacency=ZERO))
    for _ in range(5):
        places = places.take(run)
    assert places.free == (0,)
    assert places.envelope.epsilon_at(1e-5) == bound
    assert places.take(poisson(1e-3, 50.0)) is None
