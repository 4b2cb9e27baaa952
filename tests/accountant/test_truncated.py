"""Poisson samples cut to a size: their chances by many digits, and no data sets told apart more easily than is said.

Brute force adds up every sample that can be drawn, so nothing of the analysis is in it.
"""

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from scipy.special import ndtr

from accountant import renyi
from accountant.dp_event import to_dp_event
from accountant.errors import EventError
from accountant.events import Adjacency, compose, repeat
from accountant.mechanisms.allocation import _added, _log_moments, allotted
from accountant.mechanisms.truncated import shares
from accountant.tight import numerical
from accountant.verify.lower.ends import least_rate
from tests.accountant.builders import allocated, fixed, gaussian, poisson, truncated
from tests.accountant.oracles import cut_density, density, profile, told_apart
from tests.reports.auditors import as_read

ADD, ZERO, REPLACE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE


@pytest.mark.parametrize(
    ("n", "q", "size"),
    [
        *[(3, 0.5, 1), (40, 0.25, 12), (1000, 0.05, 120), (100_000, 1e-3, 90), (2000, 0.999, 1999), (9, 1.0, 4)],
        *[(1_415_565_782, 9.665638291241276e-09, size) for size in (3, 14, 40)],
        (897_753, 3.5834023249212257e-06, 3),
    ],
)
def test_the_chances_by_many_digits(n, q, size):
    mp.mp.dps = 60
    rate = mp.mpf(q)

    def mass(total, at):
        return mp.binomial(total, at) * rate**at * (1 - rate) ** (total - at)

    top = min(n - 1, size + 3000)
    cut = mp.fsum(mass(n - 1, x) for x in range(size, top + 1))
    stays = rate * mp.fsum(mass(n - 1, x) * size / (x + 1) for x in range(size, top + 1))
    found = shares(truncated(n, q, size, 1.0))
    assert found.cut <= cut <= found.cut + found.unsure
    assert found.uncut - 1e-15 <= 1 - cut <= found.uncut + found.unsure + 1e-15
    digits = 1e-9 if n <= 1_000_000 else 1e-6
    assert found.unsure <= 3 * digits * min(cut, 1 - cut) + mp.mpf("1e-299")
    assert found.uncut + found.unsure + found.cut == pytest.approx(1.0, abs=1e-15)
    assert stays / cut <= found.cut_rate <= stays / cut * (1 + 10 * digits)
    least = rate * (1 - cut) + stays
    assert least * (1 - max(1e-7, 2e-12 * n)) <= chance_of_staying(truncated(n, q, size, 1.0)) <= least


def chance_of_staying(event):
    ((part, _),) = as_read(event).parts
    return least_rate(part)


def neighbours(adjacency, n, rng):
    """Pairs of data sets: the others opposed, absent, alike, and at random."""
    scale = 0.5 if adjacency is REPLACE else 1.0
    for others in (-np.ones(n - 1), np.zeros(n - 1), np.ones(n - 1), rng.uniform(-1, 1, n - 1)):
        full = [1.0, *others]
        other = {ADD: list(others), ZERO: [0.0, *others], REPLACE: [rng.choice([-1.0, 0.0, 0.3]), *others]}[adjacency]
        yield scale * np.array(full), scale * np.array(other)


def promised(event, adjacency, gamma):
    """The hockey stick of the pair, the larger direction."""
    return max(float(profile(pair, np.array([gamma]))[0]) for pair in event.pairs(adjacency))


@pytest.mark.parametrize("adjacency", [ADD, ZERO, REPLACE])
@pytest.mark.parametrize(
    ("n", "q", "size", "z"), [(4, 0.5, 2, 1.0), (5, 0.8, 3, 0.7), (5, 0.3, 1, 2.0), (3, 0.2, 3, 0.5), (4, 0.99, 2, 1.0)]
)
def test_no_data_sets_are_told_apart_more_easily(adjacency, n, q, size, z):
    event, x = truncated(n, q, size, z), np.linspace(-n - 9 * z, n + 9 * z, 6001)
    both = neighbours(adjacency, n, np.random.default_rng(1))
    laws = [[cut_density(x, values, q, size, z) for values in pair] for pair in both]

    def largest(gamma):
        return max(told_apart(x, gamma, *pair) for pair in laws)

    for gamma in (0.2, 0.6, 0.9, 1.0, 1.1, 1.5, 3.0, 8.0):
        assert largest(gamma) <= promised(event, adjacency, gamma) * (1 + 1e-5) + 1e-9
    assert largest(1.5) >= 0.3 * promised(poisson(chance_of_staying(event), z), adjacency, 1.5)


