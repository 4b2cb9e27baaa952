"""Dominating pairs against brute force: no allowed pair of data sets is told apart more easily."""

from __future__ import annotations

import itertools
import math

import mpmath as mp
import numpy as np
import pytest

from accountant import numerical
from accountant.dp_event import dp_event_expression
from accountant.errors import EventError
from accountant.events import Adjacency, Basic, from_dict, of_group, of_seen_samples, to_dict
from accountant.mechanisms.pair import EPS, normal_error
from accountant.verify import events as read
from accountant.verify.lower.ends import lower_epsilon
from tests.accountant.builders import EXAMPLES, fixed, gaussian, laplace, poisson, sampled_laplace
from tests.reports.auditors import as_read


def normal(grid, center, z):
    x, y = grid
    return np.exp(-((x - center[0]) ** 2 + (y - center[1]) ** 2) / (2 * z * z)) / (2 * math.pi * z * z)


def divergence(p, q, gamma, cell):
    return float(np.sum(np.maximum(p - gamma * q, 0.0)) * cell)


def angles():
    lengths = (0.0, 0.25, 0.5)
    turns = np.linspace(0.0, math.pi, 7)
    return itertools.product(lengths, lengths, turns)


def largest_replace_one(q, z, gamma, *, reach=0.5):
    """Over pairs of contributions in the plane, and the opposed pair itself."""
    axis = np.linspace(-8 * z, 8 * z, 321)
    grid, cell = np.meshgrid(axis, axis), (axis[1] - axis[0]) ** 2

    def mixture(center):
        return (1 - q) * normal(grid, (0.0, 0.0), z) + q * normal(grid, center, z)

    scale = reach / 0.5
    found = [
        divergence(mixture((scale * a, 0.0)), mixture((scale * b * math.cos(t), scale * b * math.sin(t))), gamma, cell)
        for a, b, t in angles()
    ]
    return max(found), divergence(mixture((0.5, 0.0)), mixture((-0.5, 0.0)), gamma, cell)


@pytest.mark.parametrize(("q", "z"), [(0.3, 0.5), (0.7, 1.0)])
@pytest.mark.parametrize("gamma", [0.4, 1.0, 1.3, 3.0])
def test_the_opposed_pair_is_the_worst(q, z, gamma):
    worst, opposed = largest_replace_one(q, z, gamma)
    assert worst <= opposed * (1 + 1e-9)


@pytest.mark.parametrize("gamma", [0.4, 0.9, 1.0, 1.3, 2.0])
@pytest.mark.parametrize(("q", "b"), [(0.3, 0.5), (0.7, 1.0)])
def test_no_pair_of_vectors_beats_a_number_with_laplace_noise(q, b, gamma):
    """Contributions in the plane of L1 norm at most 1 (1/2 where one is replaced), those that oppose among them."""
    axis = np.linspace(-9 * b, 1 + 9 * b, 601)
    x, y = np.meshgrid(axis, axis)
    cell = (axis[1] - axis[0]) ** 2

    def mixture(center):
        law = [np.exp(-(np.abs(x - u) + np.abs(y - v)) / b) / (4 * b * b) for u, v in ((0.0, 0.0), center)]
        return (1 - q) * law[0] + q * law[1]

    def found(one, other):
        return divergence(mixture(one), mixture(other), gamma, cell)

    vectors = [(1.0, 0.0), (0.5, 0.5), (0.5, -0.5), (0.3, 0.7), (0.2, 0.3), (0.0, 0.0)]
    slack = 2e-3  # of the grid; a hockey stick is 1 - gamma at least
    for first, second in (((1.0, 0.0), (0.0, 0.0)), ((0.0, 0.0), (1.0, 0.0))):
        worst = max(found(v, (0.0, 0.0)) if first[0] else found((0.0, 0.0), v) for v in vectors)
        assert worst <= found(first, second) + slack
    halves = [(0.5 * u, 0.5 * v) for u, v in vectors]
    pairs = itertools.product(halves, [*halves, *((-u, -v) for u, v in halves)])
    opposed = found((0.5, 0.0), (-0.5, 0.0))
    assert max(found(one, other) for one, other in pairs) <= opposed + slack
    if gamma == 1.0:  # planted fault: longer ones are noticed
        assert found((0.5, 0.5), (-0.5, -0.5)) > opposed + 10 * slack


