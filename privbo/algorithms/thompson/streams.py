"""Named random streams: a client's draws depend on who it is and when, on nothing else.

No generator state is kept, so a client behaves the same alone, in a large cohort, and
after a restart. Everything here is simulation-grade randomness for exploration; privacy
noise is never drawn here.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from privbo.protocol.messages import FloatArray, IntArray

Words = npt.NDArray[np.uint64]
_MULTIPLIERS = (np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157))
_WEYL = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B))
_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)
_ROUNDS, _WIDTH = 10, 4
_MANY = 500  # clients


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
    """A generator per client, for one round and purpose: Philox with the client in its key, the rest in its counter."""
    first, second = _key(seed)
    for client in clients:
        key = np.array([first, second ^ int(client)], dtype=np.uint64)
        yield np.random.Generator(np.random.Philox(key=key, counter=[0, round_, int(stream), 0]))


def _key(seed: int) -> tuple[int, int]:
    words = np.random.SeedSequence(seed).generate_state(2, np.uint64)
    return int(words[0]), int(words[1])


def client_normals(seed: int, clients: IntArray, round_: int, stream: Stream, shape: tuple[int, ...]) -> FloatArray:
    """Standard normal draws of every client, ``(n_clients, *shape)``: those of ``client_streams``, to the last bit.

    Of many clients they are compiled, which takes seconds once per machine; numpy takes microseconds to begin a stream.
    """
    draws, (first, second) = np.empty((len(clients), *shape)), _key(seed)
    words = np.uint64(second) ^ np.asarray(clients, dtype=np.int64).view(np.uint64)
    if len(clients) >= _MANY:
        from numba.np.random import _constants  # numpy's tables, which follow from no formula to the last bit

        from privbo.algorithms.thompson import compiled  # loads Numba, which servers do without

        ziggurat = [
            [*_constants.wi_double, _constants.ziggurat_nor_r],
            [*_constants.fi_double, _constants.ziggurat_nor_inv_r],
        ]
        counter = np.array([0, round_, int(stream), 0], dtype=np.uint64)
        keys = np.concatenate([np.array([first], dtype=np.uint64), words])
        flat = draws.reshape(len(draws), -1)
        constants, below = np.array([*_MULTIPLIERS, *_WEYL]), np.array(_constants.ki_double)
        compiled.normals(constants, counter, keys, below, np.array(ziggurat), flat)
        return draws
    bits = np.random.Philox(key=np.array([first, second], dtype=np.uint64), counter=[0, round_, int(stream), 0])
    generator, state = np.random.Generator(bits), bits.state  # moved from client to client
    key = state["state"]["key"]
    for row, word in zip(draws, words, strict=True):
        key[1] = word
        bits.state = state
        generator.standard_normal(out=row)
    return draws


def client_uniforms(seed: int, clients: IntArray, round_: int, stream: Stream, count: int = 1) -> FloatArray:
    """The first ``count`` draws from [0, 1) of every client's stream, ``(n_clients, count)``, all at once.

    They are those that numpy's Philox4x64 gives one stream after the other (Salmon et al. 2011, "Parallel random
    numbers: as easy as 1, 2, 3"): ten rounds on a counter of four words, a key of two.
    """
    key, blocks = _key(seed), -(-count // _WIDTH)
    words = [np.full((len(clients), blocks), word, dtype=np.uint64) for word in (0, round_, int(stream), 0)]
    words[0] += np.arange(1, blocks + 1, dtype=np.uint64)  # numpy counts on before it draws
    first = np.full((len(clients), 1), key[0], dtype=np.uint64)
    second = (np.uint64(key[1]) ^ np.asarray(clients, dtype=np.int64).view(np.uint64))[:, None]
    for _ in range(_ROUNDS):
        high, low = _product(_MULTIPLIERS[0], words[0])
        other_high, other_low = _product(_MULTIPLIERS[1], words[2])
        words = [other_high ^ words[1] ^ first, other_low, high ^ words[3] ^ second, low]
        first, second = first + _WEYL[0], second + _WEYL[1]
    drawn = np.stack(words, axis=-1).reshape(len(clients), blocks * _WIDTH)
    return np.asarray((drawn[:, :count] >> np.uint64(11)) * 2.0**-53, dtype=np.float64)


def _product(multiplier: np.uint64, words: Words) -> tuple[Words, Words]:
    """The two words of a product of 64-bit numbers, from those of their halves."""
    a, b = multiplier >> _HALF, multiplier & _LOW
    c, d = words >> _HALF, words & _LOW
    low, cross, other = b * d, a * d, b * c
    carried = (low >> _HALF) + (cross & _LOW) + (other & _LOW)
    return a * c + (cross >> _HALF) + (other >> _HALF) + (carried >> _HALF), multiplier * words


def public_stream(public_seed: int, stream: Stream, round_: int = 0) -> np.random.Generator:
    """A generator both sides agree on (PCG64, whose streams numpy keeps across versions)."""
    key = np.random.SeedSequence(public_seed, spawn_key=(int(stream), round_))
    return np.random.Generator(np.random.PCG64(key))


def public_words(public_seed: int, stream: Stream, first: int, count: int) -> npt.NDArray[np.uint64]:
    """64-bit words of ``public_stream`` from the ``first`` on, without drawing those before, ``(count,)``."""
    bits = np.random.PCG64(np.random.SeedSequence(public_seed, spawn_key=(int(stream), 0)))
    return np.asarray(bits.advance(first).random_raw(count), dtype=np.uint64)
