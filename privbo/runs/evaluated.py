"""A journal of evaluations, one row each as soon as it was made: whoever is killed repeats those in flight. PRIVATE.

Rows are handed to the operating system one by one, so the death of a process loses none of them; a machine that loses
its power may lose the current round's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from privbo.protocol.files import require_no_link
from privbo.protocol.memory import Rows, row_type, whole_rows


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
            return self._where(
                lambda rows: (rows["round"] == round_) & (rows["client"] >= first) & (rows["client"] < last)
            )

    def _where(self, wanted: Callable[[Rows], npt.NDArray[np.bool_]]) -> Rows:
        """A copy of some rows: what is kept can't grow while an array looks at it."""
        rows = np.frombuffer(self._kept, dtype=row_type(self._n_dims))
        return np.asarray(rows[wanted(rows)])

    def round_is_kept(self, round_: int) -> None:
        """Forget evaluations up to a round: the clients' states hold them."""
        if self._ever:
            return
        with self._lock:
            self._kept = bytearray(self._where(lambda rows: rows["round"] > round_).tobytes())
            if self._file is not None and not self._kept:  # a run that is resumed asks earlier rounds again
                os.ftruncate(self._file, 0)

    def close(self) -> None:
        """Close the file; nothing can be added afterwards."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None
