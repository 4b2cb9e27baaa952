"""Events as dp-accounting says them, and another library's price of an exported ledger.

Compared with dp-accounting's privacy-loss distribution only. Its Rényi accountant (0.6.0)
forgets the factor 2 of replace-one and fixed-size sampling; the last test pins that, so
that a corrected version is noticed.
"""

import dp_accounting as dp
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from accountant import moments, renyi
from accountant.dp_event import dp_event_expression, from_dp_event, to_dp_event
from accountant.errors import EventError
from accountant.events import (
    Adjacency,
    Composed,
    FixedSizeSampledGaussian,
    Gaussian,
    Laplace,
    NonPrivate,
    PoissonSampledGaussian,
    compose,
    repeat,
)
from accountant.tight import numerical
from tests.accountant.oracles import neighboring_relation

ADD, ZERO, REPLACE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
EVENTS = [
    Composed(),
    Gaussian(noise_multiplier=2.5),
    compose([(PoissonSampledGaussian(sample_rate=0.1, noise_multiplier=1.1), 40), Gaussian(noise_multiplier=7.0)]),
    compose([(FixedSizeSampledGaussian(n_clients=29, sample_size=10, noise_multiplier=1.5), 3)]),
    compose([Laplace(scale_multiplier=3.0), NonPrivate()]),
]


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("adjacency", [ZERO, REPLACE])
def test_the_expression_is_the_object(event, adjacency):
    names = {name: getattr(dp.dp_event, name) for name in dir(dp.dp_event) if name.endswith("DpEvent")}
    written = dp_event_expression(event, adjacency=adjacency)
    assert eval(written, names) == to_dp_event(event, adjacency=adjacency)  # noqa: S307 (our own text)


def test_each_event_is_said_in_their_convention():
    """Multipliers over one contribution's norm: twice ours under replace-one, and for fixed-size samples always."""
    one = dp.GaussianDpEvent(2.5)
    assert to_dp_event(Composed(), adjacency=ZERO) == dp.NoOpDpEvent()
    assert to_dp_event(EVENTS[1], adjacency=ADD) == dp.ComposedDpEvent([dp.SelfComposedDpEvent(one, 1)])
    for adjacency, factor in ((ZERO, 1.0), (REPLACE, 2.0)):
        parts = [
            dp.SelfComposedDpEvent(dp.GaussianDpEvent(factor * 7.0), 1),
            dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(factor * 1.1)), 40),
        ]
        assert to_dp_event(EVENTS[2], adjacency=adjacency) == dp.ComposedDpEvent(parts)
        sampled = dp.SampledWithoutReplacementDpEvent(29, 10, dp.GaussianDpEvent(3.0))
        assert to_dp_event(EVENTS[3], adjacency=adjacency) == dp.ComposedDpEvent([dp.SelfComposedDpEvent(sampled, 3)])
        parts = [
            dp.SelfComposedDpEvent(dp.LaplaceDpEvent(factor * 3.0), 1),
            dp.SelfComposedDpEvent(dp.NonPrivateDpEvent(), 1),
        ]
        assert to_dp_event(EVENTS[4], adjacency=adjacency) == dp.ComposedDpEvent(parts)


def test_what_has_no_meaning_under_the_adjacency_is_refused():
    fixed = FixedSizeSampledGaussian(n_clients=29, sample_size=10, noise_multiplier=1.5)
    for say in (to_dp_event, dp_event_expression):
        with pytest.raises(EventError, match="add-or-remove-one"):
            say(fixed, adjacency=ADD)


@pytest.mark.parametrize(
    ("event", "adjacency"),
    [
        (repeat(PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=1.0), 40), ADD),
        (repeat(PoissonSampledGaussian(sample_rate=0.25, noise_multiplier=1.0), 40), ZERO),
        (repeat(Gaussian(noise_multiplier=3.0), 5), REPLACE),
    ],
)
def test_priced_alike(event, adjacency):
    accountant = PLDAccountant(neighboring_relation(adjacency), value_discretization_interval=1e-3)
    accountant.compose(to_dp_event(event, adjacency=adjacency))
    theirs = accountant.get_epsilon(1e-5)
    ours = numerical.epsilon_interval(event, 1e-5, adjacency=adjacency)
    assert ours.lower <= theirs * (1 + 1e-9)
    assert ours.upper == pytest.approx(theirs, rel=2e-3)


def test_their_renyi_accountant_is_no_oracle_for_replace_one():
    """z relative to one contribution is 2, so relative to replace-one 1; theirs prices 2."""
    event = repeat(Gaussian(noise_multiplier=1.0), 4)
    accountant = RdpAccountant(neighboring_relation=neighboring_relation(REPLACE))
    accountant.compose(to_dp_event(event, adjacency=REPLACE))
    theirs = accountant.get_epsilon(1e-5)
    truth = numerical.epsilon(event, 1e-5, adjacency=REPLACE)
    halved = renyi.epsilon(repeat(Gaussian(noise_multiplier=2.0), 4), 1e-5, adjacency=REPLACE)
    assert theirs == pytest.approx(halved, rel=0.02)
    assert theirs < 0.6 * truth
    assert moments.epsilon(event, 1e-5, adjacency=REPLACE) >= truth


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("adjacency", [ZERO, REPLACE])
def test_round_trip(event, adjacency):
    assert from_dp_event(to_dp_event(event, adjacency=adjacency), adjacency=adjacency) == compose([event])


def test_nothing_is_said_as_nothing_and_read_from_whatever_says_it():
    assert to_dp_event(Composed(), adjacency=ZERO) == dp.NoOpDpEvent()
    gaussian = dp.GaussianDpEvent(1.0)
    for nothing in (
        dp.NoOpDpEvent(),
        dp.ComposedDpEvent([]),
        dp.SelfComposedDpEvent(gaussian, 0),
        dp.SelfComposedDpEvent(dp.NoOpDpEvent(), 3),
    ):
        assert from_dp_event(nothing, adjacency=ZERO) == Composed()
    twice = dp.ComposedDpEvent([gaussian, dp.SelfComposedDpEvent(gaussian, 1)])
    assert from_dp_event(twice, adjacency=ZERO) == repeat(Gaussian(noise_multiplier=1.0), 2)


def test_a_sample_without_replacement_is_not_read_under_an_adjacency_that_changes_the_number_of_clients():
    theirs = to_dp_event(EVENTS[3], adjacency=ZERO)
    with pytest.raises(EventError, match="add-or-remove-one"):
        from_dp_event(theirs, adjacency=ADD)


def test_what_has_no_sound_accountant_is_not_read():
    event = dp.SampledWithReplacementDpEvent(10, 3, dp.GaussianDpEvent(1.0))
    with pytest.raises(EventError, match="SampledWithReplacement"):
        from_dp_event(event, adjacency=REPLACE)
    fixed = FixedSizeSampledGaussian(n_clients=29, sample_size=10, noise_multiplier=1.5)
    with pytest.raises(EventError, match="add-or-remove-one"):
        to_dp_event(fixed, adjacency=ADD)