@pytest.mark.parametrize("adjacency", [ADD, ZERO, REPLACE])
def test_rare_and_certain_cuts_are_the_events_they_become(adjacency):
    def prices(event, at):
        """At an epsilon, and the curve: at orders far larger than these the rarest cut is what costs."""
        curve = event.renyi_curve(np.array([1.5, 4.0, 8.0]), at)
        return numerical.epsilon(repeat(event, 9), 1e-5, adjacency=at), curve

    found, curve = prices(poisson(0.1, 1.5), adjacency)
    for size in (49, 50):
        one, own = prices(truncated(50, 0.1, size, 1.5), adjacency)
        assert one == pytest.approx(found, rel=2e-3)
        np.testing.assert_allclose(own, curve, rtol=1e-7)
    one, own = prices(truncated(50, 1.0, 20, 1.5), adjacency)
    if adjacency is REPLACE:
        found, curve = prices(fixed(50, 20, 1.5), REPLACE)
        assert one == pytest.approx(found, rel=2e-3)
        np.testing.assert_allclose(own, curve, rtol=1e-7)
        return
    # of a sample of fixed size a bound is known that serves two adjacencies and both directions at once
    found, curve = prices(fixed(50, 20, 0.75), REPLACE if adjacency is ADD else ZERO)
    assert 0.4 * found < one < found
    if adjacency is ZERO:
        assert np.all((0.2 * curve < own) & (own < 0.6 * curve))
    else:
        np.testing.assert_allclose(own, curve, rtol=1e-7)


@pytest.mark.parametrize(("n", "q", "size", "z"), [(1000, 0.05, 80, 1.0), (40, 0.25, 12, 2.0), (40, 0.25, 4, 0.8)])
def test_the_curve_of_a_cut_sample_lies_above_its_pair_and_not_far(n, q, size, z):
    """Of the pair, from its densities: x^a - 1 - a (x - 1) of the opposed pair above ratio 1, of the sample's below."""
    event = truncated(n, q, size, z)
    found, orders = shares(event), np.array([1.5, 2.0, 4.0, 12.0])
    x = np.arange(-60.0, 60.0, 0.01)

    def law(rate, low, high):
        return density(x, z, ((1.0 - rate, low), (rate, high))) + 1e-300

    def excess(p, q_, order, where):
        ratio = p / q_
        terms = q_ * (ratio**order - 1.0 - order * (ratio - 1.0))
        return 0.01 * float(np.sum(terms[where(ratio)]))

    rate, (still, sampled) = found.cut_rate, (law(0.0, 0.0, 0.0), law(found.cut_rate, 0.0, 1.0))
    opposed, gone = law(rate, -1.0, 1.0), law(rate, -1.0, 0.0)
    whole = law(q, 0.0, 1.0)
    for order, curve in zip(orders, event.renyi_curve(orders, ZERO), strict=True):
        above, below = (lambda r: r >= 1.0), (lambda r: r < 1.0)
        removed = excess(opposed, gone, order, above) + excess(still, sampled, order, below)
        added = excess(sampled, still, order, above) + excess(gone, opposed, order, below)
        uncut = excess(whole, still, order, lambda r: r > 0.0)
        least = math.log1p(found.uncut * uncut + found.cut * max(removed, added)) / (order - 1.0)
        assert least * (1.0 - 1e-6) <= curve
    assert np.all(event.renyi_curve(orders, ZERO) <= event.renyi_curve(orders, ADD) * (1.0 + 1e-12))


# ---- random allocation: its Rényi curve against integrals, every subset one by one, and Monte Carlo that only checks


def moment(rounds, k, z, order):
    """E_Q[(dP/dQ)^order] of integer order, every tuple of subsets one by one: E prod N(1_S)/N(0) is exp of overlaps."""
    subsets = [np.isin(np.arange(rounds), one).astype(float) for one in itertools.combinations(range(rounds), k)]
    total = 0.0
    for chosen in itertools.product(subsets, repeat=order):
        together = sum(chosen)
        total += math.exp((float(together @ together) - order * k) / (2 * z * z))
    return total / len(subsets) ** order


@pytest.mark.parametrize(("rounds", "z", "order"), [(2, 1.0, 2), (3, 0.7, 4), (5, 2.0, 3), (4, 1.0, 5), (1, 1.0, 3)])
def test_integer_orders_tuple_by_tuple(rounds, z, order):
    found = _log_moments(rounds, z, 8)[order] if rounds > 1 else (order - 1) * order / (2 * z * z)
    assert found == pytest.approx(math.log(moment(rounds, 1, z, order)), rel=1e-9)


