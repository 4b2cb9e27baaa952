"""A journal of evaluations, one row each as soon as it was made: whoever is killed repeats those in flight. PRIVATE.

Rows are handed to the operating system one by one, so the death of a process loses none of them; a machine that loses
its power may lose the current round's.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np

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
        self._rows: list[Rows] = []
        self._file: int | None = None
        if path is not None:
            require_no_link(path)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
            self._file = os.open(path, flags, 0o600)
            payload = path.read_bytes()
            os.ftruncate(self._file, len(payload) // row_type(n_dims).itemsize * row_type(n_dims).itemsize)
            self._rows.append(whole_rows(payload, n_dims))

    def add(self, rows: Rows) -> None:
        """Keep evaluations that were just made."""
        with self._lock:
            self._rows.append(rows)
            if self._file is not None:
                os.write(self._file, rows.tobytes())

    def known(self, round_: int, first: int, last: int) -> Rows:
        """Give a round's evaluations of the clients from ``first`` to below ``last``."""
        with self._lock:
            self._rows = [np.concatenate([np.empty(0, dtype=row_type(self._n_dims)), *self._rows])]
            rows = self._rows[0]
        return np.asarray(rows[(rows["round"] == round_) & (rows["client"] >= first) & (rows["client"] < last)])

    def round_is_kept(self, round_: int) -> None:
        """Forget evaluations up to a round: the clients' states hold them."""
        if self._ever:
            return
        with self._lock:
            self._rows = [later for rows in self._rows if len(later := rows[rows["round"] > round_])]
            if self._file is not None and not self._rows:  # a run that is resumed asks earlier rounds again
                os.ftruncate(self._file, 0)

    def close(self) -> None:
        """Close the file; nothing can be added afterwards."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None
