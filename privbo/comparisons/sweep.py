"""Sweeps, settings x seeds of one problem or several, run as cells; and finished runs side by side.

Unless the data is private, cells run in memory with seeded noise. On private data cells are
plain runs on one population's ledger, all of them priced and reserved before the first one is
played. A finished cell that was charged is never run again because code changed: it is shown as
older, with the version that made it, until ``fresh`` charges people once more. What a crash leaves
is resumed as any run is; a cell whose directory is gone is another run, and charged again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack, cast

import numpy as np

from accountant.ledger import Ledger
from accountant.ledger.address import is_postgres
from accountant.ledger.book import Book
from accountant.ledger.pricing import total
from accountant.wording import counted, noise_multipliers
from privbo.comparisons.cells import Cell, CellResult, How, Kept, Reuse, complete, digest, next_attempt, setting_of
from privbo.comparisons.comparison import Comparison
from privbo.comparisons.sweep_file import OWN_CONTROLS, Control, Panel, Planned, Sweep, control_name
from privbo.comparisons.verdict import VALUED, Data, Kind, Setting, curve_of
from privbo.plans.cost import Agree, finite, spending
from privbo.plans.privacy import NoPrivacy, default_delta
from privbo.plans.shared_ledger import SharedLedger
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import flat, private_folder
from privbo.protocol.messages import ClientHistory, FloatArray
from privbo.protocol.settings import JsonObject, plain, require_one_of
from privbo.runs.best import read_history
from privbo.runs.code import CodeKey, forget
from privbo.runs.evidence import declared_by
from privbo.runs.in_process import printed_to
from privbo.runs.loop import run_spec
from privbo.runs.manifest import RunDirectory
from privbo.runs.opening import considered_shared, open_run, plan_run
from privbo.runs.record import Record, best_so_far_by_client, load, mean_best_so_far, mean_of_finite
from privbo.runs.sources import load_function
from privbo.runs.spec import Spec, with_overrides

_Measure = Literal["mean over rounds", "final"]  # of finished runs, which keep scores
NAMING = "5_"  # how a cell's name begins; cells that were named in another way are not recognised


def arm_of(asked: Spec, kind: Kind, ledger: SharedLedger | None) -> Spec:
    """Make the run that a setting stands for, as a control where it is one.

    Noise is secret, and ``ledger`` charged, where a private setting has a population's ledger; else noise is seeded.

    Raises:
        ConfigurationError: Naming the key, the value and what is allowed.
    """
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
    spec.privacy.resolved_delta(spec.n_records or spec.problem.n_clients)
    return spec


def settings_name(departures: JsonObject, judge: str | None) -> str:
    """Name a cell by everything that was asked for, as ``Spec.departures`` gives it.

    A default is not named, so a setting that is added later leaves the name of what was charged. Whose
    ledger is charged, and on how many threads, does not change a number; the data's fingerprint is of the
    code's key, where a change of it is a reason to run a cell again.
    """
    means = ("controls", "threads", "executor", "jobs", "ledger")
    asked = {key: value for key, value in departures.items() if key not in means}
    problem = cast("JsonObject", asked["problem"])
    return NAMING + digest([asked | {"problem": problem | {"fingerprint": None}}, judge])


def code_of(spec: Spec, judge: str | None) -> CodeKey:
    """Digest the code behind a setting: its problem's function, an algorithm of the user's own, the judge."""
    for _ in range(2):
        found = spec.code(*(() if judge is None else (judge,)))
        if not found.edited:
            break
        forget(found.modules)  # a notebook's process, which would go on with what it has loaded
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what settings warn of: the sweep has said it once, in the process of who asked."""
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        yield


@_quiet()
def run_uncharged(table: JsonObject, judge: str | None, output: Path | None) -> CellResult:
    """Simulate a run in memory: seeded noise or nothing shared, no guarantee, no charge and no policy asked.

    Args:
        table: Of the run's ``Spec``; a worker process imports the code that it names.
        judge: ``module:function`` of the losses, or None.
        output: PRIVATE: where what the problem's code and the judge print goes, over private data.
    """
    with printed_to(output):
        spec = replace(Spec.from_dict(table, trusted=True).loaded(), policy=None)
        record = run_spec(spec, None, output=output)
        return summary(record, **_curves(record, judge))


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
        with printed_to(run.output_path):
            record = run_spec(self.spec(), self.home, resume=True, output=run.output_path)
        with record.ledger:
            return summary(record)


