"""Bounds of epsilon and delta, read from sums written out by hand; their errors are made large enough to see.

A sum whose error is said to be a thousandth gains or lacks that much at every point in turn: the bounds must hold
for each of these truths, inside the window and beyond both of its ends.
"""

import itertools
import math

import numpy as np
import pytest

from accountant.events import Adjacency
from accountant.mechanisms.pair import EPS
from accountant.tight import bounds, numerical
from accountant.tight.bounds import LowerSums, Place, UpperSum
from accountant.tight.fourier import TiltedSum, Window
from accountant.tight.lattice import Extent
from tests.accountant.builders import laplace
from tests.accountant.test_lattice import hockey_stick

SPACING, START, SIZE = 0.1, -15, 60
POINTS = START + np.arange(SIZE)


def some_masses(seed=3):
    shape = np.exp(-0.5 * ((POINTS - 6.0) / 9.0) ** 2) * (1.0 + np.random.default_rng(seed).random(SIZE))
    return shape / shape.sum()


def as_sum(masses, theta, error=0.0, start=START):
    ks = start + np.arange(len(masses))
    log_scale = math.log(np.sum(masses * np.exp(theta * SPACING * ks)))
    tilted = masses * np.exp(theta * SPACING * ks - log_scale)
    window = Window(start=start, size=len(masses), up=1.0, down=-1.0)
    return TiltedSum(window=window, tilted=tilted, log_scale=log_scale, outside=error)


def place_of(total, theta):
    return Place(pairs=(), theta=theta, spacing=SPACING, window=total.window, extent=Extent(t=0.0))


def upper_of(masses, theta, *, error=0.0, infinite=0.0, start=START):
    total = as_sum(masses, theta, error, start)
    return UpperSum(place=place_of(total, theta), total=total, infinite=infinite)


def more_at(masses, theta, share, index):
    """Masses and points with a share of the tilted total added at one point, outside the window too."""
    total = as_sum(masses, theta)
    points = np.append(POINTS, START + index)
    extra = share * math.exp(total.log_scale - theta * SPACING * (START + index))
    return np.append(masses, extra), points


def upper_delta(sums, epsilon):
    return float(bounds.upper_delta(sums, np.array([epsilon]))[0])


def epsilon_where(delta_of, delta):
    """The least epsilon >= 0 at which a falling delta_of is at most delta, by bisection."""
    low, high = 0.0, 50.0
    if delta_of(0.0) <= delta:
        return 0.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if delta_of(middle) <= delta else (middle, high)
    return high


DELTAS = (0.6, 0.2, 0.03, 1e-3, 1e-7, 1e-12)
THETAS = (0.3, 2.0, 11.0, 60.0)


@pytest.mark.parametrize("theta", THETAS)
@pytest.mark.parametrize("infinite", [0.0, 5e-8])
def test_upper_bounds_are_those_of_the_sum(theta, infinite):
    masses = some_masses()
    sums = upper_of(masses, theta, infinite=infinite)

    def delta_of(epsilon):
        return hockey_stick(masses, SPACING * POINTS, epsilon) + infinite

    for delta in DELTAS:
        if delta <= infinite:
            assert bounds.upper_epsilon(sums, delta) == math.inf
            continue
        truth = epsilon_where(delta_of, delta)
        found = bounds.upper_epsilon(sums, delta)
        assert truth - 1e-12 <= found <= truth + 1e-9
    for epsilon in (0.0, 0.05, 0.1, 1.0, 1.23, 3.0):
        truth = delta_of(epsilon)
        assert truth * (1 - 1e-13) <= upper_delta(sums, epsilon) <= truth * (1 + 1e-9)
    assert bounds.upper_epsilon(upper_of(masses, theta, infinite=1e-3), 1e-3) == math.inf
    assert upper_delta(sums, SPACING * (POINTS[-1] + 2)) <= infinite + 1e-300  # nothing lies outside


