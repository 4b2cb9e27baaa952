"""F-LCB: pull the arm whose lower confidence bound f(x) - g(k) is smallest (Algorithm 1).

One algorithm for two problems: *functional bandit* (small cumulative regret over T pulls)
and *best function identification* (``epsilon``: return an arm whose minimum is within
epsilon of the best one's).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from privbo.algorithms.functional.federated import Bounds
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, IntArray


class Arm(Protocol):
    """One candidate. States are opaque to the caller; two arms may have nothing in common."""

    @property
    def name(self) -> str:
        """Shown in results."""
        ...

    def init(self) -> Any:  # noqa: ANN401  # every arm has a state of its own
        """The state before any step."""
        ...

    def step(self, state: Any) -> Any:  # noqa: ANN401  # the arm's own state
        """One pull's work; may raise ``ArithmeticError`` to say that the arm has failed."""
        ...

    def value(self, state: Any) -> float:  # noqa: ANN401  # the arm's own state
        """The objective (smaller is better) at the point the rate speaks of, perhaps noisy."""
        ...

    def rate(self, state: Any, k: int, delta: float) -> float:  # noqa: ANN401  # the arm's own state
        """g(k, delta): how far the point's objective may lie above the arm's minimum."""
        ...

    @property
    def value_stddev(self) -> float:
        """Standard deviation of ``value``'s (sub-Gaussian) noise; 0 if exact."""
        ...


class RateViolated(UserWarning):
    """An arm's rate was seen to fail; its lower bounds prove nothing."""


@dataclass(frozen=True, kw_only=True)
class Violation:
    """A value below an earlier lower bound of the same arm.

    Attributes:
        arm: Index of the arm.
        pulls: Pulls of the arm by then.
        bound: The highest lower bound until then.
        upper: The value plus its width, which lies below.
    """

    arm: int
    pulls: int
    bound: float
    upper: float


# An arm is retired when its value passes the first one by more than this many times max(g(1), |first value|).
_DIVERGENCE = 1e6


