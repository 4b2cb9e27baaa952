"""``python -m benchmarks._correlated``: noise correlated between releases against independent noise, by algebra.

Releases x_1 .. x_n get the noise C^-1 Z, Z independent and of equal size; an algorithm uses A x, and what it loses is
the weighted square of A C^-1 Z. Everything is at equal epsilon, exactly.

**Clients present in every release.** The sensitivity is the largest ||C X|| over matrices X with rows of norm at most 1
(any rows: clients send other vectors every time, of at least n entries). Its square is the maximum of tr(M G), M = C'C,
over correlation matrices G, and by duality the least tr(D) of diagonal D >= M. At sensitivity 1 the noise's covariance
M^-1 is thus at least D^-1 with tr(D) = 1: independent noise with the shares D of the squared budget. That is no worse
for every A at once, so correlation gains nothing over unequal shares. ``searched`` looks and finds the same.

**Secret samples.** Cyclic Poisson samples with b blocks and a C of b bands, columns of norm 1 (Choquette-Choo et al.
2023): a client is in one release of every b in turn, with probability b q, and what is paid is T / b releases at that
rate. Independent noise pays T releases at rate q.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

import accountant
from privbo.protocol.messages import FloatArray

DELTA = 200**-1.1
ROUNDS, RATE = 40, 0.25
EPSILONS = (0.25, 1.0, 4.0)
BLOCKS = (1, 2, 4)
PAGE = Path("docs/results/correlated-noise.md")
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def prefix_means(n: int) -> FloatArray:
    """Every row the mean of all releases so far."""
    return np.asarray(np.tril(np.ones((n, n))) / np.arange(1, n + 1)[:, None])


def last_means(n: int, width: int) -> FloatArray:
    """Every row the mean of the last ``width`` releases; 1 is the release itself."""
    band = np.tril(np.ones((n, n))) - np.tril(np.ones((n, n)), -width)
    return np.asarray(band / band.sum(axis=1, keepdims=True))


def pooled(shares: FloatArray) -> FloatArray:
    """Every row the mean of all releases so far, weighted by their shares: what ``SharedPrior`` sends out."""
    weights = np.tril(np.tile(shares, (len(shares), 1)))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def worst(strategy: FloatArray) -> FloatArray:
    """Inner products of the worst rows of norm 1 for ||C X||, all clients taking part every time.

    Coordinate ascent on spheres; with as many dimensions as rows it ends at the maximum.
    """
    gram = strategy.T @ strategy
    vectors = np.random.default_rng(0).standard_normal((len(gram), len(gram)))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    for _ in range(200):
        before = vectors.copy()
        for i in range(len(gram)):
            pull = gram[i] @ vectors - gram[i, i] * vectors[i]
            size = np.linalg.norm(pull)
            vectors[i] = pull / size if size > 0.0 else vectors[i]
        if float(np.max(np.abs(vectors - before))) < 1e-10:
            break
    return np.asarray(vectors @ vectors.T)


def sensitivity(strategy: FloatArray) -> float:
    """The largest ||C X|| over rows of norm 1."""
    return math.sqrt(np.sum(strategy.T @ strategy * worst(strategy)))


def loss(workload: FloatArray, strategy: FloatArray, used: FloatArray) -> float:
    """Mean square of what is used, weighted by how long it is used, for noise of size 1."""
    return float(used @ np.sum((workload @ np.linalg.inv(strategy)) ** 2, axis=1) / used.sum())


def best_shares(workload: FloatArray, used: FloatArray) -> float:
    """The least loss of independent noise at sensitivity 1: shares in proportion to the columns' norms."""
    return float(np.sum(np.sqrt(used @ workload**2)) ** 2 / used.sum())


def searched(workload: FloatArray, used: FloatArray, seed: int) -> float:
    """The least loss over lower triangular strategies, at sensitivity 1, that a search from a random start finds."""
    n = len(workload)
    lower = np.tril(np.ones((n, n)))

    def cost(entries: FloatArray) -> tuple[float, FloatArray]:
        strategy = lower * entries.reshape(n, n)
        products = worst(strategy)
        square = float(np.sum(strategy.T @ strategy * products))
        value = loss(workload, strategy, used)
        slope = _loss_slope(workload, strategy, used) / value + 2.0 * strategy @ products / square
        return float(np.log(value * square)), (lower * slope).ravel()

    start = lower * 0.5 * np.random.default_rng(seed).standard_normal((n, n)) + np.eye(n)
    return float(np.exp(minimize(cost, start.ravel(), jac=True, method="L-BFGS-B").fun))


