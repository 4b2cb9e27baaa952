"""Clients that note every evaluation in a file, some of whom end their process; importable by worker processes."""

import os
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import privbo as pb


@dataclass(frozen=True)
class Noting:
    """An objective that appends a line per evaluation to a file.

    ``deadly`` ends its process when that client has made so many evaluations; ``always`` does it every time;
    ``slow`` sleeps for long in one client's evaluations.
    """

    path: Path
    deadly: int | None = None
    always: int | None = None
    slow: int | None = None
    seconds: float = 0.0

    def __call__(self, client: int, params: dict[str, float]) -> float:
        if client == self.always:
            os._exit(3)
        if client == self.slow:
            time.sleep(30.0)
        time.sleep(self.seconds)
        found = -((params["x"] - 0.1 * client) ** 2) + float(np.sin(5 * params["y"]))
        print("seen by", client)
        with self.path.open("a") as file:
            file.write(f"{client} {params['x'].hex()} {params['y'].hex()}\n")
        marker = self.path.with_suffix(".died")
        if client == self.deadly and len(self.of(client)) == 3 and not marker.exists():
            marker.touch()
            sys.stdout.flush()
            os._exit(9)
        return found

    def of(self, client: int) -> list[str]:
        """Evaluations of a client."""
        return [line for line in self.lines() if line.split()[0] == str(client)]

    def lines(self) -> list[str]:
        """Every evaluation."""
        return self.path.read_text().splitlines() if self.path.exists() else []

    def repeated(self) -> int:
        """How many evaluations were made more than once."""
        return sum(count - 1 for count in Counter(self.lines()).values())


def problem(objective: Noting, n_clients: int = 7) -> pb.Problem:
    space = {"x": pb.Real(0.0, 1.0), "y": pb.Real(0.0, 1.0)}
    return pb.Problem(space=space, objective=objective, n_clients=n_clients, name="noting")


def from_file(path: str, seconds: float = 0.0) -> pb.Problem:
    """For configurations."""
    return problem(Noting(Path(path), seconds=seconds))
