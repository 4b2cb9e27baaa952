"""The front door: one flat call for equal rounds, and an accountant that adds events up."""

import math
import subprocess
import sys
from functools import partial
from unittest import mock

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from scipy.special import ndtr, ndtri

import accountant
from accountant import Adjacency, ZeroConcentrated, calibrate, gaussian_dp, moments, numerical, renyi, repeat, tradeoff
from accountant.curve import of_deltas
from accountant.dp_event import to_dp_event
from accountant.errors import AccountingError, CalibrationError, EventError, PrivacyError
from accountant.events import compose, parts
from accountant.wording import interval_text
from tests.accountant.builders import allocated, fixed, gaussian, laplace, poisson, sampled_laplace, truncated
from tests.accountant.oracles import neighboring_relation

ADD, ZERO, REPLACE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
SETTINGS = {"sample_rate": 0.1, "rounds": 30, "delta": 1e-6}
ROUND = poisson(0.1, 1.3)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_one_call_gives_what_events_and_another_library_give(adjacency):
    found = accountant.epsilon(noise_multiplier=1.3, **SETTINGS, adjacency=adjacency)
    assert found == numerical.epsilon(repeat(ROUND, 30), 1e-6, adjacency=adjacency)
    assert found == accountant.epsilon(noise_multiplier=1.3, **SETTINGS, adjacency=adjacency.value)
    assert found == accountant.Accountant(adjacency).compose(ROUND, 30).epsilon(1e-6)
    if adjacency is not REPLACE:  # which dp-accounting 0.6.0 does not price for samples
        theirs = PLDAccountant(neighboring_relation(adjacency), value_discretization_interval=1e-3)
        theirs.compose(to_dp_event(repeat(ROUND, 30), adjacency=adjacency))
        assert found == pytest.approx(theirs.get_epsilon(1e-6), rel=2e-3)


def test_without_an_adjacency_one_record_more_or_less_is_meant():
    plain = accountant.epsilon(noise_multiplier=1.3, **SETTINGS)
    assert plain == accountant.epsilon(noise_multiplier=1.3, **SETTINGS, adjacency=ADD)
    with pytest.raises(EventError, match="add-or-remove-one"):
        accountant.Accountant().compose(fixed(40, 3, 2.0))


def test_no_rounds_cost_nothing_and_everybody_takes_part_unless_a_rate_is_named():
    assert accountant.epsilon(noise_multiplier=1.0, rounds=0, delta=1e-5) == 0.0
    found = accountant.epsilon(noise_multiplier=4.0, rounds=4, delta=1e-5)
    assert found == gaussian_dp.epsilon(gaussian(4.0, 4), 1e-5, adjacency=ADD)


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("noise_multiplier", (-1.0, math.inf, math.nan, "2"), "must be positive and finite: it is the noise's"),
        ("sample_rate", (1.5, 0.0), "must be above 0 and at most 1: it is the probability"),
        ("rounds", (-1, 2.5, True), "must be a whole number of releases, at least [01]"),
        ("delta", (0.0,), r"must lie in \(0, 1\), got 0.0; usual is"),
        ("delta", (None,), "usual is|name epsilon and delta"),
        ("adjacency", ("neighbours",), "is unknown; use one of"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_bound_and_a_remedy(name, values, words):
    for value in values:
        with pytest.raises(PrivacyError, match=f"{name}.*{words}") as caught:
            accountant.epsilon(**({"noise_multiplier": 1.3} | SETTINGS | {name: value}))
        assert value is None or repr(value) in str(caught.value)
        if name != "noise_multiplier":
            with pytest.raises(PrivacyError, match=words):
                accountant.noise_multiplier(**({"epsilon": 1.0} | SETTINGS | {name: value}))


@pytest.mark.parametrize(
    "change", [{"tpr": ".1", "at_fpr": 0.01}, {"tpr": 0.1, "at_fpr": "0"}, {"advantage": ".1"}, {"advantage": True}]
)
def test_an_attacks_rate_that_is_no_number_is_refused(change):
    with pytest.raises(AccountingError, match="must be above 0 and at most 1: it is the"):
        accountant.noise_multiplier(rounds=3, **change)


def test_an_accountant_adds_up_whatever_it_is_told_and_inverts_itself():
    spent = accountant.Accountant("zero-out")
    assert (spent.epsilon(1e-5), spent.delta(0.0)) == (0.0, 0.0)
    assert spent.compose(ROUND, 30) is spent
    spent.compose(gaussian(5.0)).compose(laplace(9.0), 2)
    whole = accountant.compose([(ROUND, 30), gaussian(5.0), (laplace(9.0), 2)])
    assert spent.event == whole
    assert spent.interval(1e-6) == accountant.epsilon_interval(whole, 1e-6, adjacency=ZERO)
    assert spent.delta(spent.epsilon(1e-6)) <= 1.01e-6
    for count in (0, -1, 1.5):
        with pytest.raises(EventError, match="count"):
            spent.compose(ROUND, count)
    assert spent.event == whole
    assert calibrate.poisson(0.1, 1.3, 30) == repeat(ROUND, 30)


def test_an_event_is_priced_in_the_same_call_whichever_library_described_it():
    theirs = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.1, dp_event.GaussianDpEvent(1.3)), 30)
    found = accountant.epsilon(noise_multiplier=1.3, **SETTINGS)
    ours = repeat(ROUND, np.int64(30))
    assert {found} == {accountant.epsilon(event, 1e-6) for event in (ours, theirs)}
    assert found == accountant.epsilon(noise_multiplier=np.float64(1.3), **SETTINGS | {"rounds": np.int64(30)})
    assert found == accountant.Accountant().compose(theirs).epsilon(1e-6)
    assert found == accountant.epsilon_interval(theirs, 1e-6).upper == accountant.epsilon_table(theirs, 1e-6)["tight"]
    assert accountant.from_dp_event(accountant.to_dp_event(ours)) == ours
    pair = accountant.epsilon(ROUND, 1e-6, group=np.int32(2))
    assert pair == accountant.epsilon(noise_multiplier=1.3, **SETTINGS | {"rounds": 1}, group=2)


