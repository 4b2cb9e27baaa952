"""Configurations on the command line: planned, run with their controls, resumed, and reported."""

from __future__ import annotations

import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from accountant.ledger.address import stands
from accountant.wording import counted, multipliers_text
from privbo.audits.clipping import NOTE
from privbo.cli.options import loaded, say
from privbo.cli.terminal import Shown, render
from privbo.plans.cost import PriceColumn, price, trust_lines, trust_text
from privbo.plans.plan import Plan
from privbo.plans.policy import Decision
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import (
    fresh_directory,
    require_no_link,
    require_page,
    save_arrays,
    write_evidence,
    write_json,
)
from privbo.protocol.processes import limited_threads
from privbo.protocol.settings import JsonObject, fields_of, plain
from privbo.protocol.table import Table
from privbo.reports.bundle import public_key
from privbo.reports.diagnostics import Diagnostics, diagnostics
from privbo.reports.report import Report, price_table, report
from privbo.reports.report_page import Told, document, statement as statement_of
from privbo.runs.in_process import printed_to
from privbo.runs.loop import run_spec
from privbo.runs.manifest import RunDirectory
from privbo.runs.opening import Admission, admission_of, decided, plan_run
from privbo.runs.record import load
from privbo.runs.rehearsal import Rehearsal
from privbo.runs.sources import require_same
from privbo.runs.spec import Control, Spec, read_spec
from privbo.runs.worker_pool import backend_of


@dataclass(frozen=True, kw_only=True)
class WrittenReport:
    """A report of a run, of one that has just finished too, with what was asked for and where it was written.

    Attributes:
        report: The report.
        directory: Of a run that has just finished; None of one that is read again.
        page: The page; None where none was written.
        statement: One sheet for a board; None where none was asked for.
        diagnostics: PRIVATE diagnostics, where they were asked for.
    """

    report: Report
    directory: Path | None = None
    page: Path | None = None
    statement: Path | None = None
    diagnostics: Diagnostics | None = None

    @property
    def milestones(self) -> dict[str, dict[str, float]]:
        """PRIVATE: of a run that has just finished, mean best score over clients at a few points of it, by arm."""
        if self.directory is None or self.diagnostics is None:
            return {}
        return {arm: _milestones(curve) for arm, curve in self.diagnostics.mean_best_score.items()}

    def to_dict(self) -> JsonObject:
        """Give the report as JSON-able data with its places and, where they were asked for, diagnostics."""
        places = {"directory": self.directory, "report": self.page, "statement": self.statement}
        found = self.report.to_dict() | {name: str(path) for name, path in places.items() if path is not None}
        if (private := self.diagnostics) is not None:
            found["private_diagnostics"] = plain(private)
            if self.milestones:
                found["private_diagnostics"] = {
                    "note": NOTE,
                    "milestones": plain(self.milestones),
                    "verdicts": [fields_of(v) | {"answer": v.answer} for v in private.verdicts],
                }
        return found


@render.register
def _written(found: WrittenReport) -> Iterator[Shown]:
    yield from render(found.report)
    if (private := found.diagnostics) is not None:
        if found.milestones:
            best = [score for _, score in private.best_score_per_client]
            there = sum(map(math.isfinite, best))
            valued = f"; {there} of {len(best)} clients of this run have a value" * (there < len(best))
            yield Table(
                title=f"{NOTE[0].upper()}{NOTE[1:]}{valued}",
                headings=("mean best score over clients", *next(iter(found.milestones.values()))),
                rows=[(label, *row.values()) for label, row in found.milestones.items()],
            )
        yield from dict.fromkeys(verdict.text for verdict in private.verdicts)
    elif found.directory is not None:
        yield "clients' scores are private: --show-private shows them, and privbo report --private later"
    yield f"report: {found.page}"
    if found.statement is not None:
        yield f"statement, with blanks for what is to be filled in by hand: {found.statement}"


