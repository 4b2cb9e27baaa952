"""The door's arithmetic: sums on a grid against exact fractions, in chunks of any size; who takes part."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from privbo.door import sums
from privbo.door.noise import SimulatedNoise
from privbo.protocol.messages import Request
from tests.builders import mechanism_for

N, STEP = 7, 2.0**-6
RNG = np.random.default_rng(0)
WEIGHTS = RNG.integers(-64, 64, size=(2, N)) / 64.0
VECTORS = RNG.integers(-512, 512, size=(N, 3)) / 256.0
PARTICIPATION = RNG.random((4, N)) < 0.6


def exact_sum(trial: int, block: int, entry: int) -> int:
    products = (Fraction(WEIGHTS[block, n]) * Fraction(VECTORS[n, entry]) for n in np.flatnonzero(PARTICIPATION[trial]))
    return sum(math.trunc(product / Fraction(STEP)) for product in products)


@pytest.mark.parametrize("entries_at_once", [1, 6, 12, 18, 24, 42, 10**6])
def test_sums_are_those_of_exact_fractions_in_chunks_of_any_size(entries_at_once) -> None:
    found = sums.lattice_sums(WEIGHTS, VECTORS, PARTICIPATION, STEP, entries_at_once=entries_at_once)
    assert found.dtype == np.int64
    assert found.tolist() == [[[exact_sum(t, b, d) for d in range(3)] for b in range(2)] for t in range(4)]


def test_a_fixed_size_sample_has_its_size_and_a_poisson_one_varies() -> None:
    """200 draws of 20 clients at one half; that all coins agree has a chance below 2^-199."""
    request = Request(dim=2, clipping_norm=1.0, weights=np.full((1, 20), 0.05))
    fixed = mechanism_for(request, noise_multiplier=1.0, sample_rate=0.5, sampling="fixed-size")
    coins = mechanism_for(request, noise_multiplier=1.0, sample_rate=0.5)
    sizes = fixed.sample.draw(200, SimulatedNoise(0)).sum(axis=1)
    assert set(sizes.tolist()) == {10}
    drawn = coins.sample.draw(200, SimulatedNoise(0))
    assert drawn.shape == (200, 20)
    assert len(set(drawn.sum(axis=1).tolist())) > 1
