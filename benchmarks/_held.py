"""Memory that a deployment's processes hold."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from privbo.flower.launch import Deployment


def held(deployment: Deployment) -> float:
    """GiB that a deployment's processes hold together, each shared page counted once."""
    sessions = {process.pid for process in deployment.processes.values()}
    kib = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended while we looked
            if os.getsid(int(folder.name)) in sessions:
                lines = (folder / "smaps_rollup").read_text().splitlines()
                kib += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kib / 2**20