def report_run(
    directory: Path,
    *,
    out: Path | None = None,
    private: bool = False,
    regret: Path | None = None,
    statement: Told | None = None,
    ledger: str | None = None,
    write: bool = True,
) -> WrittenReport:
    """Report a run; with ``private`` or ``regret`` its private diagnostics, too.

    Args:
        directory: Of the run.
        out: Where the page goes; ``report.html`` in the run's directory, or in its private folder where it holds
            diagnostics.
        private: PRIVATE: add diagnostics.
        regret: PRIVATE: add them with regret; the configuration whose problem states its best values.
        statement: Also write a statement for a board, in addition to the page, with what is told here.
        ledger: As of ``load``.
        write: Whether to write pages at all.

    Raises:
        ConfigurationError: If regret is asked for and the problem states no best values, or another statement is there.
        RunError: If the private folder is a link.
    """
    home = RunDirectory(directory)
    if write:
        require_no_link(home.private)
    record, attainable = load(directory, ledger=ledger), None
    with record.ledger:  # which leaves no file of its own behind
        found = report(record)
    if regret is not None:  # the reader's own configuration; the code that the directory names is not imported
        ours, theirs = read_spec(regret).problem, home.manifest().spec.problem
        require_same(str(regret), ours, theirs.table(), ("n_clients", "space", "constraints"))
        if (attainable := ours.best_values) is None:
            raise ConfigurationError(f"{regret}: the problem states no best_values, so regret is not defined")
    shown = diagnostics(home, attainable) if private or regret is not None else None
    if not write:
        return WrittenReport(report=found, diagnostics=shown)
    target = out or (home.report_path if shown is None else home.private / "report.html")
    require_page(target, private=shown is not None)
    key, sheet = public_key(home, make=statement is not None), None
    if statement is not None:
        told, sheet = statement.on_top_of(home.path / "statement.json"), target.with_name("statement.html")
        made = statement_of(found, key=key, told=told).render().encode()
        write_evidence(sheet, made, remedy="name another folder: --out FOLDER/report.html")
        write_json(home.path / "statement.json", vars(told))
    page = document(found, shown, key=key).write(target, private=shown is not None)
    return WrittenReport(report=found, diagnostics=shown, page=page, statement=sheet)


_KINDS = 4  # of releases that a plan's lines tell apart


@dataclass(frozen=True, kw_only=True)
class PricedPlan:
    """A plan and its price, found without touching any data.

    Attributes:
        name: Of the configuration.
        rounds: Planned rounds.
        plan: The plan.
        epsilon_at: Its price at every delta of interest, the headline's first.
        decision: What the run's own policy says; None without one.
        admission: What the ledger that it names says; None where it names none.
        control_calls: Most calls of the objective by the run's controls, all clients together; None where unknown.
    """

    name: str
    rounds: int
    plan: Plan
    epsilon_at: tuple[PriceColumn, ...]
    decision: Decision | None = None
    admission: Admission | None = None
    control_calls: int | None = None

    @property
    def passed(self) -> bool:
        """Whether neither the policy nor the ledger would refuse the run; a ledger that was not opened does not."""
        return all(said is None or said.allowed is not False for said in (self.decision, self.admission))

    @property
    def verdicts(self) -> tuple[str, ...]:
        """What the policy and the ledger say, a line each."""
        policy = () if self.decision is None else (self.decision.verdict("this policy"),)
        return policy if self.admission is None else (*policy, self.admission.words)

    def to_dict(self) -> JsonObject:
        """Give plan and price as JSON-able data."""
        found: JsonObject = {} if self.decision is None else {"policy": self.decision.verdict("this policy")}
        found |= {} if self.admission is None else {"ledger": self.admission.words, "fits": self.admission.allowed}
        found |= {
            "n_clients": self.plan.n_clients,
            "calls_per_client": self.plan.calls_per_client,
            "calls": self.plan.calls,
            "plan": self.plan.to_dict(),
            "epsilon": plain(self.epsilon_at[0].epsilon),
            "signal_to_noise": plain(self.plan.signal_to_noise),
            "trust": trust_text(self.plan.privacy),
            "exposures": plain(self.plan.exposures(self.epsilon_at[0].delta)),
        }
        return fields_of(self, but=("plan", "decision", "admission")) | found


