"""One run of many clients in a process of its own, which tells its CPU seconds and memory: see ``benchmarks.scale``."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

import privbo as pb
from privbo.protocol.messages import FloatArray, IntArray
from privbo.protocol.processes import limited_threads

FEATURES = 64
_ADOPT = 36  # PR_SET_CHILD_SUBREAPER of Linux


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
    """Print CPU seconds of all processes of a run, and MiB of the one that made it and of its workers' largest."""
    play = f"from benchmarks._scale_run import run; run({n_clients}, {rounds}, {jobs}, fits={fits})"
    seconds, left, said = used([sys.executable, "-c", play])
    sys.stdout.write(json.dumps({"seconds": seconds, "mib": float(said) + (jobs * left if jobs > 1 else 0.0)}) + "\n")


def run(n_clients: int, rounds: int, jobs: int, *, fits: bool) -> None:
    """Make the run and print the MiB that this process held at most."""
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
    sys.stdout.write(f"{largest()}\n")


def used(command: Sequence[str]) -> tuple[float, float, str]:
    """Run a command and give CPU seconds of all processes that it starts, MiB of the largest it leaves, and its output.

    A fork server outlives the process that started it, so no process waits for it or counts its workers. This process
    becomes the parent of what is left behind, and waits for all of it. Linux only.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_ADOPT, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this system gives no parent to processes that were left behind")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603 (ours)
    mib = 0.0
    with suppress(ChildProcessError):  # until none is left
        while True:
            mib = max(mib, os.wait3(0)[2].ru_maxrss / 1024)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime, mib, done.stdout


def largest() -> float:
    """MiB that this process has held at most; ``ru_maxrss`` would be that of whoever started it, where that is more."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), fits=sys.argv[4] == "fits")
