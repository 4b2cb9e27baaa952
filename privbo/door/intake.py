"""What clients may send: anything; what counts: one well-formed vector per client.

Whatever is missing or malformed becomes a row of NaN, which contributes nothing. A
client's answer decides its own row and no other; nothing is resampled, rejected aloud or
published about who sent what.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from privbo.protocol.messages import FloatArray

_ACCEPTED = (np.dtype(np.float64), np.dtype(np.float32))


def vet_vector(vector: Any, dim: int) -> FloatArray | None:  # noqa: ANN401 (anything may arrive)
    """The vector as float64 ``(dim,)``, or None if it is not a native real array of that shape.

    Integers, booleans, complex and half-precision numbers, objects and foreign byte orders
    are refused rather than converted: an honest client sends none of them.
    """
    if type(vector) is not np.ndarray or vector.dtype not in _ACCEPTED or vector.shape != (dim,):
        return None
    with np.errstate(invalid="ignore"):
        return vector.astype(np.float64)


def vet_rows(answers: Any, *, n_clients: int, dim: int) -> FloatArray:  # noqa: ANN401 (anything may arrive)
    """One row per registered client, ``(n_clients, dim)``; NaN where there is no usable vector.

    A well-formed matrix is taken whole. A list or an array of objects with one entry per
    client is vetted entry by entry. Anything else is an absence of everyone.
    """
    if type(answers) is np.ndarray and answers.dtype in _ACCEPTED and answers.shape == (n_clients, dim):
        with np.errstate(invalid="ignore"):
            return answers.astype(np.float64)
    rows = np.full((n_clients, dim), np.nan)
    by_entry = isinstance(answers, (list, tuple)) or (
        type(answers) is np.ndarray and answers.dtype.hasobject and answers.ndim == 1
    )
    if by_entry and len(answers) == n_clients:
        for client, answer in enumerate(answers):
            vector = vet_vector(answer, dim)
            if vector is not None:
                rows[client] = vector
    return rows
