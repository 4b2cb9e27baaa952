"""One cell of a sweep, run in a process of its own; the only place here that makes runs."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from privbo.comparisons.results import CellResult
from privbo.comparisons.setting import Kind
from privbo.plans.prices import finite
from privbo.plans.privacy import NoPrivacy, Privacy, SharedLedger, default_delta
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import ClientHistory, FloatArray
from privbo.protocol.problem import Problem
from privbo.protocol.settings import JsonObject
from privbo.runs.code import CodeKey, code_key
from privbo.runs.config import Job, build, load_function, parse
from privbo.runs.record import RunDirectory
from privbo.runs.result import Result, run
from privbo.runs.source_files import forget


@dataclass(frozen=True, kw_only=True)
class Task:
    """A cell's run configuration and what it stands for."""

    content: JsonObject
    kind: Kind
    label: str
    judge: str | None = None


def prepare(content: JsonObject) -> str | None:
    """Refuse an impossible setting before the first cell, and give the fingerprint its problem states.

    Raises:
        ConfigurationError: Naming the key, the value and what is allowed.
    """
    job = build(parse(content))
    if isinstance(job.privacy, Privacy):
        job.privacy.resolved_delta(job.problem.n_clients)
    return getattr(job.problem, "fingerprint", None)


def code_of(content: JsonObject, judge: str | None, fingerprint: str | None) -> CodeKey:
    """Digest the code behind a setting: its problem's function, an algorithm of the user's own, the judge."""
    problem, algorithm = _table(content, "problem"), _table(content, "algorithm")
    references = [problem.get("factory") or problem.get("objective"), algorithm.get("type"), judge]
    named = [str(reference) for reference in references if reference is not None and ":" in str(reference)]
    found = code_key(*(load_function(reference, "sweep") for reference in named), fingerprint=fingerprint)
    if found.edited:  # a notebook's process, which would go on with what it has loaded
        forget(found.modules)
        found = code_key(*(load_function(reference, "sweep") for reference in named), fingerprint=fingerprint)
    return found


def _table(content: JsonObject, name: str) -> JsonObject:
    table = content.get(name)
    return table if isinstance(table, dict) else {}


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what settings warn of: the sweep has said it once, in the process of who asked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


@_quiet()
def run_public(task: Task) -> CellResult:
    """Simulate a run in memory: seeded noise, no guarantee, nobody charged."""
    job = build(parse(task.content))
    privacy = job.privacy
    if isinstance(privacy, Privacy):
        privacy = dataclasses.replace(privacy, noise="simulation")
    result = run(
        job.problem,
        job.algorithm.local() if task.kind == "local" else job.algorithm,
        privacy=NoPrivacy() if task.kind == "non-private" else privacy,
        rounds=job.config.rounds,
        seed=job.config.seed,
        control="zeroed" if task.kind == "zeroed" else None,
        device=job.config.device,
        attendance=job.attendance,
        name=job.config.name,
    )
    return _summary(result, _curves(job, task, result))


@_quiet()
def run_private(task: Task, home: Path, ledger: SharedLedger) -> CellResult:
    """PRIVATE: run with secure noise and charge the population's ledger; resumes what a crash left.

    Raises:
        ConfigurationError: If the cell asks for simulated noise or none.
        BudgetExceeded: If the population's ledger can't pay for it.
    """
    job = build(parse(task.content))
    if not isinstance(job.privacy, Privacy) or job.privacy.noise != "secure":
        raise ConfigurationError(f"{task.label}: cells on private data need privacy with secure noise")
    result = run(
        job.problem,
        job.algorithm,
        privacy=job.privacy,
        rounds=job.config.rounds,
        seed=job.config.seed,
        directory=home,
        resume=RunDirectory(home).config_path.exists(),
        ledger=ledger,
        device=job.config.device,
        attendance=job.attendance,
        name=job.config.name,
    )
    values = result.clients.values
    best = np.where(np.isfinite(values), values, -np.inf).max(axis=1)
    found = _summary(result, {"score": result.best_so_far()})
    return dataclasses.replace(found, best_per_client=tuple(finite(float(value)) for value in best))


def _curves(job: Job, task: Task, result: Result) -> dict[str, FloatArray]:
    """Mean over clients of score, loss and, where best values are stated, simple regret, ``(n_rounds + 1,)``."""
    score = result.best_so_far()
    found = {"score": score, "loss": 1.0 - score}
    best = _best_values(job.problem)
    if best is not None:
        found["regret"] = float(np.mean(best)) - score
    if task.judge is not None:
        losses: Callable[..., FloatArray] = load_function(task.judge, "judge")
        found["loss"] = _smallest_so_far(losses(result.clients, **job.config.problem.arguments), result.clients)
    return found


def _best_values(problem: Problem) -> FloatArray | None:
    return problem.best_values() if callable(problem.best_values) else problem.best_values


def _smallest_so_far(losses: FloatArray, history: ClientHistory) -> FloatArray:
    """Mean over clients of the smallest loss so far, after initialisation and every round."""
    running = np.fmin.accumulate(losses, axis=1)
    last = np.searchsorted(history.rounds, np.unique(history.rounds), side="right") - 1
    return np.asarray(np.nanmean(running[:, last], axis=0))


def _summary(result: Result, curves: dict[str, FloatArray]) -> CellResult:
    plan = result.config["plan"]
    releases, at = plan["releases"], default_delta(result.config["problem"]["n_clients"])
    return CellResult(
        curves={name: tuple(curve.tolist()) for name, curve in curves.items()},
        epsilon=finite(result.epsilon()) if releases else 0.0,
        delta=result.delta,
        strict_epsilon=finite(result.epsilon(at)) if releases else 0.0,
        strict_delta=at,
        noise_multiplier=plan["noise_multiplier"],
        releases=releases,
    )
