"""Any learner under record-level privacy: sample and aggregate (Nissim, Raskhodnikova and Smith 2007)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

import numpy as np

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import FloatArray, IntArray

TrainAndScore: TypeAlias = Callable[[int, Mapping[str, object], IntArray], float]
"""``train_and_score(client, params, rows)``: trains and scores a model on these records of the client alone."""


def in_blocks(
    train_and_score: TrainAndScore, *, n_records: Sequence[int], n_blocks: int
) -> Callable[[int, Mapping[str, object]], FloatArray]:
    """Give an objective that scores a learner on ``n_blocks`` disjoint blocks of every client's records.

    .. versionadded:: 0.3.0

    One record is in one block, so it moves one of ``n_blocks`` scores, whatever the learner does with it. State
    ``n_records=[n_blocks] * n_clients`` in the problem and ``protects="records"``: a score then stands for a block, and
    what hides one score hides each of its records. A block that fails gives NaN, which counts as the lower end. State
    ``delta`` yourself, far below one over the number of all records: its default counts blocks.

    A model of a block sees few records, and may prefer other settings than one of all records.

    Args:
        train_and_score: ``(client, params, rows) -> score``. It may read the records ``rows`` of the client alone, and
            trains and validates within them.
        n_records: Records of every client, ``(n_clients,)``, public.
        n_blocks: Blocks of every client, at least 1 and at most the fewest records of a client. Noise on the mean
            score falls with it, and so do the records of a block.

    Raises:
        ConfigurationError: If some block would hold no record.

    Example:
        >>> data = [np.arange(10.0), np.arange(8.0)]
        >>> scores = in_blocks(lambda client, params, rows: data[client][rows].mean(), n_records=[10, 8], n_blocks=2)
        >>> scores(1, {})
        array([3., 4.])
    """
    if not 1 <= n_blocks <= min(n_records, default=0):
        raise ConfigurationError(
            f"n_blocks={n_blocks!r} must lie between 1 and the fewest records of a client, "
            f"{min(n_records, default=0)}; every block needs a record"
        )
    return functools.partial(_scores, train_and_score, tuple(n_records), n_blocks)


def _scores(
    train_and_score: TrainAndScore,
    n_records: tuple[int, ...],
    n_blocks: int,
    client: int,
    params: Mapping[str, object],
) -> FloatArray:
    found = np.full(n_blocks, math.nan)
    for block in range(n_blocks):
        rows = np.arange(block, n_records[client], n_blocks)  # by place alone, so that no value moves another record
        with suppress(Exception):  # one record may break its own block, and must break nothing else
            found[block] = float(train_and_score(client, params, rows))
    return found
