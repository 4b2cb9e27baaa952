"""Pulls of a cohort so far, one row per client, node and turn (private)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from privbo.algorithms.elimination.confidence import Confidence
from privbo.algorithms.elimination.partition import Partition
from privbo.algorithms.elimination.recommend import judge, recommend
from privbo.protocol.messages import ClientHistory, FloatArray, IntArray
from privbo.protocol.space import Space


@dataclass(frozen=True, kw_only=True)
class PullTable:
    """Rows in the order they were made; all arrays ``(r,)``.

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

    def add(self, *, depth: int, round_: int, **turn: IntArray | FloatArray) -> PullTable:
        """With the rows of one turn; every other column is named and given whole."""
        n = len(turn["owners"])
        turn |= {"depths": np.full(n, depth), "rounds": np.full(n, round_)}
        return PullTable(**{name: np.append(array, turn[name]) for name, array in vars(self).items()})

    def of_round(self, round_: int) -> PullTable:
        """The rows of one round."""
        here = self.rounds == round_
        return PullTable(**{name: array[here] for name, array in vars(self).items()})

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Named arrays for a snapshot."""
        return {f"table_{name}": array for name, array in vars(self).items()}

    @staticmethod
    def of(arrays: Mapping[str, npt.NDArray[np.generic]]) -> PullTable:
        """The table of a snapshot."""
        return PullTable(**{name: np.array(arrays[f"table_{name}"]) for name in PullTable.__dataclass_fields__})

    def history(self, *, n_clients: int, space: Space, partition: Partition, confidence: Confidence) -> ClientHistory:
        """The table as the protocol's history: per round as many columns as its busiest client needs.

        Args:
            n_clients: Clients of the cohort.
            space: The search space.
            partition: The partition.
            confidence: Of a client's own means, by which it recommends one of its points.
        """
        columns, rounds = self._columns(n_clients)
        values = np.full((n_clients, len(rounds)), np.nan)
        units = np.full((n_clients, len(rounds), space.n_dims), 0.5)
        points = partition.points(space, self.depths, self.nodes)
        values[self.owners, columns] = self.means
        units[self.owners, columns] = points
        root = partition.points(space, np.zeros(n_clients, dtype=np.int64), np.zeros(n_clients, dtype=np.int64))
        turns = np.arange(len(points))
        recommended = recommend(self.owners, turns, self.worked, self.means, confidence.radius, points, root)
        return ClientHistory(units=units, values=values, rounds=rounds, recommended=recommended)

    def judge(self, units: FloatArray, *, n_clients: int, space: Space, partition: Partition) -> FloatArray:
        """Mean rewards of the clients' own pulls nearest to shared points, ``(n, k)``; NaN where none worked."""
        points = partition.points(space, self.depths, self.nodes)
        return judge(self.owners, points, self.worked, self.means, units, n_clients)

    def _columns(self, n_clients: int) -> tuple[IntArray, IntArray]:
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


@dataclass(frozen=True, kw_only=True)
class OwnPhase:
    """Results of a cohort's clients in one shared phase (private).

    Attributes:
        nodes: ``(K,)``.
        pulls: Of every node by every client.
        means: Of the pulls that worked, ``(n, K)``; NaN where none did.
        worked: How many did, ``(n, K)``.
    """

    nodes: IntArray
    pulls: int
    means: FloatArray
    worked: IntArray

    @staticmethod
    def of(rows: PullTable, n_clients: int) -> OwnPhase:
        """The phase whose rows these are, all clients in order, each with all nodes in order."""
        k = len(rows.nodes) // n_clients
        return OwnPhase(
            nodes=rows.nodes[:k],
            pulls=int(rows.pulls[0]),
            means=rows.means.reshape(-1, k),
            worked=rows.worked.reshape(-1, k),
        )
