"""From pulls to vectors: mean rewards of nodes, their declared range, and what is sent of them.

An evaluation is a noisy reward. Real objectives are called once per pull; a simulation
may offer ``pull(clients, units, counts)`` and answer with the means of many pulls at once.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np

from privbo.errors import ConfigurationError
from privbo.protocol import Evaluate, FloatArray, IntArray

_private_log = logging.getLogger("privbo.private")

Centre: TypeAlias = Literal["client", "middle"]
Outside: TypeAlias = Literal["error", "clip"]


class PullMeans(Protocol):
    """What a simulated environment offers beside plain evaluation."""

    def __call__(self, clients: IntArray, units: FloatArray, counts: IntArray) -> FloatArray:
        """Mean of ``counts[i]`` rewards of ``clients[i]`` at ``units[i]``, ``(n,)``; NaN if all failed."""
        ...


@dataclass(frozen=True, kw_only=True)
class RewardRange:
    """The interval rewards lie in, as declared before the run.

    Attributes:
        low, high: Bounds of a reward.
        outside: ``"error"`` refuses a reward outside, ``"clip"`` clips and counts it.

    Raises:
        ConfigurationError: If the bounds are not finite and increasing.
    """

    low: float
    high: float
    outside: Outside

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigurationError(f"reward_range=({self.low!r}, {self.high!r}) must be finite and increasing")
        if self.outside not in ("error", "clip"):
            raise ConfigurationError(f"outside={self.outside!r} must be 'error' or 'clip'")

    @property
    def half_width(self) -> float:
        """Largest distance of a reward from the middle."""
        return 0.5 * (self.high - self.low)

    @property
    def middle(self) -> float:
        """Middle of the range."""
        return 0.5 * (self.high + self.low)

    def admit(self, rewards: FloatArray) -> tuple[FloatArray, int]:
        """Rewards inside the range, and how many were clipped (PRIVATE); NaN passes.

        Raises:
            ConfigurationError: If one lies outside and that is an error. The message names
                neither the value nor its client: both are private.
        """
        outside = int(np.count_nonzero((rewards < self.low) | (rewards > self.high)))
        if not outside:
            return rewards, 0
        if self.outside == "error":
            raise ConfigurationError(
                f"a reward lies outside reward_range=({self.low:g}, {self.high:g}); normalise the objective, "
                "declare its range, or set outside='clip'"
            )
        _private_log.warning("rewards outside the declared range are clipped")
        return np.clip(rewards, self.low, self.high), outside


def mean_rewards(
    evaluate: Evaluate, allowed: RewardRange, clients: IntArray, units: FloatArray, counts: IntArray
) -> tuple[FloatArray, int]:
    """Mean of ``counts[i]`` pulls of ``clients[i]`` at ``units[i]``, ``(n,)``, and the number of clipped rewards.

    Failed pulls are left out of a mean; NaN where all failed or none was asked for.
    """
    many: PullMeans | None = getattr(evaluate, "pull", None)  # privbo.problem.Evaluator offers it for simulations
    if many is not None:
        return allowed.admit(np.asarray(many(clients, units, counts), dtype=np.float64))
    totals, valid, clipped = np.zeros(len(clients)), np.zeros(len(clients)), 0
    for turn in range(int(counts.max(initial=0))):
        due = np.flatnonzero(counts > turn)
        rewards, count = allowed.admit(evaluate(clients[due], units[due]))
        clipped += count
        good = np.isfinite(rewards)
        totals[due[good]] += rewards[good]
        valid[due[good]] += 1
    with np.errstate(invalid="ignore"):
        return np.asarray(totals / valid), clipped


def centred(means: FloatArray, allowed: RewardRange, centre: Centre) -> FloatArray:
    """What a client sends of its mean rewards ``(n, K)``.

    ``"middle"`` subtracts the middle of the range, which halves the sensitivity;
    ``"client"`` subtracts the client's own mean over the nodes, which removes vertical
    offsets between clients exactly. Either way differences between nodes are kept.
    """
    if centre == "middle":
        return np.asarray(means - allowed.middle)
    return np.asarray(means - means.mean(axis=1, keepdims=True))
