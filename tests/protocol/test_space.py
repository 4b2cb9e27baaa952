import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.space import Categorical, Int, Real, Space

PARAMETERS = st.one_of(
    st.builds(
        lambda low, width, log: Real(low, low * (1 + width), log),
        st.floats(1e-6, 1e6),
        st.floats(1e-3, 1e3),
        st.booleans(),
    ),
    st.builds(lambda low, n, log: Int(low, low + n, log), st.integers(1, 1000), st.integers(1, 500), st.booleans()),
    st.builds(lambda low, n: Real(low, low + 0.125 * n, step=0.125), st.integers(-9, 9), st.integers(1, 40)),
    st.builds(
        lambda low, n, step: Int(low, low + n * step, step=step),
        st.integers(-9, 9),
        st.integers(1, 9),
        st.integers(2, 5),
    ),
    st.builds(lambda n: Categorical(tuple(f"c{i}" for i in range(n))), st.integers(2, 6)),
)
SPACES = st.builds(
    lambda ps: Space({f"p{i}": p for i, p in enumerate(ps)}), st.lists(PARAMETERS, min_size=1, max_size=4)
)


@given(SPACES, st.data())
def test_snap_is_idempotent_and_decodes_to_the_same_values(space: Space, data: st.DataObject) -> None:
    unit = np.array(data.draw(st.lists(st.floats(0, 1), min_size=space.n_dims, max_size=space.n_dims)))
    snapped = space.snap(unit)
    np.testing.assert_allclose(space.snap(snapped), snapped, atol=1e-12)
    assert space.decode(snapped).keys() == space.parameters.keys()
    for name, value in space.decode(unit).items():
        if isinstance(value, float):
            assert math.isclose(value, space.decode(snapped)[name])
        else:
            assert value == space.decode(snapped)[name]


@given(SPACES, st.data())
def test_encode_inverts_decode(space: Space, data: st.DataObject) -> None:
    unit = np.array(data.draw(st.lists(st.floats(0, 1), min_size=space.n_dims, max_size=space.n_dims)))
    np.testing.assert_allclose(space.encode(space.decode(unit)), space.snap(unit), atol=1e-7)


def test_integer_bins_have_equal_width() -> None:
    units = np.linspace(0, 1, 30_001)
    values = [Int(1, 5).decode(u) for u in units]
    counts = np.bincount(values)[1:]
    assert counts.max() - counts.min() <= 2


def test_log_scales() -> None:
    assert Real(1e-2, 1e2, log=True).decode(0.5) == pytest.approx(1.0)
    assert Int(1, 1000, log=True).decode(0.0) == 1
    assert Int(1, 1000, log=True).decode(1.0) == 1000
    assert Int(1, 1000, log=True).decode(0.5) == 22  # sqrt(0.5 * 1000.5) = 22.4


def test_embedding_puts_choices_one_apart() -> None:
    space = Space({"kind": Categorical(("a", "b", "c")), "x": Real(0, 1)})
    assert space.n_embedded == 4
    points = space.embed([[space.encode({"kind": k, "x": 0.25})[0], 0.25] for k in "abc"])
    for i in range(3):
        for j in range(i):
            assert np.linalg.norm(points[i] - points[j]) == pytest.approx(1.0)


def test_grid_of_a_finite_space() -> None:
    space = Space({"n": Int(1, 3), "kind": Categorical((True, False))})
    grid = space.grid()
    assert grid is not None
    assert {tuple(space.decode(u).values()) for u in grid} == {(n, k) for n in (1, 2, 3) for k in (True, False)}
    assert Space({"x": Real(0, 1), "n": Int(1, 3)}).grid() is None
    assert space.grid(limit=5) is None


def test_choices_are_told_apart_by_type() -> None:
    space = Categorical((1, True, "1"))
    assert [space.decode(space.encode(c)) for c in (1, True, "1")] == [1, True, "1"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Real(1, 1), "below"),
        (lambda: Real(0, 1, log=True), "low > 0"),
        (lambda: Real(float("nan"), 1), "finite"),
        (lambda: Int(0.5, 2), "valid integer"),
        (lambda: Categorical(("a",)), "two choices"),
        (lambda: Categorical(("a", "a")), "twice"),
        (lambda: Space({}), "empty"),
        (lambda: Space({"x": 3}), "use Real"),
        (lambda: Space({"x": Real(0, 1)}).encode({"y": 1}), "do not match"),
        (lambda: Space({"x": Real(0, 1)}).encode({"x": 2}), "outside"),
        (lambda: Space({"x": Real(0, 1)}).encode({"x": float("nan")}), "finite"),
        (lambda: Space({"n": Int(0, 3)}).encode({"n": 1.5}), "not an integer"),
        (lambda: Space({"k": Categorical(("a", "b"))}).encode({"k": "c"}), "none of"),
        (lambda: Real(0.0, 1.0, step=0.3), r"write high=0\.9"),
        (lambda: Int(1, 64, step=16), "write high=49"),
        (lambda: Real(0.1, 1.0, log=True, step=0.1), "go not together"),
        (lambda: Real(0.0, 1.0, step=0.0), "above 0"),
        (lambda: Int(0, 8, step=0), "step"),
        (lambda: Real(0.0, 1.0, step=0.25).encode(0.3), "no whole number of steps"),
        (lambda: Int(0, 8, step=4).encode(3), "no whole number of steps"),
    ],
)
def test_impossible_spaces_are_refused(make, words) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make()


def test_steps() -> None:
    tenths = [Real(0.0, 0.3, step=0.1).decode(u) for u in (0.1, 0.4, 0.6, 0.9)]
    assert tenths == [0.0, 0.1, 0.2, 0.3]  # not 0.30000000000000004
    assert Space({"a": Int(16, 64, step=16), "b": Real(0, 1, step=0.5)}).grid().shape == (12, 2)
    assert Real(0.0, 0.3, step=0.1).encode(0.3) == 0.875
