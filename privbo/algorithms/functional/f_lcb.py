"""F-LCB: pull the arm whose lower confidence bound f(x) - g(k) is smallest (Algorithm 1).

One algorithm for two problems: *functional bandit* (small cumulative regret over T pulls)
and *best function identification* (``epsilon``: return an arm whose minimum is within
epsilon of the best one's).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from privbo.algorithms.functional.arms import Arm
from privbo.algorithms.functional.bounds import Bounds, Violation
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray


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
        lower: Lower confidence bounds, ``(K,)``; plain rivals leave it empty.
        violations: Rates that were seen to fail.
        retired: Reason per retired arm.
        states: State per tried arm, so that an arm resumes.
    """

    chosen: int | None
    reason: str
    pulls: npt.NDArray[np.int64]
    values: FloatArray
    played: npt.NDArray[np.int64]
    before: FloatArray
    after: FloatArray
    lower: FloatArray = field(default_factory=lambda: np.empty(0))
    violations: tuple[Violation, ...] = ()
    retired: dict[int, str] = field(default_factory=dict)
    states: dict[int, Any] = field(default_factory=dict, repr=False)


def union_delta(n_arms: int, budget: int) -> float:
    """1/(K T^2), the confidence at which a failed rate costs at most a constant regret where values stay below 1."""
    return min(0.5, 1.0 / (n_arms * max(budget, 1) ** 2))


class FLCB:
    """F-LCB one pull at a time; ``f_lcb`` runs it to its end.

    Args:
        arms: K arms, of any kinds and dimensions.
        budget: Most pulls, the K first ones included (the paper's T is ``budget - K``).
        epsilon: Stop when the rate of the arm about to be pulled is below epsilon/2, so that its
            minimum is within epsilon/2 of the best; None plays on. Algorithm 1 (line 7) looks after
            the pull, when the arm need no longer be the one with the smallest bound, and may return
            an arm that is not within epsilon.
        delta: Confidence per rate; ``union_delta`` if None.

    Raises:
        ConfigurationError: If there is no arm or a number is out of its range.
    """

    def __init__(
        self,
        arms: Sequence[Arm],
        *,
        budget: int,
        epsilon: float | None = None,
        delta: float | None = None,
    ) -> None:
        if not arms or budget < 1:
            raise ConfigurationError(f"{len(arms)} arms and budget={budget!r}: give at least one of each")
        if epsilon is not None and not epsilon > 0:
            raise ConfigurationError(f"epsilon={epsilon!r} must be > 0, or None")
        self.delta = union_delta(len(arms), budget) if delta is None else float(delta)
        if not 0.0 < self.delta <= 1.0:
            raise ConfigurationError(f"delta={delta!r} must lie in (0, 1]")
        self.arms = tuple(arms)
        self.bounds = Bounds(len(arms))
        self.states: dict[int, Any] = {}
        self._budget, self._epsilon = budget, epsilon
        self._played: list[int] = []
        self._before: list[float] = []
        self._after: list[float] = []
        self._chosen: int | None = None
        self._reason: str | None = None
        # Two-sided Gaussian tail, together over all arms and pulls (2 K T / delta).
        self._quantile = math.sqrt(2.0 * math.log(2.0 * len(arms) * budget / self.delta))

    @property
    def over(self) -> bool:
        """Whether nothing is left to pull."""
        return self._reason is not None

    def pull(self) -> int | None:
        """Pull the arm with the smallest bound; None if the search is over."""
        if self._reason is not None:
            return None
        arm = self.bounds.select()
        if arm is None:
            self._stop("retired", None)
            return None
        if self._epsilon is not None and self.bounds.rate[arm] < self._epsilon / 2.0:
            self._stop("rate", arm)
            return None
        self._played.append(arm)
        self._before.append(float(self.bounds.value[arm]))
        self._advance(arm)
        self._after.append(float(self.bounds.value[arm]))
        if len(self._played) >= self._budget:
            self._stop("budget", self.bounds.best())
        return arm

    def _stop(self, reason: str, chosen: int | None) -> None:
        self._reason, self._chosen = reason, chosen

    def _advance(self, index: int) -> None:
        arm = self.arms[index]
        try:
            state = arm.step(self.states[index] if index in self.states else arm.init())
            value = float(arm.value(state))
            rate = float(arm.rate(state, int(self.bounds.pulls[index]) + 1, self.delta))
        except ArithmeticError as error:
            self.states.setdefault(index, None)
            self.bounds.pulls[index] += 1
            self.bounds.retire(index, f"{type(error).__name__}: {error}")
            return
        self.states[index] = state
        self.bounds.observe(index, value, rate, arm.value_stddev * self._quantile)

    def selection(self) -> Selection:
        """Give the result so far."""
        bounds = self.bounds
        return Selection(
            chosen=self._chosen if self._reason is not None else bounds.best(),
            reason=self._reason or "running",
            pulls=bounds.pulls.copy(),
            values=bounds.value.copy(),
            played=np.array(self._played, dtype=np.int64),
            before=np.array(self._before, dtype=np.float64),
            after=np.array(self._after, dtype=np.float64),
            lower=bounds.lower.copy(),
            violations=tuple(bounds.violations),
            retired=dict(bounds.retired),
            states={index: state for index, state in self.states.items() if state is not None},
        )


def f_lcb(
    arms: Sequence[Arm],
    *,
    budget: int,
    on_pull: Callable[[FLCB, int], None] | None = None,
    **settings: Any,  # noqa: ANN401 (FLCB's fields)
) -> Selection:
    """Run F-LCB to its end.

    Args:
        arms: K arms.
        budget: Most pulls.
        on_pull: Called after every pull with the search and the arm.
        settings: Those of ``FLCB``.

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
    search = FLCB(arms, budget=budget, **settings)
    while not search.over:
        arm = search.pull()
        if arm is not None and on_pull is not None:
            on_pull(search, arm)
    return search.selection()
