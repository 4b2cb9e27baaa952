"""The operator's Ctrl-C, told apart from an error of its class that clients' code raises.

Whatever clients' code raises is its client's failure and changes nothing public. KeyboardInterrupt is
how an operator ends a run, so it passes only where the process was really sent SIGINT.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeAlias

Stopped: TypeAlias = Callable[[], bool]


def nobody_stops() -> bool:
    """Say that no operator can interrupt."""
    return False


@contextmanager
def watched_interrupts() -> Iterator[Stopped]:
    """Note every SIGINT and hand it on; yields what tells whether one came.

    Python hands signals to the main thread, so in another one the answer stays no.

    Example:
        >>> with watched_interrupts() as stopped:
        ...     stopped()
        False
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield nobody_stops
        return
    seen = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        seen.set()
        before(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield seen.is_set
    finally:
        signal.signal(signal.SIGINT, before)