@pytest.mark.parametrize("theta", THETAS)
def test_upper_bounds_survive_any_error_that_the_sum_admits(theta):
    masses, share = some_masses(), 1e-3
    sums = upper_of(masses, theta, error=share)
    for index in range(-2, SIZE + 3):
        true, points = more_at(masses, theta, share, index)
        just_above = hockey_stick(true, SPACING * points, SPACING * (START + index - 0.98))
        for delta in (0.3, 0.05, 1e-3, max(1e-12, min(0.99, just_above))):
            truth = epsilon_where(lambda e, t=true, p=points: hockey_stick(t, SPACING * p, e), delta)
            assert bounds.upper_epsilon(sums, delta) >= truth - 1e-12
        for epsilon in (0.0, 0.42, 0.5, 1.91, 3.1, max(0.0, SPACING * (START + index - 0.98))):
            truth = hockey_stick(true, SPACING * points, epsilon)
            assert upper_delta(sums, epsilon) >= min(1.0, truth) * (1 - 1e-12)


@pytest.mark.parametrize("theta", [2.0, 60.0])
def test_upper_bounds_survive_rounding_of_their_sums(monkeypatch, theta):
    """With an eps of 1e-7 every mass may be twice (size + exponent) eps larger than it was summed."""
    monkeypatch.setattr(bounds, "EPS", 1e-7)
    masses = some_masses()
    sums = upper_of(masses, theta)
    exponent = abs(sums.total.log_scale) + theta * SPACING * float(np.max(np.abs(POINTS)))
    true = masses * (1.0 + 2e-7 * (SIZE + exponent))
    for epsilon in SPACING * np.arange(0.02, POINTS[-1] - 1, 0.48):
        delta = hockey_stick(true, SPACING * POINTS, epsilon)
        assert upper_delta(sums, epsilon) >= min(1.0, delta) * (1 - 1e-12)
        assert bounds.upper_epsilon(sums, delta) >= epsilon - 1e-12


def test_a_window_that_begins_beyond_epsilon_proves_its_own_begin_only():
    ahead = upper_of(np.array([0.2, 0.1, 0.1]), 1.0, start=20)
    assert bounds.upper_epsilon(ahead, 0.9) == pytest.approx(2.0, rel=1e-12)
    assert upper_delta(ahead, 1.99) == 1.0
    assert upper_delta(ahead, 2.0) == 1.0  # as rounded it may be less than the first point
    assert upper_delta(ahead, 2.05) < 0.2
    negative = upper_of(np.array([0.2, 0.1, 0.1]), 1.0, start=-20)
    assert bounds.upper_epsilon(negative, 0.9) == 0.0
    # the last point proves that nothing lies above it, unless an error might
    assert bounds.upper_epsilon(ahead, 1e-9) == pytest.approx(2.2, abs=1e-6)
    assert bounds.upper_epsilon(upper_of(np.array([0.2, 0.1]), 1.0, start=20, error=0.5), 1e-9) == math.inf


def best_threshold(p, q_scaled, points, value):
    """The best threshold's value, from the masses of P and of Q."""
    q = q_scaled * np.exp(-SPACING * points)
    order = np.argsort(points)
    above_p, above_q = (np.cumsum(mass[order][::-1])[::-1] for mass in (p, q))
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.nanmax(value(above_p, above_q)))


def threshold_epsilon(p, q_scaled, points, delta):
    return max(0.0, best_threshold(p, q_scaled, points, lambda a, b: np.log(np.maximum(a - delta, 0.0) / b)))


def threshold_delta(p, q_scaled, points, epsilon):
    return max(0.0, best_threshold(p, q_scaled, points, lambda a, b: a - math.exp(epsilon) * b))


def lower_of(p, q_scaled, theta, p_error=0.0, q_error=0.0):
    first, second = as_sum(p, theta, p_error), as_sum(q_scaled, theta, q_error)
    return LowerSums(place=place_of(first, theta), p=first, q=second)