def reserve(shared: SharedLedger, agree: Agree, cells: Sequence[Cell]) -> None:
    """Make the private runs among cells, whose plans the ledger then holds, once the price of all was agreed to.

    Raises:
        BudgetExceeded: If the ledger's budget is too small; nothing was charged.
        PolicyError: If all of them together pass their policy; nothing was charged.
    """
    runs = [(cell, cell.work, cell.work.spec()) for cell in cells if isinstance(cell.work, PrivateRun)]
    if not runs:
        return
    # A setting's cells differ in seeds alone, which no plan depends on.
    plans = {label: plan_run(spec) for label, spec in {cell.label: spec for cell, _, spec in runs}.items()}
    first = plans[runs[0][0].label]
    with considered_shared(shared, first) as ledger:
        book = ledger.book()
        # A run that was made before stands on the ledger with its plan.
        made = {run.home: RunDirectory(run.home) for _, run, _ in runs if RunDirectory(run.home).config_path.exists()}
        reserved = {home for home, run in made.items() if run.manifest().run_id in book.plans}
        owed = [(cell, run, spec) for cell, run, spec in runs if run.home not in reserved]
        if not owed:
            return
        so_far = [*book.all_paid]
        for cell, _, spec in owed:
            event = plans[cell.label].event
            if spec.policy is not None:
                spec.judged(spec.policy, event, so_far).require("this policy")
            so_far.append(event)
        what = f"{counted(len(owed), 'cell')} over private data"
        declared = [
            declared_by(plans[cell.label], run=f"{spec.name}-{cell.name}", settings=spec.digest())
            for cell, _, spec in owed
        ]
        price = spending(ledger, min(first.safe_delta, shared.delta or 1.0), what, declared=declared)
    agree(price)
    for cell, run, spec in owed:
        open_run(spec, plans[cell.label], RunDirectory(run.home), resume=run.home in made).record.ledger.close()


def _curves(record: Record, judge: str | None) -> dict[str, FloatArray]:
    """Mean over clients of loss and, where best values are stated, simple regret, ``(n_rounds + 1,)``."""
    problem, found = record.spec.problem, {"loss": 1.0 - record.best_so_far()}
    best = problem.best_values() if callable(problem.best_values) else problem.best_values
    if best is not None:
        found["regret"] = mean_of_finite(np.asarray(best)[:, None] - best_so_far_by_client(record.clients), axis=0)
    if judge is not None:
        losses = cast("Callable[..., FloatArray]", load_function(judge, "judge"))
        arguments = {} if problem.source is None else problem.source.arguments
        found["loss"] = -mean_best_so_far(replace(record.clients, values=-losses(record.clients, **arguments)))
    return found


def _of_clients(history: ClientHistory, **further: FloatArray) -> dict[str, Any]:
    """PRIVATE: curves and evaluations of a run's clients, as a cell's."""
    best = best_so_far_by_client(history)
    curves = {"score": mean_of_finite(best, axis=0), VALUED: np.isfinite(best).sum(axis=0, dtype=np.float64)} | further
    made = {name: tuple(curve.tolist()) for name, curve in curves.items()}
    return {"curves": made, "evaluations": float(history.evaluations.mean())}


def summary(record: Record, **further: FloatArray) -> CellResult:
    """Sum up a run: its curves, and what it cost."""
    plan, at = record.plan, default_delta(record.plan.n_units)
    return CellResult(
        **(_of_clients(record.clients, **further) if record.has_clients else {"curves": {}}),
        epsilon=finite(record.epsilon()) if plan.releases else 0.0,
        delta=record.delta,
        strict_epsilon=finite(record.epsilon(at)) if plan.releases else 0.0,
        strict_delta=at,
        noise_multipliers=noise_multipliers(plan.event),
        releases=plan.releases,
        hidden=plan.unit_text if plan.unit == "record" else "",
    )


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """A sweep after its cells ran, or runs side by side.

    Attributes:
        name: Shown in the page's title.
        statement: What is to be shown, in a sentence.
        comparisons: One per panel, in order.
        reuse: Cells that were read back, cells that were run, and why; None of runs.
    """

    name: str
    statement: str
    comparisons: tuple[Comparison, ...]
    reuse: Reuse | None

    def to_dict(self) -> JsonObject:
        """Give everything as JSON: the comparison, or one per panel."""
        panels = [comparison.to_dict() for comparison in self.comparisons]
        found: JsonObject = {"name": self.name, "statement": self.statement, "panels": [*panels]}
        return (panels[0] if len(panels) == 1 else found) | ({} if self.reuse is None else {"reuse": plain(self.reuse)})


