"""The first uniform draws of many counter-based streams at once, the same as numpy's Philox4x64 gives one by one.

Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3": ten rounds on a counter of four words, a key of two.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from privbo.protocol.messages import FloatArray, IntArray

Words = npt.NDArray[np.uint64]
_MULTIPLIERS = (np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157))
_WEYL = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B))
_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)
_ROUNDS, _WIDTH = 10, 4


def uniforms(key: tuple[int, int], clients: IntArray, round_: int, stream: int, count: int) -> FloatArray:
    """The first ``count`` draws from [0, 1) of every client's stream, ``(n_clients, count)``.

    Args:
        key: Words that the seed gives; a client's number is added to the second by exclusive or.
        clients: Numbers, ``(n_clients,)``.
        round_: Of the streams.
        stream: Purpose of the streams.
        count: Draws of each.
    """
    blocks = -(-count // _WIDTH)
    shape = (len(clients), blocks)
    counters = [np.full(shape, word, dtype=np.uint64) for word in (0, round_, stream, 0)]
    counters[0] += np.arange(1, blocks + 1, dtype=np.uint64)  # numpy counts on before it draws
    first = np.full((len(clients), 1), key[0], dtype=np.uint64)
    second = (np.uint64(key[1]) ^ np.asarray(clients, dtype=np.int64).view(np.uint64))[:, None]
    words = np.stack(_philox(counters, first, second), axis=-1).reshape(len(clients), blocks * _WIDTH)
    return np.asarray((words[:, :count] >> np.uint64(11)) * 2.0**-53, dtype=np.float64)


def _philox(words: list[Words], first: Words, second: Words) -> list[Words]:
    for index in range(_ROUNDS):
        if index:
            first, second = first + _WEYL[0], second + _WEYL[1]
        high, low = _product(_MULTIPLIERS[0], words[0])
        other_high, other_low = _product(_MULTIPLIERS[1], words[2])
        words = [other_high ^ words[1] ^ first, other_low, high ^ words[3] ^ second, low]
    return words


def _product(multiplier: np.uint64, words: Words) -> tuple[Words, Words]:
    """The two words of a product of 64-bit numbers, from those of their halves."""
    a, b = multiplier >> _HALF, multiplier & _LOW
    c, d = words >> _HALF, words & _LOW
    low, cross, other = b * d, a * d, b * c
    carried = (low >> _HALF) + (cross & _LOW) + (other & _LOW)
    return a * c + (cross >> _HALF) + (other >> _HALF) + (carried >> _HALF), multiplier * words
