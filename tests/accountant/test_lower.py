"""Certified lower ends: below every upper end and every known truth, near them in ordinary settings."""

import math
from dataclasses import replace
from itertools import pairwise

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from accountant import compose, gaussian_dp, repeat
from accountant.errors import EventError
from accountant.events import Adjacency, Basic, BestOfRandomRuns, Event, NonPrivate, ZeroConcentrated, parts
from accountant.tight import numerical
from accountant.verify import events as read
from accountant.verify.lower import ends, sums
from accountant.verify.recomputation import recomputed
from tests.accountant.builders import allocated, fixed, gaussian, laplace, lengths, poisson, sampled_laplace, truncated
from tests.accountant.oracles import bisected, cut_density, told_apart
from tests.reports.auditors import as_read

ADD, ZERO, REPLACE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE


def lower(event: Event, delta: float, adjacency: Adjacency = ZERO) -> float:
    return ends.lower_epsilon(as_read(compose([event])), delta, read.Adjacency(adjacency))


def best(run: Event, eta: float = 1.0, gamma: float = 0.1) -> Event:
    return BestOfRandomRuns(run=compose([run]), eta=eta, gamma=gamma)


MIXED = replace(lengths(2.0), chances=(0.5, 0.4, 0.1))
# delta, event, the least share of the accountant's upper end
NAMED: list[tuple[float, Event, float]] = [
    (1e-5, gaussian(4.0, 9), 0.999),
    *((delta, gaussian(1.0 / mu), 0.998) for mu in (1e-3, 0.1, 1.0, 4.0, 20.0) for delta in (0.1, 1e-6, 1e-40)),
    (1e-5, poisson(0.25, 2.0, 40), 0.999),
    (1e-6, poisson(0.01, 1.0, 10**5), 0.99),
    (1e-5, poisson(0.01, 1.0, 10**6), 0.99),
    (1e-5, poisson(1e-3, 0.8, 10**6), 0.99),
    (1e-5, fixed(100, 10, 2.0, 40), 0.999),
    (1e-6, fixed(100, 10, 2.0, 10**5), 0.99),
    (1e-5, truncated(1000, 0.05, 80, 1.0, 1000), 0.99),
    (1e-5, truncated(40, 0.25, 16, 2.0, 40), 0.98),
    (1e-3, truncated(40, 0.25, 5, 2.0), 0.96),  # nearly always cut: others oppose
    (1e-5, truncated(40, 0.25, 2, 1.0, 40), 0.98),
    (1e-5, allocated(100, 1, 1.0), 0.99),
    (1e-8, allocated(1000, 1, 0.5), 0.99),
    (1e-6, allocated(1000, 10, 1.0), 0.98),
    (1e-5, allocated(100, 5, 2.0, 20), 0.99),
    (1e-5, repeat(MIXED, 40), 0.999),
    (1e-5, ZeroConcentrated(rho=0.125), 0.9),
    (1e-5, laplace(1.0), 0.999),
    (1e-6, laplace(8.0, 40), 0.99),
    (1e-5, repeat(sampled_laplace(0.1, 1.0), 100), 0.99),
    (1e-5, best(gaussian(4.0)), 0.6),  # the upper end is Rényi's, of a bound of divergences
    (1e-5, best(poisson(0.25, 2.0, 40), 0.0, 0.05), 0.75),
    (1e-5, NonPrivate(), 1.0),
]
ALIKE = [poisson(0.25, 2.0, 10), laplace(8.0, 5), gaussian(8.0, 4), truncated(1000, 0.05, 80, 1.0, 10)]
TOGETHER = compose([*ALIKE, allocated(100, 5, 2.0)])


def test_every_kind_of_event_is_among_the_settings() -> None:
    assert {part.kind for _, event, _ in NAMED for part, _ in parts(event)} == Basic.kinds.keys()


@pytest.mark.parametrize(("delta", "event", "share"), NAMED)
def test_every_kind_of_event_has_a_lower_end_near_the_upper_one(delta: float, event: Event, share: float) -> None:
    found, upper = lower(event, delta), numerical.epsilon(event, delta, adjacency=ZERO)
    assert share * upper - 1e-6 <= found <= upper


def test_kinds_are_composed() -> None:
    upper = numerical.epsilon(TOGETHER, 1e-5, adjacency=ZERO)
    assert 0.98 * upper <= lower(TOGETHER, 1e-5) <= upper
    selection = best(gaussian(8.0))
    both = compose([selection, gaussian(2.0)])
    assert max(lower(selection, 1e-5), lower(gaussian(2.0), 1e-5)) < lower(both, 1e-5)


@pytest.mark.parametrize("mu", [0.1, 4.0, 29.0, 38.0, 50.0, 2e3])
@pytest.mark.parametrize("delta", [0.3, 1e-5])
def test_a_gaussian_s_exact_end_is_the_accountants(mu: float, delta: float) -> None:
    event = gaussian(1.0 / mu)
    found = recomputed(as_read(compose([event])), delta, read.Adjacency.ZERO_OUT)
    assert found.lower == pytest.approx(gaussian_dp.epsilon(event, delta, adjacency=ZERO), rel=1e-11, abs=1e-13)


