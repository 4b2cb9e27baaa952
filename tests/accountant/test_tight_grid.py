"""The tight accountant where rounds are many, samples rare and noise is small, against three oracles.

``tests/golden/make_tight_grid.py`` says what they are. dp-accounting's transforms round at about 1e-16, which shows in
both of its values where delta is small (at 1.2e-10 and 60,000 rounds its pessimistic value lies .03 % below the
quadrature); below 1e-9 the quadrature, and mpmath for one release, are the oracle.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from accountant import gaussian_dp, renyi
from accountant.events import Adjacency, compose, repeat
from accountant.tight import numerical
from tests.accountant.builders import gaussian, poisson
from tests.accountant.oracles import interval_problems, one_release
from tests.golden.loss_quadrature import SHARES, solve

ADD = Adjacency.ADD_OR_REMOVE_ONE
STORED = json.loads((Path(__file__).parents[1] / "golden" / "tight_grid.json").read_text())
GRID = [dict(zip(STORED["columns"], row, strict=True)) for row in STORED["rows"]]
SOME = GRID[::61]  # for the default suite
LIBRARY_DELTA = 1e-9  # the least at which dp-accounting is an oracle
TRUSTED = 3e-4  # of the quadrature


def event_of(row):
    return compose([poisson(q, z, count) for q, z, count in row["parts"]])


def problems(row, found):
    """Everything that is wrong with an interval, given the oracles' values."""
    trusted = row["delta"] >= LIBRARY_DELTA and None not in (row["optimistic"], row["pessimistic"])
    low, high = (row["optimistic"], row["pessimistic"]) if trusted else (None, None)
    out, value = interval_problems(found, low, high, 1e-4), row["quadrature"]
    if found.method != "numerical":
        out.append("fallback")
    if value is not None and not found.lower * (1 - TRUSTED) <= value <= found.upper * (1 + TRUSTED):
        out.append("not around the quadrature")
    if value is not None and found.upper > max(1.01 * value, value + 1e-4):
        out.append("upper more than 1 % above the quadrature")
    return out


def wrong(rows):
    found = [(row, numerical.epsilon_interval(event_of(row), row["delta"], adjacency=ADD)) for row in rows]
    return [(row, interval, reasons) for row, interval in found if (reasons := problems(row, interval))]


def test_some_settings_of_the_grid():
    assert not wrong(SOME)


@pytest.mark.slow
def test_all_settings_of_the_grid():
    assert not wrong(GRID)


FELL_BACK = [  # q, z, rounds, delta, epsilon by the quadrature of make_tight_grid (None: it does not settle)
    (1e-4, 0.6, 10**4, 1e-8, 1.3884254),
    (1e-4, 0.6, 10**5, 1e-5, 0.6084920),
    (1e-4, 0.8, 10**5, 1e-8, 0.3192463),
    (1e-4, 0.6, 10**3, 1e-5, 0.1132262),
    (5e-4, 0.9, 10**4, 1e-8, 0.4497032),
    (2e-4, 1.0, 10**4, 1e-8, 0.1290264),
    (5e-5, 0.7, 10**4, 1e-6, 0.0694665),
    (1e-5, 0.4, 10**4, 1e-5, 0.8558456),
    (1e-5, 0.6, 10**4, 1e-8, 0.1382502),
    (1e-5, 0.8, 10**4, 1e-8, None),
]


@pytest.mark.parametrize(("q", "z", "count", "delta", "epsilon"), FELL_BACK)
def test_rare_samples_with_little_noise_are_priced_tightly(q, z, count, delta, epsilon):
    """Settings at which the Rényi bound is 2 to 99 times as large."""
    found = numerical.epsilon_interval(poisson(q, z, count), delta, adjacency=ADD)
    assert found.method == "numerical"
    assert found.upper - found.lower <= max(3e-3 * found.upper, 1e-4)
    assert renyi.epsilon(poisson(q, z, count), delta, adjacency=ADD) > 2 * found.upper
    if epsilon is not None:
        assert found.lower * (1 - TRUSTED) <= epsilon <= found.upper * (1 + TRUSTED)


