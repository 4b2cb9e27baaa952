"""Named random streams: a client's draws depend on who it is and when, on nothing else.

No generator state is kept, so a client behaves the same alone, in a large cohort, and
after a restart. Everything here is simulation-grade randomness for exploration; privacy
noise is never drawn here.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from privbo.protocol.messages import FloatArray, IntArray


class Stream(IntEnum):
    """Purposes of draws; the numbers are part of the format and never change."""

    INITIAL = 0
    CHOICE = 1
    PRIOR = 2
    OBSERVATION_NOISE = 3
    SHARED_SAMPLE = 4
    SHARED_NOISE = 5
    FEATURES = 6
    PATHS = 7
    CANDIDATES = 8
    REPLACEMENT = 9


def client_streams(seed: int, clients: IntArray, round_: int, stream: Stream) -> Iterator[np.random.Generator]:
    """A generator per client, for one round and purpose: Philox with the client in its key, the rest in its counter.

    It is one that is moved from client to client: draw what is wanted before going on to the next.
    """
    first, second = (int(word) for word in np.random.SeedSequence(seed).generate_state(2, np.uint64))
    key, counter = [first, second], [0, round_, int(stream), 0]
    bits = np.random.Philox(key=np.array(key, dtype=np.uint64), counter=counter)
    generator, state = np.random.Generator(bits), cast("dict[str, Any]", bits.state)
    state |= {"state": {"key": key, "counter": counter}, "buffer": [0] * 4}  # numpy reads lists four times as fast
    for client in np.asarray(clients).tolist():
        key[1] = second ^ client
        bits.state = state  # type: ignore[assignment]  # numpy takes lists, its stubs arrays
        yield generator


def client_normals(seed: int, clients: IntArray, round_: int, stream: Stream, shape: tuple[int, ...]) -> FloatArray:
    """Standard normal draws of every client's stream, ``(n_clients, *shape)``."""
    draws = np.empty((len(clients), *shape))
    for row, generator in zip(draws, client_streams(seed, clients, round_, stream), strict=True):
        generator.standard_normal(out=row)
    return draws


def client_uniforms(seed: int, clients: IntArray, round_: int, stream: Stream, count: int = 1) -> FloatArray:
    """The first ``count`` draws from [0, 1) of every client's stream, ``(n_clients, count)``."""
    draws = np.empty((len(clients), count))
    for row, generator in zip(draws, client_streams(seed, clients, round_, stream), strict=True):
        generator.random(out=row)
    return draws


def public_stream(public_seed: int, stream: Stream, round_: int = 0) -> np.random.Generator:
    """A generator both sides agree on (PCG64, whose streams numpy keeps across versions)."""
    key = np.random.SeedSequence(public_seed, spawn_key=(int(stream), round_))
    return np.random.Generator(np.random.PCG64(key))


def public_words(public_seed: int, stream: Stream, first: int, count: int) -> npt.NDArray[np.uint64]:
    """64-bit words of ``public_stream`` from the ``first`` on, without drawing those before, ``(count,)``."""
    bits = np.random.PCG64(np.random.SeedSequence(public_seed, spawn_key=(int(stream), 0)))
    return np.asarray(bits.advance(first).random_raw(count), dtype=np.uint64)
