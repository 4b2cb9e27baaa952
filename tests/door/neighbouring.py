"""Neighbours of one release: who takes part without a client, and what else it could send."""

from __future__ import annotations

import numpy as np

from accountant.events import Adjacency
from privbo.door.mechanism import PrivateSum
from privbo.door.noise import BoolArray
from privbo.protocol.messages import FloatArray


def samples(spec: PrivateSum, client: int, seed: int) -> tuple[BoolArray, list[BoolArray]]:
    """Participants with ``client`` among them, and those an adversary compares it with: without.

    Args:
        spec: Says how participants are drawn.
        client: Who takes part in the first sample and in none of the others.
        seed: Chooses who else takes part.
    """
    rng = np.random.default_rng(seed)
    n = spec.geometry.n_clients
    chosen = np.zeros(n, dtype=bool)
    if spec.sample.everyone:
        return ~chosen, []
    if spec.sample.sampling == "fixed-size":
        rest = rng.permutation(np.delete(np.arange(n), client))
        chosen[[client, *rest[: spec.sample.size - 1]]] = True
        swaps = []
        for other in rest[spec.sample.size - 1 :]:
            swap = chosen.copy()
            swap[client], swap[other] = False, True
            swaps.append(swap)
        return chosen, swaps
    chosen |= rng.random(n) < 0.5
    chosen[client] = True
    without = chosen.copy()
    without[client] = False
    return chosen, [without]


def vectors(row: FloatArray, adjacency: Adjacency, reward_bound: float | None) -> list[FloatArray]:
    """Everything else a client could send: any vector, or what another reward makes of its own."""
    if reward_bound is not None:
        return _rewarded(row, reward_bound)
    if adjacency is Adjacency.REPLACE_ONE:
        return [-row, np.zeros(len(row))]
    return [np.zeros(len(row))]


def _rewarded(row: FloatArray, bound: float) -> list[FloatArray]:
    """The vector moved by ``bound``: along itself, along every axis, and across itself."""
    length = float(np.linalg.norm(row))
    ways = [*np.eye(len(row)), np.ones(len(row)) / np.sqrt(len(row))]
    if 0 < length < np.inf:
        ways += [row / length, np.roll(row, 1) / length]
    return [row + sign * bound * way for way in ways for sign in (-1.0, 1.0)]


def with_row(rows: FloatArray, client: int, row: FloatArray) -> FloatArray:
    """Everybody's vectors with one client's replaced."""
    changed = rows.copy()
    changed[client] = row
    return changed
