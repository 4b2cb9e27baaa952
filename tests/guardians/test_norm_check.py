"""Two checks of norms behind shares that docs/guardians.md weighs: rates of false rejection and acceptance, by trial.

Neither is shipped. The first is a noisy opening of the vector; the second a fully linear proof, here over a small
prime, so that false acceptance can be seen at all.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import binom, ncx2

TRIALS = 20_000


def opened(norm: float, d: int, noise: float, seed: int) -> np.ndarray:
    """Squared norms, in units of the noise, of a vector that two guardians open with a noise of each."""
    generator = np.random.default_rng(seed)
    drawn = sum(generator.normal(scale=noise / math.sqrt(2), size=(TRIALS, d)) for _ in range(2))
    drawn[:, 0] += norm
    return (drawn**2).sum(axis=1) / noise**2


@pytest.mark.parametrize("d", [100, pytest.param(400, marks=pytest.mark.slow)])
def test_an_opened_projection_refuses_and_passes_as_often_as_computed(d: int) -> None:
    """At a threshold that refuses one honest client in a thousand; 49 of 20,000 would come once in a million."""
    noise = 20.0
    threshold = ncx2.isf(1e-3, d, 1 / noise**2)
    refused = int((opened(1.0, d, noise, d) > threshold).sum())
    assert binom.ppf(1e-6, TRIALS, 1e-3) <= refused <= binom.isf(1e-6, TRIALS, 1e-3)
    for loud in (20.0, 60.0, 150.0):  # in units of the clipping norm
        passes = float(ncx2.cdf(threshold, d, (loud / noise) ** 2))
        found = int((opened(loud, d, noise, d + 1) <= threshold).sum())
        assert binom.ppf(1e-6, TRIALS, passes) <= found <= binom.isf(1e-6, TRIALS, passes)
    assert float(ncx2.cdf(threshold, d, (20.0 / noise) ** 2)) > 0.99  # twenty times the norm passes


@dataclass(frozen=True)
class Proof:
    """A proof that sum of x^2 + sum of 2^j b_j is the squared bound and that every b_j is a bit.

    ``chunk`` products are summed in each of m calls of one gadget; its wires are polynomials through their values at
    1..m and a random one at 0; ``product`` is the gadget's polynomial, by its values at 0..2m.
    """

    masks: list[int]
    product: list[int]


@dataclass(frozen=True)
class System:
    p: int
    chunk: int
    squares: int
    bits: int
    bound: int

    @property
    def calls(self) -> int:
        return math.ceil(self.squares / self.chunk) + math.ceil(self.bits / self.chunk)

    def wires(self, x: list[int], b: list[int], rho: int) -> list[list[int]]:
        """Inputs of every wire at every call, ``(2 chunk, calls)``; linear in what is shared."""
        left, right = _padded(x, self.chunk), _padded(x, self.chunk)
        left += _padded([pow(rho, j + 1, self.p) * bit for j, bit in enumerate(b)], self.chunk)
        right += _padded([bit - 1 for bit in b], self.chunk)
        rows = [left[lane :: self.chunk] for lane in range(self.chunk)]
        return rows + [right[lane :: self.chunk] for lane in range(self.chunk)]

    def prove(self, x: list[int], b: list[int], rho: int, dice: random.Random) -> Proof:
        wires = self.wires(x, b, rho)
        masks = [dice.randrange(self.p) for _ in wires]
        product = []
        for at in range(2 * self.calls + 1):
            values = [self._at(at, [mask, *wire]) for mask, wire in zip(masks, wires, strict=True)]
            product.append(self._gadget(values))
        return Proof(masks=masks, product=product)

    def accepts(self, x: list[int], b: list[int], rho: int, proof: Proof, dice: random.Random) -> bool:
        """What guardians decide together; each step is linear in shares but the gadget on opened random values."""
        r = dice.randrange(self.calls + 1, self.p)
        values = [self._at(r, [mask, *wire]) for mask, wire in zip(proof.masks, self.wires(x, b, rho), strict=True)]
        first = math.ceil(self.squares / self.chunk)
        slack = sum(bit << j for j, bit in enumerate(b))
        return (
            self._gadget(values) == self._at(r, proof.product)
            and (sum(proof.product[1 : first + 1]) + slack - self.bound) % self.p == 0
            and sum(proof.product[first + 1 : self.calls + 1]) % self.p == 0
        )

    def _gadget(self, values: list[int]) -> int:
        return sum(a * b for a, b in zip(values[: self.chunk], values[self.chunk :], strict=True)) % self.p

    def _at(self, where: int, values: list[int]) -> int:
        """Lagrange's interpolation through 0..n."""
        total = 0
        for i, value in enumerate(values):
            above, below = 1, 1
            for j in range(len(values)):
                if j != i:
                    above, below = above * (where - j) % self.p, below * (i - j) % self.p
            total += value * above * pow(below, -1, self.p)
        return total % self.p


def _padded(values: list[int], chunk: int) -> list[int]:
    return values + [0] * (-len(values) % chunk)


SMALL = System(p=257, chunk=3, squares=9, bits=6, bound=70)


def honest(dice: random.Random) -> tuple[list[int], list[int]]:
    while True:
        x = [dice.randrange(-4, 5) for _ in range(SMALL.squares)]
        if 0 <= (slack := SMALL.bound - sum(v * v for v in x)) < 2**SMALL.bits:
            return x, [slack >> j & 1 for j in range(SMALL.bits)]


def test_a_linear_proof_never_refuses_who_keeps_the_bound() -> None:
    dice = random.Random(1)
    for _ in range(200):
        x, b = honest(dice)
        rho = dice.randrange(1, SMALL.p)
        assert SMALL.accepts(x, b, rho, SMALL.prove(x, b, rho, dice), dice)


def test_a_linear_proof_passes_a_long_vector_as_seldom_as_computed() -> None:
    """The best lie changes one value of the gadget's polynomial and keeps it right at as many points as it may."""
    dice, passed, trials = random.Random(2), 0, 1000
    x, b = [15] + [0] * (SMALL.squares - 1), [0] * SMALL.bits
    calls, p = SMALL.calls, SMALL.p
    roots = [0, *range(2, calls + 1), *range(calls + 1, 2 * calls + 1)]  # all but 1, where the lie is told
    for _ in range(trials):
        rho = dice.randrange(1, p)
        true = SMALL.prove(x, b, rho, dice)
        lie = (SMALL.bound - sum(v * v for v in x)) % p
        told = Proof(masks=true.masks, product=[*true.product[:1], (true.product[1] + lie) % p, *true.product[2:]])
        passed += SMALL.accepts(x, b, rho, told, dice)
    right = sum(root > calls for root in roots) / (p - calls - 1)  # points among which r is drawn
    assert binom.ppf(1e-6, trials, right) <= passed <= binom.isf(1e-6, trials, right)
    assert right <= 2 * calls / (p - calls - 1)


def test_an_honest_proof_of_a_long_vector_is_refused() -> None:
    dice = random.Random(3)
    for length in (9, 12, 15):
        x, b = [length] + [0] * (SMALL.squares - 1), [0] * SMALL.bits
        assert not any(SMALL.accepts(x, b, 5, SMALL.prove(x, b, 5, dice), dice) for _ in range(50))
