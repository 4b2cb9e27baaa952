import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privbo.algorithms.thompson.exploration import Cut, Exploration, Regions, Weighting, assign_regions
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.space import Categorical, Int, Real, Space

PLANE = Space({"x": Real(0.0, 1.0), "y": Real(0.0, 1.0)})


@given(power=st.floats(0, 5), scale=st.floats(0, 1))
def test_own_probability_is_a_rising_probability(power, scale):
    curve = [Exploration(power=power, scale=scale).own_probability(t) for t in range(1, 100)]
    assert all(0 <= p <= 1 for p in curve)
    assert all(a <= b for a, b in itertools.pairwise(curve))


def test_the_papers_temperatures():
    # Appendix B: 16 for five iterations, then 16, 12.25, 8.5, 4.75, 1, then 1 (synthetic).
    synthetic = Weighting(sharpness=15.0, hold=5, decay=5)
    assert [synthetic.concentration(t) for t in range(1, 13)] == pytest.approx(
        [16] * 5 + [16, 12.25, 8.5, 4.75, 1, 1, 1]
    )
    real = Weighting(sharpness=15.0, hold=10, decay=30)
    assert [real.concentration(t) for t in (1, 10, 11, 40, 60)] == pytest.approx([16, 16, 16, 1, 1])


@given(n=st.integers(1, 60), regions=st.integers(1, 6), iteration=st.integers(1, 50), a=st.floats(0, 50))
def test_weights_of_a_region_sum_to_one(n, regions, iteration, a):
    weights = Weighting(sharpness=a).weights(iteration, assign_regions(n + regions, regions), regions)
    assert weights.shape == (regions, n + regions)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-12)


def test_four_regions_of_the_plane_are_its_quadrants():
    regions = Regions.of(4, PLANE)
    assert regions.splits == (2, 2)
    corners = np.array([[0.1, 0.1], [0.1, 0.9], [0.9, 0.1], [0.9, 0.9]])
    assert regions.index(corners).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("count", "splits"), [(1, (1, 1)), (2, (2, 1)), (3, (3, 1)), (6, (3, 2)), (8, (4, 2))])
def test_factors_go_round_the_coordinates(count, splits):
    regions = Regions.of(count, PLANE)
    assert regions.splits == splits
    assert regions.count == count


MIXED = Space({"kind": Categorical(("a", "b", "c")), "depth": Int(1, 4), "rate": Real(1e-3, 1.0, log=True)})


@given(count=st.integers(1, 12), seed=st.integers(0, 2**20))
def test_samples_stay_in_their_region_and_are_canonical(count, seed):
    regions = Regions.of(count, MIXED)
    generator = np.random.default_rng(seed)
    for region in range(count):
        points = regions.sample(region, 5, MIXED, generator)
        assert points.shape == (5, 3)
        assert (regions.index(points) == region).all()
        np.testing.assert_array_equal(MIXED.snap(points), points)


def test_a_space_too_small_for_its_regions_is_refused():
    with pytest.raises(ConfigurationError, match="n_regions=4"):
        Regions.of(4, Space({"flag": Categorical((False, True))}))


@pytest.mark.parametrize(
    ("weighting", "ratios"),
    [
        (Weighting(schedule="synthetic"), {1: np.exp(15), 5: np.exp(15), 7: np.exp(11.25), 10: 1.0, 40: 1.0}),
        (Weighting(sharpness=9.0), {1: np.exp(9), 10: np.exp(9), 40: 1.0}),  # "weights 1"
        (Weighting(sharpness=1000.0, form="linear"), {1: 1000.0, 11: 1000.0, 40: 1.0}),  # "weights 2"
        (Weighting(sharpness=40.0, form="square"), {1: 1600.0, 11: 1600.0, 40: 1.0}),  # "weights 3"
        (Weighting(schedule="constant"), {1: np.exp(15), 1000: np.exp(15)}),  # App. B.2.5
    ],
    ids=["synthetic", "weights 1", "weights 2", "weights 3", "non-adaptive"],
)
def test_the_papers_weightings_against_a_plain_loop(weighting, ratios):
    for iteration, ratio in ratios.items():
        found = weighting.weights(iteration, np.arange(7) % 3, 3)
        for region in range(3):
            raw = [ratio if client % 3 == region else 1.0 for client in range(7)]
            for client in range(7):
                assert found[region, client] == pytest.approx(raw[client] / sum(raw), rel=1e-12)


CUTS = (Cut(parameter="rate", at=(1e-2, 0.5)), Cut(parameter="depth", at=(3,)), Cut(parameter="kind", at=("b",)))


def test_explicit_cuts_put_every_value_where_a_reader_expects_it():
    regions = Regions.cut(CUTS, MIXED)
    assert regions.count == 12
    assert regions.splits == (2, 2, 3)
    for kind, depth, rate in itertools.product("abc", (1, 2, 3, 4), (1e-3, 9e-3, 1e-2, 0.4, 0.5, 1.0)):
        where = MIXED.encode({"kind": kind, "depth": depth, "rate": rate})
        expected = ((kind != "a") * 2 + (depth >= 3)) * 3 + (rate >= 1e-2) + (rate >= 0.5)
        assert regions.index(where) == expected
    generator = np.random.default_rng(1)
    for region in range(12):
        points = regions.sample(region, 6, MIXED, generator)
        assert (regions.index(points) == region).all()
        np.testing.assert_array_equal(MIXED.snap(points), points)


@pytest.mark.parametrize(
    "cut",
    [
        Cut(parameter="nothing", at=(1,)),
        Cut(parameter="rate", at=()),
        Cut(parameter="rate", at=(0.5, 0.1)),
        Cut(parameter="rate", at=(1e-3,)),
        Cut(parameter="rate", at=(1.0,)),
        Cut(parameter="rate", at=(7.0,)),
        Cut(parameter="depth", at=(1,)),
        Cut(parameter="kind", at=("z",)),
    ],
    ids=str,
)
def test_impossible_cuts_are_refused(cut):
    with pytest.raises(ConfigurationError):
        Regions.cut((cut,), MIXED)
    with pytest.raises(ConfigurationError, match="once"):
        Regions.cut((CUTS[0], CUTS[0]), MIXED)


@pytest.mark.parametrize(
    "change",
    [
        {"schedule": "never"},
        {"form": "cubic"},
        {"form": "linear", "sharpness": 0.5},
        {"schedule": "constant", "hold": 3},
    ],
)
def test_impossible_weightings_are_refused(change):
    with pytest.raises(ConfigurationError):
        Weighting(**change)