def banded(workload: FloatArray, bands: int) -> float:
    """The least mean loss over lower triangular strategies of so many bands with columns of norm 1."""
    n = len(workload)
    inside = np.tril(np.ones((n, n))) - np.tril(np.ones((n, n)), -bands)
    used = np.ones(n)

    def cost(entries: FloatArray) -> tuple[float, FloatArray]:
        raw = inside * entries.reshape(n, n)
        norms = np.linalg.norm(raw, axis=0)
        strategy = raw / norms
        slope = inside * _loss_slope(workload, strategy, used)
        slope = (slope - strategy * np.sum(slope * strategy, axis=0)) / norms
        return loss(workload, strategy, used), slope.ravel()

    start = 0.1 * inside + np.eye(n)
    return float(minimize(cost, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 2000}).fun)


def _loss_slope(workload: FloatArray, strategy: FloatArray, used: FloatArray) -> FloatArray:
    """The derivative of ``loss`` in the strategy's entries."""
    back = np.linalg.inv(strategy)
    noisy = workload @ back
    return np.asarray(-2.0 * (back @ (noisy.T * used) @ noisy).T / used.sum())


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison: root mean squares of what is used, independent and correlated, at the same epsilon."""

    what: str
    independent: float
    correlated: float

    def __str__(self) -> str:
        change = 100.0 * (self.correlated / self.independent - 1.0)
        return f"| {self.what} | {self.independent:.3f} | {self.correlated:.3f} | {change:+.1f} % |"


def present() -> Iterator[Row]:
    """All clients in every release: errors in units of a single release's noise."""
    rounds = np.array([2.0, 3.0, 15.0])
    shared = pooled(np.array([5.0, 2.0, 1.0]))
    cases: dict[str, tuple[FloatArray, FloatArray]] = {
        "three releases, pooled by budget and evidence": (shared, rounds),
        "three releases, the mean of all so far": (prefix_means(3), rounds),
        "five releases, the mean of all so far": (prefix_means(5), np.ones(5)),
        "five releases, each by itself": (np.eye(5), np.ones(5)),
    }
    for what, (workload, used) in cases.items():
        least = min(searched(workload, used, seed) for seed in range(2))
        yield Row(what=what, independent=best_shares(workload, used) ** 0.5, correlated=least**0.5)


def sampled() -> Iterator[Row]:
    """Secret samples of a quarter of the clients, 40 rounds: errors in units of the sensitivity."""
    workloads: dict[str, Callable[[int], FloatArray]] = {
        "each release by itself": lambda n: last_means(n, 1),
        "the mean of the last four": lambda n: last_means(n, 4),
        "the mean of all so far": prefix_means,
    }
    for name, make in workloads.items():
        workload = make(ROUNDS)
        factors = {blocks: banded(workload, blocks) for blocks in BLOCKS}
        for epsilon in EPSILONS:
            noise = {
                blocks: accountant.noise_multiplier(
                    epsilon=epsilon,
                    rounds=ROUNDS // blocks,
                    sample_rate=RATE * blocks,
                    delta=DELTA,
                    adjacency="zero-out",
                )
                for blocks in BLOCKS
            }
            alone = noise[1] * float(np.mean(np.sum(workload**2, axis=1))) ** 0.5
            best = min(noise[blocks] * factors[blocks] ** 0.5 for blocks in BLOCKS[1:])
            yield Row(what=f"{name}, epsilon {epsilon:g}", independent=alone, correlated=best)


def table() -> str:
    """Both tables as Markdown."""
    head = "| what is used | independent | correlated | change |\n|---|---|---|---|\n"
    first, second = ("\n".join(str(row) for row in rows) for rows in (present(), sampled()))
    return (
        "All clients in every release: root mean square, in units of the noise of one release with the whole budget.\n"
        f'"Independent" uses the best shares.\n\n{head}{first}\n\n'
        f"Secret samples at rate {RATE:g}, {ROUNDS} rounds, delta = {DELTA:.4g}: root mean square in units of the "
        f"sensitivity,\nthe better of {' and '.join(map(str, BLOCKS[1:]))} bands.\n\n{head}{second}\n"
    )


def main() -> None:
    """Put the tables into the page, and print them."""
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    made = table()
    PAGE.write_text(f"{before}{BEGIN}\n{made}{END}{after}")
    sys.stdout.write(made)


if __name__ == "__main__":
    main()
