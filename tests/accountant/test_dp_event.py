"""Events as dp-accounting says them, and another library's price of an exported ledger.

Compared with dp-accounting's privacy-loss distribution only. Its Rényi accountant (0.6.0)
forgets the factor 2 of replace-one and fixed-size sampling; the last test pins that, so
that a corrected version is noticed.
"""

import math

import dp_accounting as dp
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from accountant import moments, renyi
from accountant.dp_event import dp_event_expression, from_dp_event, to_dp_event
from accountant.errors import EventError
from accountant.events import (
    Adjacency,
    BestOfRandomRuns,
    Composed,
    FixedSizeSampledGaussian,
    Gaussian,
    Laplace,
    MixtureOfGaussians,
    NonPrivate,
    PoissonSampledGaussian,
    PoissonSampledLaplace,
    TruncatedPoissonSampledGaussian,
    ZeroConcentrated,
    compose,
    repeat,
)
from accountant.mechanisms.selection import TruncatedNegativeBinomial
from accountant.tight import numerical
from tests.accountant.oracles import neighboring_relation

ADD, ZERO, REPLACE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
EVENTS = [
    Composed(),
    Gaussian(noise_multiplier=2.5),
    compose([(PoissonSampledGaussian(sample_rate=0.1, noise_multiplier=1.1), 40), Gaussian(noise_multiplier=7.0)]),
    compose([(FixedSizeSampledGaussian(n_clients=29, sample_size=10, noise_multiplier=1.5), 3)]),
    compose([Laplace(scale_multiplier=3.0), NonPrivate()]),
    compose([(PoissonSampledLaplace(sample_rate=0.1, scale_multiplier=1.1), 40)]),
    compose(
        [
            TruncatedPoissonSampledGaussian(n_clients=40, sample_rate=0.2, batch_size=12, noise_multiplier=1.5),
            NonPrivate(),
        ]
    ),
]
SELECTIONS = [
    BestOfRandomRuns(run=repeat(PoissonSampledGaussian(sample_rate=0.1, noise_multiplier=2.0), 3), eta=eta, gamma=gamma)
    for eta, gamma in [(1.0, 0.1), (0.0, 0.05), (2.5, 0.3), (-0.5, 0.01), (1.0, 0.9)]
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


@pytest.mark.parametrize("event", [*EVENTS, *SELECTIONS])
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


@pytest.mark.parametrize(("eta", "mean"), [(1.0, 3.7), (0.0, 11.1), (-0.5, 1e4), (3.0, 1.001), (7.0, 1e9)])
def test_a_selection_is_read_at_its_mean_number_of_runs_and_never_at_fewer(eta, mean):
    ((found, _),) = from_dp_event(
        dp.dp_event.RepeatAndSelectDpEvent(dp.GaussianDpEvent(9.0), mean, eta), adjacency=ZERO
    ).parts
    runs = TruncatedNegativeBinomial(eta=found.eta, gamma=found.gamma)
    assert mean * (1 - 1e-15) <= runs.mean <= mean * (1 + 1e-9)
    assert (found.run, found.eta) == (repeat(Gaussian(noise_multiplier=9.0), 1), eta)


G = dp.GaussianDpEvent
FOREIGN = {
    "one run, always": (dp.dp_event.RepeatAndSelectDpEvent(G(2.0), 1.0, 1.0), Gaussian(noise_multiplier=2.0)),
    "queries on one sample": (
        dp.PoissonSampledDpEvent(0.1, dp.ComposedDpEvent([G(2.0), dp.SelfComposedDpEvent(G(2.0), 3)])),
        PoissonSampledGaussian(sample_rate=0.1, noise_multiplier=1.0),
    ),
    "queries on one sample of a size": (
        dp.SampledWithoutReplacementDpEvent(29, 10, dp.SelfComposedDpEvent(G(8.0), 4)),
        FixedSizeSampledGaussian(n_clients=29, sample_size=10, noise_multiplier=2.0),
    ),
    "a sample of a sample": (
        dp.PoissonSampledDpEvent(0.5, dp.PoissonSampledDpEvent(0.25, G(3.0))),
        PoissonSampledGaussian(sample_rate=0.125, noise_multiplier=3.0),
    ),
    "a sample of everybody": (dp.PoissonSampledDpEvent(1.0, dp.LaplaceDpEvent(3.0)), Laplace(scale_multiplier=3.0)),
    "a sample of nobody": (dp.PoissonSampledDpEvent(0.0, G(3.0)), Composed()),
    "a mixture": (
        dp.dp_event.MixtureOfGaussiansDpEvent(3.0, [0.0, 2.0, 2.0], [0.9, 0.05, 0.05]),
        PoissonSampledGaussian(sample_rate=0.1, noise_multiplier=1.5),
    ),
    "a mixture of several": (
        dp.dp_event.MixtureOfGaussiansDpEvent(1.5, [1.0, 0.0, -2.0], [0.25, 0.5, 0.25]),
        MixtureOfGaussians(noise_multiplier=1.5, sensitivities=(0.0, 1.0, 2.0), chances=(0.5, 0.25, 0.25)),
    ),
    "zero-concentrated": (dp.dp_event.ZCDpEvent(0.5, 0.1), ZeroConcentrated(rho=0.5, xi=0.1)),
    "trees": (
        dp.SelfComposedDpEvent(dp.dp_event.SingleEpochTreeAggregationDpEvent(6.0, [3, 8]), 2),
        repeat(Gaussian(noise_multiplier=3.0), 2),
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_others_write_is_read_as_what_it_means(name):
    theirs, ours = FOREIGN[name]
    assert from_dp_event(theirs, adjacency=ZERO) == compose([ours])


@pytest.mark.parametrize("adjacency", [ADD, ZERO])  # replace-one is not theirs
def test_a_sample_with_laplace_noise_costs_what_they_say(adjacency):
    event = repeat(PoissonSampledLaplace(sample_rate=0.1, scale_multiplier=1.0), 30)
    theirs = to_dp_event(event, adjacency=adjacency)
    pld = PLDAccountant(neighboring_relation(adjacency), value_discretization_interval=1e-4).compose(theirs)
    for delta in (1e-3, 1e-6):
        assert numerical.epsilon(event, delta, adjacency=adjacency) == pytest.approx(pld.get_epsilon(delta), rel=2e-3)


REFUSED = [
    dp.dp_event.RandomizedResponseDpEvent(0.5, 4),
    dp.dp_event.DiscreteLaplaceDpEvent(0.5, 1),
    dp.SampledWithReplacementDpEvent(10, 3, G(1.0)),
    dp.dp_event.UnsupportedDpEvent(),
    dp.dp_event.RepeatAndSelectDpEvent(G(1.0), 3.0, math.inf),
    dp.dp_event.MixtureOfGaussiansDpEvent(1.0, [0.0], [1.0]),
    dp.SampledWithoutReplacementDpEvent(10, 3, dp.LaplaceDpEvent(1.0)),
]


@pytest.mark.parametrize("theirs", REFUSED, ids=lambda theirs: type(theirs).__name__)
def test_what_has_no_meaning_here_is_refused_by_its_name_with_the_reason(theirs):
    for nested in (theirs, dp.SelfComposedDpEvent(theirs, 3), dp.ComposedDpEvent([G(1.0), theirs])):
        with pytest.raises(
            EventError, match=rf"no sound accountant here for dp-accounting's {type(theirs).__name__}.*: \w"
        ):
            from_dp_event(nested, adjacency=ZERO)


def test_what_means_something_under_other_adjacencies_only_is_refused():
    fixed = FixedSizeSampledGaussian(n_clients=29, sample_size=10, noise_multiplier=1.5)
    for say in (to_dp_event, dp_event_expression):
        with pytest.raises(EventError, match="add-or-remove-one"):
            say(fixed, adjacency=ADD)
    with pytest.raises(EventError, match="add-or-remove-one"):
        from_dp_event(to_dp_event(fixed, adjacency=ZERO), adjacency=ADD)
    mixture, trees, queries = FOREIGN["a mixture"][0], FOREIGN["trees"][0], FOREIGN["queries on one sample"][0]
    for theirs, adjacency in ((mixture, REPLACE), (trees, ADD)):
        with pytest.raises(EventError, match=f"it has no meaning under {adjacency}"):
            from_dp_event(theirs, adjacency=adjacency)
    with pytest.raises(EventError, match="nothing is proven under replace-one"):
        from_dp_event(queries, adjacency=REPLACE)
    with pytest.raises(EventError, match="a private event other than a selection"):
        from_dp_event(dp.dp_event.RepeatAndSelectDpEvent(dp.NonPrivateDpEvent(), 3.0, 1.0), adjacency=ZERO)


def test_every_event_of_theirs_is_read_or_refused_on_purpose():
    known = {type(theirs).__name__ for theirs in REFUSED} | {
        "NoOpDpEvent", "NonPrivateDpEvent", "GaussianDpEvent", "LaplaceDpEvent", "SelfComposedDpEvent",
        "ComposedDpEvent", "PoissonSampledDpEvent", "TruncatedSubsampledGaussianDpEvent",
        "SingleEpochTreeAggregationDpEvent", "ZCDpEvent",
    }  # fmt: skip
    theirs = {name for name, kind in vars(dp.dp_event).items() if isinstance(kind, type) and name.endswith("DpEvent")}
    assert theirs - {"DpEvent"} == known