def test_longer_contributions_are_noticed():
    """Planted fault: contributions longer than half the sensitivity pass the opposed pair."""
    worst, opposed = largest_replace_one(0.3, 0.5, 1.3, reach=0.6)
    assert worst > opposed * 1.05


# --- every tail at many digits ----------------------------------------------------------------


def mixture(q, center, z):
    """(1-q) N(0, z^2) + q N(center, z^2): its masses below and above x."""

    def below(x):
        return (1 - q) * mp.ncdf(x / z) + q * mp.ncdf((x - center) / z)

    def above(x):
        return (1 - q) * mp.ncdf(-x / z) + q * mp.ncdf((center - x) / z)

    return below, above


def poisson_position(q, z, loss):
    inside = (mp.exp(loss) - (1 - q)) / q
    return z * z * mp.log(inside) + mp.mpf(1) / 2 if inside > 0 else -mp.inf


def removed(q, z, loss):
    x = poisson_position(q, z, loss)
    (p_below, p_above), (q_below, q_above) = mixture(q, 1, z), mixture(0, 0, z)
    return (p_above(x), p_below(x), q_above(x), q_below(x)), x / z, (x - 1) / z


def added(q, z, loss):
    (p_above, p_below, q_above, q_below), *where = removed(q, z, -loss)
    return (q_below, q_above, p_below, p_above), *where


def opposed(q, z, loss):
    weight = (1 - q) * mp.exp(1 / (8 * z * z)) / q
    x = 2 * z * z * (loss / 2 + mp.asinh(weight * mp.sinh(loss / 2)))
    (p_below, p_above), (q_below, q_above) = mixture(q, mp.mpf(1) / 2, z), mixture(q, -mp.mpf(1) / 2, z)
    return (p_above(x), p_below(x), q_above(x), q_below(x)), x / z, (abs(x) + mp.mpf(1) / 2) / z


def fixed_size(q, z, loss):
    """The removed client's mass at losses above 0, its mirror image below, the rest at 0."""
    (p_above, _, q_above, _), *where = removed(q, z, abs(loss))
    if loss < 0:
        p_above, q_above = 1 - q_above, 1 - p_above
    return (p_above, 1 - p_above, q_above, 1 - q_above), *where


def everybody(_, z, loss):
    x = z * loss
    up, down = x - 1 / (2 * z), x + 1 / (2 * z)
    return (mp.ncdf(-up), mp.ncdf(up), mp.ncdf(-down), mp.ncdf(down)), up, down


def laplace_mixture(b, *parts):
    """Masses above and below x of a mixture of Laplace laws."""

    def below(x):
        return sum(w * (mp.exp((x - c) / b) / 2 if x < c else 1 - mp.exp((c - x) / b) / 2) for w, c in parts)

    def above(x):
        return sum(w * (1 - mp.exp((x - c) / b) / 2 if x < c else mp.exp((c - x) / b) / 2) for w, c in parts)

    return above, below


def removed_laplace(q, b, loss):
    """Loss log(1 - q + q e^r), r = (|x| - |x - 1|) / b, which is 2x - 1 over b between 0 and 1; atoms at both ends."""
    inside = (mp.exp(loss) - (1 - q)) / q
    r = mp.log(inside) if inside > 0 else -mp.inf
    if r >= 1 / b or r < -1 / b:
        above = mp.mpf(0 if r >= 1 / b else 1)
        return (above, 1 - above, above, 1 - above), 1 / b
    x = (b * r + 1) / 2
    (p_above, p_below), (q_above, q_below) = laplace_mixture(b, (1 - q, 0), (q, 1)), laplace_mixture(b, (1, 0))
    return (p_above(x), p_below(x), q_above(x), q_below(x)), 1 / b


def added_laplace(q, b, loss):
    (p_above, p_below, q_above, q_below), *where = removed_laplace(q, b, -loss)
    return (q_below, q_above, p_below, p_above), *where