@pytest.mark.parametrize(
    ("rounds", "k", "z", "order"), [(4, 2, 1.0, 2), (5, 2, 0.8, 2), (5, 3, 1.5, 3), (4, 4, 1.0, 2)]
)
def test_several_participations_cost_no_more_than_their_blocks(rounds, k, z, order):
    truth = math.log(moment(rounds, k, z, order)) / (order - 1)
    found = float(allocated(rounds, k, z).renyi_curve(np.array([float(order)]), ZERO)[0])
    assert truth * (1 - 1e-12) <= found <= 2.5 * truth
    if k == rounds:
        assert found == pytest.approx(truth, rel=1e-9)


def ratio_moment(z, power):
    """E_Q[R^power] of two rounds: the trapezoid rule over the plane, which no smooth integrand there resists."""
    reach = 12 + abs(power) / z
    t, step = np.linspace(-reach, reach, 1601, retstep=True)
    weight, w = np.exp(-0.5 * t * t) * step / math.sqrt(2 * math.pi), np.exp(t / z - 0.5 / z**2)
    return float(weight @ (0.5 * (w[:, None] + w[None, :])) ** power @ weight)


@pytest.mark.parametrize(("z", "b"), [(1.0, 1.0), (1.0, 1.5), (2.0, 4.0), (1.0, 4.0), (4.0, 2.5), (0.6, 1.0)])
def test_the_other_direction_by_quadrature(z, b):
    truth = math.log(ratio_moment(z, -b)) / b
    assert truth * (1 - 1e-10) <= _added(2, z, b) <= truth * (1 + 2e-3)


def test_intervals_compositions_and_refusals():
    event = compose([allocated(50, 2, 2.0), gaussian(8.0)])
    found = numerical.epsilon_interval(event, 1e-5, adjacency=ZERO)
    assert found.method == "numerical"
    assert 0.95 * found.upper <= found.lower < found.upper
    assert found.upper < numerical.epsilon(compose([gaussian(2.0, 2), gaussian(8.0)]), 1e-5, adjacency=ZERO)
    with pytest.raises(EventError, match="not stated under replace-one"):
        renyi.epsilon(event, 1e-5, adjacency=REPLACE)
    with pytest.raises(EventError, match="dp-accounting has no event"):
        to_dp_event(event, adjacency=ADD)
    with pytest.raises(EventError, match="participations must be at most n_rounds=3, got 4"):
        allocated(3, 4, 1.0)


@pytest.mark.parametrize(("rounds", "z"), [(2, 1.0), (3, 0.7), (3, 2.5)])
def test_the_pair_of_one_participation_is_never_below_the_truth(rounds, z):
    """Brute force over a mesh of all rounds' ratios, each cell's mean in its place: below the truth, and near it."""
    cells = 1200 if rounds == 2 else 110
    edges = np.linspace(-10 - 1 / z, 10 + 1 / z, cells + 1)
    under_q, under_p = np.diff(ndtr(edges)), np.diff(ndtr(edges - 1 / z))
    ratio = np.divide(under_p, under_q, out=np.zeros(cells), where=under_q > 0)
    mesh = [ratio.reshape([-1 if at == axis else 1 for at in range(rounds)]) for axis in range(rounds)]
    weight = [under_q.reshape([-1 if at == axis else 1 for at in range(rounds)]) for axis in range(rounds)]
    mean, mass = sum(mesh) / rounds, math.prod(weight)
    gammas = np.array([0.3, 0.8, 1.0, 1.3, 2.5, 8.0])
    truth = np.array([float(np.sum(mass * np.maximum(mean - g, 0.0))) for g in gammas])
    back = np.array([float(np.sum(mass * np.maximum(1.0 - g * mean, 0.0))) for g in gammas])
    for pair, true in zip(allotted(rounds, z), (truth, back), strict=True):
        found = profile(pair, gammas)
        assert np.all(found >= true * (1 - 1e-12))
        assert np.all(found <= true * (1 + (8e-3 if rounds == 2 else 4e-2)) + 1e-5)


def test_beyond_the_grid_no_delta_lies_below_what_one_round_tells():
    """The first round's answer lies beyond c with at least half its chance there, were the unit always in it."""
    c = np.linspace(13.0, 16.0, 61)
    truth = float(np.max(0.5 * ndtr(1.0 - c) - math.exp(12.85) * ndtr(-c)))
    assert truth <= numerical.delta(allocated(2, 1, 1.0), 12.85, adjacency=ZERO) <= 1e3 * truth
