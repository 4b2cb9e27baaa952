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
_SLACK = 1.1  # the machine's peak is measured, too
TRANSCENDENTAL = 10.0  # flops that one cosine, sine or exponential counts for

Kind = Literal["peer", "bar", "recorded"]
Unit = Literal["s", "GB", "bytes", "share", "runs"]


@dataclass(frozen=True)
class Limit:
    """Seconds below which no program does some work on this machine.

    Attributes:
        seconds: The bound.
        by: What is at its peak then: arithmetic, memory, the disk, calls of Python functions, the objective.
    """

    seconds: float
    by: str


@dataclass(frozen=True, kw_only=True)
class Place:
    """Place of a row in a picture and in its table.

    Attributes:
        picture: Name of the picture, of ``benchmarks._pictures``.
        series: Rows of one series are one line, and one column.
        x: Place on the horizontal axis, and the table's line.
    """

    picture: str
    series: str
    x: float


@dataclass(frozen=True)
class Row:
    """One measurement of ours beside a peer's.

    Attributes:
        name: What was measured.
        ours: Of ours, in ``unit``.
        peer: Name of the peer, or of a bar.
        theirs: Of the peer.
        more_is_better: Whether a larger number is the better one.
        kind: ``"peer"`` was measured in this run, ``"bar"`` is a limit somebody set, ``"recorded"`` was measured
            on another machine on another day, and is no comparison.
        least: What this machine needs for the same work at its measured peak, where the work is stated.
        unit: Of both numbers.
        place: In a picture; None for rows of tables alone.
    """

    name: str
    ours: float
    peer: str
    theirs: float
    more_is_better: bool = False
    kind: Kind = "peer"
    least: Limit | None = None
    unit: Unit = "s"
    place: Place | None = None

    def __post_init__(self) -> None:
        if self.least is not None and self.ours < self.least.seconds / _SLACK:
            raise ValueError(
                f"{self.name}: {self.ours:.3g} s, and this machine needs {self.least.seconds:.3g} s at least for "
                f"{self.least.by}; count the processes that do the work"
            )

    @property
    def ratio(self) -> float:
        """Peer over ours, or ours over the peer where more is better: larger is better."""
        return self.ours / self.theirs if self.more_is_better else self.theirs / self.ours

    def to_dict(self) -> dict[str, str | float]:
        """Give the row as JSON."""
        found: dict[str, str | float] = {"name": self.name, "kind": self.kind, "unit": self.unit, "ours": self.ours}
        found |= {"peer": self.peer, "theirs": self.theirs, "ratio": self.ratio}
        if self.least is not None:
            share = self.least.seconds / self.ours
            found |= {"limit": self.least.seconds, "limited_by": self.least.by, "of_limit": share}
        return found if self.place is None else found | vars(self.place)

    def __str__(self) -> str:
        unit = "" if self.unit == "share" else f" {self.unit}"
        said = f"{self.name}: {self.ours:.4g}{unit}, {self.peer} {self.theirs:.4g}{unit}, ratio {self.ratio:.3g}"
        if self.least is None:
            return said
        return f"{said}; the machine's limit is {self.least.seconds:.3g} s ({self.least.by})"


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


def least(*, flops: float = 0.0, bytes_moved: float = 0.0) -> Limit:
    """Give the time of work at the machine's peak on one thread: both overlap, so the longer one counts."""
    limits = Limit(flops / peak_flops(), "arithmetic"), Limit(bytes_moved / peak_bytes(), "memory")
    return max(limits, key=lambda limit: limit.seconds)


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
