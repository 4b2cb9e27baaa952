"""Private best-arm identification: a few arms, fresh rewards in every release, noise on their mean.

Two rules of the literature, both with central privacy for one reward, on arms that all clients pull:

- ``"top-two"`` after AdaP-TT* (Azize, Jourdan, Al Marjani, Basu) and its successor (Jourdan, Azize, arXiv:2510.17348):
  a leader and a challenger, episodes that double arm by arm, only the last episode's mean, and a stopping rule.
- ``"halving"`` after DP-BAI (Chen, Karthik, Chee, Tan, ICLR 2024, arXiv:2401.09073), of which successive halving is
  left for arms without a linear structure: phases of equal budget, only the phase's rewards, half of the arms go.

Only abstracts and introductions were at hand. The door's noise is Gaussian where theirs is Laplace, so transportation
costs and the threshold here are Gaussian ones with the noise's known variance added to that of bounded rewards.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from experiments.baselines.common import CommonSearch, Question, Scores, Search, Seen, net
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, IntArray, Setting
from privbo.protocol.settings import Count, settings


@settings(table="algorithm")
class BestArm(CommonSearch):
    """Private best-arm identification, on the arm that is best on average over clients.

    Arms are the points of a finite space, or of a net where there are more than ``n_arms``. Every reward enters one
    release, so ``privacy.unit = "reward"`` is what it is made for: a run then costs what one release costs. For whole
    clients every release is paid for.

    Attributes:
        rule: ``"top-two"`` stops when the best arm is sure; ``"halving"`` uses a fixed budget.
        n_arms: Most arms.
        horizon: Pulls of every client.
        evaluations: Most pulls of every client where that is less than ``horizon``.
        delta_b: Probability that ``"top-two"`` stops with a wrong arm (not of privacy).
        reward_range: Declared bounds of a reward; it is clipped to them.
        alone: Nothing is shared: every client halves on its own rewards.

    Raises:
        ConfigurationError: If a setting is impossible.

    Example:
        >>> import privbo as pb
        >>> space = {"model": pb.Categorical(("svm", "forest", "boosting", "ridge"))}
        >>> problem = pb.Problem(space=space, objective=lambda client, p: 0.5, n_clients=20)
        >>> privacy = pb.Privacy(epsilon=1.0, unit="reward")
        >>> pb.plan(problem, BestArm(rule="halving"), privacy=privacy, rounds=10).releases
        2
    """

    rule: Literal["top-two", "halving"] = "top-two"
    n_arms: Count = 16
    horizon: Count = 200
    delta_b: Annotated[float, Field(gt=0, lt=1)] = 0.05

    def search(self, setting: Setting) -> Search:
        """Give the search of a run.

        Raises:
            ConfigurationError: If the budget does not hold one pull of every arm.
        """
        arms, (low, high) = net(setting, self.n_arms), self.reward_range
        budget = self.horizon if self.evaluations is None else min(self.horizon, self.evaluations)
        if budget < len(arms):
            raise ConfigurationError(f"{budget} pulls do not hold one of each of {len(arms)} arms; lower n_arms")
        form = Scores(low=low, high=high)
        if self.rule == "halving" or self.alone:
            counts, pulls = halving_plan(len(arms), budget, setting.rounds)
            halving = Halving(arms=arms, pulls=pulls)
            return Search(counts=counts, form=form, propose=halving.propose, choose=halving.choose, pulls=pulls)
        rule = TopTwo(arms=arms, budget=budget, n_clients=setting.n_clients, width=high - low, delta_b=self.delta_b)
        counts = (len(arms), *[1] * (rule.episodes(setting.rounds) - 1))
        return Search(counts=counts, form=form, propose=rule.propose, choose=rule.choose)


# ---- rules by which the best arm is found, from released means only


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
