"""Dominating pairs against brute force: no allowed pair of data sets is told apart more easily."""

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, strategies as st

from accountant.dp_event import dp_event_expression
from accountant.errors import AccountingError, EventError
from accountant.events import Adjacency, Basic, from_dict, of_group, of_seen_samples, to_dict
from accountant.mechanisms.pair import EPS, normal_error
from accountant.sensitivity import Sampler, contribution_factor, sensitivity
from accountant.tight import numerical
from accountant.verify import events as read
from accountant.verify.lower.ends import lower_epsilon
from tests.accountant.builders import EXAMPLES, fixed, gaussian, laplace, poisson, sampled_laplace
from tests.accountant.oracles import added, bisected, density, normals, opposed, removed, told_apart, turned
from tests.reports.auditors import as_read


@pytest.mark.parametrize("gamma", [0.4, 0.9, 1.0, 1.3, 3.0])
@pytest.mark.parametrize(("q", "scale"), [(0.3, 0.5), (0.7, 1.0)])
@pytest.mark.parametrize("power", [1, 2], ids=["Laplace noise", "Gaussian noise"])
def test_no_pair_of_vectors_beats_numbers_that_oppose(power, q, scale, gamma):
    """Contributions in the plane of norm at most 1 (1/2 where one is replaced), in L1 or L2 as their noise is."""
    axis = np.linspace(-1 - 8 * scale, 1 + 8 * scale, 201)
    x, y = np.meshgrid(axis, axis)

    def mixture(center):
        places = [((1 - q), (0.0, 0.0)), (q, center)]
        laws = [
            (w, np.exp(-(np.abs(x - u) ** power + np.abs(y - v) ** power) / power / scale**power))
            for w, (u, v) in places
        ]
        return sum(w * law / law.sum() for w, law in laws)

    def largest(ones, others):
        return max(float(np.maximum(one - gamma * other, 0.0).sum()) for one in ones for other in others)

    turns = np.array([(math.cos(t), math.sin(t)) for t in np.linspace(0.0, 2 * math.pi, 9)])
    unit = turns / np.sum(np.abs(turns) ** power, axis=1, keepdims=True) ** (1 / power)
    still, (up, down) = [mixture((0.0, 0.0))], ([mixture((u, 0.0))] for u in (0.5, -0.5))
    whole, halves = ([mixture(r * v) for r in (0.0, 0.5 * reach, reach) for v in unit] for reach in (1.0, 0.5))
    slack = 2e-3  # of the grid
    assert largest(whole, still) <= largest([mixture((1.0, 0.0))], still) + slack
    assert largest(still, whole) <= largest(still, [mixture((1.0, 0.0))]) + slack
    assert largest(halves, halves) <= largest(up, down) + slack
    if gamma == 1.0:  # planted fault: longer ones are noticed
        assert largest([mixture((0.6, 0.0))], [mixture((-0.6, 0.0))]) > largest(up, down) + 5 * slack


# --- every tail at many digits ----------------------------------------------------------------


def fixed_size(q, z, loss):
    """The removed client's mass at losses above 0, its mirror image below, the rest at 0."""
    (p_above, _, q_above, _), *where = removed(q, z, abs(loss))
    if loss < 0:
        p_above, q_above = 1 - q_above, 1 - p_above
    return (p_above, 1 - p_above, q_above, 1 - q_above), *where


def everybody(_, z, loss):
    x, half = z * loss, 1 / (2 * z)
    return (*normals(1, (1, half))(x), *normals(1, (1, -half))(x)), x - half, x + half


def laplacians(b, *parts):
    """Masses above and below x of a mixture of Laplace laws."""

    def above(t):
        return 1 - mp.exp(t) / 2 if t < 0 else mp.exp(-t) / 2

    return lambda x: [sum(w * above(side * (x - c) / b) for w, c in parts) for side in (1, -1)]


def removed_laplace(q, b, loss):
    """Loss log(1 - q + q e^r), r = (|x| - |x - 1|) / b, which is 2x - 1 over b between 0 and 1; atoms at both ends."""
    inside = (mp.exp(loss) - (1 - q)) / q
    r = mp.log(inside) if inside > 0 else -mp.inf
    if r >= 1 / b or r < -1 / b:
        above = mp.mpf(0 if r >= 1 / b else 1)
        return (above, 1 - above, above, 1 - above), 1 / b
    x = (b * r + 1) / 2
    return (*laplacians(b, (1 - q, 0), (q, 1))(x), *laplacians(b, (1, 0))(x)), 1 / b


added_laplace = turned(removed_laplace)


