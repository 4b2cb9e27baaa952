"""Noise sources at their edges: types, ends of ranges, exact thresholds; nothing here is statistical."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from privbo.door.noise import (
    LARGEST_SCALE,
    SMALLEST_SCALE,
    SecureNoise,
    SimulatedNoise,
    below,
    keystream,
    smallest,
    uniform_subsets,
)
from privbo.protocol.errors import ConfigurationError

SOURCES = [SecureNoise(), SimulatedNoise(5)]


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.name)
def test_noise_is_whole_numbers_and_membership_is_boolean(source) -> None:
    for shape in ((3,), (2, 3), (2, 1, 5)):
        drawn = source.gaussian(shape, 2.0**16)
        assert (drawn.shape, drawn.dtype) == (shape, np.int64)
        for rate in (0.5, 1.0):
            coins = source.coins(shape, rate)
            assert (coins.shape, coins.dtype) == (shape, np.bool_)
    for size in (1, 3, 4):
        chosen = source.subsets((6, 4), size)
        assert chosen.dtype == np.bool_
        assert chosen.sum(axis=1).tolist() == [size] * 6
    for size in (0, 5):
        with pytest.raises(ConfigurationError, match=f"subset of {size} out of 4"):
            source.subsets((6, 4), size)


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.name)
def test_both_ends_of_the_scale_are_drawn_at(source) -> None:
    assert (SMALLEST_SCALE, LARGEST_SCALE) == (2.0**10, 2.0**40)
    for scale in (SMALLEST_SCALE, LARGEST_SCALE):
        drawn = np.abs(source.gaussian((64,), scale))
        # The largest of 64 lies between half and 12 standard deviations but once in 1e26.
        assert scale / 2 < drawn.max() < 12 * scale
    for scale in (np.nextafter(SMALLEST_SCALE, 0), np.nextafter(LARGEST_SCALE, np.inf)):
        with pytest.raises(ConfigurationError, match="lies outside"):
            source.gaussian((1,), scale)


@pytest.mark.parametrize("rate", [0.1, 0.25, 2.0**-60 + 2.0**-63, 1.0 - 2.0**-53])
def test_a_coin_shows_true_for_words_below_its_rate_and_never_for_the_next(rate: float) -> None:
    threshold = int(rate * 2**64)  # exact: a float of at most 53 bits, scaled by a power of two
    words = np.array([0, threshold - 1, threshold, 2**64 - 1], dtype=np.uint64)
    np.testing.assert_array_equal(below(words.reshape(2, 2), rate), [[True, True], [False, False]])


@pytest.mark.parametrize("size", [1, 2, 777, 2998, 3000])
def test_a_subset_is_exactly_the_smallest_words(size: int) -> None:
    """Rows are long, because numpy sorts short ones whole, whichever part of them was asked for."""
    rng = np.random.default_rng(size)
    words = np.array([rng.permutation(3000) for _ in range(9)], dtype=np.uint64)
    np.testing.assert_array_equal(smallest(words, size), words < size)


def test_seeded_noise_is_numpys_under_its_own_spawned_seeds() -> None:
    """What a seed means may not change between versions: numpy's generators, one for noise, one for coins."""
    for label in ("", "7"):
        seeds = np.random.SeedSequence([5, *label.encode()]).spawn(2)
        normal, coins = (np.random.default_rng(seed) for seed in seeds)
        source = SimulatedNoise(5).stream(label) if label else SimulatedNoise(5)
        expected = np.rint(normal.normal(size=(3, 4)) * 2.0**20)
        np.testing.assert_array_equal(source.gaussian((3, 4), 2.0**20), expected)
        np.testing.assert_array_equal(source.coins((9,), 0.3), coins.random(9) < 0.3)


def test_exact_noise_asks_opendp_for_noise_around_zero_at_its_scale(monkeypatch) -> None:
    dp = pytest.importorskip("opendp.prelude")
    from privbo.door.noise import ExactNoise

    enabled: list[str] = []
    asked: list[object] = []

    def make_gaussian(domain, metric, *, scale):
        asked.extend((domain, metric, scale))
        return list  # a mechanism that adds nothing

    monkeypatch.setattr(dp, "enable_features", lambda *names: enabled.extend(names))
    monkeypatch.setattr(dp.m, "make_gaussian", make_gaussian)
    drawn = ExactNoise().gaussian((2, 3), 4096)
    for scale in (1023.0, 2.0**41):
        with pytest.raises(ConfigurationError, match="lies outside"):
            ExactNoise().gaussian((1,), scale)
    assert set(enabled) == {"contrib"}
    assert (drawn.dtype, drawn.tolist()) == (np.int64, [[0, 0, 0], [0, 0, 0]])
    assert [str(what) for what in asked] == [
        str(dp.vector_domain(dp.atom_domain(T="i64"))), str(dp.l2_distance(T=float)), "4096.0"
    ]  # fmt: skip


def test_a_key_stream_is_never_drawn_past_its_counter() -> None:
    with pytest.raises(ConfigurationError, match="at most"):
        keystream(bytes(32), 2**36 + 1)


def test_a_tie_between_random_words_draws_the_subset_again() -> None:
    draws = [np.zeros(4, dtype=np.uint64), np.array([3, 1, 2, 0], dtype=np.uint64)]

    def words(n: int) -> np.ndarray:
        assert n == 4
        return draws.pop(0)

    np.testing.assert_array_equal(uniform_subsets(words, (1, 4), 2), [[False, True, False, True]])
    assert draws == []


def test_exact_noise_without_opendp_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from privbo.door.noise import ExactNoise

    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    with pytest.raises(ConfigurationError, match=r"privbo\[exact\]"):
        ExactNoise()


def test_exact_noise_draws_participants_and_is_its_own_stream() -> None:
    pytest.importorskip("opendp")
    from privbo.door.noise import ExactNoise

    source = ExactNoise()
    assert source.stream("x") is source
    assert source.coins((5,), 1.0).all()
    assert source.subsets((3, 6), 2).sum(axis=1).tolist() == [2, 2, 2]
