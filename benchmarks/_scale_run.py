"""One run of many clients in a process of its own, which tells its CPU seconds and memory: see ``benchmarks.scale``."""

from __future__ import annotations

import json
import resource
import sys
import tempfile
from pathlib import Path

import numpy as np

import privbo as pb
from privbo.protocol.messages import FloatArray, IntArray
from privbo.protocol.processes import limited_threads

FEATURES = 64


def objective(clients: IntArray, units: FloatArray) -> FloatArray:
    """A hill per client, at one of a hundred places near each other; larger is better."""
    place = 0.3 + 0.004 * (clients % 100)
    return np.asarray(np.exp(-8.0 * ((units - place[:, None]) ** 2).sum(axis=1)))


def problem(n_clients: int) -> pb.Problem:
    """A problem of two parameters whose clients are evaluated at once."""
    space = {"x": pb.Real(0.0, 1.0), "y": pb.Real(0.0, 1.0)}
    return pb.Problem(space=space, batch_objective=objective, n_clients=n_clients, name="hills")


def algorithm(*, fits: bool) -> pb.SharedPrior:
    """The default one with 64 features; without fits every client's model has the priors' medians."""
    return pb.SharedPrior(n_features=FEATURES, own=pb.SharedPrior().own if fits else pb.OwnModel(refit_every=0))


def main(n_clients: int, rounds: int, jobs: int, *, fits: bool) -> None:
    """Make the run and print CPU seconds of all processes, and MiB of this one and of its workers' largest."""
    privacy = pb.Privacy(noise_multiplier=2.0, noise="simulation")
    executor = "processes" if jobs > 1 else "serial"
    with tempfile.TemporaryDirectory() as home, limited_threads(1):
        pb.run(
            problem(n_clients),
            algorithm(fits=fits),
            privacy=privacy,
            rounds=rounds,
            seed=0,
            directory=Path(home) / "run",
            executor=executor,
            jobs=jobs,
        )
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(used.ru_utime + used.ru_stime for used in spent)
    workers = jobs * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024 if jobs > 1 else 0.0
    sys.stdout.write(json.dumps({"seconds": seconds, "mib": largest() + workers}) + "\n")


def largest() -> float:
    """MiB that this process has held at most; ``ru_maxrss`` would be that of whoever started it, where that is more."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), fits=sys.argv[4] == "fits")
