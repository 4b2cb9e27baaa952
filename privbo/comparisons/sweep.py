"""Sweeps: settings x seeds of one problem or several, run as cells.

Unless the data is private, cells run in memory with seeded noise. On private data a sweep
is a composition: all cells use secure noise, and one population's ledger pays for all of them
before the first one runs. A finished cell that was paid for is never run again because code
changed: it is shown as older, with the version that made it, until ``fresh`` charges people once
more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from accountant.ledger import Ledger
from accountant.ledger.address import is_postgres
from accountant.ledger.book import Book
from accountant.ledger.total import total
from privbo.comparisons import cells as work
from privbo.comparisons.cells import Cell, OnCell, OnReuse, complete, digest, next_attempt
from privbo.comparisons.charging import Unpaid, all_paid
from privbo.comparisons.choice import paid_recommendation, recommend
from privbo.comparisons.comparison import Comparison
from privbo.comparisons.payment import quoted_at
from privbo.comparisons.results import Kept, Reuse, setting_of, summarised
from privbo.comparisons.run_cell import NAMING, Task, code_of, run_alone, run_public, settings_name, spec_of
from privbo.comparisons.setting import Setting, curve_of
from privbo.comparisons.study import Panel, Planned, Sweep, read_sweep
from privbo.plans.shared_ledger import SharedLedger
from privbo.plans.spending import Agree, agree_to_all
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import private_folder
from privbo.protocol.settings import JsonObject
from privbo.runs.code import CodeKey
from privbo.runs.config import with_overrides
from privbo.runs.spec import Spec

__all__ = ["Sweep", "SweepResult", "composed", "read_sweep", "recommended", "run_sweep"]


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """A sweep after its cells ran.

    Attributes:
        sweep: What was run.
        comparisons: One per panel, in order.
        reuse: Cells that were read back, cells that were run, and why.
        cells: By panel and label, every kept cell. PRIVATE if the clients' data are.
    """

    sweep: Sweep
    comparisons: tuple[Comparison, ...]
    reuse: Reuse
    cells: tuple[Mapping[str, tuple[Kept, ...]], ...]

    def exportable(self) -> SweepResult:
        """Leave out what may not be published."""
        return dataclasses.replace(self, comparisons=tuple(c.exportable() for c in self.comparisons), cells=())

    def to_dict(self) -> JsonObject:
        """Give everything as JSON: the comparison, or one per panel."""
        reuse: JsonObject = {"reuse": self.reuse.to_dict()}
        if len(self.comparisons) == 1:
            return self.comparisons[0].to_dict() | reuse
        config = self.sweep.config
        panels: JsonObject = {"panels": [comparison.to_dict() for comparison in self.comparisons]}
        return {"name": config.name, "statement": config.statement} | panels | reuse


def run_sweep(
    sweep: Sweep,
    out: Path,
    *,
    jobs: int = 2,
    scheduler: str | None = None,
    fresh: bool = False,
    finished: bool = False,
    cells: Path | None = None,
    on_cell: OnCell | None = None,
    on_reuse: OnReuse | None = None,
    agree: Agree = agree_to_all,
) -> SweepResult:
    """Run the cells that are missing or made by other code, and compare the settings.

    Args:
        sweep: What to run.
        out: Folder of the cells and the results.
        jobs: Parallel processes.
        scheduler: Address of a Dask scheduler to use instead.
        fresh: Run every cell; over private data this charges the population once more.
        finished: Run nothing; compare what is there, made by older code too, which is named.
        cells: Folder of the cells, where sweeps share them; ``OUT/cells`` by default.
        on_cell: Called with every finished cell and its result.
        on_reuse: Told before the first cell runs which are reused, which are run, and why.
        agree: Over private data, called with the price of all cells that are to be paid for before any of them
            is; what it raises keeps everybody from paying.

    Raises:
        ConfigurationError: If a setting is impossible; no cell was run and nobody was asked to pay.
    """
    folder = cells or (private_folder(out) if sweep.config.data == "private" else out) / "cells"
    if sweep.config.data == "private":
        _refuse_other_names(folder)
        _refuse_file_on_cluster(sweep, scheduler)
    planned = _cells(sweep, folder, fresh=fresh)
    everything = [cell for group in planned.values() for cell in group]
    if finished:
        found = work.finished(everything, on_cell=on_cell, on_reuse=on_reuse)
        reuse = summarised(found, [None] * len(found))
    else:
        prepare = list[Cell] if sweep.ledger is None else partial(all_paid, sweep.ledger, agree)
        done = complete(
            everything,
            jobs=jobs,
            scheduler=scheduler,
            fresh=fresh,
            prepare=prepare,
            on_cell=on_cell,
            on_reuse=on_reuse,
        )
        found, reuse = list(done.cells), done.reuse
    kept = iter(found)
    by_setting = {key: [next(kept) for _ in group] for key, group in planned.items()}
    comparisons, groups = [], []
    for index, panel in enumerate(sweep.panels):
        own = {label: results for (number, label), results in by_setting.items() if number == index}
        comparisons.append(_compared(sweep, panel, own))
        groups.append({label: tuple(k for k in results if k is not None) for label, results in own.items()})
    return SweepResult(sweep=sweep, comparisons=tuple(comparisons), reuse=reuse, cells=tuple(groups))


def _refuse_file_on_cluster(sweep: Sweep, scheduler: str | None) -> None:
    """Runs on machines of a cluster share a ledger that all of them can reach."""
    if scheduler is not None and sweep.ledger is not None and not is_postgres(sweep.ledger.path):
        raise ConfigurationError(
            f"scheduler={scheduler!r} with ledger.path={sweep.ledger.path!r}: people whose data is on a cluster have "
            "their ledger in PostgreSQL, not in one machine's file; write path = 'postgresql://ROLE@HOST/DB?witness=FILE'"
        )


def recommended(found: SweepResult, budget: float, agree: Agree = agree_to_all) -> SweepResult:
    """Name the best setting of every panel within a budget; on private data the choice itself is charged, if agreed to.

    Raises:
        ConfigurationError: If nothing fits, or on private data without a [selection] table.
        BudgetExceeded: If the population's ledger can't pay for the choice.
    """
    sweep = found.sweep
    chosen = []
    for comparison, cells in zip(found.comparisons, found.cells, strict=True):
        if sweep.config.selection is None or sweep.ledger is None:
            chosen.append(dataclasses.replace(comparison, recommendation=recommend(comparison, budget)))
            continue
        paid = paid_recommendation(comparison, cells, sweep.config.selection, sweep.ledger, budget, agree)
        named = dataclasses.replace(comparison, recommendation=paid)
        chosen.append(_composed(named, sweep.ledger))
    return dataclasses.replace(found, comparisons=tuple(chosen))


def _refuse_other_names(folder: Path) -> None:
    """Cells of an older version were paid for and can't be gone on with, so to go on would charge them again.

    Raises:
        ConfigurationError: If there are any, finished or not.
    """
    found = [*folder.glob("*.json"), *(path.parent for path in folder.glob("*/config.json"))]
    old = [path.name for path in found if not path.name.startswith(NAMING)]
    if old:
        raise ConfigurationError(
            f"{folder} holds cells of an older privbo, such as {min(old)}, which have been charged; finish it "
            "with that version, or name another folder with --out and pay for its cells again"
        )


def _cells(sweep: Sweep, folder: Path, *, fresh: bool) -> dict[tuple[int, str], list[Cell]]:
    """Every setting's cells, by panel and label; a bad setting is refused before the first one runs."""
    found = {}
    codes: dict[str, CodeKey] = {}
    for index, panel in enumerate(sweep.panels):
        for setting in panel.settings:
            spec = spec_of(setting.content, setting.kind, private=sweep.ledger is not None)
            if sweep.config.selection is not None and spec.privacy.trust == "guardians":
                raise ConfigurationError(
                    "a [selection] table releases clients' scores through a door that sees them, which "
                    "trust='guardians' "
                    "rules out; drop one of the two"
                )
            table = spec.to_dict()
            name = digest([table["problem"], table["algorithm"], panel.judge, setting.content["problem"]])
            if name not in codes:
                codes[name] = code_of(spec, panel.judge)
            found[index, setting.label] = [
                _charging(sweep, setting, cell, task, fresh=fresh)
                for task, cell in _tasks(sweep, panel, setting, spec, codes[name], folder)
            ]
    return found


