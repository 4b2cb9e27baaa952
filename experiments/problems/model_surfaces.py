"""Real surfaces: clients tune a model of scikit-learn on unequal shards of its bundled data sets.

Every client's whole surface, on a grid of levels, is computed once and kept in the user's cache, so that a run costs no
training. Records are dealt to clients without replacement as far as a data set goes round, then from the start again.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
import sklearn

import privbo as pb
from experiments.problems import model_scores as scores
from experiments.problems.data import cache_folder
from experiments.problems.surfaces import Surfaces, tabulated
from privbo.protocol.messages import FloatArray, IntArray
from privbo.protocol.space import Parameter, Space

# Validation scores of a client's model at every combination of levels, in the order of the grid.
Score: TypeAlias = Callable[[scores.Halves], FloatArray]
WORLDS = 3  # different splits of the data; seeds beyond them repeat one with other randomness


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """A model, its data, and the levels that are tuned.

    Attributes:
        data: Name of a bundled data set.
        smallest: Records of the smallest shard; the largest has four times as many.
        grid: Number of levels by parameter; texts are choices without order.
        score: See ``Score``.
        version: Goes up with every change of the surface.
    """

    data: str
    smallest: int
    grid: dict[str, int | tuple[str, ...]]
    score: Score
    version: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Levels of every parameter."""
        return tuple(levels if isinstance(levels, int) else len(levels) for levels in self.grid.values())

    @property
    def space(self) -> Space:
        """Levels as integers, choices as categories."""
        return Space({name: _parameter(levels) for name, levels in self.grid.items()})


def _parameter(levels: int | tuple[str, ...]) -> Parameter:
    return pb.Int(0, levels - 1) if isinstance(levels, int) else pb.Categorical(levels)


TUNINGS = {
    "logistic-regression": Tuning(
        data="digits", smallest=30, grid={"C": 14, "components": 8}, score=scores.logistic_regression
    ),
    "kernel-ridge": Tuning(
        data="breast_cancer", smallest=20, grid={"alpha": 20, "gamma": 20}, score=scores.kernel_ridge
    ),
    "support-vector-regression": Tuning(
        data="diabetes", smallest=24, grid={"C": 9, "gamma": 9, "epsilon": 5}, score=scores.support_vector_regression
    ),
    "gradient-boosting": Tuning(
        data="wine", smallest=24, grid={"rate": 9, "depth": 4, "trees": 12}, score=scores.gradient_boosting
    ),
    "decision-tree": Tuning(
        data="breast_cancer", smallest=24, grid={"depth": 9, "leaf": 8, "features": 6}, score=scores.decision_tree
    ),
    "boosted-regression": Tuning(
        data="diabetes", smallest=24, grid={"rate": 9, "depth": 4, "trees": 10}, score=scores.boosted_regression
    ),
    "nearest-neighbours": Tuning(
        data="digits",
        smallest=40,
        grid={"k": 12, "weights": ("uniform", "distance"), "metric": scores.METRICS, "scaling": scores.SCALINGS},
        score=scores.nearest_neighbours,
    ),
    "support-vectors": Tuning(
        data="breast_cancer",
        smallest=24,
        grid={"kernel": scores.KERNELS, "C": 9, "gamma": 9},
        score=scores.support_vectors,
    ),
}


def model(seed: int, name: str, n_clients: int, noise: float = 0.0) -> Surfaces:
    """Give clients that tune a model; ``seed % WORLDS`` deals the data.

    Raises:
        ConfigurationError: If there is no tuning of that name.
    """
    if name not in TUNINGS:
        raise pb.ConfigurationError(f"name={name!r} is no tuning; choose one of {', '.join(TUNINGS)}")
    tuning, table = TUNINGS[name], surfaces(name, n_clients, seed % WORLDS)
    return tabulated(f"{name} on {tuning.data}", seed, tuning.space, tuning.shape, table, noise)


@cache
def surfaces(name: str, n_clients: int, world: int) -> FloatArray:
    """Give the whole surface of every client, ``(n_clients, n_points)``, in the order of the grid."""
    tuning = TUNINGS[name]
    path = cache_folder() / f"surface-{name}-{tuning.version}-{n_clients}-{world}-{sklearn.__version__}.npy"
    if not path.exists():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # extreme levels stop before they converge; their scores say so
            found = np.array([tuning.score(shard) for shard in shards(tuning, n_clients, world)])
        beside = path.with_suffix(f".{os.getpid()}.npy")  # several processes may compute it at once
        np.save(beside, found.reshape(n_clients, -1))
        beside.replace(path)
    return np.asarray(np.load(path, allow_pickle=False))


def shards(tuning: Tuning, n_clients: int, world: int) -> list[scores.Halves]:
    """Deal a data set to clients: sizes spread evenly on a logarithmic scale, each halved."""
    x, y = scores.load(tuning.data)
    generator = np.random.default_rng([world, n_clients, len(y)])
    sizes = np.geomspace(tuning.smallest, 4 * tuning.smallest, n_clients).astype(np.int64)
    rounds = -(-int(sizes.sum()) // len(y)) + 1
    deck = np.concatenate([generator.permutation(len(y)) for _ in range(rounds)])
    hands = np.split(deck[: sizes.sum()], np.cumsum(sizes)[:-1])
    # A client whose records are of one class only could train nothing: it draws again from all records.
    return [_halved(x, y, hand, generator) for hand in hands]


def _halved(x: FloatArray, y: FloatArray, hand: IntArray, generator: np.random.Generator) -> scores.Halves:
    for _ in range(1000):
        train, validation = np.array_split(hand, 2)
        if len(np.unique(y[train])) > 1 and np.isin(y[validation], y[train]).any():
            return scores.Halves(x=x[train], y=y[train], validation_x=x[validation], validation_y=y[validation])
        hand = generator.permutation(len(y))[: len(hand)]
    raise pb.ConfigurationError("no shard with two classes was found; use larger shards")
