"""What every accountant must do.

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
from accountant.events import Adjacency, Composed, Laplace, NonPrivate, PoissonSampledLaplace, compose, repeat
from accountant.tight import numerical
from tests.accountant.builders import allocated, fixed, gaussian, laplace, poisson, sampled_laplace, truncated

ADD, ZERO, REPLACE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
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


def singles(accountant):
    """Events the accountant knows, cheap to dear."""
    gaussians = [gaussian(5.0), gaussian(1.0)]
    if not accountant.sampled:
        return gaussians
    sums = [poisson(0.01, 2.0), poisson(0.3, 1.0), fixed(30, 10, 1.5), truncated(30, 0.4, 12, 2.0)]
    return [*gaussians, *sums, allocated(20, 2, 2.0), laplace(3.0), sampled_laplace(0.3, 2.0)]


def empty_costs_nothing(accountant):
    return (
        accountant.epsilon(Composed(), DELTA, adjacency=ZERO)
        == 0.0
        == accountant.delta(Composed(), 1.0, adjacency=ZERO)
    )


def non_private_is_infinite(accountant):
    event = compose([gaussian(1.0), NonPrivate()])
    return (
        accountant.epsilon(event, DELTA, adjacency=ZERO) == math.inf
        and accountant.delta(event, 1.0, adjacency=ZERO) == 1.0
        and accountant.delta(event, math.inf, adjacency=ZERO) == 0.0  # nothing is above e^inf times anything
    )


def count_n_equals_n_singles(accountant):
    def cost(event):
        return accountant.epsilon(event, DELTA, adjacency=ZERO)

    return all(
        cost(repeat(event, 7)) == cost(compose([event] * 7)) > cost(event) * (1 + 2 * accountant.tolerance)
        for event in singles(accountant)
    )


def more_noise_costs_less(accountant):
    kinds = [gaussian]
    if accountant.sampled:
        kinds += [lambda z: poisson(0.2, z), lambda z: fixed(30, 10, z), lambda z: allocated(20, 3, z)]
        kinds += [laplace, lambda z: truncated(30, 0.3, 12, z), lambda z: sampled_laplace(0.2, z)]
    return all(_falling(accountant, map(kind, (0.5, 1.0, 1.1, 4.0))) for kind in kinds)


def less_rate_costs_less(accountant):
    if not accountant.sampled:
        return True
    ladders = [[of(q, 1.0) for q in (1.0, 0.99, 0.5, 0.01)] for of in (poisson, sampled_laplace)]
    ladders += [[fixed(30, m, 1.0) for m in (30, 29, 10, 1)], [allocated(20, k, 1.0) for k in (20, 11, 10, 3, 1)]]
    ladders += [[truncated(30, q, 12, 1.0) for q in (0.9, 0.5, 0.3, 0.01)]]
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
        pairs = [(gaussian(2.0), gaussian(1.0))]
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

    with pytest.raises(EventError, match="Mystery"):
        accountant.epsilon(Mystery(), DELTA, adjacency=ZERO)
    return True


def unsound_pairs_are_refused(accountant):
    for price, at in ((accountant.epsilon, DELTA), (accountant.delta, 1.0)):
        with pytest.raises(EventError, match="add-or-remove-one"):
            price(fixed(30, 3, 1.0), at, adjacency=ADD)
    return True


def impossible_targets_are_refused(accountant):
    for epsilon in (-0.1, math.nan):  # deltas are in ``tests.accountant.test_events``
        with pytest.raises(AccountingError, match=r"^epsilon must be at least 0"):
            accountant.delta(gaussian(1.0), epsilon, adjacency=ZERO)
    return True


PROPERTIES = [
    empty_costs_nothing,
    non_private_is_infinite,
    count_n_equals_n_singles,
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
    (fixed(30, 10, 1.0), 20, ZERO),
    (fixed(30, 10, 1.0), 20, REPLACE),
    (gaussian(3.0), 5, ZERO),
    (laplace(2.0), 5, ZERO),
    (sampled_laplace(0.2, 0.7), 5, ZERO),
    (truncated(30, 0.3, 12, 1.5), 20, ZERO),
    (allocated(20, 2, 1.5), 2, ZERO),
    (truncated(30, 0.3, 12, 1.5), 20, REPLACE),
    (truncated(30, 0.01, 12, 1.0), 100, ADD),
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
