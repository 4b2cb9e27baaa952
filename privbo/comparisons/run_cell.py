"""One cell of a sweep, run in a process of its own; the only place here that makes runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
from pydantic import JsonValue

from accountant.wording import noise_multipliers
from privbo.comparisons.cells import digest
from privbo.comparisons.payment import Paid
from privbo.comparisons.results import CellResult
from privbo.comparisons.setting import Kind
from privbo.plans.prices import finite
from privbo.plans.privacy import NoPrivacy, default_delta
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import ClientHistory, FloatArray
from privbo.protocol.settings import JsonObject
from privbo.runs.code import CodeKey
from privbo.runs.loop import run_spec
from privbo.runs.manifest import RunDirectory
from privbo.runs.opening import plan_run
from privbo.runs.record import Record
from privbo.runs.source_files import forget
from privbo.runs.sources import load_function
from privbo.runs.spec import Spec

NAMING = "4_"  # how a cell's name begins; cells that were named in another way are not recognised


@dataclass(frozen=True, kw_only=True)
class Task:
    """A cell's run as a table, and the function that judges it.

    Attributes:
        table: Of its ``Spec``; a worker process imports the code that it names.
        judge: ``module:function`` of the losses, or None.
    """

    table: JsonObject
    judge: str | None = None


def spec_of(content: Mapping[str, object], kind: Kind, *, private: bool) -> Spec:
    """Make the run that a setting stands for, as a control where it is one; unless ``private``, noise is seeded.

    Raises:
        ConfigurationError: Naming the key, the value and what is allowed.
    """
    asked = Spec.from_dict(content, trusted=True).loaded()
    secure = private and kind == "private"
    if secure and asked.privacy.noise_source != "secure":
        raise ConfigurationError(f"{asked.name}: cells on private data need privacy with secure noise")
    privacy = asked.privacy if secure else asked.privacy.simulated()
    spec = replace(
        asked,
        algorithm=asked.algorithm.local() if kind == "local" else asked.algorithm,
        final=None if kind == "local" else asked.final,
        privacy=NoPrivacy() if kind in ("local", "non-private") else privacy,
        control="zeroed" if kind == "zeroed" else None,
    )
    spec.privacy.resolved_delta(spec.problem.n_clients)
    return spec


def settings_name(departures: JsonObject, judge: str | None) -> str:
    """Name a cell by everything that was asked for, as ``Spec.departures`` gives it.

    A default is not named, so a setting that is added later leaves the name of what was paid for. Whose
    ledger pays, and on how many threads, does not change a number; the data's fingerprint is of the
    code's key, where a change of it is a reason to run a cell again.
    """
    means = ("controls", "threads", "executor", "jobs", "ledger")
    asked = {key: value for key, value in departures.items() if key not in means}
    return NAMING + digest([asked | {"problem": _table(asked["problem"]) | {"fingerprint": None}}, judge])


def _table(value: JsonValue) -> JsonObject:
    return value if isinstance(value, dict) else {}


def code_of(spec: Spec, judge: str | None) -> CodeKey:
    """Digest the code behind a setting: its problem's function, an algorithm of the user's own, the judge."""
    found = spec.code(*_judges(judge))
    if found.edited:  # a notebook's process, which would go on with what it has loaded
        forget(found.modules)
        found = spec.code(*_judges(judge))
    return found


def _judges(judge: str | None) -> tuple[object, ...]:
    return () if judge is None else (load_function(judge, "judge"),)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what settings warn of: the sweep has said it once, in the process of who asked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _unjudged(task: Task) -> Spec:
    """The run of a cell that releases nothing of any people, so that no policy is asked."""
    return replace(Spec.from_dict(task.table, trusted=True).loaded(), policy=None)


@_quiet()
def run_public(task: Task) -> CellResult:
    """Simulate a run in memory: seeded noise, no guarantee, nobody charged."""
    record = run_spec(_unjudged(task), None)
    return summary(record, _curves(record, task.judge))


@_quiet()
def run_alone(task: Task, folder: Path) -> CellResult:
    """PRIVATE: run clients who share nothing beside those who pay; a paid choice asks for every client's score.

    What their code prints goes into the private ``folder``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    record = run_spec(_unjudged(task), None, output=folder / "output.txt")
    return replace(summary(record, _curves(record, task.judge)), best_per_client=_best_per_client(record))


@_quiet()
def run_private(task: Task, home: Path, paid: Paid) -> CellResult:
    """PRIVATE: run with secure noise what the population has paid for; resumes what a crash left.

    Nobody is charged here: who asked for the sweep has paid, and a worker may stand on another
    machine, whose files are not the population's ledger.

    Raises:
        ConfigurationError: If the receipt is not this cell's.
    """
    spec = Spec.from_dict(task.table, trusted=True).loaded()
    paid.require(spec, plan_run(spec))
    run = RunDirectory(home)
    record = run_spec(spec, home, resume=run.config_path.exists(), output=run.output_path)
    return replace(summary(record, {"score": record.best_so_far()}), best_per_client=_best_per_client(record))


def _best_per_client(record: Record) -> tuple[float | None, ...]:
    values = record.clients.values
    best = np.where(np.isfinite(values), values, -np.inf).max(axis=1)
    return tuple(finite(float(value)) for value in best)


def _curves(record: Record, judge: str | None) -> dict[str, FloatArray]:
    """Mean over clients of score, loss and, where best values are stated, simple regret, ``(n_rounds + 1,)``."""
    problem, score = record.spec.problem, record.best_so_far()
    found = {"score": score, "loss": 1.0 - score}
    best = problem.best_values() if callable(problem.best_values) else problem.best_values
    if best is not None:
        found["regret"] = float(np.mean(best)) - score
    if judge is not None:
        losses = cast("Callable[..., FloatArray]", load_function(judge, "judge"))
        arguments = {} if problem.source is None else problem.source.arguments
        found["loss"] = _smallest_so_far(losses(record.clients, **arguments), record.clients)
    return found


def _smallest_so_far(losses: FloatArray, history: ClientHistory) -> FloatArray:
    """Mean over clients of the smallest loss so far, after initialisation and every round."""
    running = np.fmin.accumulate(losses, axis=1)
    last = np.searchsorted(history.rounds, np.unique(history.rounds), side="right") - 1
    return np.asarray(np.nanmean(running[:, last], axis=0))


def summary(record: Record, curves: dict[str, FloatArray]) -> CellResult:
    """Sum up a run: its curves, and what it cost."""
    plan, at = record.plan, default_delta(record.plan.n_clients)
    return CellResult(
        curves={name: tuple(curve.tolist()) for name, curve in curves.items()},
        epsilon=finite(record.epsilon()) if plan.releases else 0.0,
        delta=record.delta,
        strict_epsilon=finite(record.epsilon(at)) if plan.releases else 0.0,
        strict_delta=at,
        noise_multipliers=noise_multipliers(plan.event),
        releases=plan.releases,
    )
