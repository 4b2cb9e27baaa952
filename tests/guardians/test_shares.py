"""Shares: they add up to the last unit, and any of them but all are uniform, whatever was shared."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
from hypothesis import given, strategies as st

from privbo.door.clipping import clip_rows
from privbo.door.noise import keystream
from privbo.door.shares import expand, joined, own_units, share_sizes, split, sum_shares
from privbo.door.sums import lattice_sums
from privbo.protocol.errors import ConfigurationError
from tests.guardians.committees import DIM, REQUEST, N, Silence, mechanism

WORDS = st.integers(-(2**63), 2**63 - 1)


@given(
    st.integers(3, 5).flatmap(lambda n: st.lists(st.lists(WORDS, min_size=n, max_size=n), min_size=1, max_size=4)),
    st.integers(2, 5),
)
def test_sums_of_shares_are_shares_of_the_sum_whatever_wraps(rows: list[list[int]], n_guardians: int) -> None:
    """Also with four entries, where a row is as long as a seed."""
    units = np.array(rows, dtype=np.int64)
    n_entries = units.shape[1]
    shares = split(units, n_guardians)
    sums = [sum_shares((one[g] for one in shares), place=g, n_entries=n_entries) for g in range(n_guardians)]
    with np.errstate(over="ignore"):
        assert joined([s.view(np.int64) for s in sums]).tolist() == units.sum(axis=0).tolist()
    assert [tuple(map(len, one)) for one in shares] == [share_sizes(n_guardians, n_entries)] * len(rows)


def test_a_secret_is_shared_among_two_or_more() -> None:
    with pytest.raises(ConfigurationError, match="two or more"):
        split(np.zeros((1, 2), dtype=np.int64), 1)
    for place in (0, 1):
        with pytest.raises(ConfigurationError, match="a share of 17 bytes"):
            sum_shares([bytes(17)], place=place, n_entries=2)


def test_a_seed_expands_into_the_stream_of_the_kept_library() -> None:
    seed = bytes(range(32))
    assert expand(seed, 5).tobytes() == keystream(seed, 40)
    # RFC 8439, A.1, test vector 1: key, counter and nonce of zeros.
    assert expand(bytes(32), 2).tobytes().hex() == "76b8e0ada0f13d90405d6ae55386bd28"


def test_contributions_are_those_of_the_door_to_the_last_unit() -> None:
    rows = np.random.default_rng(4).normal(size=(N, DIM)) * 10
    rows[2] = np.nan
    made, who = mechanism(REQUEST), np.arange(N)
    everybody = np.ones((1, N), dtype=bool)
    expected = lattice_sums(REQUEST.weights, clip_rows(rows, made.applied_bound), everybody, made.grid_step())
    found = own_units(made, REQUEST, rows, who, Silence())
    assert found.sum(axis=0).tolist() == expected.ravel().tolist()
    assert not found[2].any()
    some = own_units(made, REQUEST, rows[[5, 0]], who[[5, 0]], Silence())
    assert some.tolist() == found[[5, 0]].tolist()


def test_every_client_draws_its_own_coin_at_the_plans_rate() -> None:
    made = mechanism(REQUEST, sample_rate=0.25)
    rows = np.ones((N, DIM))

    class Coins(Silence):
        def coins(self, shape: tuple[int, ...], rate: float) -> np.ndarray:
            assert (shape, rate) == ((N,), 0.25)
            return np.array([True, False] * (N // 2))

    units = own_units(made, REQUEST, rows, np.arange(N), Coins())
    assert [bool(row.any()) for row in units] == [True, False] * (N // 2)


# --- a view of all guardians but one --------------------------------------------------------------


def chi_square(values: np.ndarray) -> float:
    """Standard scores of how evenly bytes fall into 256 bins: about normal for many values."""
    counts = np.bincount(values, minlength=256)
    expected = len(values) / 256
    return float((((counts - expected) ** 2 / expected).sum() - 255) / math.sqrt(2 * 255))


def uneven(words: np.ndarray) -> float:
    """Largest score over the eight bytes of words, of their differences, and of neighbours' differences."""
    views = (words, words[1:] - words[:-1], words[len(words) // 2 :] - words[: len(words) - len(words) // 2])
    return max(chi_square(view.view(np.uint8).reshape(-1, 8)[:, byte]) for view in views for byte in range(8))


# A million words; 24 scores of which the largest passes 8 with chance below 24 * 4e-13 (chi-square of 255 degrees).
LIMIT, SIZE = 8.0, 2**20


@pytest.mark.parametrize("secret", [0, 1, -1, 2**62, 123456789])
def test_the_view_of_any_guardian_is_uniform_whatever_was_shared(secret: int) -> None:
    units = np.full((SIZE // 512, 512), secret, dtype=np.int64)
    shares = split(units, 2)
    masked = np.frombuffer(b"".join(row for row, _ in shares), dtype="<u8").astype(np.uint64)
    streams = np.concatenate([expand(seed, 512) for _, seed in shares]).astype(np.uint64)
    assert uneven(masked) < LIMIT
    assert uneven(streams) < LIMIT
    assert (masked + streams)[:3].view(np.int64).tolist() == [secret] * 3


def test_a_mask_that_is_used_twice_or_too_short_is_noticed() -> None:
    rng = np.random.default_rng(0)
    short = rng.integers(0, 2**32, SIZE, dtype=np.uint64)  # the upper half bare
    assert uneven(short) > LIMIT
    twice = np.repeat(rng.integers(0, 2**64, SIZE // 2, dtype=np.uint64), 2)
    assert uneven(twice) > LIMIT
    halves = np.tile(rng.integers(0, 2**64, SIZE // 2, dtype=np.uint64), 2)
    assert uneven(halves) > LIMIT


def test_no_seed_occurs_twice_also_in_a_process_that_was_forked() -> None:
    def seeds() -> set[bytes]:
        return {seed for one in split(np.zeros((2000, 1), dtype=np.int64), 3) for seed in one[1:]}

    first = seeds()
    assert len(first) == 4000
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"".join(sorted(seeds())[:500]))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        forked = pipe.read()
    os.waitpid(child, 0)
    theirs = {forked[start : start + 32] for start in range(0, len(forked), 32)}
    assert len(theirs) == 500
    assert not theirs & (first | seeds())
