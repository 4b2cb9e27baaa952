"""Envelopes: which release a slot dominates, held against profiles computed here, and how slots are taken."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from accountant import renyi
from accountant.envelope import Envelope, dominates, envelope, free_places
from accountant.errors import AccountingError, EventError
from accountant.events import (
    Adjacency,
    BestOfRandomRuns,
    Composed,
    FixedSizeSampledGaussian,
    Gaussian,
    Laplace,
    MixtureOfGaussians,
    NonPrivate,
    PoissonSampledGaussian,
    PoissonSampledLaplace,
    RandomAllocationGaussian,
    TruncatedPoissonSampledGaussian,
    ZeroConcentrated,
    compose,
    repeat,
)
from accountant.tight import numerical
from tests.accountant.builders import poisson
from tests.accountant.oracles import fixed_size_profile

ZERO, REPLACE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
N_CLIENTS = 40
GAMMAS = np.exp(np.array([0.0, 0.05, 0.2, 0.5, 1.0, 2.0, 4.0]))


def gaussian(z: float) -> Gaussian:
    return Gaussian(noise_multiplier=z)


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


def truncated(q: float, z: float) -> TruncatedPoissonSampledGaussian:
    return TruncatedPoissonSampledGaussian(n_clients=N_CLIENTS, sample_rate=q, batch_size=12, noise_multiplier=z)


def allocated(k: int, z: float) -> RandomAllocationGaussian:
    return RandomAllocationGaussian(n_rounds=10, participations=k, noise_multiplier=z)


def lengths(z: float) -> MixtureOfGaussians:
    return MixtureOfGaussians(noise_multiplier=z, sensitivities=(0.0, 1.0, 2.0), chances=(0.5, 0.25, 0.25))


def noisy(q: float, b: float) -> PoissonSampledLaplace:
    return PoissonSampledLaplace(sample_rate=q, scale_multiplier=b)


SELECTION = BestOfRandomRuns(run=gaussian(9.0), eta=1.0, gamma=0.1)
COVERED = [  # slot, release
    (truncated(0.25, 1.0), truncated(0.25, 1.5)),
    (allocated(1, 1.0), allocated(1, 2.0)),
    (allocated(3, 1.0), allocated(3, 1.0)),
    (lengths(1.0), lengths(1.1)),
    (noisy(0.5, 1.0), noisy(0.25, 1.0)),
    (noisy(0.5, 1.0), noisy(0.5, 3.0)),
    (Laplace(scale_multiplier=1.0), noisy(0.9, 1.0)),
    (noisy(1.0, 1.0), Laplace(scale_multiplier=1.0)),
    (ZeroConcentrated(rho=0.5, xi=0.1), ZeroConcentrated(rho=0.4)),
    (SELECTION, SELECTION),
]
UNCOVERED = [
    (truncated(0.25, 1.0), truncated(0.25, 0.9)),
    (truncated(0.25, 1.0), truncated(0.3, 1.0)),
    (allocated(1, 1.0), allocated(1, 0.8)),
    (allocated(1, 1.0), allocated(2, 1.0)),
    (lengths(1.0), lengths(0.9)),
    (noisy(0.5, 1.0), noisy(0.6, 1.0)),
    (noisy(0.5, 1.0), noisy(0.5, 0.9)),
    (noisy(0.5, 1.0), Laplace(scale_multiplier=1.0)),
    (ZeroConcentrated(rho=0.5), ZeroConcentrated(rho=0.6)),
    (SELECTION, BestOfRandomRuns(run=gaussian(2.0), eta=1.0, gamma=0.1)),
]


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
    assert any(costs(release, epsilon).upper > costs(slot, epsilon).upper for epsilon in (0.1, 0.5, 2.0, 6.0))


def test_a_slot_of_which_only_a_curve_is_known_makes_the_price_renyis():
    reserved = envelope(compose([(gaussian(4.0), 3), ZeroConcentrated(rho=0.05)]), adjacency=ZERO)
    assert reserved.epsilon_at(1e-5) == renyi.epsilon(reserved.event, 1e-5, adjacency=ZERO)
    assert free_places(reserved).take(ZeroConcentrated(rho=0.02)).free == (3, 0)


def test_kinds_of_noise_are_no_slots_for_each_other():
    kinds = [gaussian(1.0), truncated(0.25, 1.0), allocated(1, 1.0), lengths(1.0), noisy(0.5, 1.0), SELECTION]
    for slot in kinds:
        assert [dominates(slot, release) for release in kinds] == [release == slot for release in kinds]


def test_what_has_no_guarantee_is_neither_slot_nor_release():
    with pytest.raises(AccountingError, match=r"NonPrivate\(\) can be no slot of an envelope"):
        envelope(compose([gaussian(1.0), NonPrivate()]), adjacency=ZERO)
    assert free_places(envelope(gaussian(0.1), adjacency=ZERO)).take(NonPrivate()) is None
    with pytest.raises(AccountingError, match="without slots admits nothing"):
        Envelope(slots=(), adjacency=ZERO)
    with pytest.raises(EventError, match="add-or-remove-one"):
        envelope(fixed(10, 1.0), adjacency=Adjacency.ADD_OR_REMOVE_ONE)
    with pytest.raises(EventError, match="add-or-remove-one"):
        free_places(envelope(gaussian(1.0), adjacency=Adjacency.ADD_OR_REMOVE_ONE)).take(fixed(10, 1.0))