@pytest.mark.parametrize("given", [{"delta": 1e-5}, {"event": ROUND, "rounds": 3}, {"noise_multiplier": 1.0}])
def test_neither_an_event_nor_rounds_or_both_are_refused(given):
    with pytest.raises(AccountingError, match="name either an event, or noise_multiplier and rounds"):
        accountant.epsilon(**{"delta": 1e-5} | given)


def test_modules_and_bridges_are_there_without_a_second_import():
    code = "import accountant as a; a.filters, a.envelope.envelope; print(a.to_dp_event is a.dp_event.to_dp_event)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("True")


def test_the_order_of_many_distinct_events_does_not_matter_and_each_counts():
    spent = accountant.Accountant()
    for z in range(10, 510):
        spent.compose(gaussian(z)).compose(gaussian(z), 2)
    assert len(spent.event.parts) == 500
    exact = gaussian_dp.epsilon_of(3.0 * math.fsum(z**-2 for z in range(10, 510)), 1e-5)
    assert spent.epsilon(1e-5) == pytest.approx(exact, rel=1e-12)


def test_large_counts_groups_and_allocations_are_refused_or_priced():
    with pytest.raises(EventError, match=r"at most 2\^53, got 10000000000000000000"):
        repeat(ROUND, 10**19)
    with pytest.raises(EventError, match="group=10000 of a sampled release has too many lengths"):
        accountant.epsilon(ROUND, 1e-5, group=10_000)
    assert accountant.epsilon(gaussian(1e5), 1e-5, group=10_000) < 1.0
    assert accountant.epsilon(allocated(10**12, 1, 1.0), 1e-5) < 1e-3


def test_an_interval_that_is_wider_than_promised_says_so():
    for event, tight in ((truncated(40, 0.25, 8, 2.0, 40), False), (repeat(ROUND, 30), True)):
        found = accountant.epsilon_interval(event, 1e-5, adjacency="zero-out")
        assert found.is_tight is tight
        assert ("of the upper one apart)" in interval_text(found, event)) is not tight


# ---- calibration meets its target from the safe side and does not overshoot

DELTA = 1e-5


@pytest.mark.parametrize("accountant", [numerical.epsilon, renyi.epsilon, moments.epsilon])
@pytest.mark.parametrize("target", [1.0, 10.0])
def test_noise_multiplier(accountant, target):
    def plan(z):
        return compose([poisson(0.1, z, 30), poisson(0.4, 2 * z, 10), gaussian(5 * z)])

    z = calibrate.noise_multiplier(plan, epsilon=target, delta=DELTA, adjacency=ZERO, accountant=accountant)
    assert accountant(plan(z), DELTA, adjacency=ZERO) <= target
    assert accountant(plan(z * 0.998), DELTA, adjacency=ZERO) > target * 0.9985


# --- an accountant of one line, whose answers are known ---------------------------------------

LOG = math.log(1 / DELTA)


def one_line(event, delta, *, adjacency):
    """Cost: the sum of (q / z)^2 log(1 / delta); twice that under replace-one."""
    each = [(getattr(part, "sample_rate", 1.0) / part.noise_multiplier) ** 2 * count for part, count in parts(event)]
    return sum(each) * math.log(1 / delta) * (2 if adjacency == REPLACE else 1)


