"""Rules by which the best of a few arms is found; public, from released means only.

Every release speaks of rewards that no earlier one has used, so an arm's estimate is that of its last release.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from privbo.algorithms.common.search import Question, Seen
from privbo.protocol.messages import FloatArray, IntArray


def halving_plan(n_arms: int, budget: int, rounds: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Give arms and pulls of every phase: half as many arms in each, about an equal part of the budget.

    Phases that no longer fit are left out; the first one always pulls every arm.

    Example:
        >>> halving_plan(8, 48, 10)
        ((8, 4, 2), (2, 4, 8))
        >>> halving_plan(16, 22, 10)
        ((16,), (1,))
    """
    phases = min(rounds, max(1, math.ceil(math.log2(n_arms))))
    counts, pulls, left = list[int](), list[int](), budget
    for phase in range(phases):
        count = math.ceil(n_arms / 2**phase)
        each = max(1, min(left, budget // phases) // count)
        if count * each > left:
            break
        counts.append(count)
        pulls.append(each)
        left -= count * each
    return tuple(counts), tuple(pulls)


@dataclass(frozen=True, kw_only=True)
class Halving:
    """Successive halving with fresh rewards in every phase.

    Attributes:
        arms: Points, ``(K, n_dims)``.
        pulls: Of every phase.
    """

    arms: FloatArray
    pulls: tuple[int, ...]

    def propose(self, seen: Seen, count: int) -> Question:
        """Name the best arms of the last phase, in their order."""
        if not len(seen.points):
            return Question(points=self.arms, pulls=self.pulls[0])
        last = np.flatnonzero(seen.turns == seen.turns[-1])
        best = np.sort(last[np.argsort(-seen.means[last], kind="stable")[:count]])
        return Question(points=seen.points[best], pulls=self.pulls[int(seen.turns[-1]) + 1])

    def choose(self, seen: Seen) -> int:
        """Choose the best arm of the last phase."""
        last = np.flatnonzero(seen.turns == seen.turns[-1])
        return int(last[seen.means[last].argmax()])


@dataclass(frozen=True, kw_only=True)
class TopTwo:
    """Leader and challenger in turn, each in episodes that double; it stops when the leader is surely best.

    Attributes:
        arms: Points, ``(K, n_dims)``.
        budget: Pulls of one client over the run.
        n_clients: Number of clients, whose rewards are averaged.
        width: Of the rewards' range.
        delta_b: Probability that the wrong arm is announced when it stops before the budget does.
    """

    arms: FloatArray
    budget: int
    n_clients: int
    width: float
    delta_b: float

    def episodes(self, rounds: int) -> int:
        """Give the most releases there can be: all arms once, then the cheapest episodes first."""
        left, count = self.budget - len(self.arms), 1
        for level in itertools.count(1):
            fitting = min(len(self.arms), left // 2**level)
            count, left = count + fitting, left - fitting * 2**level
            if fitting < len(self.arms):
                return int(min(rounds, count))
        raise AssertionError("levels never end")

    def propose(self, seen: Seen, count: int) -> Question | None:  # noqa: ARG002 (one arm, but at the start)
        """Name all arms, then the leader or its challenger; None when it is decided or no episode fits."""
        if not len(seen.points):
            return Question(points=self.arms)
        last = self._last(seen)
        means, variances, turns = seen.means[last], self._variances(seen, last), self._turns(seen)
        leader, challenger, cost = self._pair(means, variances)
        if challenger is None or cost >= self._threshold(turns[leader], turns[challenger]):
            return None
        # Episodes are 1, 2, 4, ... pulls, so e of them are 2^e - 1: the one with fewer comes next, the leader first.
        arm = leader if turns[leader] <= turns[challenger] else challenger
        pulls = int(2 * seen.pulls[last[arm]])
        spent = int((seen.pulls).sum())
        return Question(points=self.arms[[arm]], pulls=pulls) if spent + pulls <= self.budget else None

    def choose(self, seen: Seen) -> int:
        """Choose the leader."""
        last = self._last(seen)
        return int(last[seen.means[last].argmax()])

    def _pair(self, means: FloatArray, variances: FloatArray) -> tuple[int, int | None, float]:
        """The leader, its challenger, and how sure it is that they are not the other way round."""
        leader = int(means.argmax())
        if len(means) == 1:
            return leader, None, math.inf
        cost = (means[leader] - means) ** 2 / (2.0 * (variances[leader] + variances))
        cost[leader] = np.inf
        challenger = int(cost.argmin())
        return leader, challenger, float(cost[challenger])

    def _threshold(self, leading: int, challenging: int) -> float:
        """Bound for all pairs and episodes together: Gaussian tails, weights 1 / (e (e + 1)) of the e-th episode."""
        weights = leading * (leading + 1) * challenging * (challenging + 1)
        return math.log((len(self.arms) - 1) * weights / self.delta_b)

    def _variances(self, seen: Seen, last: IntArray) -> FloatArray:
        """Of estimates: a bounded reward's at most, over all clients' pulls, and the release's noise."""
        return np.asarray((0.5 * self.width) ** 2 / (self.n_clients * seen.pulls[last]) + seen.stddev[last] ** 2)

    def _last(self, seen: Seen) -> IntArray:
        """Place of every arm's last release, ``(K,)``."""
        return np.array([np.flatnonzero((seen.points == arm).all(axis=1))[-1] for arm in self.arms])

    def _turns(self, seen: Seen) -> list[int]:
        """Number of every arm's releases."""
        return [int((seen.points == arm).all(axis=1).sum()) for arm in self.arms]