@render.register
def _plan(found: PricedPlan) -> Iterator[Shown]:
    plan = found.plan
    if (exposed := plan.exposures(found.epsilon_at[0].delta)) or plan.privacy.trust != "server":
        yield from trust_lines(trust_text(plan.privacy), exposed)
    yield price_table(found.epsilon_at)
    yield (
        f"plan of {found.name}: {counted(found.rounds, 'round')}, {counted(plan.releases, 'release')}, "
        f"noise multiplier {multipliers_text(plan.event)}, {plan.adjacency.value} adjacency, "
        f"noise {plan.noise_source}; no data was touched"
    )
    if (calls := plan.calls_text) is not None:
        yield f"{calls}{f'; {found.control_calls:,} more by controls' if found.control_calls else ''}"
    large = 10.0 < min(plan.epsilon(plan.safe_delta).values()) < math.inf
    yield from filter(None, (plan.delta_warning, "epsilon above 10 limits little of what can be learnt" * large))
    if plan.unit != "client":
        yield f"hidden: {plan.unit_text}"
    if (drawn := plan.event.sampler) and not drawn.startswith("none"):
        yield f"participants: {drawn}{'; one price for all of them, however early it ends' * plan.is_allocated}"
    for kind in plan.signal_to_noise[:_KINDS]:
        yield kind.text
    if len(plan.signal_to_noise) > _KINDS:
        yield f"and {counted(len(plan.signal_to_noise) - _KINDS, 'more kind')} of release; --json lists them"
    if plan.outlook is not None:
        yield plan.outlook
    if (vote := plan.vote_text(found.epsilon_at[0].delta)) is not None:
        yield f"vote at the end, in the price above: {vote}"
    yield from found.verdicts


def read_run(
    config: Path | None,
    overrides: Sequence[str],
    *,
    resume: Path | None,
    directory: Path | None,
    jobs: int | None = None,
    load: bool = True,
    trust: bool = False,
) -> tuple[Spec, Path]:
    """Read the run of a configuration file, or the one to resume, and the run's directory.

    Args:
        config: The file.
        overrides: Set on top of it.
        resume: Directory of the run to resume instead.
        directory: Where a new run is kept.
        jobs: Number of workers that carry it out; None as the configuration says.
        load: Import the code that the run names; a plan is priced without it.
        trust: Follow also what a directory that this user did not make names.

    Raises:
        ConfigurationError: If a setting is not allowed, or a resumed run is given new ones.
        RunError: If there is no run to resume.
    """
    if resume is not None:
        if overrides or directory is not None or config is not None:
            raise ConfigurationError("--resume takes the run as it was configured; drop --set, --out and the file")
        spec = RunDirectory(resume).manifest().spec
        if not spec.problem.is_named:
            raise ConfigurationError(
                f"{resume} was started from Python; resume it there: privbo.run(..., directory, resume=True)"
            )
        opens = load or (spec.policy is not None and spec.ledger is not None)  # a policy judges on top of the ledger
        if opens and not trust:
            RunDirectory(resume).require_ours()
        if not load:
            return spec, resume
        with printed_to(RunDirectory(resume).output_path):  # the run exists, so what its code says is of private/
            spec, home = spec.loaded(), resume
    else:
        if config is None:
            raise ConfigurationError("name a configuration file")
        spec = read_spec(config, overrides, load=load)
        if not load:
            require_no_ledger(spec, config)
        named = None if spec.directory is None else Path(spec.directory)
        home = directory or named or fresh_directory(spec.name)
    if jobs is None:
        return spec, home
    # Processes of this machine, unless the configuration names others.
    kind = "processes" if spec.executor == "serial" and jobs > 1 else spec.executor
    return replace(spec, executor=kind, jobs=jobs), home


def require_no_ledger(spec: Spec, file: Path) -> None:
    """Refuse to price a configuration where its own policy would judge on top of a ledger that the file names.

    Raises:
        ConfigurationError: Naming the ledger, which was not opened.
    """
    if spec.policy is not None and spec.ledger is not None and stands(spec.ledger.place):
        raise ConfigurationError(
            f"{file} names the ledger {spec.ledger.path}, on top of which its policy judges, and which is not opened "
            "unasked; add --trust if the file is yours"
        )


def price_run(spec: Spec, *, opens: bool | None, resumed: Path | None = None) -> PricedPlan:
    """Price a run without touching any data.

    Args:
        spec: The run.
        opens: Whether a ledger that it names may be opened, to see whether the run fits on it. None at a party of a
            federation, whose operator's ledger and policy are elsewhere.
        resumed: Directory of a run that began already.

    Raises:
        ConfigurationError: If the settings are impossible, at a party of a federation but for who carries them out.
    """
    if opens is not None:
        backend_of(spec.executor, spec)
    run = None if resumed is None else RunDirectory(resumed).manifest().run_id
    plan = replace(plan_run(spec), remedy=spec.remedy, calls_per_client=spec.calls_per_client)
    rows = price(plan.event, delta=plan.delta, n_clients=plan.n_units, adjacency=plan.adjacency)
    return PricedPlan(
        name=spec.name,
        rounds=spec.rounds,
        plan=plan,
        epsilon_at=rows,
        decision=None if opens is None else decided(spec, plan, run=run),
        admission=None if opens is None else admission_of(spec, plan, opens=opens, run=run),
        control_calls=_control_calls(spec, plan),
    )


