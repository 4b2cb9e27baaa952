"""Events: validation, merging, and a canonical form that survives storage."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from accountant import epsilon_table, gaussian_dp, moments, numerical, renyi
from accountant.errors import AccountingError, EventError
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
    RandomAllocationGaussian,
    TruncatedPoissonSampledGaussian,
    check_adjacency,
    compose,
    from_dict,
    repeat,
    to_dict,
)
from tests.accountant.builders import EXAMPLES

positive = st.floats(min_value=1e-50, max_value=1e50, exclude_min=True)
basic = st.one_of(
    st.builds(Gaussian, noise_multiplier=positive),
    st.builds(Laplace, scale_multiplier=positive),
    st.builds(
        PoissonSampledGaussian,
        sample_rate=st.floats(min_value=0, exclude_min=True, max_value=1),
        noise_multiplier=positive,
    ),
    st.builds(
        PoissonSampledLaplace,
        sample_rate=st.floats(min_value=0, exclude_min=True, max_value=1),
        scale_multiplier=positive,
    ),
    st.builds(
        TruncatedPoissonSampledGaussian,
        n_clients=st.integers(1, 10**6),
        sample_rate=st.floats(min_value=0, exclude_min=True, max_value=1),
        batch_size=st.integers(1, 10**6),
        noise_multiplier=positive,
    ),
    st.integers(1, 10**6).flatmap(
        lambda n: st.builds(
            RandomAllocationGaussian, n_rounds=st.just(n), participations=st.integers(1, n), noise_multiplier=positive
        )
    ),
    st.integers(1, 10**6).flatmap(
        lambda n: st.builds(
            FixedSizeSampledGaussian,
            n_clients=st.just(n),
            sample_size=st.integers(1, n),
            noise_multiplier=positive,
        )
    ),
    st.just(NonPrivate()),
)


@given(st.lists(st.tuples(basic, st.integers(1, 1000)), max_size=6))
def test_canonical_form_round_trips_exactly(items):
    event = compose(items)
    again = from_dict(json.loads(json.dumps(to_dict(event))))
    assert again == event
    assert to_dict(compose(reversed(items))) == to_dict(event)


def test_compose_merges_and_flattens():
    one, two = Gaussian(noise_multiplier=1), Gaussian(noise_multiplier=2.0)
    event = compose([one, (compose([two, one]), 3), Gaussian(noise_multiplier=1.0)])
    assert dict(event.parts) == {one: 5, two: 3}
    assert repeat(one, 0) == Composed()


NOISY = [
    (PoissonSampledGaussian, "noise_multiplier", {"sample_rate": 0.5}),
    (FixedSizeSampledGaussian, "noise_multiplier", {"n_clients": 5, "sample_size": 2}),
    (Laplace, "scale_multiplier", {}),
    (TruncatedPoissonSampledGaussian, "noise_multiplier", {"n_clients": 5, "sample_rate": 0.5, "batch_size": 2}),
    (RandomAllocationGaussian, "noise_multiplier", {"n_rounds": 5, "participations": 2}),
    (PoissonSampledLaplace, "scale_multiplier", {"sample_rate": 0.5}),
    (Gaussian, "noise_multiplier", {}),
]


@pytest.mark.parametrize(("kind", "name", "rest"), NOISY)
def test_numbers_are_floats_however_they_were_given(kind, name, rest):
    for value in (2, np.float32(2.0), np.int64(2)):
        made = kind(**rest, **{name: value})
        assert type(getattr(made, name)) is float
        assert to_dict(made) == to_dict(kind(**rest, **{name: 2.0}))


def test_composed_refuses_what_compose_would_have_merged():
    g = Gaussian(noise_multiplier=1)
    with pytest.raises(EventError, match="twice"):
        Composed(parts=((g, 1), (g, 2)))
    with pytest.raises(EventError, match="basic"):
        Composed(parts=((Composed(), 1),))
    with pytest.raises(EventError, match=r"Composed\.count must be at least 1"):
        Composed(parts=((g, 0),))
    with pytest.raises(EventError, match=r"compose\.count must be an integer"):
        compose([(g, 1.5)])


def test_unknown_events_are_named():
    with pytest.raises(EventError, match="surprise"):
        from_dict({"type": "surprise"})
    with pytest.raises(EventError, match="str"):
        compose(["gaussian"])
    with pytest.raises(EventError, match="noise"):
        from_dict({"type": "gaussian", "noise": 1.0})
    with pytest.raises(EventError, match="unknown event type None"):
        from_dict({})


def selection(*, noise_multiplier=4.0, **terms):
    return BestOfRandomRuns(**{"run": Gaussian(noise_multiplier=noise_multiplier), "eta": 1.0, "gamma": 0.1} | terms)


def test_a_selection_of_one_event_is_that_of_its_composition():
    one = Gaussian(noise_multiplier=4.0)
    assert selection() == selection(run=compose([one]))
    assert selection().run == compose([one])
    assert selection(run=compose([one, one])).run == repeat(one, 2)


def test_selections_are_merged_and_ordered_whatever_came_first():
    first, second = selection(noise_multiplier=4.0), selection(noise_multiplier=5.0)
    event = compose([first, second, first])
    assert event == compose([second, first, first]) == from_dict(json.loads(json.dumps(to_dict(event))))
    assert dict(event.parts) == {first: 2, second: 1}


@pytest.mark.parametrize("data", [{"run": "gaussian"}, {"run": ["gaussian"]}, {}])
def test_a_stored_selection_without_a_run_is_refused(data):
    with pytest.raises(EventError):
        from_dict({"type": "best-of-random-runs", "eta": 1.0, "gamma": 0.1, **data})


def test_a_selection_of_fixed_size_samples_is_refused_as_its_run_is():
    event = selection(run=FixedSizeSampledGaussian(n_clients=5, sample_size=2, noise_multiplier=1))
    with pytest.raises(EventError, match="add-or-remove-one"):
        check_adjacency(event, Adjacency.ADD_OR_REMOVE_ONE)
    check_adjacency(event, Adjacency.REPLACE_ONE)


def test_a_composed_event_needs_its_parts_and_nothing_else():
    for data in ({"type": "composed"}, {"type": "composed", "parts": [], "more": 1}, {"type": "composed", "parts": 3}):
        with pytest.raises(EventError, match="list 'parts'"):
            from_dict(data)


@pytest.mark.parametrize("delta", [None, "1e-5", True, 0.0, 1.0, float("nan"), np.array([1e-5, 1e-6]), np.array(1e-5)])
def test_a_delta_that_is_no_probability_is_refused_with_the_remedy(delta) -> None:
    for price in (epsilon_table, renyi.epsilon, moments.epsilon, gaussian_dp.epsilon, numerical.epsilon):
        with pytest.raises(AccountingError, match=r"delta must lie in \(0, 1\).*usual is at most"):
            price(Gaussian(noise_multiplier=2.0), delta, adjacency=Adjacency.ZERO_OUT)


@pytest.mark.parametrize("adjacency", ["nope", None, 3])
def test_an_unknown_adjacency_is_refused_with_those_that_are_known(adjacency) -> None:
    with pytest.raises(EventError, match="zero-out"):
        epsilon_table(Gaussian(noise_multiplier=2.0), 1e-5, adjacency=adjacency)


EVERY = [
    *(event for event in EXAMPLES.values() if not isinstance(event, MixtureOfGaussians)),
    MixtureOfGaussians(noise_multiplier=1.0, sensitivities=(0.0, 1.0), chances=(0.5, 0.5)),
]
NO_NUMBER = (math.nan, math.inf, -math.inf, True, "much", None, [1.0], 1j, -1.5)
BEYOND = {
    "sample_rate": (0.0, math.nextafter(1.0, 2.0)), "gamma": (0.0, 1.0), "eta": (-1.0,), "xi": (-1e-300,),
    "sample_size": (0, 41, 1.0), "participations": (0, 6, 1.0), "n_clients": (0, 40.0), "n_rounds": (0, 5.0),
    "batch_size": (0, 2.0), "sensitivities": ((), (1.0, 1.0), (-0.1, 1.0), (0.0,), (0.0, math.inf), ("a", 1.0)),
    "chances": ((0.5,), (0.5, 0.6), (0.0, 1.0), (-0.5, 1.5), (math.nan, 1.0), ()), "run": (),
}  # fmt: skip


@pytest.mark.parametrize(
    ("event", "name", "value"),
    [
        (event, name, value)
        for event in EVERY
        for name in vars(event)
        for value in (*BEYOND.get(name, (0.0, -1e-9)), *(() if name in event.structured else NO_NUMBER))
    ],
)
def test_a_field_out_of_its_range_is_refused_by_name(event, name, value):
    with pytest.raises(EventError, match=rf"^{type(event).__name__}\.{name} must"):
        dataclasses.replace(event, **{name: value})