def run_sweep(sweep: Sweep, out: Path, *, agree: Agree = lambda _: None, **how: Unpack[How]) -> SweepResult:
    """Run the cells that are missing or made by other code, and compare the settings.

    Args:
        sweep: What to run.
        out: Folder of the cells and the results.
        agree: Over private data, called with the price of all cells that are to be charged before any of them
            is; what it raises prevents the charge.
        how: As of ``complete``; over private data ``fresh`` charges the population once more.

    Raises:
        ConfigurationError: If a setting is impossible; no cell was run and nothing was charged.
    """
    scheduler, ledger = how.get("scheduler"), sweep.config.ledger
    if scheduler is not None and ledger is not None and not is_postgres(ledger.path):
        raise ConfigurationError(
            f"scheduler={scheduler!r} with ledger.path={ledger.path!r}: people whose data is on a cluster have "
            "their ledger in PostgreSQL, not in one machine's file; write path = 'postgresql://ROLE@HOST/DB?commits=FILE'"
        )
    folder = ((private_folder(out) if sweep.config.data == "private" else out) / "cells").absolute()
    codes: dict[str, CodeKey] = {}
    panels = [_with_arms(sweep, panel) for panel in sweep.panels]  # a bad setting is refused before the first cell runs
    planned = [
        [_cells(sweep, panel, arm, folder, codes, fresh=how.get("fresh", False)) for arm in arms]
        for panel, arms in zip(sweep.panels, panels, strict=True)
    ]
    cells = [cell for panel in planned for group in panel for cell in group]
    kept, reuse = complete(cells, lambda todo: None if ledger is None else reserve(ledger, agree, todo), **how)
    made = {cell.path: k for cell, k in zip(cells, kept, strict=True) if k is not None}
    comparisons = tuple(
        _compared(sweep, panel, arms, [{c.seed: made[c.path] for c in group if c.path in made} for group in groups])
        for panel, arms, groups in zip(sweep.panels, panels, planned, strict=True)
    )
    return SweepResult(name=sweep.config.name, statement=sweep.config.statement, comparisons=comparisons, reuse=reuse)


@dataclass(frozen=True, kw_only=True)
class _Arm:
    """A setting with the run that it stands for, and the labels of its own controls, by their kind.

    Its own controls are of the same algorithm: its clients alone, and its noise around a sum of zeros.
    """

    planned: Planned
    spec: Spec
    own: dict[Control, str] = field(default_factory=dict)


def _with_arms(sweep: Sweep, panel: Panel) -> list[_Arm]:
    """A panel's settings, and every private one's own controls: found among them, else added unless data is private.

    What shares nothing by itself needs none.
    """
    asked = {one.label: Spec.from_dict(one.content, trusted=True).loaded() for one in panel.settings}
    found = {
        one.label: _Arm(planned=one, spec=arm_of(asked[one.label], one.kind, sweep.config.ledger))
        for one in panel.settings
    }
    names = {settings_name(arm.spec.departures(), panel.judge): label for label, arm in reversed(found.items())}
    private = [one for one in panel.settings if one.kind == "private"]
    for one in private:
        algorithm = asked[one.label].algorithm
        for kind in OWN_CONTROLS if algorithm.local() != algorithm else ():
            with _quiet():
                spec = arm_of(asked[one.label], kind, sweep.config.ledger)
            name = settings_name(spec.departures(), panel.judge)
            if name not in names and sweep.config.ledger is None:
                label = control_name(kind, "" if len(private) == 1 else one.label)
                if label in found:
                    raise ConfigurationError(f"{panel.name}: {label!r} is a control's name; rename that setting")
                names[name] = label
                found[label] = _Arm(planned=replace(one, label=label, kind=kind), spec=spec)
            if name in names:
                found[one.label].own[kind] = names[name]
    return list(found.values())


