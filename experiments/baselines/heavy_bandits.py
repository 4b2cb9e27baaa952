"""Multi-armed bandits with heavy-tailed rewards.

Policies play many independent trials at once: ``choose`` names one arm per trial and the
number of rewards wanted from it, ``learn`` takes them. They maximise the mean (or, for
Cauchy noise, the centre) of the rewards.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

import numpy as np

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, IntArray


class Policy(Protocol):
    """A bandit algorithm over independent trials."""

    @property
    def batch(self) -> int:
        """Rewards drawn from the chosen arm per decision."""
        ...

    def choose(self) -> IntArray:
        """One arm per trial, ``(n_trials,)``."""
        ...

    def learn(self, arms: IntArray, rewards: FloatArray) -> None:
        """Rewards of the chosen arms, ``(n_trials, batch)``."""
        ...


def smoothed_median_of_means(
    rewards: FloatArray, n_blocks: int, smoothing: float, rng: np.random.Generator
) -> FloatArray:
    """Median over blocks of (block mean + smoothing * Gaussian), ``(n_trials,)``."""
    blocks = rewards.reshape(len(rewards), n_blocks, -1).mean(axis=2)
    return np.asarray(np.median(blocks + smoothing * rng.standard_normal(blocks.shape), axis=1))


Index: TypeAlias = Literal["mean", "averaged", "printed"]


class SGDUCBSMoM:
    """SGD-UCB-SMoM (Dorn et al. 2024) and its functional form (F-LCB paper, Appendix D).

    Per decision ``n_blocks * block_size`` rewards of one arm; SGD on (x - mu)^2/2 with steps
    1/k and the smoothed median of means as oracle.

    Args:
        n_arms: K.
        n_trials: Independent trials.
        rng: Of the smoothing.
        scale: C of the width C/sqrt(n), with n the rewards seen from the arm.
        index: ``"mean"`` is x + C/sqrt(n), the original. The functional ones minimise
            f(x) - C/sqrt(n) with f = x^2/2 - x mu: ``"printed"`` reads f from the last batch
            alone, whose noise never shrinks (and the print's sign is a maximiser's);
            ``"averaged"`` reads mu from all batches. Both keep x >= 0, as mu > 0 is assumed.
        n_blocks: Blocks of a batch; odd.
        block_size: Rewards per block.
        smoothing: Standard deviation of the Gaussian added to block means.
    """

    def __init__(
        self,
        n_arms: int,
        *,
        n_trials: int,
        rng: np.random.Generator,
        scale: float = 2.0,
        index: Index = "mean",
        n_blocks: int = 5,
        block_size: int = 1,
        smoothing: float = 0.01,
    ) -> None:
        if n_blocks < 1 or n_blocks % 2 == 0 or block_size < 1:
            raise ConfigurationError(f"n_blocks={n_blocks!r} must be odd, block_size={block_size!r} >= 1")
        self._estimate = np.zeros((n_trials, n_arms))
        self._last = np.zeros((n_trials, n_arms))
        self._batches = np.zeros((n_trials, n_arms), dtype=np.int64)
        self._rng, self._scale, self._index = rng, scale, index
        self._n_blocks, self._smoothing = n_blocks, smoothing
        self.batch = n_blocks * block_size

    def choose(self) -> IntArray:
        """The arm with the largest index; untried arms first."""
        with np.errstate(divide="ignore"):
            width = self._scale / np.sqrt(self._batches * self.batch)
        if self._index == "mean":
            index = self._estimate + width
        else:
            x = np.maximum(self._estimate, 0.0)
            mu = self._last if self._index == "printed" else self._estimate
            index = -(0.5 * x * x - x * mu) + width
        return np.asarray(index.argmax(axis=1))

    def learn(self, arms: IntArray, rewards: FloatArray) -> None:
        """One SGD step of the chosen arms."""
        trials = np.arange(len(arms))
        oracle = smoothed_median_of_means(rewards, self._n_blocks, self._smoothing, self._rng)
        self._batches[trials, arms] += 1
        step = 1.0 / self._batches[trials, arms]
        self._estimate[trials, arms] -= step * (self._estimate[trials, arms] - oracle)
        self._last[trials, arms] = oracle


class RobustUCBMedian:
    """Robust UCB with the median of means (Bubeck, Cesa-Bianchi and Lugosi 2013).

    Rewards go round over k = ceil(8 log(e^(1/8) T^2)) blocks; the index is the median of
    block means plus sqrt(12 v) sqrt(16 log(e^(1/8) T^2)/n) for variance v (eps = 1). Under
    Cauchy noise there is no variance and averaging inside blocks gains nothing, so its
    error stays at about 1/sqrt(k) however long it plays.

    Args:
        n_arms: K.
        n_trials: Independent trials.
        horizon: T.
        scale: sqrt(12 v) of the width.
    """

    batch = 1

    def __init__(self, n_arms: int, *, n_trials: int, horizon: int, scale: float = 1.0) -> None:
        self._log = 0.125 + 2.0 * math.log(max(horizon, 2))
        n_blocks = math.ceil(8.0 * self._log)
        self._sums = np.zeros((n_trials, n_arms, n_blocks))
        self._counts = np.zeros((n_trials, n_arms), dtype=np.int64)
        self._index = np.full((n_trials, n_arms), np.inf)
        self._scale = scale

    def choose(self) -> IntArray:
        """The arm with the largest index; untried arms first."""
        return np.asarray(self._index.argmax(axis=1))

    def learn(self, arms: IntArray, rewards: FloatArray) -> None:
        """Add a reward to the chosen arms' next block."""
        trials = np.arange(len(arms))
        n_blocks = self._sums.shape[2]
        self._sums[trials, arms, self._counts[trials, arms] % n_blocks] += rewards[:, 0]
        self._counts[trials, arms] += 1
        n = self._counts[trials, arms]
        filled = (n[:, None] + n_blocks - 1 - np.arange(n_blocks)) // n_blocks
        with np.errstate(divide="ignore", invalid="ignore"):
            means = np.where(filled > 0, self._sums[trials, arms] / filled, np.nan)
        width = self._scale * np.sqrt(16.0 * self._log / n)
        self._index[trials, arms] = np.nanmedian(means, axis=1) + width


def play(
    policy: Policy,
    means: FloatArray,
    *,
    horizon: int,
    noise: Callable[[tuple[int, ...]], FloatArray],
    n_trials: int,
    n_points: int = 250,
) -> FloatArray:
    """Cumulative (pseudo-)regret after ``n_points`` equal parts of the horizon, ``(n_trials, n_points)``."""
    gaps = means.max() - means
    n_decisions = horizon // policy.batch
    marks = {round((i + 1) * n_decisions / n_points) - 1: i for i in range(n_points)}
    regret, curve = np.zeros(n_trials), np.zeros((n_trials, n_points))
    for decision in range(n_decisions):
        arms = policy.choose()
        policy.learn(arms, means[arms][:, None] + noise((n_trials, policy.batch)))
        regret += policy.batch * gaps[arms]
        if decision in marks:
            curve[:, marks[decision]] = regret
    return curve
