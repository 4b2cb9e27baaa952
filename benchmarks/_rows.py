"""Rows of ``bench.json``, the clocks behind them, and how fast this machine is."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeVar

import numpy as np

T = TypeVar("T")

REPEATS = 3
TRANSCENDENTAL = 10.0  # flops that one cosine, sine or exponential counts for

Kind = Literal["peer", "bar", "recorded"]


@dataclass(frozen=True)
class Row:
    """One measurement of ours beside a peer's, in seconds unless the name says otherwise.

    Attributes:
        name: What was measured.
        ours: Seconds of ours.
        peer: Name of the peer, or of a bar.
        theirs: Seconds of the peer.
        more_is_better: Whether the numbers are shares, of which a larger one is better.
        kind: ``"peer"`` was measured in this run, ``"bar"`` is a limit somebody set, ``"recorded"`` was measured
            on another machine on another day, and is no comparison.
        least: Seconds that this machine needs for the same work at its measured peak, where the work is stated.
    """

    name: str
    ours: float
    peer: str
    theirs: float
    more_is_better: bool = False
    kind: Kind = "peer"
    least: float | None = None

    @property
    def ratio(self) -> float:
        """Peer over ours, or ours over the peer for shares: larger is better."""
        return self.ours / self.theirs if self.more_is_better else self.theirs / self.ours

    def to_dict(self) -> dict[str, str | float]:
        """Give the row as JSON."""
        found: dict[str, str | float] = {"name": self.name, "kind": self.kind, "ours_s": self.ours, "peer": self.peer}
        found |= {"peer_s": self.theirs, "ratio": self.ratio}
        return found if self.least is None else found | {"machine_s": self.least, "of_machine": self.least / self.ours}

    def __str__(self) -> str:
        said = f"{self.name}: {self.ours:.4g} s, {self.peer} {self.theirs:.4g} s, ratio {self.ratio:.3g}"
        return said if self.least is None else f"{said}; the machine's limit is {self.least:.3g} s"


def timed(work: Callable[[], T], *, clock: Callable[[], float] = time.process_time) -> tuple[float, T]:
    """Give the seconds of one call, and its result."""
    start = clock()
    result = work()
    return clock() - start, result


def smallest(
    work: Callable[[], object], times: int = REPEATS, *, clock: Callable[[], float] = time.process_time
) -> float:
    """Give the smallest time of several calls, in CPU seconds unless another clock is named."""
    return min(timed(work, clock=clock)[0] for _ in range(times))


def least(*, flops: float = 0.0, bytes_moved: float = 0.0) -> float:
    """Seconds of work at the machine's peak on one thread: arithmetic and memory overlap, so the longer of both."""
    return max(flops / peak_flops(), bytes_moved / peak_bytes())


@cache
def peak_flops() -> float:
    """Floating-point operations per second of a large product in double precision, on one thread."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    matrix = torch.rand(1500, 1500, dtype=torch.float64)
    seconds = smallest(lambda: matrix @ matrix, 5)
    torch.set_num_threads(threads)
    return 2.0 * 1500**3 / seconds


@cache
def peak_bytes() -> float:
    """Bytes per second of a copy far larger than any cache, read and written."""
    source = np.ones(1 << 25)
    target = np.empty_like(source)
    return 2.0 * source.nbytes / smallest(lambda: np.copyto(target, source), 5)


@cache
def flush_seconds() -> float:
    """Seconds until one page is on this machine's disk."""
    with tempfile.NamedTemporaryFile() as file:

        def flush() -> None:
            os.pwrite(file.fileno(), bytes(4096), 0)
            os.fsync(file.fileno())

        return smallest(flush, 50, clock=time.perf_counter)
