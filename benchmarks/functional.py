"""F-LCB's own overhead per pull; private training against plain Opacus on the same steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from privbo.functional.f_lcb import f_lcb

N_ARMS = 100
N_PULLS = 20_000
LIMIT = 50e-6


class Empty:
    """An arm without work: what is left is the search's own time."""

    name = "empty"
    value_stddev = 0.0

    def __init__(self, limit: float) -> None:
        self._limit = limit

    def init(self) -> int:
        """No pull."""
        return 0

    def step(self, state: int) -> int:
        """Count."""
        return state + 1

    def value(self, state: int) -> float:
        """A curve."""
        return self._limit + 1.0 / state

    def rate(self, state: int, k: int, delta: float) -> float:  # noqa: ARG002  # a curve
        """Its rate."""
        return 1.0 / k


def rows() -> Iterator[dict[str, Any]]:
    """Timed rows: name, our seconds, the peer and its seconds, the ratio."""
    arms = [Empty(limit) for limit in np.linspace(0.0, 1.0, N_ARMS)]
    seconds = min(_timed(lambda: f_lcb(arms, budget=N_PULLS)) for _ in range(3)) / N_PULLS
    yield {
        "name": f"F-LCB's own time per pull, K = {N_ARMS}",
        "ours_s": seconds,
        "peer": "the bar, 50 microseconds",
        "peer_s": LIMIT,
        "ratio": seconds / LIMIT,
    }


def _timed(call: Any) -> float:  # noqa: ANN401
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