@pytest.mark.parametrize("theta", THETAS)
def test_lower_bounds_are_those_of_the_best_threshold(theta):
    p, q_scaled = some_masses(), 1.4 * some_masses(4)
    sums = lower_of(p, q_scaled, theta)
    for delta in DELTAS:
        truth = threshold_epsilon(p, q_scaled, POINTS, delta)
        found = bounds.lower_epsilon(sums, delta)
        assert truth - 1e-6 <= found <= truth + 1e-12
        assert found > 0.0 or delta > 0.1
    for epsilon in (0.0, 0.05, 1.0, 1.23, 3.0):
        truth = threshold_delta(p, q_scaled, POINTS, epsilon)
        assert truth * (1 - 1e-6) <= bounds.lower_delta(sums, epsilon) <= truth * (1 + 1e-12)
    assert bounds.lower_epsilon(sums, 0.9999) == 0.0
    assert bounds.lower_epsilon(lower_of(0.5 * p, q_scaled, theta), 0.6) == 0.0
    assert bounds.lower_delta(sums, 9.0) == 0.0


@pytest.mark.parametrize("theta", THETAS)
def test_lower_bounds_survive_any_error_that_the_sums_admit(theta):
    p, q_scaled, share = some_masses(), 1.4 * some_masses(4), 1e-3
    for index, which in itertools.product(range(0, SIZE, 3), ("p", "q")):
        if which == "p":  # computed with too much at one point
            computed, _ = more_at(p, theta, share, index)
            computed = p + np.bincount([index], [computed[-1]], SIZE)
            found = lower_of(computed, q_scaled, theta, p_error=share)
            true_q, points = np.append(q_scaled, 0.0), np.append(POINTS, START + index)
            true_p = np.append(p, 0.0)
        else:  # Q has more there than was computed
            found = lower_of(p, q_scaled, theta, q_error=share)
            true_q, points = more_at(q_scaled, theta, share, index)
            true_p = np.append(p, 0.0)
        for delta in (0.3, 0.05, 1e-3):
            assert bounds.lower_epsilon(found, delta) <= threshold_epsilon(true_p, true_q, points, delta) + 1e-12
        for epsilon in (0.0, 0.42, 1.91, 3.1):
            truth = threshold_delta(true_p, true_q, points, epsilon)
            assert bounds.lower_delta(found, epsilon) <= truth * (1 + 1e-12)


def test_the_slack_covers_running_sums_and_the_units_exponent():
    """Two eps a step, and two eps of each of the exponent's terms; the unit itself is exact at a known point."""
    theta, n = 30.0, 50  # losses -100 to -95.1
    total = TiltedSum(
        window=Window(start=-1000, size=n, up=1.0, down=-1.0), tilted=np.full(n, 1.0 / n), log_scale=-70.0, outside=1e-9
    )
    place = Place(pairs=(), theta=theta, spacing=SPACING, window=total.window, extent=Extent(t=0.0))
    tails = bounds._Running(total, place).within(0, 1)
    assert np.all(tails.slack >= 1e-9 + 2.0 * EPS * (n + 70.0 + 30.0 * 100.0) * tails.mass)
    np.testing.assert_allclose(tails.loss, SPACING * (np.arange(n) - 1000), rtol=1e-15)
    np.testing.assert_allclose(tails.log_unit, -70.0 - 3.0 * (np.arange(n) - 1000.0), rtol=1e-14)
    assert tails.slack[-1] <= 1e-9 + 1e-11


@pytest.mark.parametrize(
    ("scale", "delta"),
    [
        (40.29518174782092, 1.4565125919757189e-12),
        (0.5073265957796602, 3.339456822994724e-13),
        (0.06373608461580248, 9.937094683247361e-10),
        *((scale, delta) for scale in (0.05, 0.3, 2.0, 60.0) for delta in (1e-14, 1e-9, 1e-3)),
    ],
)
def test_bounds_hold_at_the_largest_loss_beyond_which_nothing_lies(scale, delta):
    """Laplace noise's loss ends at 1 / b; delta(eps) = 1 - exp((eps - 1 / b) / 2) below it."""
    event, add = laplace(scale), Adjacency.ADD_OR_REMOVE_ONE
    truth = max(0.0, 1.0 / scale + 2.0 * math.log1p(-delta))
    found = numerical.epsilon_interval(event, delta, adjacency=add)
    assert found.lower <= truth * (1 + 1e-12) <= found.upper * (1 + 2e-12)
    assert found.upper - found.lower <= 1e-3 * max(1.0, truth)
