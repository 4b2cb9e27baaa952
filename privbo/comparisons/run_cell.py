"""A sweep's cells as runs, each in a process of its own; the only place here that makes runs.

Over private data a cell is a plain run on the population's ledger, in a directory of its own. All cells that will run
are priced together and agreed to; then their runs are made, which reserves their plans, before the first of them is
played. What a crash leaves is resumed as any run is; a cell whose directory is gone is another run, and paid for again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
from pydantic import JsonValue

from accountant.ledger.book import Book
from accountant.wording import noise_multipliers
from privbo.comparisons.cells import Cell, CellResult, digest
from privbo.comparisons.setting import Kind
from privbo.plans.cost import Agree, finite, spending
from privbo.plans.plan import Plan
from privbo.plans.privacy import NoPrivacy, default_delta
from privbo.plans.shared_ledger import SharedLedger
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.messages import ClientHistory, FloatArray
from privbo.protocol.settings import JsonObject
from privbo.runs.code import CodeKey, forget
from privbo.runs.evidence import declared_by
from privbo.runs.loop import run_spec
from privbo.runs.manifest import RunDirectory
from privbo.runs.opening import considered_shared, judged, open_run, plan_run
from privbo.runs.record import Record
from privbo.runs.sources import load_function
from privbo.runs.spec import Spec

NAMING = "5_"  # how a cell's name begins; cells that were named in another way are not recognised


@dataclass(frozen=True, kw_only=True)
class Task:
    """A cell's run as a table, and the function that judges it.

    Attributes:
        table: Of its ``Spec``; a worker process imports the code that it names.
        judge: ``module:function`` of the losses, or None.
    """

    table: JsonObject
    judge: str | None = None


def spec_of(content: Mapping[str, object], kind: Kind, ledger: SharedLedger | None) -> Spec:
    """Make the run that a setting stands for, as a control where it is one.

    Noise is secret, and ``ledger`` charged, where a private setting has a population's ledger; else noise is seeded.

    Raises:
        ConfigurationError: Naming the key, the value and what is allowed.
    """
    asked = Spec.from_dict(content, trusted=True).loaded()
    secure = ledger is not None and kind == "private"
    if secure and asked.privacy.noise_source != "secure":
        raise ConfigurationError(f"{asked.name}: cells on private data need privacy with secure noise")
    privacy = asked.privacy if secure else asked.privacy.simulated()
    spec = replace(
        asked,
        algorithm=asked.algorithm.local() if kind == "local" else asked.algorithm,
        final=None if kind == "local" else asked.final,
        privacy=NoPrivacy() if kind in ("local", "non-private") else privacy,
        control="zeroed" if kind == "zeroed" else None,
        ledger=ledger if secure else None,
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


@_quiet()
def run_uncharged(task: Task, output: Path | None = None) -> CellResult:
    """Simulate a run in memory: seeded noise or nothing shared, no guarantee, nobody charged and no policy asked.

    Args:
        task: The cell's.
        output: PRIVATE: where what clients' code prints goes, over private data.
    """
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
    spec = replace(Spec.from_dict(task.table, trusted=True).loaded(), policy=None)
    record = run_spec(spec, None, output=output)
    return summary(record, _curves(record, task.judge))


@dataclass(frozen=True, kw_only=True)
class PrivateRun:
    """PRIVATE: a cell's run over private data, with secure noise, on the population's ledger.

    Attributes:
        table: Of its ``Spec``.
        home: Its directory.
    """

    table: JsonObject
    home: Path

    def spec(self) -> Spec:
        """Load the run's settings."""
        return Spec.from_dict(self.table, trusted=True).loaded()

    @_quiet()
    def __call__(self) -> CellResult:
        """Play a run that was made, from where a crash left it.

        Raises:
            ConfigurationError: If it was not made, or not on this machine.
        """
        run = RunDirectory(self.home)
        if not run.config_path.exists():
            raise ConfigurationError(
                f"{self.home} is not on this machine: a cell over private data is a run, whose directory stands where "
                "the sweep was asked for; name a folder with --out that all workers share"
            )
        record = run_spec(self.spec(), self.home, resume=True, output=run.output_path)
        with record.ledger:
            return summary(record, {"score": record.best_so_far()})


def reserve(shared: SharedLedger, agree: Agree, cells: Sequence[Cell]) -> None:
    """Make the private runs among cells, whose plans the ledger then holds, once the price of all was agreed to.

    Raises:
        BudgetExceeded: If the ledger can't pay for all of them; nothing was charged.
        PolicyError: If all of them together pass their policy; nothing was charged.
    """
    runs = [(cell, cell.work, cell.work.spec()) for cell in cells if isinstance(cell.work, PrivateRun)]
    if not runs:
        return
    plans: dict[str, Plan] = {}  # a setting's cells differ in seeds alone, which no plan depends on
    for cell, _, spec in runs:
        if cell.label not in plans:
            plans[cell.label] = plan_run(spec)
    first = plans[runs[0][0].label]
    with considered_shared(shared, first) as ledger:
        book = ledger.book()
        owed = [(cell, run, spec) for cell, run, spec in runs if not _is_reserved(run.home, book)]
        if not owed:
            return
        so_far = [*book.paid, *book.paid_again]
        for cell, _, spec in owed:
            event = plans[cell.label].event
            if (decision := judged(spec, event, so_far)) is not None:
                decision.require("this policy")
            so_far.append(event)
        what = f"{len(owed)} cell{'s' if len(owed) > 1 else ''} over private data"
        declared = [
            declared_by(plans[cell.label], run=f"{spec.name}-{cell.name}", settings=spec.digest())
            for cell, _, spec in owed
        ]
        price = spending(ledger, quoted_at(shared, first.safe_delta), what, declared=declared)
    agree(price)
    for cell, run, spec in owed:
        home = RunDirectory(run.home)
        open_run(spec, plans[cell.label], home, resume=home.config_path.exists()).record.ledger.close()


def _is_reserved(home: Path, book: Book) -> bool:
    """Whether a cell's run was made before and its plan stands on the ledger."""
    run = RunDirectory(home)
    return run.config_path.exists() and book.plan_of(run.manifest().run_id) is not None


def quoted_at(shared: SharedLedger, safe: float) -> float:
    """Give the delta at which totals of a population's ledger are quoted: the safe one, and at most its own bound's."""
    return min(safe, shared.delta or safe)


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