def test_pure_privacy_is_approached_and_never_passed() -> None:
    truth = 1.0 + math.log1p(-2e-5)  # of Laplace noise: log((1/2 - delta) / (exp(-1) / 2))
    assert truth * (1 - 1e-9) <= lower(laplace(1.0), 1e-5) <= truth
    fifty = laplace(0.02, 2)
    assert lower(fifty, 0.2) <= 100.0


@pytest.mark.parametrize(("eta", "gamma"), [(1.0, 0.1), (0.0, 0.2), (-0.5, 0.1), (2.5, 0.3)])
def test_the_best_of_random_runs_is_told_apart_by_no_more_than_its_own_law(eta: float, gamma: float) -> None:
    """Runs of three outcomes: the mass of the best by a sum over the number of runs."""
    event = read.BestOfRandomRuns(run=read.Composed(), eta=eta, gamma=gamma)
    mp.mp.dps = 40
    shares = [mp.mpf(1 - mp.mpf(gamma))]
    for k in range(1, 2000):
        shares.append(shares[-1] * (1 - mp.mpf(gamma)) * (k + mp.mpf(eta)) / (k + 1))
    whole = mp.fsum(shares)
    for one, less in ((0.9, 0.05), (1.0, 1e-7), (0.3, 0.3), (0.999, 0.9)):
        truth = mp.fsum(s * (mp.mpf(one) ** k - mp.mpf(one - less) ** k) for k, s in enumerate(shares, 1)) / whole
        low, high = (
            float(ends.difference(event, np.array([one]), np.array([less]), lower=side)[0]) for side in (True, False)
        )
        assert low * (1 - 1e-9) <= truth <= high * (1 + 1e-9)
        assert high <= low * 1.001 or less < 1e-6


COSTLY = st.floats(0.3, 8.0)
RATES = st.floats(1e-3, 0.95)
KINDS = st.one_of(
    st.builds(gaussian, COSTLY),
    st.builds(poisson, RATES, COSTLY),
    st.builds(sampled_laplace, RATES, COSTLY),
    st.builds(laplace, COSTLY),
    st.builds(ZeroConcentrated, rho=st.floats(1e-4, 2.0), xi=st.floats(0.0, 0.5)),
    st.builds(lambda n, share, z: fixed(n, max(1, int(share * n)), z), st.integers(2, 500), RATES, COSTLY),
    st.builds(truncated, st.integers(2, 500), RATES, st.integers(1, 100), COSTLY),
    st.builds(
        lambda rounds, share, z: allocated(rounds, max(1, int(share * rounds)), z),
        st.integers(1, 40), RATES, st.floats(0.6, 8.0),
    ),
    st.builds(lengths, COSTLY),
    st.builds(best, st.builds(poisson, RATES, COSTLY), st.sampled_from([-0.5, 0.0, 1.0, 2.5]), st.floats(0.01, 0.9)),
)  # fmt: skip


@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    parts=st.lists(st.tuples(KINDS, st.sampled_from([1, 3, 50])), min_size=1, max_size=2),
    delta=st.sampled_from([0.05, 1e-5, 1e-9]),
    adjacency=st.sampled_from([ADD, ZERO, REPLACE]),
)
def test_no_lower_end_passes_the_upper_one(parts: list, delta: float, adjacency: Adjacency) -> None:
    event = compose(parts)
    try:
        upper = numerical.epsilon(event, delta, adjacency=adjacency)
    except EventError:  # nothing is stated of this kind under this adjacency
        return
    assert lower(event, delta, adjacency) <= upper * (1 + 1e-12)
    assert ends.lower_delta(as_read(event), upper, read.Adjacency(adjacency), near=delta) <= delta * (1 + 1e-6)


def test_masses_are_on_their_sides_of_the_truth() -> None:
    """By many digits: a mixture's cells in both tails, and where a tail is no double any more."""
    mp.mp.dps = 650
    parts = ((0.75, 0.0), (0.25, 1.0))
    edges = np.array([-30.0, -9.0, -8.99, -0.01, 0.0, 0.3, 0.30001, 8.0, 8.01, 25.0, 35.0])
    found = sums.masses_of(parts, 0.7, edges)
    places = [-mp.inf, *map(mp.mpf, edges), mp.inf]

    def tail(x: mp.mpf, center: float) -> mp.mpf:
        return mp.erfc((x - center) / (mp.mpf(0.7) * mp.sqrt(2))) / 2

    for i, (low, high) in enumerate(pairwise(places)):
        truth = mp.fsum(w * (tail(low, c) - tail(high, c)) for w, c in parts)
        assert found.least[i] <= truth <= found.most[i]
        assert found.most[i] - found.least[i] <= 1e-9 * truth + 1e-15


