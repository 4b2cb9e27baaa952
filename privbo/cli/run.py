"""What the command line does with a configuration: plan it, run it with its controls, resume it."""

from __future__ import annotations

import dataclasses
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from privbo.plans.prices import price
from privbo.plans.privacy import Privacy
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import read_json, write_json
from privbo.protocol.messages import FloatArray
from privbo.protocol.threads import limited_threads
from privbo.reports.data import report, write_page
from privbo.reports.diagnostics import LABELS
from privbo.runs.config import Config, Job, build, parse, read
from privbo.runs.loop import plan
from privbo.runs.manifest import describe_plan
from privbo.runs.record import RunDirectory
from privbo.runs.result import Result, mean_best_so_far, run


def load_job(
    config: Path | None, overrides: Sequence[str], *, resume: Path | None, directory: Path | None
) -> tuple[Job, Path]:
    """The objects of a configuration file, or of the run to resume, and the run's directory.

    Raises:
        ConfigurationError: If a setting is not allowed, or a resumed run is given new ones.
        RunError: If there is no run to resume.
    """
    if resume is not None:
        if overrides or directory is not None:
            raise ConfigurationError("--resume takes the run as it was configured; drop --set and --out")
        source = RunDirectory(resume).config()["source"]
        if source is None:
            raise ConfigurationError(
                f"{resume} was started from Python; resume it there: privbo.run(..., directory, resume=True)"
            )
        return build(parse(source)), resume
    if config is None:
        raise ConfigurationError("name a configuration file")
    settings = read(config, overrides)
    return build(settings), directory or _home(settings)


def _home(config: Config) -> Path:
    if config.directory is not None:
        return Path(config.directory)
    return Path("runs") / f"{config.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def price_job(job: Job) -> dict[str, Any]:
    """The plan and its price, without touching any data."""
    terms = plan(job.problem, job.algorithm, privacy=job.privacy, rounds=job.config.rounds)
    rows = price(terms.event, delta=terms.delta, n_clients=terms.n_clients, adjacency=terms.adjacency)
    return {
        "name": job.config.name,
        "rounds": job.config.rounds,
        "n_clients": terms.n_clients,
        "plan": describe_plan(terms),
        "epsilon": rows[0]["epsilon"],
        "epsilon_at": rows,
    }


def run_job(job: Job, home: Path, *, resume: bool, progress: bool = True) -> dict[str, Any]:
    """Run a job and its controls, write the report, and return what the terminal shows."""
    with limited_threads(job.config.threads), _interruptible() as stop:
        return _run_job(job, home, resume=resume, progress=progress, check=stop)


@contextmanager
def _interruptible() -> Iterator[Callable[..., None]]:
    """Ctrl-C that is never lost: the first stops after the round, the second at once.

    Compiled code may swallow an exception raised in the middle of it, so every round asks again.
    """
    asked = threading.Event()

    def handle(_signal: int, _frame: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        sys.stderr.write("privbo: stopping at the next evaluation or round; press Ctrl-C again to stop at once\n")

    def check(_: object = None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


def _run_job(job: Job, home: Path, *, resume: bool, progress: bool, check: Callable[..., None]) -> dict[str, Any]:
    result = run(
        job.problem,
        job.algorithm,
        privacy=job.privacy,
        rounds=job.config.rounds,
        seed=job.config.seed,
        directory=home,
        resume=resume,
        name=job.config.name,
        ledger=job.ledger,
        device=job.config.device,
        attendance=job.attendance,
        progress=progress,
        on_round=check,
        on_evaluation=check,
        source=job.config.model_dump(exclude_none=True),
    )
    seed = int(read_json(RunDirectory(home).seed_path)["seed"])
    curves = {"private": mean_best_so_far(result.clients)}
    for control in job.config.controls:
        curves[control] = mean_best_so_far(_control(job, control, seed, progress=progress, check=check).clients)
    curves = _same_length(curves)
    lines = {name: curve.tolist() for name, curve in curves.items()}
    write_json(RunDirectory(home).private / "diagnostics.json", {"mean_best_so_far": lines})
    data = report(result.config, result.ledger)
    return data | {
        "directory": str(home),
        "report": str(write_page(data, RunDirectory(home).report_path)),
        "private_diagnostics": {
            "note": "private diagnostics, not covered by epsilon",
            "milestones": {LABELS[name]: _milestones(curve) for name, curve in curves.items()},
        },
    }


def _same_length(curves: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Curves to the longest one's end: who shares nothing may need fewer rounds, and stays where it ended."""
    longest = max(map(len, curves.values()))
    return {name: np.concatenate([c, np.full(longest - len(c), c[-1])]) for name, c in curves.items()}


def _milestones(curve: FloatArray) -> dict[str, float]:
    """Mean best score after initialisation, a quarter of the rounds, at the end, and the mean over rounds."""
    if len(curve) == 1:
        return {"at the end": float(curve[0])}
    quarter = max(1, (len(curve) - 1) // 4)
    return {
        "after initialisation": float(curve[0]),
        f"after round {quarter}": float(curve[quarter]),
        "at the end": float(curve[-1]),
        "mean over rounds": float(curve[1:].mean()),
    }


def _control(job: Job, control: str, seed: int, *, progress: bool, check: Callable[..., None]) -> Result:
    """The same clients and seeds without sharing, or behind the same mechanism with the sum zeroed.

    Controls live in memory, release nothing and use simulated noise.
    """
    algorithm = job.algorithm.local() if control == "local" else job.algorithm
    privacy = job.privacy
    if isinstance(privacy, Privacy):
        privacy = dataclasses.replace(privacy, noise="simulation")
    return run(
        job.problem,
        algorithm,
        privacy=privacy,
        rounds=job.config.rounds,
        seed=seed,
        control="zeroed" if control == "zeroed" else None,
        name=f"control: {LABELS[control]}",
        device=job.config.device,
        attendance=job.attendance,
        progress=progress,
        on_round=check,
        on_evaluation=check,
    )