@pytest.mark.parametrize("count", [16, pytest.param(300, marks=pytest.mark.slow)])
def test_delta_of_one_release_is_within_two_percent(count):
    """Rates from 1e-7, half of them at most 1e-3, noise .2 to 100, delta from 1e-14."""
    rng, made = np.random.default_rng(11), 0
    while made < count:
        q, z, epsilon = (float(np.exp(rng.uniform(*np.log(ends)))) for ends in ((1e-7, 1.0), (0.2, 100), (1e-3, 20)))
        q = q if made % 2 else q**0.5 * 1e-3
        truth = one_release(q, z, epsilon)
        if not 1e-14 <= truth < 0.5:
            continue
        made += 1
        found = numerical.delta_interval(poisson(q, z), epsilon, adjacency=ADD)
        assert found.lower <= truth * (1 + 1e-9), (q, z, epsilon)
        assert truth * (1 - 1e-9) <= found.upper <= 1.02 * truth, (q, z, epsilon)


def curves(rows):
    """Points of the quadrature's curves of delta, with their events."""
    points = [(row, share, delta) for row in rows for share, delta in zip(SHARES, row["curve"], strict=True) if delta]
    return [(event_of(row), share * row["quadrature"], delta) for row, share, delta in points if 1e-14 <= delta < 0.5]


def check_curves(rows):
    for event, epsilon, truth in curves(rows):
        found = numerical.delta_interval(event, epsilon, adjacency=ADD)
        assert found.lower * (1 - 3e-3) <= truth <= found.upper * (1 + 3e-3), (event, epsilon, truth, found)
        assert found.upper <= 1.02 * truth, (event, epsilon, truth, found)


def test_delta_of_some_compositions_is_within_two_percent():
    check_curves(SOME[::5])


TINY = [  # q, z, rounds, epsilon, delta by the quadrature: what was 2.6 to 10.7 % above it
    pytest.param(1.02362327e-7, 1.03887771, 52_384, 1.586081e-4, 2.207013e-13, marks=pytest.mark.slow),
    (1.81593823e-7, 6.01277309, 8, 4.261733e-7, 1.447784e-13),
    (2.14507971e-7, 3.67809913, 69, 2.800754e-6, 1.047613e-14),
    (2.43145955e-7, 1.29187909, 2096, 5.724992e-5, 1.27139e-13),
    pytest.param(4.21231933e-7, 5.43466397, 9_156_017, 1.242849e-3, 3.151506e-12, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("q", "z", "count", "epsilon", "delta"), TINY)
def test_delta_is_as_close_where_losses_are_smaller_than_a_rounding_of_the_masses(q, z, count, epsilon, delta):
    found = numerical.delta_interval(poisson(q, z, count), epsilon, adjacency=ADD)
    assert found.method == "numerical"
    assert found.lower * (1 - 3e-3) <= delta <= found.upper * (1 + 3e-3)
    assert found.upper <= 1.02 * delta


@pytest.mark.slow
def test_delta_of_compositions_is_within_two_percent():
    assert len(curves(GRID)) >= 4500
    check_curves(GRID)


@pytest.mark.parametrize(("z", "count", "delta"), [(4.0, 4, 1e-5), (60.0, 10_000, 1e-3), (20.0, 30, 1e-6)])
def test_the_quadrature_is_right_where_everybody_takes_part(z, count, delta):
    """Gaussian DP has a closed form."""
    epsilon, curve = solve([(1.0, z, count)], delta)
    event = repeat(gaussian(z), count)
    assert epsilon == pytest.approx(gaussian_dp.epsilon(event, delta, adjacency=ADD), rel=1e-6)
    assert None not in curve[1:]
    for share, found in ((share, found) for share, found in zip(SHARES, curve, strict=True) if found):
        assert found == pytest.approx(gaussian_dp.delta(event, share * epsilon, adjacency=ADD), rel=1e-4)


@pytest.mark.parametrize(("q", "z", "delta"), [(0.3, 1.0, 1e-4), (0.05, 2.0, 1e-6), (0.8, 3.0, 1e-9)])
def test_the_quadrature_is_right_for_one_release(q, z, delta):
    epsilon, _ = solve([(q, z, 1)], delta)
    assert float(one_release(q, z, epsilon)) == pytest.approx(delta, rel=1e-3)