@pytest.mark.parametrize("rate", [0.97, 0.5, 0.3, 1e-2, 3e-8])
@pytest.mark.parametrize("adjacency", [ZERO, REPLACE])
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
    def exactly(event, delta, *, adjacency):
        assert (delta, adjacency) == (math.exp(-1), ZERO)
        return sum(count for _, count in parts(event)) / 16

    settings = {"sample_rate": 0.5, "delta": math.exp(-1), "adjacency": ZERO, "accountant": exactly}
    for affordable, found in (
        (count, count),
        (count + 0.5, count),
        (count - 0.5, count - 1),
        (2.0**40 - 16, 2**40 - 16),
    ):
        assert calibrate.rounds(2.0, epsilon=affordable / 16, **settings) == found


@pytest.mark.parametrize(
    "ask",
    [
        partial(calibrate.noise_multiplier, partial(poisson, 1)),
        partial(calibrate.sample_rate, 1.0, rounds=3),
        partial(calibrate.rounds, 1.0, sample_rate=0.1),
    ],
)
def test_a_target_that_means_nothing_is_refused_before_anything_is_computed(ask):
    never = mock.Mock(side_effect=AssertionError("asked for a price"))
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

    def accountant(event, delta, *, adjacency):
        assert (delta, adjacency) == (DELTA, REPLACE)
        return cost(math.log(event.noise_multiplier))

    settings = {"epsilon": 1.0, "delta": DELTA, "adjacency": REPLACE, "accountant": accountant}
    return math.log(calibrate.noise_multiplier(gaussian, **settings))


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


# ---- the trade-off of an event: against closed forms, mpmath, single prices, attacks that are played, and other units

RATES = np.array([1e-9, 1e-6, 1e-4, 0.01, 0.1, 0.5, 0.9])
SGD = poisson(0.25, 2.0, 40)


def test_gaussian_noise_has_its_closed_form_from_both_sides():
    mu = 2.0 / 3.0
    curve = tradeoff(gaussian(3.0, 4))
    exact, low, high = ndtr(ndtri(RATES) + mu), curve.attack_success(RATES, attained=True), curve.attack_success(RATES)
    assert np.all((low <= exact) & (exact <= high))
    np.testing.assert_allclose(low, exact, rtol=5e-4)
    np.testing.assert_allclose(high, exact, rtol=5e-4)
    assert curve.advantage() == pytest.approx(2.0 * ndtr(mu / 2.0) - 1.0, rel=1e-9)
    pair = tradeoff(gaussian(3.0, 4), group=2).attack_success(RATES)
    assert np.all(ndtr(ndtri(RATES) + 2.0 * mu) <= pair)
    np.testing.assert_allclose(pair, curve.attack_success(RATES, group=2), rtol=3e-3)


def test_randomised_response_has_its_closed_form():
    """True with chance p: the success is a p / (1 - p) up to a = 1 - p, then 1 - (1 - a)(1 - p) / p."""
    epsilons = np.linspace(0.0, 2.0, 101)
    p = 1.0 / (1.0 + math.exp(-2.0))
    curve = of_deltas(epsilons, np.maximum(0.0, p - (1.0 - p) * np.exp(epsilons)))
    exact = np.minimum(RATES * p / (1.0 - p), 1.0 - (1.0 - RATES) * (1.0 - p) / p)
    np.testing.assert_allclose(curve.attack_success(RATES), exact, rtol=1e-11)
    assert curve.advantage() == pytest.approx(2.0 * p - 1.0, rel=1e-11)


EVENTS = [
    (SGD, ADD, 2e-3),
    (poisson(256 / 60_000, 1.1, 14_040), ADD, 2e-3),
    (SGD, REPLACE, 2e-3),
    (repeat(sampled_laplace(0.1, 1.0), 30), ADD, 2e-3),
    (fixed(40, 4, 2.0, 40), ZERO, 2e-3),
    (allocated(8, 1, 1.0), ZERO, 4e-3),
    (accountant.of_group(SGD, 3, adjacency=ADD), ADD, 2e-3),
    (accountant.compose([SGD, gaussian(5.0), (laplace(9.0), 2)]), ADD, 2e-3),
    (truncated(40, 0.25, 12, 2.0, 9), ZERO, None),
    (ZeroConcentrated(rho=0.1, xi=0.0), ADD, None),
]


@pytest.mark.parametrize(("event", "adjacency", "width"), EVENTS)
def test_both_ends_agree_with_single_prices_and_each_other(event, adjacency, width):
    curve = tradeoff(event, adjacency=adjacency)
    low, high = curve.attack_success(RATES, attained=True), curve.attack_success(RATES)
    assert np.all((low >= RATES) & (low <= high) & (high <= 1.0))
    if width is not None:
        np.testing.assert_allclose(low, high, rtol=width)
    for delta in (1e-7, 1e-4, 1e-2):
        price = numerical.epsilon_interval(event, delta, adjacency=adjacency)
        assert price.lower <= curve.epsilon(delta) <= 1.004 * price.upper + 1e-9
        assert 0.985 * price.lower <= curve.epsilon(delta, attained=True) <= price.upper
    for epsilon in np.array([0.0, 0.1, 0.5]) * curve.epsilons[-1]:
        price = numerical.delta_interval(event, float(epsilon), adjacency=adjacency)
        assert price.lower <= curve.delta(float(epsilon)) <= 1.02 * price.upper + 1e-12
        assert curve.delta(float(epsilon), attained=True) <= price.upper


