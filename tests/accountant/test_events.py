"""Events: validation, merging, and a canonical form that survives storage."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accountant.errors import EventError
from accountant.events import (
    Adjacency,
    Composed,
    FixedSizeSampledGaussian,
    Gaussian,
    Laplace,
    NonPrivate,
    PoissonSampledGaussian,
    check_adjacency,
    compose,
    from_dict,
    repeat,
    to_dict,
)

positive = st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False)
basic = st.one_of(
    st.builds(Gaussian, noise_multiplier=positive),
    st.builds(Laplace, scale_multiplier=positive),
    st.builds(
        PoissonSampledGaussian,
        sample_rate=st.floats(min_value=0, exclude_min=True, max_value=1),
        noise_multiplier=positive,
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


@given(basic)
def test_basic_round_trip(event):
    assert from_dict(json.loads(json.dumps(to_dict(event)))) == event


def test_compose_merges_and_flattens():
    one, two = Gaussian(noise_multiplier=1), Gaussian(noise_multiplier=2.0)
    event = compose([one, (compose([two, one]), 3), Gaussian(noise_multiplier=1.0)])
    assert dict(event.parts) == {one: 5, two: 3}
    assert repeat(one, 0) == Composed()


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, "a", None, True])
def test_noise_multiplier_is_validated(value):
    with pytest.raises(EventError, match="noise_multiplier"):
        Gaussian(noise_multiplier=value)


@pytest.mark.parametrize("value", [0.0, 1.0000001, math.nan, -0.5])
def test_sample_rate_is_validated(value):
    with pytest.raises(EventError, match="sample_rate"):
        PoissonSampledGaussian(sample_rate=value, noise_multiplier=1)


@pytest.mark.parametrize(("n", "m"), [(0, 1), (5, 6), (5, 0), (5.0, 1), (True, 1)])
def test_fixed_size_is_validated(n, m):
    with pytest.raises(EventError, match="FixedSizeSampledGaussian"):
        FixedSizeSampledGaussian(n_clients=n, sample_size=m, noise_multiplier=1)


def test_composed_refuses_what_compose_would_have_merged():
    g = Gaussian(noise_multiplier=1)
    with pytest.raises(EventError, match="twice"):
        Composed(parts=((g, 1), (g, 2)))
    with pytest.raises(EventError, match="basic"):
        Composed(parts=((Composed(), 1),))
    with pytest.raises(EventError, match="at least 1"):
        Composed(parts=((g, 0),))


def test_unknown_events_are_named():
    with pytest.raises(EventError, match="surprise"):
        from_dict({"type": "surprise"})
    with pytest.raises(EventError, match="str"):
        compose(["gaussian"])
    with pytest.raises(EventError, match="noise"):
        from_dict({"type": "gaussian", "noise": 1.0})


def test_fixed_size_is_refused_under_add_or_remove_one():
    event = compose([FixedSizeSampledGaussian(n_clients=5, sample_size=2, noise_multiplier=1)])
    with pytest.raises(EventError, match="add-or-remove-one"):
        check_adjacency(event, Adjacency.ADD_OR_REMOVE_ONE)
    check_adjacency(event, Adjacency.ZERO_OUT)
    check_adjacency(event, Adjacency.REPLACE_ONE)