def opposed_laplace(q, b, loss):
    """Found by bisection: the loss grows between x = -1/2 and 1/2."""
    half = mp.mpf(1) / 2

    def at(x):
        r, s = ((abs(x) - abs(x - c)) / b for c in (half, -half))
        return mp.log((1 - q + q * mp.exp(r)) / (1 - q + q * mp.exp(s)))

    if loss >= at(half) or loss < at(-half):
        above = mp.mpf(0 if loss > 0 else 1)
        return (above, 1 - above, above, 1 - above), 1 / b
    x = bisected(lambda x: at(x) > loss, -half, half, steps=120)
    return tuple(mass for c in (half, -half) for mass in laplacians(b, (1 - q, 0), (q, c))(x)), 1 / b


ADD, ZERO, REPLACE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
RATES = (1e-4, 0.3, 0.98)
BOTH = [(ZERO, (removed, added)), (REPLACE, (opposed,))]
LAPLACE = [(ZERO, (removed_laplace, added_laplace)), (REPLACE, (opposed_laplace,))]
EXACT = [
    (poisson(1 - 1e-7, 1.5), ZERO, (removed, added), 1 - 1e-7, 1.5),
    (poisson(1e-7, 1.5), ZERO, (removed, added), 1e-7, 1.5),
    (poisson(1e-7, 0.08), REPLACE, (opposed,), 1e-7, 0.08),
    (poisson(1.0, 2.0), ZERO, (everybody,), 1.0, 2.0),
    (fixed(8, 8, 2.0), ZERO, (everybody,), 1.0, 2.0),
    *[(poisson(q, z), *both, q, z) for both in BOTH for q in RATES for z in (0.4, 1.5, 12.0)],
    *[(fixed(8, m, z), ZERO, (fixed_size,), m / 8, z) for m in (1, 7) for z in (0.4, 1.5)],
    *[(gaussian(z), ZERO, (everybody,), 1.0, z) for z in (0.05, 0.25, 1.0, 9.0)],
    *[(laplace(b), ZERO, (removed_laplace,), 1.0, b) for b in (0.02, 0.25, 1.0, 9.0)],
    *[(sampled_laplace(q, b), *both, q, b) for both in LAPLACE for q in RATES for b in (0.05, 1.0, 9.0)],
]


@pytest.mark.parametrize(("event", "adjacency", "truths", "q", "z"), EXACT)
def test_every_tail_and_range_lies_within_what_the_pair_admits(event, adjacency, truths, q, z):
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
        # of P no more lies outside its range than a normal tail at t; nothing of a loss that is bounded
        for t in (0.1, 1.0, 6.0):
            low, high = pair.loss_range(t)
            slack = mp.mpf("1e-12")
            above = truth(mp.mpf(q), mp.mpf(z), mp.mpf(high) + slack)[0][0]
            below = truth(mp.mpf(q), mp.mpf(z), mp.mpf(low) - slack)[0][1]
            tail = mp.ncdf(-t) if "laplace" not in event.kind else 0
            assert max(above, below) <= tail * (1 + slack)
        loss, log_mass = pair.nodes(7.0)  # what steers the search: P's losses at some 160 points
        mass, edges = np.exp(log_mass), np.quantile(loss, np.linspace(0.02, 0.98, 25)) + 1e-9
        assert np.sum(mass) == pytest.approx(1.0, abs=5e-3)
        coarse = [np.sum(mass[loss > edge]) for edge in edges]
        np.testing.assert_allclose(coarse, pair.tails(edges).p_above, atol=0.08)


# ---- every kind of event through its whole protocol: nothing that an accountant asks of an event may be missing

WITHOUT_GROUP = {
    "fixed-size-sampled-gaussian",
    "truncated-poisson-sampled-gaussian",
    "random-allocation-gaussian",
    "poisson-sampled-laplace",
}
OPEN = {"gaussian", "laplace", "mixture-of-gaussians", "zero-concentrated", "non-private"}  # no sample to see


def test_every_kind_has_an_example() -> None:
    assert EXAMPLES.keys() == Basic.kinds.keys()


@pytest.mark.parametrize("kind", EXAMPLES)
def test_every_kind_answers_the_whole_protocol(kind: str) -> None:
    event = EXAMPLES[kind]
    orders = np.array([1.5, 4.0, 32.0])
    curve, paid = event.renyi_curve(orders, ZERO), as_read(event)
    pairs = [pair for part, _ in event.blocks() for pair in part.pairs(ZERO)]
    checks = {
        "stored form": kind == event.kind == to_dict(event)["type"] and from_dict(to_dict(event)) == event,
        "words": bool(event.text) and bool(event.sampler) and "{" not in event.text + event.sampler,
        "dominating pair": (not pairs) == (kind in ("zero-concentrated", "best-of-random-runs", "non-private")),
        "Rényi curve": curve.shape == orders.shape and bool(np.all(curve > 0.0)),
        "lower end": [type(part).__name__ for part, _ in paid.parts] == [type(event).__name__]
        and lower_epsilon(paid, 1e-5, read.Adjacency.ZERO_OUT) <= numerical.epsilon(event, 1e-5, adjacency=ZERO),
        "group": (event.for_group(2, ZERO) is None) == (kind in WITHOUT_GROUP),
        "seen samples": (event.seen_samples() == (event, 1)) == (kind in OPEN),
        "DpEvent": "DpEvent" in dp_event_expression(event, adjacency=ZERO),
    }
    assert [name for name, holds in checks.items() if not holds] == []


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


