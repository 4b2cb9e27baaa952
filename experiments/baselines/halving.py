"""Rivals of F-LCB on the same resumable arms: halving, Hyperband, uniform, early stopping.

All of them compare current values only and know no rates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from experiments.baselines.f_lcb import Arm, Selection
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray


@dataclass(kw_only=True)
class _Bench:
    """Pulls arms, keeps their states and what was seen; a failing arm's value is infinite."""

    arms: Sequence[Arm]
    budget: int
    states: dict[int, Any] = field(default_factory=dict)
    played: list[int] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    before: list[float] = field(default_factory=list)
    retired: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.arms or self.budget < 1:
            raise ConfigurationError(f"{len(self.arms)} arms and budget={self.budget!r}: give at least one of each")
        self.value: FloatArray = np.full(len(self.arms), np.inf)

    @property
    def left(self) -> int:
        return self.budget - len(self.played)

    def pull(self, index: int) -> float:
        arm = self.arms[index]
        self.before.append(float(self.value[index]) if index in self.states else math.nan)
        try:
            state = arm.step(self.states[index] if index in self.states else arm.init())
            value = float(arm.value(state))
            self.states[index] = state
        except ArithmeticError as error:
            value = math.nan
            self.retired[index] = f"{type(error).__name__}: {error}"
        if not math.isfinite(value):
            self.retired.setdefault(index, f"value {value!r} is not finite")
            value = math.inf
        self.value[index] = value
        self.played.append(index)
        self.after.append(value)
        return value

    def pull_all(self, arms: Sequence[int], times: int) -> None:
        """Pull every arm so many times while the budget lasts; retired arms cost nothing more."""
        for index in arms:
            for _ in range(times):
                if self.left and index not in self.retired:
                    self.pull(index)

    def forget(self) -> None:
        """Start all arms anew, as Hyperband's next bracket does."""
        self.states = {}
        self.value[:] = np.inf

    def selection(self, chosen: int | None, reason: str = "budget") -> Selection:
        values = np.where(np.isfinite(self.value), self.value, np.nan)
        return Selection(
            chosen=chosen,
            reason=reason,
            pulls=np.bincount(self.played, minlength=len(self.arms)).astype(np.int64),
            values=values,
            played=np.array(self.played, dtype=np.int64),
            before=np.array(self.before),
            after=np.array(self.after),
            retired=dict(self.retired),
            states=dict(self.states),
        )


def _smallest(value: FloatArray, arms: Sequence[int]) -> int | None:
    best = min(arms, key=lambda index: value[index])
    return best if math.isfinite(value[best]) else None


def uniform(arms: Sequence[Arm], *, budget: int) -> Selection:
    """Every arm in turn until the budget is spent; the smallest current value wins."""
    bench = _Bench(arms=arms, budget=budget)
    while bench.left and len(bench.retired) < len(arms):
        bench.pull_all(range(len(arms)), 1)
    return bench.selection(_smallest(bench.value, range(len(arms))))


def early_stopping(arms: Sequence[Arm], *, budget: int, patience: int, min_gain: float) -> Selection:
    """One arm after the other, each until its best value gained less than ``min_gain`` in ``patience`` pulls.

    Arms that the budget does not reach stay untried.
    """
    if patience < 1 or min_gain < 0:
        raise ConfigurationError(f"patience={patience!r} must be >= 1 and min_gain={min_gain!r} >= 0")
    bench = _Bench(arms=arms, budget=budget)
    for index in range(len(arms)):
        reference, waited = math.inf, 0
        while bench.left and waited < patience and index not in bench.retired:
            value = bench.pull(index)
            waited = 0 if value < reference - min_gain else waited + 1
            reference = value if waited == 0 else reference
    return bench.selection(_smallest(bench.value, range(len(arms))))


def successive_halving(arms: Sequence[Arm], *, budget: int, factor: int = 2) -> Selection:
    """Synchronous fixed-budget halving over the given arms (Jamieson and Talwalkar 2016).

    ceil(log_factor K) rungs share the budget equally; after each the best 1/factor of the
    arms go on, with their states.
    """
    _require_factor(factor)
    bench = _Bench(arms=arms, budget=budget)
    left = list(range(len(arms)))
    rungs = halving_rungs(len(arms), factor)
    for rung in range(rungs):
        share = bench.left // (rungs - rung)
        bench.pull_all(left, max(1, share // len(left)))
        left = sorted(left, key=lambda index: bench.value[index])[: math.ceil(len(left) / factor)]
    return bench.selection(_smallest(bench.value, left))


def halving_rungs(n_arms: int, factor: int) -> int:
    """Rungs until one arm is left; at least one."""
    rungs = 0
    while n_arms > 1:
        n_arms, rungs = math.ceil(n_arms / factor), rungs + 1
    return max(1, rungs)


def hyperband(arms: Sequence[Arm], *, budget: int, seed: int, factor: int = 3) -> Selection:
    """Hyperband (Li et al. 2018) on a given set of arms: every bracket halves a random subset.

    Brackets start their arms anew. The resource R of one arm is the largest for which all
    brackets together cost at most ``budget`` pulls.
    """
    _require_factor(factor)
    rng = np.random.default_rng(seed)
    bench = _Bench(arms=arms, budget=budget)
    most = max((r for r in range(1, budget + 1) if _cost(r, len(arms), factor) <= budget), default=1)
    best, best_value = None, math.inf
    for rungs in hyperband_brackets(most, len(arms), factor):
        bench.forget()
        left = [int(i) for i in rng.choice(len(arms), size=rungs[0][0], replace=False)]
        made = 0
        for n_arms, resource in rungs:
            left = sorted(left, key=lambda index: bench.value[index])[:n_arms]
            bench.pull_all(left, resource - made)
            made = resource
        winner = _smallest(bench.value, left)
        if winner is not None and bench.value[winner] < best_value:
            best, best_value = winner, float(bench.value[winner])
    return bench.selection(best)


def hyperband_brackets(most: int, n_arms: int, factor: int) -> list[list[tuple[int, int]]]:
    """Per bracket its rungs (arms kept, pulls of each of them since the bracket's start)."""
    deepest = math.floor(math.log(most) / math.log(factor) + 1e-9)
    brackets = []
    for depth in range(deepest, -1, -1):
        n = min(n_arms, math.ceil((deepest + 1) / (depth + 1) * factor**depth))
        rungs = [
            (max(1, n // factor**rung), max(1, round(most / factor ** (depth - rung)))) for rung in range(depth + 1)
        ]
        brackets.append(rungs)
    return brackets


def _cost(most: int, n_arms: int, factor: int) -> int:
    total = 0
    for rungs in hyperband_brackets(most, n_arms, factor):
        made = 0
        for kept, resource in rungs:
            total, made = total + kept * (resource - made), resource
    return total


def _require_factor(factor: int) -> None:
    if factor < 2:
        raise ConfigurationError(f"factor={factor!r} must be an integer >= 2")
