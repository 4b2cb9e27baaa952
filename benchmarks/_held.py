"""Memory that a deployment's processes hold, and the processor that they use."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import numpy as np

from privbo.flower.launch import Deployment

_BETWEEN = 0.2  # seconds between two looks


def held(deployment: Deployment) -> float:
    """GiB that a deployment's processes hold together, each shared page counted once."""
    kib = 0
    for folder in _folders(deployment):
        with suppress(OSError):  # it ended while we looked
            lines = (folder / "smaps_rollup").read_text().splitlines()
            kib += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kib / 2**20


class Meter:
    """CPU seconds of a deployment's processes, those that ended among them, while a block runs."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment, self._ended = deployment, threading.Event()
        self._times, self._seconds = list[float](), list[float]()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def between(self, moments: Sequence[float]) -> float:
        """CPU seconds between two moments of the monotonic clock that follow each other; the median after the first."""
        return float(np.median(np.diff(np.interp(moments, self._times, self._seconds))[1:]))

    def _look(self) -> None:
        while not self._ended.wait(_BETWEEN):
            self._times.append(time.monotonic())
            self._seconds.append(_spent(self._deployment))


def _spent(deployment: Deployment) -> float:
    """CPU seconds so far: every process's own, and those of its children that ended."""
    ticks = 0
    for folder in _folders(deployment):
        with suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _folders(deployment: Deployment) -> Iterator[Path]:
    """Folders of a deployment's processes below ``/proc``."""
    sessions = {process.pid for process in deployment.processes.values()}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getsid(int(folder.name)) in sessions:
                yield folder
