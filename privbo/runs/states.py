"""Clients' states on disk: what a round adds is appended, and the file is rewritten where that has doubled it. PRIVATE.

A state is named arrays. Of an array that has grown along its first or second axis only the new part is written, so a
round costs one row per client however long the run is. A frame that a crash cut off is dropped.
"""

from __future__ import annotations

import io
import json
import os
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from privbo.protocol.errors import RunError
from privbo.protocol.files import append_bytes, array_bytes, require_no_link, write_atomically
from privbo.protocol.memory import Rows, row_type, whole_rows

Group: TypeAlias = tuple[int, int]
"""The first client of a group, and the first behind it."""
Snapshot: TypeAlias = Mapping[str, npt.NDArray[np.generic]]
_MAGIC = b"privbo state 1\n\x00"
_HEADER = struct.Struct("<QQI")
_START = len(_MAGIC) + _HEADER.size
_HOW = ("whole", "rows", "columns")


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """Place where the ledger stood when clients answered.

    Attributes:
        round: The round they answered.
        sequence: Position of the last row of the ledger's chain that they were shown.
        head: Its digest.
    """

    round: int
    sequence: int
    head: str


def difference(old: Snapshot | None, new: Snapshot) -> dict[str, npt.NDArray[np.generic]]:
    """Give what makes a new state of an old one; keys say how: ``whole/name``, ``rows/name``, ``columns/name``.

    Everything that did not change is left out; a name that is gone is a ``gone/name``.
    """
    before = {} if old is None else old
    made: dict[str, npt.NDArray[np.generic]] = {f"gone/{name}": np.empty(0) for name in before.keys() - new.keys()}
    for name, array in new.items():
        if name not in before:
            made[f"whole/{name}"] = np.asarray(array)
        elif (found := _growth(before[name], np.asarray(array))) is not None:
            made[f"{found[0]}/{name}"] = found[1]
    return made


def applied(old: Snapshot | None, change: Snapshot) -> dict[str, npt.NDArray[np.generic]]:
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


def _growth(old: npt.NDArray[np.generic], new: npt.NDArray[np.generic]) -> tuple[str, npt.NDArray[np.generic]] | None:
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


def _same(old: npt.NDArray[np.generic], new: npt.NDArray[np.generic]) -> bool:
    """Whether arrays are the same to the last bit, NaN and the sign of zero included."""
    if old.dtype == np.float64:
        return np.array_equal(np.ascontiguousarray(old).view(np.int64), np.ascontiguousarray(new).view(np.int64))
    return bool(np.array_equal(old, new))


@dataclass(kw_only=True)
class States:
    """The state of some clients in a file.

    Attributes:
        path: The file.
    """

    path: Path
    _whole: int = 0
    _end: int = 0

    @classmethod
    def of(cls, folder: Path, first: int) -> States:
        """The state of the group that begins with a client, in a run's private folder."""
        return cls(path=folder / f"clients-{first}.states")

    def load(self) -> dict[str, npt.NDArray[np.generic]] | None:
        """Read the last state; None if the clients never answered.

        Raises:
            RunError: If the file is damaged before its end.
        """
        state: dict[str, npt.NDArray[np.generic]] | None = None
        for _, body, _ in self._frames():
            with np.load(io.BytesIO(body), allow_pickle=False) as archive:
                state = applied(state, {name: archive[name] for name in archive.files})
        return state

    def stamp(self) -> Stamp | None:
        """Read where the ledger stood when these clients last answered; None if they never did.

        Raises:
            RunError: If the file is damaged before its end.
        """
        headers = [header for header, *_ in self._frames()]
        return Stamp(**headers[-1]) if headers else None

    def append(self, change: Snapshot, stamp: Stamp) -> None:
        """Add what a round has changed, on the disk when this returns; rewrites a file that has doubled."""
        frame = _frame(change, stamp)
        if self.path.exists():
            if not self._end:
                ends = [end for *_, end in self._frames()] or [0]
                self._whole, self._end = ends[0], ends[-1]
            append_bytes(self.path, frame, self._end)
            self._end += len(frame)
            if self._end <= 2 * self._whole:
                return
            frame = _frame(difference(None, self.load() or {}), stamp)
        write_atomically(self.path, frame)
        self._whole = self._end = len(frame)

    def _frames(self) -> Iterator[tuple[Mapping[str, Any], bytes, int]]:
        """Headers and bodies of the frames that are whole, each with its end in the file."""
        if not self.path.exists():
            return
        end = 0
        with self.path.open("rb") as file:
            while (start := file.read(_START)).startswith(_MAGIC) and len(start) == _START:
                n_header, n_body, check = _HEADER.unpack_from(start, len(_MAGIC))
                header, body = file.read(n_header), file.read(n_body)
                if not header or len(header) + len(body) != n_header + n_body or zlib.crc32(header + body) != check:
                    break  # a crash has cut it off, or it is damaged
                end = file.tell()
                yield json.loads(header), body, end
            file.seek(end)
            if _MAGIC in file.read()[1:]:
                raise RunError(f"{self.path} is damaged in the middle; restore it from a copy")


def _frame(change: Snapshot, stamp: Stamp) -> bytes:
    header, body = json.dumps(vars(stamp)).encode(), array_bytes(change)
    return _MAGIC + _HEADER.pack(len(header), len(body), zlib.crc32(header + body)) + header + body


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
        self._kept = bytearray()  # of rows: an object for each of a million evaluations costs more than they do
        self._file: int | None = None
        if path is not None:
            require_no_link(path)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
            self._file = os.open(path, flags, 0o600)
            payload = path.read_bytes()
            os.ftruncate(self._file, len(payload) // row_type(n_dims).itemsize * row_type(n_dims).itemsize)
            self._kept += whole_rows(payload, n_dims).tobytes()

    def add(self, rows: Rows) -> None:
        """Keep evaluations that were just made."""
        payload = rows.tobytes()
        with self._lock:
            self._kept += payload
            left = memoryview(payload)
            while self._file is not None and left:
                left = left[os.write(self._file, left) :]  # a full disk takes a part, and raises at the next one

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
            if self._file is not None and not self._kept:  # a run that is resumed asks earlier rounds again
                os.ftruncate(self._file, 0)

    def close(self) -> None:
        """Close the file; nothing can be added afterwards."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None
