"""Clients' states on disk: what a round adds is appended, and the file is rewritten where that has doubled it. PRIVATE.

A state is named arrays. Of an array that has grown along its first or second axis only the new part is written, so a
round costs one row per client however long the run is. A record that a crash cut off is dropped.
"""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path
from typing import TypeAlias

import numpy as np

from accountant.events import Json
from privbo.protocol.files import Journal, array_bytes
from privbo.protocol.messages import Array, Arrays
from privbo.protocol.problem import Rows, row_type

Group: TypeAlias = tuple[int, int]
"""The first client of a group, and the first behind it."""
_HOW = ("whole", "rows", "columns")


def difference(old: Arrays | None, new: Arrays) -> dict[str, Array]:
    """Give what makes a new state of an old one; keys say how: ``whole/name``, ``rows/name``, ``columns/name``.

    Everything that did not change is left out; a name that is gone is a ``gone/name``.
    """
    before = {} if old is None else old
    made: dict[str, Array] = {f"gone/{name}": np.empty(0) for name in before.keys() - new.keys()}
    for name, array in new.items():
        if name not in before:
            made[f"whole/{name}"] = np.asarray(array)
        elif (found := _growth(before[name], np.asarray(array))) is not None:
            made[f"{found[0]}/{name}"] = found[1]
    return made


def applied(old: Arrays | None, change: Arrays) -> dict[str, Array]:
    """Give the new state of an old one and ``difference``."""
    made = {} if old is None else dict(old)
    for key, array in change.items():
        how, _, name = key.partition("/")
        if how == "gone":
            made.pop(name, None)
        elif how == "whole":
            made[name] = array
        else:
            made[name] = np.concatenate([made[name], array], axis=_HOW.index(how) - 1)
    return made


def _growth(old: Array, new: Array) -> tuple[str, Array] | None:
    """The part of an array that is new, and where it was appended; None where nothing changed."""
    if old.dtype != new.dtype or old.ndim != new.ndim:
        return "whole", new
    for axis in range(min(2, new.ndim)):
        length, others = old.shape[axis], (old.shape[:axis] + old.shape[axis + 1 :])
        if new.shape[:axis] + new.shape[axis + 1 :] != others or new.shape[axis] < length:
            continue
        start, rest = np.split(new, [length], axis=axis)
        if _same(old, start):
            return None if not rest.size else (_HOW[axis + 1], rest)
    return None if old.shape == new.shape and _same(old, new) else ("whole", new)


def _same(old: Array, new: Array) -> bool:
    """Whether arrays are the same to the last bit, NaN and the sign of zero included."""
    if old.dtype == np.float64:
        return np.array_equal(np.ascontiguousarray(old).view(np.int64), np.ascontiguousarray(new).view(np.int64))
    return bool(np.array_equal(old, new))


class States:
    """The state of some clients in a file: the changes of every round, each with its stamp.

    A stamp says where the ledger stood when clients answered: ``round``, and ``sequence`` and ``head`` of the last row
    of its chain that they were shown.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._journal = path, Journal(path, durable=True)

    @classmethod
    def of(cls, folder: Path, first: int) -> States:
        """The state of the group that begins with a client, in a run's private folder."""
        return cls(folder / f"clients-{first}.states")

    def load(self) -> dict[str, Array] | None:
        """Read the last state; None if the clients never answered.

        Raises:
            RunError: If the file is damaged before its end.
        """
        state: dict[str, Array] | None = None
        for record in self._journal.records():
            with np.load(io.BytesIO(record.partition(b"\n")[2]), allow_pickle=False) as archive:
                state = applied(state, {name: archive[name] for name in archive.files})
        return state

    def stamp(self) -> Json | None:
        """Read where the ledger stood when these clients last answered; None if they never did.

        Raises:
            RunError: If the file is damaged before its end.
        """
        headers = [record.partition(b"\n")[0] for record in self._journal.records()]
        return json.loads(headers[-1]) if headers else None

    def append(self, change: Arrays, stamp: Json) -> None:
        """Add what a round has changed, on the disk when this returns; rewrites a file that has doubled."""
        header = json.dumps(stamp).encode() + b"\n"
        if self.path.exists():
            self._journal.append(header + array_bytes(change))
            if self._journal.end <= 2 * self._journal.first:
                return
            change = difference(None, self.load() or {})
        self._journal.replace(header + array_bytes(change))


class EvaluationJournal:
    """Evaluations that no client's state holds yet.

    Args:
        path: The file; None keeps them in memory, for workers that are lost.
        n_dims: Of the search space.
        ever: Whether they are kept when a round is over, because no state is.
    """

    def __init__(self, path: Path | None, n_dims: int, *, ever: bool = False) -> None:
        self._lock = threading.Lock()
        self._n_dims, self._ever = n_dims, ever
        self._journal = None if path is None else Journal(path, durable=False)
        # Of rows: an object for each of a million evaluations costs more than they do.
        self._kept = bytearray(b"" if self._journal is None else b"".join(self._journal.records()))

    def add(self, rows: Rows) -> None:
        """Keep evaluations that were just made."""
        payload = rows.tobytes()
        with self._lock:
            self._kept += payload
            if self._journal is not None:
                self._journal.append(payload)

    def known(self, round_: int, first: int, last: int) -> Rows:
        """Give a round's evaluations of the clients from ``first`` to below ``last``."""
        with self._lock:
            rows = np.frombuffer(self._kept, dtype=row_type(self._n_dims))
            return np.asarray(rows[(rows["round"] == round_) & (rows["client"] >= first) & (rows["client"] < last)])

    def round_is_kept(self, round_: int) -> None:
        """Forget evaluations up to a round: the clients' states hold them."""
        if self._ever:
            return
        with self._lock:
            rows = np.frombuffer(self._kept, dtype=row_type(self._n_dims))
            self._kept = bytearray(rows[rows["round"] > round_].tobytes())
            if self._journal is not None and not self._kept:  # a run that is resumed asks earlier rounds again
                self._journal.replace(None)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._journal is not None:
                self._journal.close()