def test_risk_and_advantage_are_points_of_the_same_curve():
    curve = tradeoff(SGD)
    assert curve.bayes_risk(0.5) == pytest.approx(0.5 * (1.0 - curve.advantage()), rel=1e-12)
    assert curve.bayes_risk(0.01) == pytest.approx(0.01, rel=1e-3)
    prior, grid = np.array([0.0, 0.2, 0.8, 1.0]), np.linspace(0.0, 1.0, 2001)
    missed = 1.0 - curve.attack_success(grid)
    least = np.array([np.min(p * missed + (1.0 - p) * grid) for p in prior])
    np.testing.assert_allclose(curve.bayes_risk(prior), least, rtol=2e-3, atol=1e-12)
    assert np.all(curve.bayes_risk(prior) <= curve.bayes_risk(prior, attained=True))


def test_the_ends_of_what_is_possible():
    nothing, everything = tradeoff(accountant.Composed()), tradeoff(accountant.NonPrivate())
    np.testing.assert_array_equal(nothing.attack_success(RATES, attained=True), RATES)
    np.testing.assert_allclose(nothing.attack_success(RATES), RATES, rtol=1e-9)
    np.testing.assert_array_equal(everything.attack_success(RATES), 1.0)
    assert (everything.bayes_risk(0.5), everything.epsilon(0.1), nothing.advantage()) == (0.0, math.inf, 0.0)
    quiet, loud = tradeoff(gaussian(1e30)), tradeoff(gaussian(1e-20))
    assert 0.0 < quiet.advantage() < 1e-30
    assert loud.attack_success(1e-9) == 1.0
    assert tradeoff(SGD, least=1e-30).attack_success(1e-30) < 1e-3 * tradeoff(SGD).attack_success(1e-30)


@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan])
def test_rates_out_of_range_are_refused(bad):
    curve = tradeoff(gaussian(3.0))
    for method, name in ((curve.attack_success, "fpr"), (curve.bayes_risk, "prior"), (curve.epsilon, "delta")):
        with pytest.raises(AccountingError, match=rf"{name}=.* must lie in \[0, 1\]"):
            method(bad)
    with pytest.raises(AccountingError, match=r"least=0\.0 must be above 0"):
        tradeoff(SGD, least=0.0)


@pytest.mark.parametrize(("tpr", "at_fpr"), [(0.05, 0.01), (0.01, 1e-5)])
def test_noise_is_found_for_a_success_rate(tpr, at_fpr):
    z = accountant.noise_multiplier(tpr=tpr, at_fpr=at_fpr, sample_rate=0.25, rounds=40)
    curve = tradeoff(noise_multiplier=z, sample_rate=0.25, rounds=40)
    assert curve.attack_success(at_fpr, attained=True) <= tpr
    assert 0.996 * tpr <= curve.attack_success(at_fpr) <= 1.004 * tpr


def test_noise_is_found_for_an_advantage_and_other_targets_are_refused():
    z = accountant.noise_multiplier(advantage=0.1, rounds=4)
    assert 2.0 * ndtr(1.0 / z) - 1.0 == pytest.approx(0.1, rel=1e-5)
    for given in ({}, {"epsilon": 1.0}, {"tpr": 0.1, "at_fpr": 0.01, "delta": 1e-5}):
        with pytest.raises(AccountingError, match="name epsilon and delta, or tpr and at_fpr, or advantage"):
            accountant.noise_multiplier(rounds=4, **given)
    with pytest.raises(CalibrationError, match=r"success 0\.1 above its false alarms 0.2"):
        accountant.noise_multiplier(rounds=4, tpr=0.1, at_fpr=0.2)
    with pytest.raises(CalibrationError, match=r"success at 0\.5 with 0\.499999999 false alarms; let the two differ"):
        accountant.noise_multiplier(rounds=1, tpr=0.5, at_fpr=0.499999999)


def test_it_is_drawn_and_written():
    from matplotlib.figure import Figure

    curve = accountant.Accountant().compose(SGD).tradeoff()
    axes = curve.plot(Figure().subplots())
    assert [line.get_label() for line in axes.lines] == ["no attack finds more", "an attack finds as many", "guessing"]
    written = curve.to_dict()
    assert written["right_guess"] == 1.0 - curve.bayes_risk(0.5)
    assert len(written["false_alarms"]) == len(written["caught_upper"]) == 21
