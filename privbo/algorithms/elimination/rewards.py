"""Mean rewards of nodes, and the range they are declared to lie in (private).

An evaluation is a noisy reward. Real objectives are called once per pull; a simulation
may offer ``pull(clients, units, counts)`` and answer with the means of many pulls at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privbo.algorithms.elimination.sharing import RewardRange
from privbo.protocol.messages import Evaluate, FloatArray, IntArray, UnitName


@dataclass(frozen=True, kw_only=True)
class Pulled:
    """Rewards of a batch of pulls (private); all arrays ``(n,)``.

    Attributes:
        means: Mean reward of the pulls that worked; NaN where none did or none was asked for.
        worked: How many did.
    """

    means: FloatArray
    worked: IntArray


def pull_nodes(
    evaluate: Evaluate, allowed: RewardRange, clients: IntArray, units: FloatArray, counts: IntArray, unit: UnitName
) -> Pulled:
    """Pull ``units[i]`` as ``clients[i]``, ``counts[i]`` times.

    Where one reward is the unit of privacy every pull is an evaluation, also in an environment that
    answers many at once: what the mean of many hides, a failure or a reward that is not allowed, can't be bounded.
    """
    many = None if unit == "reward" else evaluate.pull
    if many is not None:
        means = _admitted(evaluate, allowed, clients, many(clients, units, counts))
        return Pulled(means=means, worked=np.where(np.isnan(means), 0, counts))
    totals, worked = np.zeros(len(clients)), np.zeros(len(clients), dtype=np.int64)
    for turn in range(int(counts.max(initial=0))):
        due = np.flatnonzero(counts > turn)
        rewards = _admitted(evaluate, allowed, clients[due], evaluate(clients[due], units[due]))
        good = np.isfinite(rewards)
        totals[due[good]] += rewards[good]
        worked[due[good]] += 1
    with np.errstate(invalid="ignore"):
        return Pulled(means=np.asarray(totals / worked), worked=worked)


def _admitted(evaluate: Evaluate, allowed: RewardRange, clients: IntArray, rewards: FloatArray) -> FloatArray:
    """Rewards as the range lets them in; clients whose reward it changed are told."""
    for client in np.unique(clients[allowed.excludes(rewards)]):
        evaluate.note(int(client), allowed.words)
    return allowed.admit(rewards)