def _tasks(
    sweep: Sweep, panel: Panel, setting: Planned, spec: Spec, code: CodeKey, folder: Path
) -> Iterator[tuple[Task, Cell]]:
    """A setting's work and cell for every seed, as if nobody paid for it."""
    table, named = spec.to_dict(), spec.departures()
    for seed in panel.seeds:
        seeds = dict.fromkeys((*sweep.config.seed_keys, "seed"), seed)
        task = Task(table=with_overrides(table, seeds), judge=panel.judge)
        name = settings_name(with_overrides(named, seeds), panel.judge)
        work = partial(run_public, task) if sweep.ledger is None else partial(run_alone, task, folder)
        yield task, Cell(label=setting.label, seed=seed, settings=name, code=code, folder=folder, work=work)


def _charging(sweep: Sweep, setting: Planned, plain: Cell, task: Task, *, fresh: bool) -> Cell:
    if sweep.ledger is None or setting.kind != "private":
        return plain
    attempt = next_attempt(plain.folder, plain.settings) if fresh else 0
    charged = dataclasses.replace(plain, charges=True, attempt=attempt)
    return dataclasses.replace(charged, work=Unpaid(task=task))


def _compared(sweep: Sweep, panel: Panel, results: Mapping[str, Sequence[Kept | None]]) -> Comparison:
    enough = min(2, len(panel.seeds))  # fewer runs say nothing of noise
    settings = tuple(
        _collected(sweep, planned, panel.seeds, results[planned.label])
        for planned in panel.settings
        if sum(k is not None for k in results[planned.label]) >= enough
    )
    if not settings:
        raise ConfigurationError(f"{panel.name}: no setting has {enough} finished cells; run the sweep first")
    found = Comparison(
        name=panel.name,
        data=sweep.config.data,
        measure=sweep.config.measure,
        settings=settings,
        contrasts=tuple((pair[0], pair[1]) for pair in sweep.config.contrasts),
        statement=sweep.config.statement,
        seeded=sweep.config.data != "private",
    )
    return found if sweep.ledger is None else _composed(found, sweep.ledger)


def _collected(sweep: Sweep, planned: Planned, seeds: tuple[int, ...], kept: Sequence[Kept | None]) -> Setting:
    there = [(seed, k) for seed, k in zip(seeds, kept, strict=True) if k is not None]
    name = curve_of(sweep.config.measure)
    if any(name not in k.result.curves for _, k in there):
        raise ConfigurationError(
            f"measure={sweep.config.measure!r}: the problem of {planned.label!r} states no best_values; "
            "let its factory state them, or measure the score"
        )
    return setting_of(
        {seed: k.result for seed, k in there},
        label=planned.label,
        kind=planned.kind,
        curve=name,
        overrides=planned.overrides,
        older=tuple(dict.fromkeys(k.made_by for _, k in there if not k.is_current)),
    )


def composed(comparison: Comparison, book: Book, delta: float) -> Comparison:
    """Add the price of everything the comparison's population has paid so far."""
    return dataclasses.replace(comparison, total=total(book, delta))


def _composed(comparison: Comparison, shared: SharedLedger) -> Comparison:
    with Ledger.open(shared.path) as ledger:
        return composed(comparison, ledger.book(), quoted_at(shared, comparison.settings[0].safe_delta))
