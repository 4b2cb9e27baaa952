"""Calibration meets its target from the safe side and does not overshoot."""

import math

import pytest

from accountant import calibrate, moments, numerical, renyi
from accountant.errors import AccountingError, CalibrationError
from accountant.events import Adjacency, Gaussian, compose, parts
from tests.accountant.builders import plan as poisson

ZERO = Adjacency.ZERO_OUT
DELTA = 1e-5


@pytest.mark.parametrize("accountant", [numerical.epsilon, renyi.epsilon, moments.epsilon])
@pytest.mark.parametrize("target", [1.0, 10.0])
def test_noise_multiplier(accountant, target):
    def plan(z):
        return compose([poisson(0.1, z, 30), poisson(0.4, 2 * z, 10), Gaussian(noise_multiplier=5 * z)])

    z = calibrate.noise_multiplier(plan, epsilon=target, delta=DELTA, adjacency=ZERO, accountant=accountant)
    assert accountant(plan(z), DELTA, adjacency=ZERO) <= target
    assert accountant(plan(z * 0.998), DELTA, adjacency=ZERO) > target * 0.9985


# --- an accountant of one line, whose answers are known ---------------------------------------

LOG = math.log(1 / DELTA)


def one_line(event, delta, *, adjacency):
    """Cost: the sum of (q / z)^2 log(1 / delta); twice that under replace-one."""
    each = [(getattr(part, "sample_rate", 1.0) / part.noise_multiplier) ** 2 * count for part, count in parts(event)]
    return sum(each) * math.log(1 / delta) * (2 if adjacency == Adjacency.REPLACE_ONE else 1)


@pytest.mark.parametrize("rate", [0.97, 0.5, 0.3, 1e-2, 3e-8])
@pytest.mark.parametrize("adjacency", [ZERO, Adjacency.REPLACE_ONE])
def test_the_largest_affordable_sample_rate(rate, adjacency):
    target = one_line(poisson(rate, 3.0, 20), DELTA, adjacency=adjacency)
    found = calibrate.sample_rate(3.0, rounds=20, epsilon=target, delta=DELTA, adjacency=adjacency, accountant=one_line)
    assert rate * (1 - 5e-6) <= found <= rate * (1 + 1e-12)


def test_sample_rate_at_the_ends_of_its_range():
    def found(target):
        return calibrate.sample_rate(1.0, rounds=1, epsilon=target, delta=DELTA, adjacency=ZERO, accountant=one_line)

    assert found(LOG) == 1.0  # everybody, at exactly the target
    assert found(2 * LOG) == 1.0
    assert 0.999 < found(0.999 * LOG) < 1.0
    assert found(1.01e-18 * LOG) == pytest.approx(1e-9, rel=0.01)
    with pytest.raises(CalibrationError, match="no sample rate above 1e-9"):
        found(0.99e-18 * LOG)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 1023, 10**9])
def test_the_largest_affordable_number_of_rounds(count):
    def found(target):
        return calibrate.rounds(
            2.0, sample_rate=0.5, epsilon=target, delta=math.exp(-1), adjacency=ZERO, accountant=exactly
        )

    def exactly(event, delta, *, adjacency):
        assert (delta, adjacency) == (math.exp(-1), ZERO)
        return sum(count for _, count in parts(event)) / 16

    assert found(count / 16) == count
    assert found((count + 0.5) / 16) == count
    assert found((count - 0.5) / 16) == count - 1
    assert found(2.0**40 / 16 - 1) == 2**40 - 16


