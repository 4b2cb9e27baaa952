"""Answers and histories of clients that answer one by one, or in groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from privbo.protocol.errors import RunError
from privbo.protocol.messages import ClientHistory, FloatArray


def shaped(answer: npt.ArrayLike, dim: int) -> FloatArray:
    """Give one client's answer; in a round of local work whatever it is.

    Raises:
        RunError: If it has another shape than was asked for.
    """
    found = np.asarray(answer, dtype=np.float64)
    if dim and found.shape != (1, dim):
        raise RunError(f"the answer has shape {found.shape}, asked was (1, {dim})")
    return found


def joined(histories: Sequence[ClientHistory | None]) -> ClientHistory:
    """Give histories of clients as one; NaN where one has fewer evaluations in a round; None is one client."""
    there = [history for history in histories if history is not None]
    if len(there) == len(histories) == 1:
        return there[0]
    n_dims = there[0].units.shape[2] if there else 0
    places = sorted({place for history in there for place in _places(history)})
    column = {place: index for index, place in enumerate(places)}
    n_clients = sum(1 if history is None else len(history.values) for history in histories)
    units = np.full((n_clients, len(places), n_dims), np.nan)
    values, recommended = np.full(units.shape[:2], np.nan), np.full((n_clients, n_dims), np.nan)
    first = 0
    for history in histories:
        rows = slice(first, first + (1 if history is None else len(history.values)))
        first = rows.stop
        if history is not None:
            mine = [column[place] for place in _places(history)]
            units[rows, mine], values[rows, mine] = history.units, history.values
            recommended[rows] = history.recommended
    rounds = np.array([round_ for round_, _ in places], dtype=np.int64)
    return ClientHistory(units=units, values=values, rounds=rounds, recommended=recommended)


def _places(history: ClientHistory) -> list[tuple[int, int]]:
    """Round of every evaluation, and its number in the round."""
    seen: Counter[int] = Counter()
    found = []
    for round_ in map(int, history.rounds):
        found.append((round_, seen[round_]))
        seen[round_] += 1
    return found
