"""Named random streams: what a client draws depends on who it is and when, on nothing else.

No generator state is kept, so a client behaves the same alone, in a large cohort, and
after a restart. Everything here is simulation-grade randomness for exploration; privacy
noise is never drawn here.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from privbo.protocol import FloatArray, IntArray


class Stream(IntEnum):
    """What a draw is for; the numbers are part of the format and never change."""

    INITIAL = 0
    CHOICE = 1
    PRIOR = 2
    OBSERVATION_NOISE = 3
    SHARED_SAMPLE = 4
    SHARED_NOISE = 5
    FEATURES = 6
    PATHS = 7
    CANDIDATES = 8


def client_stream(seed: int, client: int, round_: int, stream: Stream) -> np.random.Generator:
    """The generator of one client, round and purpose (Philox, keyed by all four)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(client, round_, int(stream)))))


def client_normals(seed: int, clients: IntArray, round_: int, stream: Stream, shape: tuple[int, ...]) -> FloatArray:
    """Standard normal draws of every client, ``(n_clients, *shape)``."""
    draws = np.empty((len(clients), *shape))
    for row, client in zip(draws, clients, strict=True):
        row[...] = client_stream(seed, int(client), round_, stream).standard_normal(shape)
    return draws


def public_stream(public_seed: int, stream: Stream, round_: int = 0) -> np.random.Generator:
    """A generator both sides agree on (PCG64, whose streams numpy keeps across versions)."""
    key = np.random.SeedSequence(public_seed, spawn_key=(int(stream), round_))
    return np.random.Generator(np.random.PCG64(key))