def _cells(
    sweep: Sweep, panel: Panel, arm: _Arm, folder: Path, codes: dict[str, CodeKey], *, fresh: bool
) -> list[Cell]:
    """A setting's work at every seed; a run on the population's ledger is charged once, whatever code makes it."""
    setting, spec = arm.planned, arm.spec
    table, charges = spec.to_dict(), spec.ledger is not None
    name = digest([table["problem"], table["algorithm"], panel.judge, setting.content["problem"]])
    if name not in codes:
        codes[name] = code_of(spec, panel.judge)
    output, found = None if sweep.config.ledger is None else folder / "output.txt", []
    for seed in panel.seeds:
        seeds = dict.fromkeys((*sweep.config.seed_keys, "seed"), seed)
        own, asked = with_overrides(table, seeds), settings_name(with_overrides(spec.departures(), seeds), panel.judge)
        cell = Cell(
            label=setting.label,
            seed=seed,
            settings=asked,
            code=codes[name],
            folder=folder,
            work=partial(run_uncharged, own, panel.judge, output),
            charges=charges,
            attempt=next_attempt(folder, asked) if charges and fresh else 0,
        )
        found.append(replace(cell, work=PrivateRun(table=own, home=folder / cell.name)) if charges else cell)
    return found


def _compared(sweep: Sweep, panel: Panel, arms: Sequence[_Arm], results: Sequence[Mapping[int, Kept]]) -> Comparison:
    enough = min(2, len(panel.seeds))  # fewer runs say nothing of noise
    name, settings = curve_of(sweep.config.measure), []
    for arm, there in zip(arms, results, strict=True):
        planned = arm.planned
        if len(there) < enough:
            continue
        if any(name not in k.result.curves for k in there.values()):
            raise ConfigurationError(
                f"measure={sweep.config.measure!r}: the problem of {planned.label!r} states no best_values; "
                "let its factory state them, or measure the score"
            )
        setting = setting_of(
            {seed: k.result for seed, k in there.items()},
            label=planned.label,
            kind=planned.kind,
            curve=name,
            overrides=planned.overrides,
            older=tuple(dict.fromkeys(k.made_by for k in there.values() if not k.is_current)),
        )
        if planned.kind == "private" and not setting.releases:
            setting = replace(setting, kind="local")  # it shares nothing by itself
        settings.append(replace(setting, alone=arm.own.get("local", ""), noise_only=arm.own.get("zeroed", "")))
    if not settings:
        raise ConfigurationError(f"{panel.name}: no setting has {enough} finished cells; run the sweep first")
    found = Comparison(
        name=panel.name,
        data=sweep.config.data,
        measure=sweep.config.measure,
        settings=tuple(settings),
        contrasts=tuple((pair[0], pair[1]) for pair in sweep.config.contrasts),
        statement=sweep.config.statement,
        seeded=sweep.config.data != "private",
    )
    if sweep.config.ledger is None:
        return found
    with Ledger.open(sweep.config.ledger.path) as ledger:
        return composed(found, ledger.book(), sweep.config.ledger)


def composed(comparison: Comparison, book: Book, shared: SharedLedger) -> Comparison:
    """Add the price of everything charged for the comparison's population so far."""
    # At the safe delta, and at most the bound's own.
    return replace(comparison, total=total(book, min(comparison.settings[0].safe_delta, shared.delta or 1.0)))


