"""Limits on the threads of numerical libraries."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""What numerical libraries read when they are loaded."""


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Limit BLAS, OpenMP and torch to ``count`` threads.

    Clients' matrices are small: more than one thread waits more than it works, and on a
    busy machine it waits by spinning.
    """
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with threadpool_limits(count):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def limited_loaded_threads(count: int) -> Iterator[None]:
    """As ``limited_threads``, for a process that should not load torch only to limit it."""
    from threadpoolctl import threadpool_limits

    with limited_threads(count) if "torch" in sys.modules else threadpool_limits(count):
        yield