@pytest.mark.parametrize("target", [1e-9, 1e-3, 0.4, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("adjacency", [ZERO, Adjacency.REPLACE_ONE])
def test_the_smallest_affordable_noise(target, adjacency):
    factor = LOG * (2 if adjacency == Adjacency.REPLACE_ONE else 1)
    alone = calibrate.noise_multiplier(
        lambda z: poisson(0.5, z, 8), epsilon=target, delta=DELTA, adjacency=adjacency, accountant=one_line
    )
    truth = math.sqrt(2 * factor / target)
    assert truth * (1 - 1e-12) <= alone <= truth * (1 + 5e-6)


ASKED = {
    "noise": lambda **k: calibrate.noise_multiplier(lambda z: poisson(1, z), **k),
    "rate": lambda **k: calibrate.sample_rate(1.0, rounds=3, **k),
    "rounds": lambda **k: calibrate.rounds(1.0, sample_rate=0.1, **k),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED.keys())
def test_a_target_that_means_nothing_is_refused_before_anything_is_computed(ask):
    def never(event, delta, *, adjacency):
        raise AssertionError("asked for a price")

    for epsilon in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(AccountingError, match=r"target epsilon must|epsilon must be at least"):
            ask(epsilon=epsilon, delta=DELTA, adjacency=ZERO, accountant=never)
    for delta in (0.0, 1.0, -0.1, math.nan):
        with pytest.raises(AccountingError, match="delta must"):
            ask(epsilon=1.0, delta=delta, adjacency=ZERO, accountant=never)


FALLING = {  # cost as a function of log z, and where it is 1
    "steep": (lambda x: math.exp(-6.0 * (x - 2.0)), 2.0),
    "flat": (lambda x: math.exp(-0.3 * (x + 3.0)), -3.0),
    "far": (lambda x: math.exp(-2.0 * (x - 15.0)), 15.0),
    "near the least": (lambda x: math.exp(-2.0 * (x + 4.1)), -4.1),
    "bent": (lambda x: math.exp(-2.0 * x) + math.exp(-x), math.log((1.0 + math.sqrt(5.0)) / 2.0)),
    "a floor": (lambda x: 0.9 + 0.1 * math.exp(-(x - 5.0)), 5.0),
    "infinite": (lambda x: math.inf if x < 3.0 else math.exp(-(x - 4.0)), 4.0),
    "free": (lambda x: math.exp(-(x + 1.0)) if x < -0.5 else 0.0, -1.0),
    "a cliff": (lambda x: math.inf if x < 1.5 else 0.0, 1.5),
    "stairs": (lambda x: 2.0 ** -math.floor(4.0 * (x - 6.0)), 6.0),
}


def solved(cost):
    """Log of the noise multiplier at which a plan of this cost, in the log of the multiplier, costs 1."""
    found = calibrate.noise_multiplier(
        lambda z: Gaussian(noise_multiplier=z),
        epsilon=1.0,
        delta=DELTA,
        adjacency=ZERO,
        accountant=lambda event, delta, *, adjacency: cost(math.log(event.noise_multiplier)),
    )
    return math.log(found)


@pytest.mark.parametrize("name", FALLING)
def test_the_search_meets_every_falling_cost_from_the_dear_side(name):
    cost, truth = FALLING[name]
    asked = []

    def counted(x):
        asked.append(x)
        return cost(x)

    found = solved(counted)
    assert cost(found) <= 1.0
    assert truth - 1e-9 <= found <= truth + 5e-6
    assert len(asked) <= 40
    assert math.log(2.0**-6) <= min(asked) <= max(asked) <= math.log(2.0**24)
    assert len(asked) == len(set(asked))  # every cost may take seconds


def test_the_search_ends_at_the_least_and_the_largest_noise():
    assert solved(lambda x: math.exp(-2.0 * (x + 9.0))) == math.log(2.0**-6)
    assert solved(lambda x: 1.0) == math.log(2.0**-6)
    for hopeless in (lambda x: 2.0, lambda x: math.inf, lambda x: math.exp(-(x - 17.0))):
        with pytest.raises(CalibrationError, match="no noise multiplier below"):
            solved(hopeless)
    almost = solved(lambda x: math.exp(-(x - 16.6)))
    assert almost == pytest.approx(16.6, abs=5e-6)


@pytest.mark.parametrize("lie", [0.5, 1.01, 1.5])
def test_a_quick_search_that_was_misled_is_not_believed(monkeypatch, lie):
    honest = numerical.quick_epsilon
    monkeypatch.setattr(numerical, "quick_epsilon", lambda *a, **k: lie * honest(*a, **k))
    found = calibrate.noise_multiplier(lambda z: poisson(0.25, z, 40), epsilon=4.0, delta=1e-5, adjacency=ZERO)
    assert 3.99 < numerical.epsilon(poisson(0.25, found, 40), 1e-5, adjacency=ZERO) <= 4.0


def test_rounds_without_end_are_refused():
    with pytest.raises(CalibrationError, match="rounds stay within"):
        calibrate.rounds(2.0**23, sample_rate=1e-6, epsilon=1e6, delta=0.1, adjacency=ZERO, accountant=one_line)