class WatchedBounds(Bounds):
    """Bounds that count pulls, retire arms that fail, and keep the rates that were seen to fail.

    The first failed rate of an arm is a warning, too.
    """

    def __init__(self, n_arms: int) -> None:
        super().__init__(n_arms)
        self.pulls: IntArray = np.zeros(n_arms, dtype=np.int64)
        self.violations: list[Violation] = []
        self.retired: dict[int, str] = {}
        self._limit, self._highest_lower = [math.inf] * n_arms, [-math.inf] * n_arms

    def retire(self, arm: int, reason: str) -> None:
        """Never select an arm again, and say why."""
        self.retired[arm] = reason
        self.lower[arm] = math.inf
        self.value[arm] = math.nan

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
        super().observe(arm, value, rate, width)
        bound, upper = self._highest_lower[arm], value + width
        self._highest_lower[arm] = max(bound, float(self.lower[arm]))
        if upper >= bound - 1e-12 * max(1.0, abs(bound)):
            return
        found = Violation(arm=arm, pulls=int(self.pulls[arm]), bound=bound, upper=upper)
        if arm not in {violation.arm for violation in self.violations}:
            warnings.warn(
                f"rate violated: arm {arm} reached {upper:.6g} at pull {found.pulls}, below its bound {bound:.6g}; "
                "give it a certified or larger rate, or the choice is a heuristic's",
                RateViolated,
                stacklevel=3,
            )
        self.violations.append(found)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Result of a search over arms.

    Attributes:
        chosen: Index of the arm; None if every arm was retired or none was tried.
        reason: Why it stopped: ``"rate"`` (g < epsilon/2), ``"budget"`` or ``"retired"``.
        pulls: Pulls per arm, ``(K,)``.
        values: Current value per arm, ``(K,)``; NaN where untried or retired.
        played: The arm of every pull, in order.
        before: That arm's value when it was selected; NaN for its first pull.
        after: That arm's value after the pull; NaN where it failed.
        lower: Lower confidence bounds, ``(K,)``; plain baselines leave it empty.
        violations: Rates that were seen to fail.
        retired: Reason per retired arm.
        states: State per tried arm, so that an arm resumes.
    """

    chosen: int | None
    reason: str
    pulls: IntArray
    values: FloatArray
    played: IntArray
    before: FloatArray
    after: FloatArray
    lower: FloatArray = field(default_factory=lambda: np.empty(0))
    violations: tuple[Violation, ...] = ()
    retired: dict[int, str] = field(default_factory=dict)
    states: dict[int, Any] = field(default_factory=dict, repr=False)


def f_lcb(
    arms: Sequence[Arm],
    *,
    budget: int,
    epsilon: float | None = None,
    delta: float | None = None,
    on_pull: Callable[[int, Any], None] | None = None,
) -> Selection:
    """Run F-LCB to its end.

    Args:
        arms: K arms, of any kinds and dimensions.
        budget: Most pulls, the K first ones included (the paper's T is ``budget - K``).
        epsilon: Stop when the rate of the arm about to be pulled is below epsilon/2, so that its
            minimum is within epsilon/2 of the best; None plays on. Algorithm 1 (line 7) looks after
            the pull, when the arm need no longer be the one with the smallest bound, and may return
            an arm that is not within epsilon.
        delta: Confidence per rate; None is 1/(K T^2), at which a failed rate costs at most a constant regret where
            values stay below 1.
        on_pull: Called after every pull with the arm and its state, which is None where its first pull failed.

    Raises:
        ConfigurationError: If there is no arm or a number is out of its range.

    Example:
        >>> class Curve:  # a learning curve limit + 1 / k, whose state is k
        ...     name, value_stddev = "curve", 0.0
        ...     def __init__(self, limit): self.limit = limit
        ...     def init(self): return 0
        ...     def step(self, state): return state + 1
        ...     def value(self, state): return self.limit + 1 / state
        ...     def rate(self, state, k, delta): return 1 / k
        >>> found = f_lcb([Curve(0.5), Curve(0.1), Curve(0.9)], budget=30)
        >>> found.chosen, int(found.pulls.sum())
        (1, 30)
    """
    if not arms or budget < 1:
        raise ConfigurationError(f"{len(arms)} arms and budget={budget!r}: give at least one of each")
    if epsilon is not None and not epsilon > 0:
        raise ConfigurationError(f"epsilon={epsilon!r} must be > 0, or None")
    delta = min(0.5, 1.0 / (len(arms) * budget**2)) if delta is None else delta
    if not 0.0 < delta <= 1.0:
        raise ConfigurationError(f"delta={delta!r} must lie in (0, 1]")
    # Two-sided Gaussian tail, together over all arms and pulls (2 K T / delta).
    quantile = math.sqrt(2.0 * math.log(2.0 * len(arms) * budget / delta))
    bounds, states = WatchedBounds(len(arms)), dict[int, Any]()
    played, before, after = list[int](), list[float](), list[float]()
    chosen, reason = None, "budget"
    while len(played) < budget:
        index = bounds.select()
        if (none := len(bounds.retired) == len(arms)) or (epsilon is not None and bounds.rate[index] < epsilon / 2.0):
            chosen, reason = (None, "retired") if none else (index, "rate")
            break
        played.append(index)
        before.append(float(bounds.value[index]))
        arm = arms[index]
        try:
            state = arm.step(states[index] if index in states else arm.init())
            value, rate = float(arm.value(state)), float(arm.rate(state, int(bounds.pulls[index]) + 1, delta))
        except ArithmeticError as error:
            states.setdefault(index, None)
            bounds.pulls[index] += 1
            bounds.retire(index, f"{type(error).__name__}: {error}")
        else:
            states[index] = state
            bounds.observe(index, value, rate, arm.value_stddev * quantile)
        after.append(float(bounds.value[index]))
        if on_pull is not None:
            on_pull(index, states[index])
    else:
        chosen = bounds.best() if np.isfinite(bounds.value).any() else None
    return Selection(
        chosen=chosen,
        reason=reason,
        pulls=bounds.pulls,
        values=bounds.value,
        played=np.array(played, dtype=np.int64),
        before=np.array(before, dtype=np.float64),
        after=np.array(after, dtype=np.float64),
        lower=bounds.lower,
        violations=tuple(bounds.violations),
        retired=bounds.retired,
        states={index: state for index, state in states.items() if state is not None},
    )
