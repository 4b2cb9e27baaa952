"""Rows of ``bench.json``, and the clocks behind them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """One measurement of ours beside a peer's, in seconds unless the name says otherwise.

    Attributes:
        name: What was measured.
        ours: Seconds of ours.
        peer: Name of the peer, or of a bar.
        theirs: Seconds of the peer.
        more_is_better: Whether the numbers are shares, of which a larger one is better.
    """

    name: str
    ours: float
    peer: str
    theirs: float
    more_is_better: bool = False

    @property
    def ratio(self) -> float:
        """Peer over ours, or ours over the peer for shares: larger is better."""
        return self.ours / self.theirs if self.more_is_better else self.theirs / self.ours

    def to_dict(self) -> dict[str, str | float]:
        """Give the row as JSON."""
        found: dict[str, str | float] = {"name": self.name, "ours_s": self.ours, "peer": self.peer}
        return found | {"peer_s": self.theirs, "ratio": self.ratio}

    def __str__(self) -> str:
        return f"{self.name}: {self.ours:.4g} s, {self.peer} {self.theirs:.4g} s, ratio {self.ratio:.3g}"


def timed(work: Callable[[], T], *, clock: Callable[[], float] = time.process_time) -> tuple[float, T]:
    """Give the seconds of one call, and its result."""
    start = clock()
    result = work()
    return clock() - start, result


def smallest(work: Callable[[], object], times: int = 3, *, clock: Callable[[], float] = time.process_time) -> float:
    """Give the smallest time of several calls, in CPU seconds unless another clock is named."""
    return min(timed(work, clock=clock)[0] for _ in range(times))
