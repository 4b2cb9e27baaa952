"""PRIVATE: advice on the clipping norm, from what the algorithm does with the sums.

An algorithm that maximises the released function, or fits its scale, uses the sums' direction alone: what counts is
how well the noisy sum agrees with the sum as it was meant (their cosine), and where every vector is clipped a smaller
bound shortens signal and noise alike. An algorithm that compares sums with confidence radii uses their magnitude: what
counts is the error, bias and noise combined, beside the sum. Both are estimates of what a release is good for, not of
the score that clients reach in the end. Each effect comes with its standard error over the run's rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Use = Literal["direction", "magnitude"]
LEAST = 0.01  # smaller effects are nothing to gain, however sure


@dataclass(frozen=True, kw_only=True)
class Advice:
    """PRIVATE: another clipping norm, or none.

    Attributes:
        use: Part of the sums that the algorithm uses.
        factor: On the run's clipping norm, the best of those tried; 1.0 where there is nothing to gain.
        effect: Gain by that factor, mean over rounds: in cosine (direction), or in the error's share of the sum.
        standard_error: Of that mean; None for a single round.
        rounds: Number of rounds.
        now: The same quantity with the run's own clipping norm, mean over rounds.
        equal: The smallest and the largest factor around 1 that would have given the same, to within ``LEAST``.
        at_edge: Whether the best factor is the smallest or largest that was tried, so that the best may lie beyond.
    """

    use: Use
    factor: float
    effect: float
    standard_error: float | None
    rounds: int
    now: float
    equal: tuple[float, float]
    at_edge: bool

    @property
    def answer(self) -> Literal["nothing to gain", "smaller", "larger"]:
        """The advice in a word."""
        if self.factor == 1.0:
            return "nothing to gain"
        return "smaller" if self.factor < 1.0 else "larger"

    def text(self, clipping_norm: float) -> str:
        """Say the advice in a sentence or two."""
        what = {
            "direction": "the release's agreement with the sum as meant (cosine)",
            "magnitude": "the release's error as a share of the sum",
        }[self.use]
        low, high = (factor * clipping_norm for factor in self.equal)
        if self.answer == "nothing to gain":
            span = f"; any S from {low:.3g} to {high:.3g} would have given the same" if high > low else ""
            return f"nothing to gain from another S than {clipping_norm:.3g}: {what} was {self.now:.2g}{span}"
        error = "one round says nothing about noise" if self.standard_error is None else f"± {self.standard_error:.1g}"
        change = f"{'raised' if self.use == 'direction' else 'lowered'} {what} by {self.effect:.2g} ({error})"
        edge = "; that is the edge of what was tried, the best may lie beyond" if self.at_edge else ""
        return (
            f"S = {self.factor * clipping_norm:.3g} in place of {clipping_norm:.3g} would have {change}, from "
            f"{self.now:.2g}, over {self.rounds} rounds{edge}"
        )


def advise(use: Use, rounds: Sequence[Mapping[float, float]]) -> Advice:
    """Choose a factor on the clipping norm.

    Args:
        use: Part of the sums that the algorithm uses.
        rounds: For every round, by factor, what is to be large (agreement, or the error's share times -1); every
            round has the same factors, 1.0 among them.
    """
    factors = sorted(rounds[0])
    table = np.array([[found[factor] for factor in factors] for found in rounds])
    here = factors.index(1.0)
    gains = table - table[:, [here]]
    mean = gains.mean(axis=0)
    as_good = [k for k, gain in enumerate(mean) if gain >= mean.max() - LEAST]
    best = min(as_good, key=lambda k: abs(k - here))  # the smallest change that brings as much
    error = float(gains[:, best].std(ddof=1) / math.sqrt(len(rounds))) if len(rounds) > 1 else None
    sure = error is not None and mean[best] > 2.0 * error
    worth = bool(mean[best] > LEAST and sure)
    return Advice(
        use=use,
        factor=factors[best] if worth else 1.0,
        effect=float(mean[best]) if worth else 0.0,
        standard_error=error,
        rounds=len(rounds),
        now=abs(float(table[:, here].mean())),
        equal=_equal(factors, mean, here),
        at_edge=worth and best in (0, len(factors) - 1),
    )


def _equal(factors: Sequence[float], gains: np.ndarray, here: int) -> tuple[float, float]:
    """Ends of the stretch around 1 in which no factor changes anything that matters."""
    low = high = here
    while low > 0 and abs(gains[low - 1]) <= LEAST:
        low -= 1
    while high < len(factors) - 1 and abs(gains[high + 1]) <= LEAST:
        high += 1
    return factors[low], factors[high]


def agreement(*, signal: float, kept: float, bias: float, noise: float) -> float:
    """Give the expected cosine between a sum as meant and what is released of it.

    Args:
        signal: Norm of the sum as meant.
        kept: Norm of the clipped sum.
        bias: Norm of their difference.
        noise: Norm that the noise has on average.

    Example:
        >>> agreement(signal=2.0, kept=1.0, bias=1.0, noise=0.0)  # half as long, the same direction
        1.0
        >>> round(agreement(signal=2.0, kept=1.0, bias=1.0, noise=1.0), 3)
        0.707
    """
    if signal == 0 or kept == 0:
        return 0.0
    inner = (kept**2 + signal**2 - bias**2) / 2
    return float(inner / (signal * math.hypot(kept, noise)))