def direct(law: sums.Law) -> dict[int, mp.mpf]:
    """Masses of a sum of whole numbers, one by one."""
    total = {0: mp.mpf(1)}
    for one in law:
        for _ in range(one.count):
            made: dict[int, mp.mpf] = {}
            for at, mass in total.items():
                for score, more in zip(one.scores, one.masses, strict=True):
                    made[at + int(score)] = made.get(at + int(score), mp.mpf(0)) + mass * mp.mpf(float(more))
            total = made
    return total


@pytest.mark.parametrize("tau", [0.0, 0.4, -0.6])
@pytest.mark.parametrize("size", [64, 32])  # the second folds what lies outside
def test_sums_are_on_their_sides_of_the_truth(tau: float, size: int) -> None:
    mp.mp.dps = 40
    one = sums.Scored(scores=np.array([-2.0, 0.0, 1.0, 5.0]), masses=np.array([0.3, 0.5, 0.19, 1e-9]), count=7)
    other = sums.Scored(scores=np.array([-1.0, 2.0]), masses=np.array([1e-12, 0.9]), count=3)
    truth = direct([one, other])
    found = sums.tilted_sum([one, other], tau, -16, size)
    least, most = found.logs(lower=True), found.logs(lower=False)
    for i in range(size):
        mass = truth.get(i - 16, mp.mpf(0))
        assert mp.exp(mp.mpf(float(least[i]))) <= mass <= mp.exp(mp.mpf(float(most[i])))


def test_rounding_of_very_many_releases_is_booked() -> None:
    """What is certain of a mass falls with the number of releases, to nothing in the end."""
    one = sums.Scored(scores=np.array([0.0, 1.0]), masses=np.array([1.0 - 2.0**-20, 2.0**-20]), count=1)
    widths = []
    for count in (1, 10**3, 10**6):
        found = sums.tilted_sum([replace(one, count=count)], 0.0, -4, 64)
        widths.append(float(found.logs(lower=False)[4] - found.logs(lower=True)[4]))
    exact = 10**6 * math.log1p(-(2.0**-20))
    assert widths[0] < widths[1] < widths[2] < 1e-3
    assert found.relative >= 10**6 * 2.0**-48  # of normalised masses alone
    only = replace(found, error=0.0, folded=0.0, relative=1e-3)
    assert only.logs(lower=False)[4] - only.logs(lower=True)[4] > 3.9e-3
    assert found.logs(lower=True)[4] < exact < found.logs(lower=False)[4]
    assert lower(poisson(0.5, 2.0, 10**15), 1e-5) >= 0.0


@pytest.mark.parametrize(("value", "count"), [(1e-300, 1), (1e6, 10**18), (1e300, 1)])
def test_no_event_is_too_extreme_to_be_answered(value: float, count: int) -> None:
    for _, event, _ in NAMED:
        ((part, _),) = as_read(compose([event])).parts
        names = {"noise_multiplier", "scale_multiplier", "rho"} & set(vars(part))
        part = replace(part, **dict.fromkeys(names, value))
        found = ends.lower_epsilon(read.Composed(parts=((part, count),)), 1e-5, read.Adjacency.ZERO_OUT)
        assert 0.0 <= found < math.inf or event == NonPrivate()


def test_unknown_kinds_cost_nothing_here() -> None:
    known = as_read(compose([poisson(0.25, 2.0, 40)]))
    both = read.Composed(parts=(*known.parts, (read.Unknown(kind="later"), 3)))
    alone = read.Composed(parts=((read.Unknown(kind="later"), 3),))
    zero_out = read.Adjacency.ZERO_OUT
    assert ends.lower_epsilon(both, 1e-5, zero_out) == ends.lower_epsilon(known, 1e-5, zero_out) > 3.9
    assert ends.lower_epsilon(alone, 1e-5, zero_out) == 0.0


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize(("n", "q", "size", "z"), [(5, 0.6, 2, 1.0), (7, 0.5, 1, 0.6), (6, 0.9, 3, 2.0)])
def test_a_cut_sample_with_opposing_members_costs_what_it_costs_coin_by_coin(n, q, size, z, adjacency):
    delta, x, truths = 1e-3, np.linspace(-size - 9 * z, 1 + 9 * z, 40_001), []
    whole = 0.5 if adjacency is REPLACE else 1.0
    for share in (0.0, *ends._OPPOSING):
        neighbour = {ADD: [], ZERO: [0.0], REPLACE: [-whole]}[adjacency]
        others = [-share * whole] * (n - 1)
        laws = [cut_density(x, [*own, *others], q, size, z) for own in ([whole], neighbour)]
        truths.append(bisected(lambda e, laws=laws: told_apart(x, math.exp(e), *laws) <= delta, 0.0, 50.0, steps=50))
    found = lower(truncated(n, q, size, z), delta, adjacency)
    assert 0.995 * max(truths) <= found <= max(truths) * (1.0 + 1e-5)
    assert max(truths) > 1.05 * truths[0] or adjacency is REPLACE  # opposing costs more than contributing zero