def compare(
    runs: Sequence[Record | str | Path] | Record | str | Path,
    *,
    data: Data = "private",
    name: str = "runs",
    measure: _Measure = "mean over rounds",
    ledger: str | Path | None = None,
) -> Comparison:
    """Compare finished runs; runs that differ in their seed only are one setting.

    A population's ledger that all runs charged is priced as a whole. Where a run's evaluations are not on
    this machine (no private folder) prices alone are compared. Where runs kept the curves of their controls
    (``controls = ["local", "zeroed"]``), these are settings, too; without both there is no verdict on sharing.

    Args:
        runs: Records or their directories, or one of them.
        data: Whose data the runs saw. A run doesn't know, so unless you say otherwise its
            clients' scores are private: in this object, and never in what is written for others.
        name: Shown in the page's title.
        measure: What a setting is judged by.
        ledger: As of ``load``, for directories whose runs name a population's.

    Raises:
        ConfigurationError: If nothing is given, or a run or a simulation's seed twice, or ``data`` or ``measure`` is
            unknown.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda n, p: -p["x"], n_clients=4)
        >>> simulated = pb.Privacy(epsilon=4, noise="simulation")
        >>> runs = [pb.run(problem, pb.DPFTSDE(), privacy=simulated, rounds=2, seed=s) for s in (0, 1)]
        >>> compare(runs, data="simulated").rows()[0].seeds
        2
    """
    require_one_of(_Measure, measure=measure)
    given = [runs] if isinstance(runs, Record | str | Path) else runs
    results = [run if isinstance(run, Record) else load(run, ledger=ledger) for run in given]
    if not results:
        raise ConfigurationError("give at least one run to compare")
    groups: dict[str, list[Record]] = {}
    different = set[object]()
    for result in results:
        groups.setdefault(same := digest(_identity(result.spec)), []).append(result)
        repeats = result.spec.seed is not None and result.plan.noise_source in ("simulation", "none")
        different.add((same, result.spec.seed) if repeats else result.run_id)
    if len(different) < len(results):
        raise ConfigurationError(
            "the same run, or a simulation's seed, is given twice, which would count as two seeds; name each run once"
        )
    measured = all(result.has_clients for result in results)
    settings, controls, simulated = list[Setting](), list[Setting](), list[str]()
    for label, group in zip(_labels(list(groups.values())), groups.values(), strict=True):
        setting, of = _grouped(label, group, measured=measured), label if len(groups) > 1 else ""
        made = [_control(setting, group, kind, control_name(kind, of)) for kind in OWN_CONTROLS if measured]
        own = {arm.kind: arm for arm in made if arm is not None}
        alone, noise_only = (own[kind].label if kind in own else "" for kind in OWN_CONTROLS)
        settings.append(replace(setting, alone=alone, noise_only=noise_only))
        controls += own.values()
        simulated += [label] * any(r.plan.noise_source == "simulation" for r in group)
    seeded = tuple(simulated) if len(simulated) < len(settings) else True
    found = Comparison(name=name, data=data, measure=measure, settings=(*settings, *controls), seeded=seeded)
    shared = results[0].spec.ledger
    if shared is None or any(r.spec.ledger != shared for r in results):
        return found
    return composed(found, results[0].ledger.book(), shared)


def _identity(spec: Spec) -> JsonObject:
    """Everything that a setting's runs share: all but seeds and the ledger, by dotted names."""
    named = {key: value for key, value in spec.identity().items() if key not in ("seed", "ledger")}
    return {key: value for key, value in cast("JsonObject", flat(named)).items() if key != "attendance.seed"}


def _labels(groups: Sequence[Sequence[Record]]) -> list[str]:
    """Name settings by what differs, and by the folders of their runs, which tell runs of one configuration apart."""
    tables = [flat({"name": group[0].spec.name} | _identity(group[0].spec)) for group in groups]
    names = list(dict.fromkeys(key for table in tables for key in table))
    differing = [key for key in names if len({repr(table.get(key)) for table in tables}) > 1]
    telling = [key for key in differing if key in ("name", "privacy.epsilon", "algorithm.type", "rounds")]
    asked = telling or differing[:3]
    found = []
    for index, (group, table) in enumerate(zip(groups, tables, strict=True)):
        named = {key: "" if key in ("name", "algorithm.type") else f"{key.rpartition('.')[2]}=" for key in asked}
        words = ", ".join(f"{name}{table.get(key)}" for key, name in named.items()) or group[0].spec.name
        folders = ", ".join(record.directory.name for record in group if record.directory is not None)
        found.append(f"{index + 1}: {words}" + (f" ({folders})" if folders else ""))
    return found


def _grouped(label: str, group: Sequence[Record], *, measured: bool) -> Setting:
    spec, plan = group[0].spec, group[0].plan
    kind: Kind = "zeroed" if spec.control is not None else "non-private" if plan.noise_source == "none" else "private"
    known = [result.spec.seed for result in group if result.spec.seed is not None]
    seeds = known if len(set(known)) == len(group) else range(len(group))
    found = {seed: summary(result) for seed, result in zip(seeds, group, strict=True)}
    setting = setting_of(found, label=label, kind=kind if plan.releases else "local", curve="score")
    return setting if measured else replace(setting, curves=None)


def _control(setting: Setting, group: Sequence[Record], kind: Control, label: str) -> Setting | None:
    """PRIVATE: a control of a setting's runs, where every one of them kept its evaluations."""
    paths = [record.home.control_path(kind, "npz") for record in group if record.directory is not None]
    if setting.kind != "private" or len(paths) < len(group) or not all(path.exists() for path in paths):
        return None
    cost = setting.cost()
    if kind == "local":
        cost |= {"epsilon": 0.0, "strict_epsilon": 0.0, "noise_multipliers": (), "releases": 0}
    arms = zip(setting.seeds, map(read_history, paths), strict=True)
    found = {seed: CellResult(**cost, **_of_clients(arm)) for seed, arm in arms}
    return setting_of(found, label=label, kind=kind, curve="score")
