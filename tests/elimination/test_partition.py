import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import privbo as pb
from privbo.algorithms.elimination.partition import Partition

shapes = st.tuples(st.integers(1, 4), st.sampled_from([2, 3]))


@given(shape=shapes, depth=st.integers(0, 9), data=st.data())
def test_children_tile_their_parent(shape: tuple[int, int], depth: int, data: st.DataObject) -> None:
    d, k = shape
    partition = Partition(n_dims=d, n_children=k)
    node = np.array([data.draw(st.integers(0, k**depth - 1))])
    low, high = partition.bounds(depth, node)
    children = partition.children(node)
    child_low, child_high = partition.bounds(depth + 1, children)
    split = depth % d
    edges = np.linspace(low[0, split], high[0, split], k + 1)
    np.testing.assert_allclose(child_low[:, split], edges[:-1], atol=1e-12)
    np.testing.assert_allclose(child_high[:, split], edges[1:], atol=1e-12)
    others = [i for i in range(d) if i != split]
    np.testing.assert_allclose(child_low[:, others], np.repeat(low[:, others], k, axis=0))
    np.testing.assert_array_equal(partition.parents(children), np.repeat(node, k))
    np.testing.assert_array_equal(partition.ancestors(children, depth + 1), 0)


@given(shape=shapes, depth=st.integers(0, 12), seed=st.integers(0, 2**32 - 1))
def test_locate_finds_the_cell_of_a_point(shape: tuple[int, int], depth: int, seed: int) -> None:
    d, k = shape
    partition = Partition(n_dims=d, n_children=k)
    points = np.random.default_rng(seed).random((20, d))
    nodes = partition.locate(depth, points)
    low, high = partition.bounds(depth, nodes)
    assert np.all((points >= low - 1e-12) & (points <= high + 1e-12))
    np.testing.assert_array_equal(partition.locate(depth, partition.centres(depth, nodes)), nodes)


def test_a_depth_covers_the_cube() -> None:
    partition = Partition(n_dims=2, n_children=3)
    low, high = partition.bounds(4, np.arange(3**4))
    assert math.isclose(float(np.prod(high - low, axis=1).sum()), 1.0)
    assert len(np.unique(partition.centres(4, np.arange(3**4)), axis=0)) == 3**4


def test_the_edge_of_the_cube_belongs_to_the_last_cell() -> None:
    partition = Partition(n_dims=1)
    assert partition.locate(5, np.array([[0.0], [1.0]])).tolist() == [0, 31]


def test_a_hundred_thousand_nodes_are_small() -> None:
    nodes = Partition(n_dims=3).children(np.arange(50_000))
    assert len(nodes) == 100_000
    assert nodes.nbytes < 1_000_000


@pytest.mark.parametrize("d", [1, 2, 10])
@pytest.mark.parametrize("k", [2, 3])
def test_the_deepest_cells_are_still_apart(d: int, k: int) -> None:
    partition = Partition(n_dims=d, n_children=k)
    nodes = np.array([k**partition.max_depth - 2, k**partition.max_depth - 1])
    first, second = partition.centres(partition.max_depth, nodes)
    assert np.any(first != second)
    with pytest.raises(pb.ConfigurationError, match="resolution"):
        partition.centres(partition.max_depth + 1, nodes)


@pytest.mark.parametrize("settings", [{"n_dims": 0}, {"n_dims": 1, "n_children": 4}])
def test_refuses_impossible_partitions(settings: dict[str, int]) -> None:
    with pytest.raises(pb.ConfigurationError):
        Partition(**settings)