def _control_calls(spec: Spec, plan: Plan) -> int | None:
    """Calls of the objective by all controls together, at most; None where an algorithm does not say."""
    if plan.calls_per_client is None:
        return None
    # The noise-only control acts as the run does.
    each = [
        plan.calls_per_client if control == "zeroed" else control_of(spec, control, 0).calls_per_client
        for control in spec.controls
    ]
    return None if None in each else plan.n_clients * sum(filter(None, each))


def carry_out(
    spec: Spec, home: Path, *, resume: bool, rehearse: bool = True, progress: bool = True, show_private: bool = False
) -> WrittenReport:
    """Rehearse and run a run and its controls, write the report, and return what the terminal shows."""
    if spec.problem.is_asked:
        if spec.controls:
            raise ConfigurationError(f"controls={list(spec.controls)!r} would ask for every trial again; drop them")
        say(f"privbo: values of this run's trials come from outside: privbo tell {home}", err=True)
    output = RunDirectory(home).output_path
    with limited_threads(spec.threads), _interruptible() as stop:
        loaded()
        play = partial(run_spec, progress=progress, on_round=stop, on_evaluation=stop, output=output)
        record = play(spec, home, resume=resume, on_rehearsal=_tell if rehearse else None)
        for control in spec.controls:  # each is played once: it goes on where it was interrupted
            stored, journal = record.home.control_path(control, "npz"), record.home.control_path(control, "rows")
            if not stored.exists():
                alone = play(control_of(spec, control, record.home.seed), None, journal=journal)
                save_arrays(stored, vars(alone.clients))
                journal.unlink(missing_ok=True)
        with record.ledger:
            found = report(record)
        page = document(found, key=public_key(record.home)).write(record.home.report_path)
        record.home.settle(record.manifest.created)
        shown = diagnostics(record.home) if show_private else None
        return WrittenReport(report=found, directory=home, page=page, diagnostics=shown)


def _tell(found: Rehearsal) -> None:
    """Say before the run exists which kinds of errors a rehearsal met; nothing of that is said once it has begun."""
    if found.failures:
        say(
            f"privbo: rehearsal: {found.text}; the run goes on; see privbo check CONFIG --show-private",
            err=True,
        )


@contextmanager
def _interruptible() -> Iterator[Callable[..., None]]:
    """Ctrl-C that is never lost: the first stops after the round, the second at once.

    Compiled code may swallow an exception raised in the middle of it, so every round asks again.
    """
    asked, terminal = threading.Event(), sys.stderr

    def check(_: object = None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt

    def handle(_signal: int, _frame: object) -> None:
        check()
        asked.set()
        terminal.write("privbo: stopping at the next evaluation or round; press Ctrl-C again to stop at once\n")

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


def _milestones(curve: Sequence[float]) -> dict[str, float]:
    """Mean best score after initialisation, a quarter of the rounds, at the end, and the mean over rounds."""
    if len(curve) == 1:
        return {"at the end": curve[0]}
    quarter = max(1, (len(curve) - 1) // 4)
    return {
        "after initialisation": curve[0],
        f"after round {quarter}": curve[quarter],
        "at the end": curve[-1],
        "mean over rounds": float(np.mean(curve[1:])),
    }


def control_of(spec: Spec, control: Control, seed: int) -> Spec:
    """Give the same clients and seeds without sharing, or the noise-only control of the same mechanism.

    Controls live in memory, release nothing and use simulated noise.
    """
    return replace(
        spec,
        name=f"control-{control}",
        algorithm=spec.algorithm.local() if control == "local" else spec.algorithm,
        final=None if control == "local" else spec.final,
        privacy=spec.privacy.simulated(),
        seed=seed,
        ledger=None,
        policy=None,
        control="zeroed" if control == "zeroed" else None,
        controls=(),
    )
