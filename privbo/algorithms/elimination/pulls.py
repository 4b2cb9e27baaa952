"""Rewards of a cohort's pulls, one row per client, node and turn, and the point that each client would use (private).

An evaluation is a noisy reward. Real objectives are called once per pull; a simulation
may offer ``pull(clients, units, counts)`` and answer with the means of many pulls at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from privbo.algorithms.elimination.settings import TreeSettings
from privbo.protocol.messages import Array, Arrays, ClientHistory, Evaluate, FloatArray, IntArray, Setting


def judge(
    owners: IntArray, points: FloatArray, worked: IntArray, means: FloatArray, units: FloatArray, n: int
) -> FloatArray:
    """Give every client's mean reward at the point nearest to each of some points that it has pulled, ``(n, k)``.

    Args:
        owners: Row of the client of each turn, ``(r,)``.
        points: Its point, ``(r, d)``.
        worked: Pulls of the turn that did not fail, ``(r,)``.
        means: Mean reward of those; NaN where none worked.
        units: The points, ``(k, d)``.
        n: Number of clients.
    """
    judged = np.full((n, len(units)), np.nan)
    for client in range(n):
        mine = np.flatnonzero((owners == client) & (worked > 0))
        if not len(mine):
            continue
        apart = ((units[:, None] - points[mine]) ** 2).sum(axis=2)
        near = (apart <= apart.min(axis=1, keepdims=True)) * worked[mine]
        judged[client] = near @ means[mine] / near.sum(axis=1)
    return judged


def recommend(
    owners: IntArray,
    places: IntArray,
    worked: IntArray,
    means: FloatArray,
    radius: Callable[[FloatArray], FloatArray],
    points: FloatArray,
    otherwise: FloatArray,
) -> FloatArray:
    """Give every client the point with the largest lower confidence bound of its own pulls, ``(n, d)``.

    Pulls of one point are pooled whatever node they were made for. Of equal bounds that of the
    point pulled last counts, which is where the others' averages sent the client.

    Args:
        owners: Row of the client of each turn, ``(r,)``.
        places: Row of its point in ``points``, ``(r,)``.
        worked: Pulls of the turn that did not fail, ``(r,)``.
        means: Mean reward of those; NaN where none worked.
        radius: Half-width of a confidence interval after so many pulls.
        points: Points, of which some may be the same, ``(p, d)``.
        otherwise: Points of clients none of whose pulls worked, ``(n, d)``.
    """
    chosen = otherwise.copy()
    rows = np.flatnonzero(worked > 0)
    if not len(rows):
        return chosen
    points, same = np.unique(points, axis=0, return_inverse=True)
    owners, places, worked = owners[rows], same.reshape(-1)[places[rows]], worked[rows]
    numbers, size = owners * len(points) + places, len(chosen) * len(points)
    if size > 4 * len(numbers):
        pairs, turn = np.unique(numbers, return_inverse=True)
    else:  # most numbers below the size occur: the same without a sort
        there = np.zeros(size, dtype=bool)
        there[numbers] = True
        pairs, turn = np.flatnonzero(there), (np.cumsum(there) - 1)[numbers]
    counts = np.bincount(turn, weights=worked).astype(np.float64)
    totals = np.bincount(turn, weights=worked * means[rows]).astype(np.float64)
    lower = totals / counts - radius(counts)
    last = np.zeros(len(pairs), dtype=np.int64)
    last[turn] = np.arange(len(rows))  # of several turns the last one stays
    clients = pairs // len(points)
    starts = np.flatnonzero(np.append(True, np.diff(clients) > 0))
    top = np.repeat(np.maximum.reduceat(lower, starts), np.diff(np.append(starts, len(pairs))))
    best = np.maximum.reduceat(np.where(lower == top, last, -1), starts)
    chosen[clients[starts]] = points[places[best]]
    return chosen


@dataclass(frozen=True, kw_only=True)
class PullTable:
    """Rows in the order they were made; all arrays ``(r,)``, or ``(n, K)`` of a shared phase.

    Attributes:
        owners: Row of the client inside its cohort.
        depths, nodes: The node.
        pulls: Number of pulls.
        worked: How many of them did not fail.
        means: Mean reward of those, NaN where all failed.
        rounds: Round of the run.
    """

    owners: IntArray
    depths: IntArray
    nodes: IntArray
    pulls: IntArray
    worked: IntArray
    means: FloatArray
    rounds: IntArray

    @staticmethod
    def empty() -> PullTable:
        """No pulls."""
        none = np.zeros(0, dtype=np.int64)
        return PullTable(owners=none, depths=none, nodes=none, pulls=none, worked=none, means=np.zeros(0), rounds=none)

    def add(self, *, depth: int | IntArray, round_: int, **turn: IntArray | FloatArray) -> PullTable:
        """With the rows of one turn; every other column is named and given whole."""
        n = len(turn["owners"])
        turn |= {"depths": np.full(n, depth), "rounds": np.full(n, round_)}
        return PullTable(**{name: np.append(array, turn[name]) for name, array in vars(self).items()})

    def of_round(self, round_: int) -> PullTable:
        """The rows of one round."""
        here = self.rounds == round_
        return PullTable(**{name: array[here] for name, array in vars(self).items()})

    def of_phase(self, round_: int, n_clients: int) -> PullTable:
        """The rows of a round in which all clients, in order, pulled all K nodes in order, ``(n, K)``."""
        rows = self.of_round(round_)
        return PullTable(**{name: array.reshape(n_clients, -1) for name, array in vars(rows).items()})

    def arrays(self) -> dict[str, Array]:
        """Named arrays for a snapshot."""
        return {f"table_{name}": array for name, array in vars(self).items()}

    @staticmethod
    def of(arrays: Arrays) -> PullTable:
        """The table of a snapshot."""
        return PullTable(**{name: np.array(arrays[f"table_{name}"]) for name in PullTable.__dataclass_fields__})

    def columns(self, n_clients: int) -> tuple[IntArray, IntArray]:
        """Column of every row, and the round of every column."""
        columns = np.zeros(len(self.owners), dtype=np.int64)
        rounds: list[IntArray] = []
        start = 0
        for round_ in np.unique(self.rounds):
            here = np.flatnonzero(self.rounds == round_)
            order = here[np.argsort(self.owners[here], kind="stable")]
            owners = self.owners[order]
            turn = np.arange(len(order)) - np.searchsorted(owners, owners)
            columns[order] = start + turn
            width = int(np.bincount(owners, minlength=n_clients).max())
            rounds.append(np.full(width, round_, dtype=np.int64))
            start += width
        return columns, np.concatenate(rounds) if rounds else np.zeros(0, dtype=np.int64)


class TreeCohort:
    """Clients over one tree: their numbers, how they pull and what they answer (private).

    Args:
        algorithm: The tree, and how mean rewards leave a client.
        setting: Public facts of the run.
        clients: Global numbers, ``(n,)``.
        evaluate: The clients' objectives.

    Attributes:
        clients: Global numbers of the clients.
    """

    def __init__(self, algorithm: TreeSettings, setting: Setting, *, clients: IntArray, evaluate: Evaluate) -> None:
        self._space, self._unit, self._evaluate = setting.space, setting.unit, evaluate
        self._partition, self._sharing = algorithm.partition(setting), algorithm.sharing
        self._confidence = algorithm.confidence(setting.n_clients)
        self.clients = np.asarray(clients, dtype=np.int64)

    def _pull_points(self, clients: IntArray, units: FloatArray, counts: IntArray) -> tuple[FloatArray, IntArray]:
        """Pull ``units[i]`` as ``clients[i]``, ``counts[i]`` times.

        Where one reward is the unit of privacy every pull is an evaluation, also in an environment that
        answers many at once: what the mean of many hides, a failure or a reward that is not allowed, can't be bounded.

        Returns:
            Mean rewards of the pulls that worked, NaN where none did or none was asked for, and how many did; ``(n,)``.
        """
        many = None if self._unit == "reward" else self._evaluate.pull
        if many is not None:
            means = self._admitted(clients, many(clients, units, counts))
            return means, np.where(np.isnan(means), 0, counts)
        totals, worked = np.zeros(len(clients)), np.zeros(len(clients), dtype=np.int64)
        for turn in range(int(counts.max(initial=0))):
            due = np.flatnonzero(counts > turn)
            rewards = self._admitted(clients[due], self._evaluate(clients[due], units[due]))
            good = np.isfinite(rewards)
            totals[due[good]] += rewards[good]
            worked[due[good]] += 1
        with np.errstate(invalid="ignore"):
            return np.asarray(totals / worked), worked

    def _admitted(self, clients: IntArray, rewards: FloatArray) -> FloatArray:
        """Rewards as the range lets them in; clients whose reward it changed are told."""
        for client in np.unique(clients[self._sharing.excludes(rewards)]):
            self._evaluate.note(int(client), self._sharing.words)
        return self._sharing.admit(rewards)

    def _answer(self, means: FloatArray, worked: FloatArray) -> FloatArray:
        """Vectors of mean rewards ``(n, K)``, ``worked`` being the share of the pulls that did."""
        return self._sharing.vector(means, worked, self._unit)

    def _judged(self, table: PullTable, units: FloatArray) -> FloatArray:
        """Mean rewards of the clients' own pulls nearest to shared points, ``(n, k)``; NaN where none worked."""
        points = self._partition.points(self._space, table.depths, table.nodes)
        return judge(table.owners, points, table.worked, table.means, units, len(self.clients))

    def _history(self, table: PullTable) -> ClientHistory:
        """The table as the protocol's history: per round as many columns as its busiest client needs."""
        n = len(self.clients)
        columns, rounds = table.columns(n)
        values = np.full((n, len(rounds)), np.nan)
        units = np.full((n, len(rounds), self._space.n_dims), 0.5)
        points = self._partition.points(self._space, table.depths, table.nodes)
        calls = np.zeros(values.shape, dtype=np.int64)
        values[table.owners, columns], calls[table.owners, columns] = table.means, table.pulls
        units[table.owners, columns] = points
        root, turns = np.zeros(n, dtype=np.int64), np.arange(len(points))
        otherwise = self._partition.points(self._space, root, root)
        radius = self._confidence.radius
        recommended = recommend(table.owners, turns, table.worked, table.means, radius, points, otherwise)
        return ClientHistory(units=units, values=values, rounds=rounds, recommended=recommended, calls=calls)
