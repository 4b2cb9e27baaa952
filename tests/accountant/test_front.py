"""The front door: one flat call for equal rounds, and an accountant that adds events up."""

import math

import pytest
from dp_accounting.pld import PLDAccountant

import accountant
from accountant import Adjacency, FixedSizeSampledGaussian, Gaussian, PoissonSampledGaussian, calibrate, numerical
from accountant.dp_event import to_dp_event
from accountant.errors import AccountingError, EventError, PrivacyError
from tests.accountant.oracles import neighboring_relation

SETTINGS = {"sample_rate": 0.1, "rounds": 30, "delta": 1e-6}
ROUND = PoissonSampledGaussian(sample_rate=0.1, noise_multiplier=1.3)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_one_call_gives_what_events_and_another_library_give(adjacency):
    found = accountant.epsilon(noise_multiplier=1.3, **SETTINGS, adjacency=adjacency)
    assert found == numerical.epsilon(accountant.repeat(ROUND, 30), 1e-6, adjacency=adjacency)
    assert found == accountant.epsilon(noise_multiplier=1.3, **SETTINGS, adjacency=adjacency.value)
    assert found == accountant.Accountant(adjacency).compose(ROUND, 30).epsilon(1e-6)
    if adjacency is not Adjacency.REPLACE_ONE:  # which dp-accounting 0.6.0 does not price for samples
        theirs = PLDAccountant(neighboring_relation(adjacency), value_discretization_interval=1e-3)
        theirs.compose(to_dp_event(accountant.repeat(ROUND, 30), adjacency=adjacency))
        assert found == pytest.approx(theirs.get_epsilon(1e-6), rel=2e-3)


def test_without_an_adjacency_one_record_more_or_less_is_meant():
    add = Adjacency.ADD_OR_REMOVE_ONE
    assert accountant.epsilon(noise_multiplier=1.3, **SETTINGS) == accountant.epsilon(
        noise_multiplier=1.3, **SETTINGS, adjacency=add
    )
    assert accountant.Accountant().adjacency is add
    fixed = FixedSizeSampledGaussian(n_clients=40, sample_size=3, noise_multiplier=2.0)
    with pytest.raises(EventError, match="add-or-remove-one"):
        accountant.Accountant().compose(fixed)


@pytest.mark.parametrize(("sample_rate", "unspent"), [(0.1, 1e-3), (1e-3, 1e-3), (1.0, 1e-5)])
def test_the_multiplier_costs_what_was_asked_and_hardly_less(sample_rate, unspent):
    settings = SETTINGS | {"sample_rate": sample_rate}
    z = accountant.noise_multiplier(epsilon=2.0, **settings)
    assert 2.0 * (1.0 - unspent) <= accountant.epsilon(noise_multiplier=z, **settings) <= 2.0


def test_a_word_that_describes_no_round_is_named():
    with pytest.raises(TypeError, match="unexpected keyword argument 'steps'"):
        accountant.epsilon(noise_multiplier=1.0, **SETTINGS, steps=3)  # type: ignore[call-arg]  # the fault
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'rounds'"):
        accountant.noise_multiplier(epsilon=1.0, delta=1e-5)  # type: ignore[call-arg]  # the fault


def test_no_rounds_cost_nothing_and_everybody_takes_part_unless_a_rate_is_named():
    assert accountant.epsilon(noise_multiplier=1.0, rounds=0, delta=1e-5) == 0.0
    everyone = accountant.repeat(Gaussian(noise_multiplier=4.0), 4)
    found = accountant.epsilon(noise_multiplier=4.0, rounds=4, delta=1e-5)
    assert found == accountant.epsilon_table(everyone, 1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE)["gaussian_dp"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"noise_multiplier": -1.0}, "noise_multiplier=-1.0 must be positive and finite: it is the noise's standard"),
        ({"noise_multiplier": math.inf}, "noise_multiplier=inf must be positive and finite"),
        ({"noise_multiplier": math.nan}, "noise_multiplier=nan must be positive and finite"),
        ({"noise_multiplier": "2"}, "noise_multiplier='2' must be positive and finite"),
        ({"sample_rate": 1.5}, "sample_rate=1.5 must be above 0 and at most 1: it is the probability"),
        ({"sample_rate": 0.0}, "sample_rate=0.0 must be above 0 and at most 1"),
        ({"rounds": -1}, "rounds=-1 must be a whole number of releases, at least 0"),
        ({"rounds": 2.5}, r"rounds=2\.5 must be a whole number"),
        ({"rounds": True}, "rounds=True must be a whole number"),
        ({"delta": 0.0}, r"delta must lie in \(0, 1\), got 0.0; usual is"),
        ({"adjacency": "neighbours"}, "adjacency='neighbours' is unknown; use one of"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_bound_and_a_remedy(change, words):
    with pytest.raises(PrivacyError, match=words):
        accountant.epsilon(**({"noise_multiplier": 1.3} | SETTINGS | change))
    if "noise_multiplier" not in change and change != {"rounds": -1}:
        with pytest.raises(PrivacyError, match=words.replace("at least 0", "at least 1")):
            accountant.noise_multiplier(**({"epsilon": 1.0} | SETTINGS | change))


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan, "1"])
def test_a_target_out_of_range_is_refused(epsilon):
    with pytest.raises(AccountingError, match=r"epsilon=.* must be positive and finite: it is the most"):
        accountant.noise_multiplier(epsilon=epsilon, **SETTINGS)
    with pytest.raises(AccountingError, match="rounds=0 must be a whole number of releases, at least 1"):
        accountant.noise_multiplier(epsilon=1.0, **SETTINGS | {"rounds": 0})


def test_an_accountant_adds_up_whatever_it_is_told_and_inverts_itself():
    spent = accountant.Accountant("zero-out")
    assert (spent.epsilon(1e-5), spent.delta(0.0)) == (0.0, 0.0)
    assert spent.compose(ROUND, 30) is spent
    spent.compose(Gaussian(noise_multiplier=5.0)).compose(accountant.Laplace(scale_multiplier=9.0), 2)
    whole = accountant.compose(
        [(ROUND, 30), Gaussian(noise_multiplier=5.0), (accountant.Laplace(scale_multiplier=9.0), 2)]
    )
    assert spent.event == whole
    assert spent.interval(1e-6) == accountant.epsilon_interval(whole, 1e-6, adjacency=Adjacency.ZERO_OUT)
    assert spent.delta(spent.epsilon(1e-6)) <= 1.01e-6
    for count in (0, -1, 1.5):
        with pytest.raises(EventError, match="count"):
            spent.compose(ROUND, count)
    assert spent.event == whole
    assert calibrate.poisson(0.1, 1.3, 30) == accountant.repeat(ROUND, 30)
