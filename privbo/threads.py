"""How many threads the batched work may use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


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
