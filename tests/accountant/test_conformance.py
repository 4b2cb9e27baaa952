"""What every accountant must do, and a planted fault that each property catches.

Properties hold to an accountant's own tolerance: rounding for closed forms and optimised
orders, the certified width for the numerical accountant.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from accountant import gaussian_dp, moments, renyi
from accountant.errors import AccountingError, EventError
from accountant.events import (
    Adjacency,
    Composed,
    FixedSizeSampledGaussian,
    Gaussian,
    Laplace,
    NonPrivate,
    PoissonSampledGaussian,
    PoissonSampledLaplace,
    RandomAllocationGaussian,
    TruncatedPoissonSampledGaussian,
    compose,
    repeat,
    trivial_delta,
    trivial_epsilon,
)
from accountant.tight import numerical
from tests.accountant.builders import poisson

SAMPLED = PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=2.0)
ADD = Adjacency.ADD_OR_REMOVE_ONE

ZERO, REPLACE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
DELTA = 1e-5


@dataclass(frozen=True)
class Accountant:
    """Functions under test; ``tolerance`` is relative plus absolute slack."""

    name: str
    epsilon: Any
    delta: Any
    sampled: bool
    tolerance: float

    def close(self, a, b):
        return a == b or abs(a - b) <= self.tolerance * max(abs(a), abs(b)) + 0.1 * self.tolerance

    def at_most(self, a, b):
        return a <= b or self.close(a, b)


ACCOUNTANTS = [
    Accountant("moments", moments.epsilon, moments.delta, True, 1e-9),
    Accountant("renyi", renyi.epsilon, renyi.delta, True, 1e-6),
    Accountant("tight", numerical.epsilon, numerical.delta, True, 2e-3),
    Accountant("gaussian-dp", gaussian_dp.epsilon, gaussian_dp.delta, False, 1e-9),
]


def fixed(m, z, n=30):
    return FixedSizeSampledGaussian(n_clients=n, sample_size=m, noise_multiplier=z)


def sampled_laplace(q, b):
    return PoissonSampledLaplace(sample_rate=q, scale_multiplier=b)


def truncated(q, z, size=12, n=30):
    return TruncatedPoissonSampledGaussian(n_clients=n, sample_rate=q, batch_size=size, noise_multiplier=z)


def allocated(k, z, rounds=20):
    return RandomAllocationGaussian(n_rounds=rounds, participations=k, noise_multiplier=z)


def singles(accountant):
    """Events the accountant knows, cheap to dear."""
    gaussians = [Gaussian(noise_multiplier=5.0), Gaussian(noise_multiplier=1.0)]
    if not accountant.sampled:
        return gaussians
    sums = [poisson(0.01, 2.0), poisson(0.3, 1.0), fixed(10, 1.5), truncated(0.4, 2.0)]
    return [*gaussians, *sums, allocated(2, 2.0), Laplace(scale_multiplier=3.0), sampled_laplace(0.3, 2.0)]


def empty_costs_nothing(accountant):
    return (
        accountant.epsilon(Composed(), DELTA, adjacency=ZERO)
        == 0.0
        == accountant.delta(Composed(), 1.0, adjacency=ZERO)
    )


def non_private_is_infinite(accountant):
    event = compose([Gaussian(noise_multiplier=1.0), NonPrivate()])
    return (
        accountant.epsilon(event, DELTA, adjacency=ZERO) == math.inf
        and accountant.delta(event, 1.0, adjacency=ZERO) == 1.0
    )


def count_n_equals_n_singles(accountant):
    def cost(event):
        return accountant.epsilon(event, DELTA, adjacency=ZERO)

    return all(
        cost(repeat(event, 7)) == cost(compose([event] * 7)) > cost(event) * (1 + 2 * accountant.tolerance)
        for event in singles(accountant)
    )


def order_is_irrelevant(accountant):
    events = singles(accountant)
    values = {
        accountant.epsilon(compose(order), DELTA, adjacency=ZERO)
        for order in (events, events[::-1], events[1:] + events[:1])
    }
    return len(values) == 1


def more_noise_costs_less(accountant):
    ladders = [[Gaussian(noise_multiplier=z) for z in (0.5, 1.0, 1.1, 4.0)]]
    if accountant.sampled:
        ladders.append([poisson(0.2, z) for z in (0.5, 1.0, 1.1, 4.0)])
        ladders.append([fixed(10, z) for z in (0.5, 1.0, 1.1, 4.0)])
        ladders.append([allocated(3, z) for z in (0.5, 1.0, 1.1, 4.0)])
        ladders.append([truncated(0.3, z) for z in (0.5, 1.0, 1.1, 4.0)])
        ladders.append([Laplace(scale_multiplier=b) for b in (0.5, 1.0, 1.1, 4.0)])
        ladders.append([sampled_laplace(0.2, b) for b in (0.5, 1.0, 1.1, 4.0)])
    return all(_falling(accountant, ladder) for ladder in ladders)


def less_rate_costs_less(accountant):
    if not accountant.sampled:
        return True
    ladders = [[poisson(q, 1.0) for q in (1.0, 0.99, 0.5, 0.01)], [fixed(m, 1.0) for m in (30, 29, 10, 1)]]
    ladders.append([allocated(k, 1.0) for k in (20, 11, 10, 3, 1)])
    ladders.append([truncated(q, 1.0) for q in (0.9, 0.5, 0.3, 0.01)])
    ladders.append([sampled_laplace(q, 1.0) for q in (1.0, 0.99, 0.5, 0.01)])
    return all(_falling(accountant, ladder) for ladder in ladders)


def _falling(accountant, ladder):
    costs = [accountant.epsilon(repeat(event, 5), DELTA, adjacency=ZERO) for event in ladder]
    strictly = costs[-1] < 0.9 * costs[0]
    return strictly and all(accountant.at_most(low, high) for high, low in pairwise(costs))


def delta_and_epsilon_are_inverse(accountant):
    for event in singles(accountant):
        for delta in (1e-3, 1e-7):
            epsilon = accountant.epsilon(repeat(event, 3), delta, adjacency=ZERO)
            if epsilon > 0 and not isinstance(event, Laplace | PoissonSampledLaplace):
                back = accountant.delta(repeat(event, 3), epsilon, adjacency=ZERO)
                again = accountant.epsilon(repeat(event, 3), back, adjacency=ZERO)
                if not accountant.close(epsilon, again):
                    return False
    return True


def replace_one_costs_no_less(accountant):
    """Same noise and clipping norm: replace-one doubles the sensitivity, so halves the multiplier."""
    if not accountant.sampled:
        pairs = [(Gaussian(noise_multiplier=2.0), Gaussian(noise_multiplier=1.0))]
    else:
        kinds = (poisson, sampled_laplace)
        pairs = [(of(q, 2 * z), of(q, z)) for of in kinds for q in (0.01, 0.3, 1.0) for z in (0.5, 3.0)]
    return all(
        accountant.at_most(
            accountant.epsilon(repeat(add, 10), DELTA, adjacency=ZERO),
            accountant.epsilon(repeat(replaced, 10), DELTA, adjacency=REPLACE),
        )
        for add, replaced in pairs
    )


def unknown_events_are_named(accountant):
    @dataclass(frozen=True)
    class Mystery:
        noise_multiplier: float = 1.0

    try:
        accountant.epsilon(Mystery(), DELTA, adjacency=ZERO)
    except EventError as error:
        return "Mystery" in str(error)
    return False


def unsound_pairs_are_refused(accountant):
    try:
        accountant.epsilon(fixed(3, 1.0), DELTA, adjacency=Adjacency.ADD_OR_REMOVE_ONE)
    except EventError as error:
        return "add-or-remove-one" in str(error)
    return False


def impossible_targets_are_refused(accountant):
    for delta in (0.0, 1.0, -1.0, math.nan):
        try:
            accountant.epsilon(Gaussian(noise_multiplier=1.0), delta, adjacency=ZERO)
        except AccountingError:
            continue
        return False
    try:
        accountant.delta(Gaussian(noise_multiplier=1.0), -0.1, adjacency=ZERO)
    except AccountingError:
        return True
    return False


PROPERTIES = [
    empty_costs_nothing,
    non_private_is_infinite,
    count_n_equals_n_singles,
    order_is_irrelevant,
    more_noise_costs_less,
    less_rate_costs_less,
    delta_and_epsilon_are_inverse,
    replace_one_costs_no_less,
    unknown_events_are_named,
    unsound_pairs_are_refused,
    impossible_targets_are_refused,
]


@pytest.mark.parametrize("accountant", ACCOUNTANTS, ids=lambda a: a.name)
@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda p: p.__name__)
def test_every_accountant(accountant, holds):
    assert holds(accountant)


CHAIN = [
    (poisson(0.25, 1.0), 40, ZERO),
    (poisson(0.01, 1.1), 1000, ZERO),
    (poisson(0.25, 1.0), 40, REPLACE),
    (poisson(1e-4, 0.4), 100, ZERO),
    (fixed(10, 1.0), 20, ZERO),
    (fixed(10, 1.0), 20, REPLACE),
    (Gaussian(noise_multiplier=3.0), 5, ZERO),
    (Laplace(scale_multiplier=2.0), 5, ZERO),
    (sampled_laplace(0.2, 0.7), 5, ZERO),
    (truncated(0.3, 1.5), 20, ZERO),
    (allocated(2, 1.5), 2, ZERO),
    (truncated(0.3, 1.5), 20, REPLACE),
    (truncated(0.01, 1.0), 100, ADD),
    (sampled_laplace(0.2, 0.7), 5, REPLACE),
]


def in_order(loose, middle, tight):
    return all(
        loose(repeat(event, n), delta, adjacency=adjacency) * (1 + 1e-9)
        >= middle(repeat(event, n), delta, adjacency=adjacency)
        >= tight(repeat(event, n), delta, adjacency=adjacency) * 0.998
        for event, n, adjacency in CHAIN
        for delta in (1e-2, 1e-6)
    )


def test_moments_above_renyi_above_tight():
    assert in_order(moments.epsilon, renyi.epsilon, numerical.epsilon)


# --- planted faults: each breaks one property of an otherwise sound accountant ---------------


def test_what_needs_no_accountant_is_answered_alike_for_all():
    fixed = FixedSizeSampledGaussian(n_clients=5, sample_size=2, noise_multiplier=3.0)
    both = compose([SAMPLED, NonPrivate()])
    for event, epsilon, delta in ((Composed(), 0.0, 0.0), (NonPrivate(), math.inf, 1.0), (both, math.inf, 1.0)):
        assert trivial_epsilon(event, 1e-5, ZERO) == epsilon
        assert trivial_delta(event, 3.0, ZERO) == delta
    assert trivial_epsilon(SAMPLED, 1e-5, ZERO) is None
    assert trivial_delta(SAMPLED, 3.0, ZERO) is None
    for event in (NonPrivate(), SAMPLED):
        assert trivial_delta(event, math.inf, ZERO) == 0.0  # nothing is above e^inf times anything
    for delta in (0.0, 1.0, math.nan):
        with pytest.raises(AccountingError, match=r"^delta must lie in \(0, 1\)"):
            trivial_epsilon(SAMPLED, delta, ZERO)
    for epsilon in (-1e-9, math.nan):
        with pytest.raises(AccountingError, match=r"^epsilon must be at least 0"):
            trivial_delta(SAMPLED, epsilon, ZERO)
    with pytest.raises(EventError, match="add-or-remove-one"):
        trivial_epsilon(fixed, 1e-5, ADD)
    with pytest.raises(EventError, match="add-or-remove-one"):
        trivial_delta(fixed, 1.0, ADD)