def opposed_laplace(q, b, loss):
    """Found by bisection: the loss grows between x = -1/2 and 1/2."""

    def at(x):
        r, s = ((abs(x) - abs(x - c)) / b for c in (mp.mpf(1) / 2, -mp.mpf(1) / 2))
        return mp.log((1 - q + q * mp.exp(r)) / (1 - q + q * mp.exp(s)))

    low, high = -mp.mpf(1) / 2, mp.mpf(1) / 2
    if loss >= at(high) or loss < at(low):
        above = mp.mpf(0 if loss > 0 else 1)
        return (above, 1 - above, above, 1 - above), 1 / b
    for _ in range(120):
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle) <= loss else (low, middle)
    p_above, p_below = laplace_mixture(b, (1 - q, 0), (q, mp.mpf(1) / 2))
    q_above, q_below = laplace_mixture(b, (1 - q, 0), (q, -mp.mpf(1) / 2))
    return (p_above(low), p_below(low), q_above(low), q_below(low)), 1 / b


ZERO, REPLACE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
RATES = (1e-4, 0.3, 0.98)
EXACT = [
    (poisson(1 - 1e-7, 1.5), ZERO, (removed, added), 1 - 1e-7, 1.5),
    (poisson(1e-7, 1.5), ZERO, (removed, added), 1e-7, 1.5),
    (poisson(1e-7, 0.08), REPLACE, (opposed,), 1e-7, 0.08),
    (poisson(1.0, 2.0), ZERO, (everybody,), 1.0, 2.0),
    (fixed(8, 8, 2.0), ZERO, (everybody,), 1.0, 2.0),
    *[(poisson(q, z), ZERO, (removed, added), q, z) for q in RATES for z in (0.4, 1.5, 12.0)],
    *[(poisson(q, z), REPLACE, (opposed,), q, z) for q in RATES for z in (0.4, 1.5, 12.0)],
    *[(fixed(8, m, z), ZERO, (fixed_size,), m / 8, z) for m in (1, 7) for z in (0.4, 1.5)],
    *[(gaussian(z), ZERO, (everybody,), 1.0, z) for z in (0.05, 0.25, 1.0, 9.0)],
    *[(laplace(b), ZERO, (removed_laplace,), 1.0, b) for b in (0.02, 0.25, 1.0, 9.0)],
    *[
        (sampled_laplace(q, b), adjacency, truths, q, b)
        for q in RATES
        for b in (0.05, 1.0, 9.0)
        for adjacency, truths in ((ZERO, (removed_laplace, added_laplace)), (REPLACE, (opposed_laplace,)))
    ],
]


@pytest.mark.parametrize(("event", "adjacency", "truths", "q", "z"), EXACT)
def test_every_tail_lies_within_what_the_pair_admits(event, adjacency, truths, q, z):
    """At edges all over the range: the tail at the edge, which may lie off by loss_error, times 1 + relative_error."""
    mp.mp.dps = 40
    pairs = event.pairs(adjacency)
    assert len(pairs) == len(truths)
    for pair, truth in zip(pairs, truths, strict=True):
        low, high = pair.loss_range(9.0)
        edges = np.concatenate([np.linspace(low, high, 24), np.linspace(-0.9, 0.9, 7) * min(-low, high), [0.0]])
        tails = pair.tails(edges)
        error, shift = tails.relative_error, mp.mpf(pair.loss_error)
        assert np.all(error <= 1e-12)
        # an edge may lie off by eps times the largest term that is added to find its place
        terms = {opposed: 1 / (8 * z * z) - math.log(q), everybody: 1 / (2 * z * z)}
        largest = 1 + terms.get(truth, -math.log(q)) + (("laplace" in event.kind) / z)
        assert EPS * largest <= pair.loss_error <= 40 * EPS * (largest + (q / (1 - q) if q < 1 else 0))
        found = np.array([tails.p_above, tails.p_below, tails.q_above, tails.q_below])
        for index, edge in enumerate(edges):
            at = mp.mpf(float(edge))
            ends = [truth(mp.mpf(q), mp.mpf(z), at + side * shift)[0] for side in (-1, 1)]
            for value, one, other in zip(found[:, index], *ends, strict=True):
                least, most = sorted((one, other))
                admitted = mp.mpf(float(error[index]))
                assert least * (1 - admitted) - mp.mpf("1e-300") <= value <= most * (1 + admitted)
            # what rounding the place costs there: eps of the exponent, t^2 / 2 or |x| / b
            deepest = min(40.0, float(max(abs(t) for t in truth(mp.mpf(q), mp.mpf(z), at)[1:])))
            least_error = EPS * (1 + deepest) if "laplace" in event.kind else normal_error(np.array([deepest]))[0]
            # where sampled without replacement, tails are also taken from 1
            least_error += EPS * (truth is fixed_size)
            assert error[index] >= least_error * (1 - 1e-5)


