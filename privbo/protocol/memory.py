"""Evaluations of a round that were made already, so that none is made twice. PRIVATE.

What a client evaluates is a function of its history and of public numbers, so a round that is played again asks for the
same points in the same order: an evaluation is known by its client, its round and its place in it, if the point agrees.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from privbo.protocol.messages import FloatArray, IntArray

Rows = npt.NDArray[np.void]
_KEY = ("client", "round", "place", "count")


def row_type(n_dims: int) -> np.dtype[np.void]:
    """Layout of one evaluation in a file or on the wire, of 64-bit words; ``count`` is 0 but for a mean."""
    numbers = [(name, "<i8") for name in _KEY]
    return np.dtype([*numbers, ("value", "<f8"), ("unit", "<f8", (n_dims,))])


class Memory:
    """Remembers the evaluations of some clients, whose numbers follow each other.

    Args:
        clients: Their numbers.
        n_dims: Of the search space.
        keep: Told of every evaluation as soon as it was made; what it keeps is never made again.
    """

    def __init__(self, clients: IntArray, n_dims: int, keep: Callable[[Rows], None]) -> None:
        self._first, self._n_dims, self._keep = int(clients.min(initial=0)), n_dims, keep
        self._places = np.zeros(int(clients.max(initial=-1)) + 1 - self._first, dtype=np.int64)
        self.begin(0, np.empty(0, dtype=row_type(n_dims)))

    def begin(self, round_: int, known: Rows) -> None:
        """Begin a round, maybe again, with those of its evaluations that are known."""
        self._places[:] = 0
        self._round = round_
        known = known[known["round"] == round_]
        order = np.argsort(_names(known["client"], known["place"]), kind="stable")
        self._known = known[order]
        self._named = _names(self._known["client"], self._known["place"])

    def recall(self, clients: IntArray, units: FloatArray, counts: IntArray | None) -> tuple[FloatArray, IntArray]:
        """Give the values that are known of what is to be evaluated, NaN elsewhere, and the places of those.

        Args:
            clients: ``(n,)``.
            units: ``(n, n_dims)``.
            counts: Rewards that are averaged, ``(n,)``; None where one value is asked for.
        """
        index = np.asarray(clients) - self._first
        order = np.argsort(index, kind="stable")
        ordered, rank = index[order], np.empty(len(index), dtype=np.int64)
        rank[order] = np.arange(len(index)) - np.searchsorted(ordered, ordered)
        places = self._places[index] + rank  # of each evaluation among its client's in this round
        np.add.at(self._places, index, 1)
        self._rows = rows = np.zeros(len(clients), dtype=row_type(self._n_dims))
        rows["client"], rows["round"], rows["place"] = clients, self._round, places
        rows["count"], rows["unit"] = 0 if counts is None else counts, units
        self._values = rows["value"]  # a view, as one evaluation after the other is kept
        self._values[:] = np.nan
        if not len(self._known):
            return self._values.copy(), np.arange(len(rows))
        last = np.searchsorted(self._named, _names(clients, places), side="right") - 1
        there = self._known[np.maximum(last, 0)]
        same = [there[name] == rows[name] for name in _KEY]
        same.append((there["unit"].view("<i8") == rows["unit"].view("<i8")).reshape(len(rows), -1).all(axis=1))
        found = np.logical_and.reduce(same)
        return np.where(found, there["value"], np.nan), np.flatnonzero(~found)

    def is_first(self, rows: IntArray) -> npt.NDArray[np.bool_]:
        """Tell which of the rows that were recalled are their client's first of the round."""
        return np.asarray(self._rows["place"][rows] == 0)

    def keep(self, made: int | IntArray, values: FloatArray | float) -> None:
        """Keep the values of what was recalled at a place or at several, each once."""
        self._values[made] = values
        self._keep(self._rows[made : made + 1] if isinstance(made, int) else self._rows[made])


def _names(clients: IntArray, places: IntArray) -> IntArray:
    """One number per client and place."""
    return np.asarray((clients << 28) | places)