# ---- sensitivity rules against the worst pair found by brute force over small cases


def worst_move(weights, norm, adjacency, sampler):
    """Largest change of the sum over neighbours (and, fixed-size, over which sample is coupled), vectors +-C."""
    signs = (-1.0, 0.0, 1.0)
    worst = 0.0
    for n, weight in enumerate(weights):
        for before, after in itertools.product(signs, signs):
            if adjacency == ZERO and after != 0.0:
                continue
            if sampler is Sampler.FIXED_SIZE:
                # the slot holds n in one run and j in the other ...
                for j, other in enumerate(weights):
                    for value in signs if j != n else ():
                        worst = max(worst, abs(weight * before - other * value) * norm)
            # ... or n in both, whose vector was replaced; one that was zeroed is no further off than j's may be
            if sampler is not Sampler.FIXED_SIZE or adjacency == REPLACE:
                worst = max(worst, abs(weight * before - weight * after) * norm)
    return worst


@given(
    st.lists(st.floats(0, 3), min_size=2, max_size=5),
    st.floats(0.1, 10),
    st.sampled_from([ZERO, REPLACE]),
    st.sampled_from(list(Sampler)),
)
def test_against_brute_force(weights, norm, adjacency, sampler):
    found = sensitivity(weights, norm, adjacency=adjacency, sampler=sampler)
    assert found == pytest.approx(worst_move(weights, norm, adjacency, sampler), rel=1e-12)


def test_the_naive_rule_under_reports():
    """Fixed-size, others opposing: multiplier 1 by the naive rule is 1/2 by ours; epsilon 4.12 against 3.11."""
    q, delta = 0.35, 1e-5
    naive = numerical.epsilon(poisson(q, 1.0), delta, adjacency=ZERO)
    ours = sensitivity(np.ones(20), 1.0, adjacency=ZERO, sampler=Sampler.FIXED_SIZE)
    assert ours == 2.0
    event = fixed(20, 7, 1.0 / ours)
    assert naive == pytest.approx(3.11, abs=0.02)
    assert numerical.epsilon(event, delta, adjacency=ZERO) > 4.12


@pytest.mark.parametrize("other", [1.0, 0.1, 0.0])
def test_who_keeps_its_slot_and_sends_the_opposite_moves_the_sum_by_twice_its_weight(other):
    """Two clients, one drawn: 1/2 N(0, s^2) + 1/2 N(+-1, s^2), told apart by quadrature; the other sends nothing."""
    found = sensitivity([1.0, other], 1.0, adjacency=REPLACE, sampler=Sampler.FIXED_SIZE)
    assert found == 2.0
    stddev, epsilon = 1.1, 0.4

    def accounted(move: float) -> float:
        return numerical.delta(fixed(2, 1, stddev / move), epsilon, adjacency=REPLACE)

    x = np.linspace(-15.0, 15.0, 200_001)
    plus, minus = (density(x, stddev, [(0.5, 0.0), (0.5, at)]) for at in (1.0, -1.0))
    true = told_apart(x, math.exp(epsilon), plus, minus)
    assert true <= accounted(found)
    # The planted fault: only another client may take the slot.
    assert other > 0.5 or true > accounted(1.0 + other)


REFUSED = [
    *(("weight_norms", {"weight_norms": bad}) for bad in ([], [math.nan], [1.0, math.nan, 2.0], [-1.0], [math.inf])),
    *(("clipping_norm", {"clipping_norm": bad}) for bad in (0.0, -1.0, math.nan, math.inf)),
    *(("zero-out", {"adjacency": ADD, "sampler": sampler}) for sampler in Sampler),
    ("zero-out", {"adjacency": ADD, "sampler": Sampler.FIXED_SIZE, "depends_on_n_clients": False}),
]


@pytest.mark.parametrize(("words", "change"), REFUSED)
def test_what_has_no_sensitivity_is_refused(words, change):
    usual = {"weight_norms": [1.0, 2.0], "clipping_norm": 3.0, "adjacency": ZERO, "sampler": Sampler.POISSON}
    with pytest.raises(AccountingError, match=words):
        sensitivity(**usual | change)
    assert sensitivity(**usual | {"adjacency": ADD, "depends_on_n_clients": False}) == 6.0


def test_one_contribution_is_half_the_sensitivity_where_another_may_take_its_place():
    assert [contribution_factor(adjacency) for adjacency in (ADD, ZERO, REPLACE)] == [1.0, 1.0, 2.0]
    assert [contribution_factor(adjacency, fixed_size=True) for adjacency in (ZERO, REPLACE)] == [2.0, 2.0]
    with pytest.raises(AccountingError, match="zero-out"):
        contribution_factor(ADD, fixed_size=True)