@pytest.mark.parametrize(("event", "adjacency", "truths", "q", "z"), EXACT)
def test_a_pairs_range_holds_what_it_says(event, adjacency, truths, q, z):
    """Of P no more lies outside than a normal tail at t; nothing of a loss that is bounded."""
    mp.mp.dps = 40
    for pair, truth in zip(event.pairs(adjacency), truths, strict=True):
        for t in (0.1, 1.0, 6.0):
            low, high = pair.loss_range(t)
            slack = mp.mpf("1e-12")
            above = truth(mp.mpf(q), mp.mpf(z), mp.mpf(high) + slack)[0][0]
            below = truth(mp.mpf(q), mp.mpf(z), mp.mpf(low) - slack)[0][1]
            tail = mp.ncdf(-t) if "laplace" not in event.kind else 0
            assert above <= tail * (1 + slack)
            assert below <= tail * (1 + slack)


# ---- every kind of event through its whole protocol: nothing that an accountant asks of an event may be missing

WITHOUT_PAIR = {"zero-concentrated", "best-of-random-runs", "non-private"}
WITHOUT_GROUP = {
    "fixed-size-sampled-gaussian",
    "truncated-poisson-sampled-gaussian",
    "random-allocation-gaussian",
    "poisson-sampled-laplace",
}
OPEN = {"gaussian", "laplace", "mixture-of-gaussians", "zero-concentrated", "non-private"}  # no sample to see


def parts_missing(kind: str) -> list[str]:
    """Parts of the protocol that a kind lacks, or answers wrongly."""
    event = EXAMPLES[kind]
    orders = np.array([1.5, 4.0, 32.0])
    curve = event.renyi_curve(orders, ZERO)
    pairs = [pair for part, _ in event.blocks() for pair in part.pairs(ZERO)]
    checks = {
        "stored form": kind == event.kind == to_dict(event)["type"] and from_dict(to_dict(event)) == event,
        "words": bool(event.text) and bool(event.sampler) and "{" not in event.text + event.sampler,
        "dominating pair": (not pairs) == (kind in WITHOUT_PAIR),
        "Rényi curve": curve.shape == orders.shape and bool(np.all(curve > 0.0)),
        "lower end": lower_end(event) <= numerical.epsilon(event, 1e-5, adjacency=ZERO),
        "group": (event.for_group(2, ZERO) is None) == (kind in WITHOUT_GROUP),
        "seen samples": (event.seen_samples() == (event, 1)) == (kind in OPEN),
        "DpEvent": "DpEvent" in dp_event_expression(event, adjacency=ZERO),
    }
    return [name for name, holds in checks.items() if not holds]


def lower_end(event: Basic) -> float:
    paid = as_read(event)
    assert [type(part).__name__ for part, _ in paid.parts] == [type(event).__name__]
    return lower_epsilon(paid, 1e-5, read.Adjacency.ZERO_OUT)


def test_every_kind_has_an_example() -> None:
    assert EXAMPLES.keys() == Basic.kinds.keys()


@pytest.mark.parametrize("kind", EXAMPLES)
def test_every_kind_answers_the_whole_protocol(kind: str) -> None:
    assert parts_missing(kind) == []


@pytest.mark.parametrize("kind", EXAMPLES)
def test_more_is_known_of_more(kind: str) -> None:
    """A group costs no less than one unit, and a seen sample no less than a hidden one."""
    event = EXAMPLES[kind]
    alone = numerical.epsilon(event, 1e-5, adjacency=ZERO)
    assert numerical.epsilon(of_seen_samples(event), 1e-5, adjacency=ZERO) >= alone
    if kind in WITHOUT_GROUP:
        with pytest.raises(EventError, match="nothing tight is proven"):
            of_group(event, 2, adjacency=ZERO)
    else:
        assert numerical.epsilon(of_group(event, 2, adjacency=ZERO), 1e-5, adjacency=ZERO) >= alone
