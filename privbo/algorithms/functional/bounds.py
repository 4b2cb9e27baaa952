"""The table of lower confidence bounds, and what it notices: violated rates, failing arms.

For arm i after k steps, LCB_i = f - g(k, delta) - w with w the confidence width of a noisy
value. A rate that is too small can discard the best arm, so every bound is checked
against every later value: a value (plus its width) below an earlier bound proves that
the rate does not hold.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from privbo.protocol.messages import FloatArray

# An arm is retired when its value passes the first one by more than this many times max(g(1), |first value|).
_DIVERGENCE = 1e6


class RateViolated(UserWarning):
    """An arm's rate was seen to fail; its lower bounds prove nothing."""


@dataclass(frozen=True, kw_only=True)
class Violation:
    """A value below an earlier lower bound of the same arm.

    Attributes:
        arm: Index of the arm.
        pulls: Pulls of the arm when it was seen.
        bound: The highest lower bound until then.
        seen: The value plus its width, which lies below.
    """

    arm: int
    pulls: int
    bound: float
    seen: float


class Bounds:
    """Lower confidence bounds of K arms; untried arms stand at minus infinity.

    Args:
        n_arms: K.
        warn: Whether a violation is also a Python warning; it is always recorded.
    """

    def __init__(self, n_arms: int, *, warn: bool = True) -> None:
        self.lower: FloatArray = np.full(n_arms, -np.inf)
        self.value: FloatArray = np.full(n_arms, np.nan)
        self.width: FloatArray = np.zeros(n_arms)
        self.rate: FloatArray = np.full(n_arms, np.inf)
        self.pulls: npt.NDArray[np.int64] = np.zeros(n_arms, dtype=np.int64)
        self.violations: list[Violation] = []
        self.retired: dict[int, str] = {}
        self._highest_lower = [-math.inf] * n_arms
        self._limit = [math.inf] * n_arms
        self._warned: set[int] = set()
        self._warn = warn

    def select(self) -> int | None:
        """The arm with the smallest bound (the first of equals); None if all are retired."""
        arm = int(self.lower.argmin())
        return None if self.lower[arm] == math.inf else arm

    def observe(self, arm: int, value: float, rate: float, width: float = 0.0) -> None:
        """Take a value after one more pull of an arm."""
        self.pulls[arm] += 1
        if not (math.isfinite(value) and math.isfinite(rate)):
            self.retire(arm, f"value {value!r} with rate {rate!r} is not finite")
            return
        if value > self._limit[arm]:
            self.retire(arm, f"value {value:.6g} diverges; it passed {self._limit[arm]:.6g}")
            return
        if self._limit[arm] == math.inf:
            self._limit[arm] = value + _DIVERGENCE * max(abs(rate), abs(value), 1e-300)
        self._check(arm, value + width)
        lower = value - rate - width
        self._highest_lower[arm] = max(self._highest_lower[arm], lower)
        self.lower[arm], self.value[arm], self.rate[arm], self.width[arm] = lower, value, rate, width

    def retire(self, arm: int, reason: str) -> None:
        """Never select an arm again, and say why."""
        self.retired[arm] = reason
        self.lower[arm] = math.inf
        self.value[arm] = math.nan

    def best(self) -> int | None:
        """The arm whose current value, with its width added, is smallest; None if there is none.

        Never the best value so far: the smallest of many noisy values is mostly luck.
        """
        upper = np.where(np.isfinite(self.value), self.value + self.width, np.inf)
        arm = int(upper.argmin())
        return None if upper[arm] == math.inf else arm

    def _check(self, arm: int, upper: float) -> None:
        bound = self._highest_lower[arm]
        if upper >= bound - 1e-12 * max(1.0, abs(bound)):
            return
        pulls = int(self.pulls[arm])
        self.violations.append(Violation(arm=arm, pulls=pulls, bound=bound, seen=upper))
        if self._warn and arm not in self._warned:
            self._warned.add(arm)
            warnings.warn(
                f"rate violated: arm {arm} reached {upper:.6g} at pull {pulls}, below its bound {bound:.6g}; "
                "give it a certified or larger rate, or the choice is a heuristic's",
                RateViolated,
                stacklevel=4,
            )
