import numpy as np
import pytest
from hypothesis import given, strategies as st

import privbo as pb
from experiments.baselines.tree import locate
from privbo.algorithms.elimination.settings import Partition

shapes = st.tuples(st.integers(1, 4), st.sampled_from([2, 3]))


@given(shape=shapes, depth=st.integers(0, 9), data=st.data())
def test_children_tile_their_parent(shape: tuple[int, int], depth: int, data: st.DataObject) -> None:
    d, k = shape
    partition = Partition(n_dims=d, n_children=k)
    node = np.array([data.draw(st.integers(0, k**depth - 1))])
    children = partition.children(node)
    centre, centres = partition.centres(depth, node)[0], partition.centres(depth + 1, children)
    split = depth % d
    width = k ** -float(len(range(split, depth, d)))  # of the parent's cell along the dimension that is split
    offsets = ((np.arange(k) + 0.5) / k - 0.5) * width
    np.testing.assert_allclose(centres[:, split], centre[split] + offsets, atol=1e-12)
    others = [i for i in range(d) if i != split]
    np.testing.assert_allclose(centres[:, others], np.repeat(centre[None, others], k, axis=0))


@given(shape=shapes, depth=st.integers(0, 12), seed=st.integers(0, 2**32 - 1))
def test_locate_finds_the_cell_of_a_point(shape: tuple[int, int], depth: int, seed: int) -> None:
    d, k = shape
    partition = Partition(n_dims=d, n_children=k)
    points = np.random.default_rng(seed).random((20, d))
    nodes = locate(partition, depth, points)
    half = 0.5 / np.array([float(k) ** len(range(i, depth, d)) for i in range(d)])
    assert np.all(np.abs(points - partition.centres(depth, nodes)) <= half + 1e-12)
    np.testing.assert_array_equal(locate(partition, depth, partition.centres(depth, nodes)), nodes)


def test_the_edge_of_the_cube_belongs_to_the_last_cell() -> None:
    assert locate(Partition(n_dims=1), 5, np.array([[0.0], [1.0]])).tolist() == [0, 31]


@pytest.mark.parametrize("d", [1, 2, 10])
@pytest.mark.parametrize("k", [2, 3])
def test_the_deepest_cells_are_still_apart(d: int, k: int) -> None:
    partition = Partition(n_dims=d, n_children=k)
    nodes = np.array([k**partition.max_depth - 2, k**partition.max_depth - 1])
    first, second = partition.centres(partition.max_depth, nodes)
    assert np.any(first != second)
    with pytest.raises(pb.ConfigurationError, match="resolution"):
        partition.centres(partition.max_depth + 1, nodes)
