"""A canary's attack on one release: what everybody sends, and the scores by which its presence shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

import numpy as np

from accountant.events import Adjacency
from privbo.door import sums
from privbo.door.clipping import clip_rows
from privbo.door.mechanism import PrivateSum
from privbo.door.noise import NoiseSource
from privbo.protocol.messages import FloatArray

World: TypeAlias = Literal["others zero", "others opposing", "alone"]
# Mechanism, weights, everybody's vectors (of length one), trials and noise make (trials, n_blocks).
Releases: TypeAlias = Callable[[PrivateSum, FloatArray, FloatArray, int, NoiseSource], FloatArray]


def heaviest_client(weights: FloatArray) -> int:
    """Index of the client whose weights, ``(n_blocks, n_clients)``, have the largest norm: the best canary."""
    return int(np.argmax(np.linalg.norm(weights, axis=0)))


def neighbours(mechanism: PrivateSum, n_clients: int, canary: int, world: World) -> tuple[FloatArray, FloatArray]:
    """Everybody's vectors, ``(n_clients, 1)``, with the canary and in the neighbouring world without it.

    Args:
        mechanism: Sets the clipping norm (the canary sends twice as much) and the adjacency.
        n_clients: Clients in this world.
        canary: Who sends a saturating vector.
        world: What the others send.
    """
    long = 2.0 * mechanism.clipping_norm
    present = np.full((n_clients, 1), -long if world == "others opposing" else 0.0)
    absent = present.copy()
    present[canary] = long
    absent[canary] = -long if mechanism.adjacency is Adjacency.REPLACE_ONE else 0.0
    return present, absent


def releases(
    mechanism: PrivateSum, weights: FloatArray, rows: FloatArray, trials: int, noise: NoiseSource
) -> FloatArray:
    """Make independent releases of the same vectors by the shipped code, ``(trials, n_blocks)``.

    Args:
        mechanism: The mechanism that is attacked.
        weights: Public weights, ``(n_blocks, n_clients)``.
        rows: Everybody's vectors, ``(n_clients, 1)``.
        trials: Number of releases.
        noise: Source of noise and participation.
    """
    participation = mechanism.sample.draw(trials, noise)
    clipped = clip_rows(rows, mechanism.applied_bound)
    return sums.noisy_sums(mechanism, weights, clipped, participation, noise)[:, :, 0]


def scores(column: FloatArray, stddev: float) -> Iterator[tuple[FloatArray, float]]:
    """Linear scores of a release with their noise's standard deviation: the best one, every block, every contrast.

    Args:
        column: The canary's weights, ``(n_blocks,)``.
        stddev: Standard deviation of the noise in every released entry.

    Example:
        >>> [direction.tolist() for direction, _ in scores(np.array([0.0, 2.0]), 1.0)]
        [[0.0, 1.0], [1.0, 0.0], [-1.0, 1.0], [0.0, 1.0], [-1.0, 1.0]]
    """
    yield column / np.linalg.norm(column), stddev
    n_blocks = len(column)
    if n_blocks == 1:
        return
    for block in range(n_blocks):
        yield np.eye(n_blocks)[block], stddev
        contrast = np.eye(n_blocks)[block] - np.eye(n_blocks)[block - 1]
        yield np.sign(contrast @ column or 1.0) * contrast, stddev * 2**0.5


def moments(
    mechanism: PrivateSum, weights: FloatArray, rows: FloatArray, direction: FloatArray, stddev: float
) -> tuple[float, float]:
    """Mean and standard deviation of a score under Poisson sampling, by the mechanism's own description.

    Args:
        mechanism: Sets the clipping bound and the sample rate.
        weights: Public weights, ``(n_blocks, n_clients)``.
        rows: Everybody's vectors, ``(n_clients, 1)``.
        direction: The score, ``(n_blocks,)``.
        stddev: Standard deviation of the noise in the score.
    """
    each = direction @ (weights * clip_rows(rows, mechanism.applied_bound)[:, 0])
    sampled = np.sum(each**2) * (1 - mechanism.rate) / mechanism.rate
    return float(each.sum()), float(np.sqrt(stddev**2 + sampled))
