"""The conformance problem, whose clients wait while a file stands: tests stop rounds in the middle with it."""

import os
import time
from pathlib import Path

from privbo.testing import bumps, toy_problem


def problem(hold: str):
    """Waits while ``hold`` exists; ``hold.reached`` says that it does, ``hold.loaded`` which processes loaded it."""
    gate = Path(hold)
    with gate.with_suffix(".loaded").open("a") as file:
        file.write(f"{os.getpid()}\n")

    def objective(clients, units):
        if gate.exists():
            gate.with_suffix(".reached").touch()
        deadline = time.monotonic() + 900
        while gate.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return bumps(clients, units)

    return toy_problem(score=objective)
