"""Sweeps: settings x seeds of one problem or several, run as cells.

Unless the data is private, cells run in memory with seeded noise. On private data cells are
plain runs on one population's ledger, all of them priced and reserved before the first one is
played. A finished cell that was paid for is never run again because code changed: it is shown as
older, with the version that made it, until ``fresh`` charges people once more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from accountant.ledger import Ledger
from accountant.ledger.address import is_postgres
from accountant.ledger.book import Book
from accountant.ledger.pricing import total
from privbo.comparisons import cells as work
from privbo.comparisons.cells import (
    Cell,
    Kept,
    OnCell,
    OnReuse,
    Reuse,
    complete,
    digest,
    next_attempt,
    setting_of,
    summarised,
)
from privbo.comparisons.comparison import Comparison
from privbo.comparisons.run_cell import (
    NAMING,
    PrivateRun,
    Task,
    code_of,
    quoted_at,
    reserve,
    run_uncharged,
    settings_name,
    spec_of,
)
from privbo.comparisons.setting import Setting, curve_of
from privbo.comparisons.sweep_file import Panel, Planned, Sweep, read_sweep
from privbo.plans.cost import Agree, agree_to_all
from privbo.plans.shared_ledger import SharedLedger
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import private_folder
from privbo.protocol.settings import JsonObject
from privbo.runs.code import CodeKey
from privbo.runs.spec import Spec, with_overrides

__all__ = ["Sweep", "SweepResult", "composed", "read_sweep", "run_sweep"]


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """A sweep after its cells ran.

    Attributes:
        sweep: What was run.
        comparisons: One per panel, in order.
        reuse: Cells that were read back, cells that were run, and why.
    """

    sweep: Sweep
    comparisons: tuple[Comparison, ...]
    reuse: Reuse

    def exportable(self) -> SweepResult:
        """Leave out what may not be published."""
        return dataclasses.replace(self, comparisons=tuple(c.exportable() for c in self.comparisons))

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
    folder = (cells or (private_folder(out) if sweep.config.data == "private" else out) / "cells").absolute()
    if sweep.config.data == "private":
        _refuse_other_names(folder)
        _refuse_file_on_cluster(sweep, scheduler)
    planned = _cells(sweep, folder, fresh=fresh)
    everything = [cell for group in planned.values() for cell in group]
    if finished:
        found = work.finished(everything, on_cell=on_cell, on_reuse=on_reuse)
        reuse = summarised(found, [None] * len(found))
    else:
        done = complete(
            everything,
            jobs=jobs,
            scheduler=scheduler,
            fresh=fresh,
            prepare=lambda todo: None if sweep.ledger is None else reserve(sweep.ledger, agree, todo),
            on_cell=on_cell,
            on_reuse=on_reuse,
        )
        found, reuse = list(done.cells), done.reuse
    kept = iter(found)
    by_setting = {key: [next(kept) for _ in group] for key, group in planned.items()}
    comparisons = tuple(
        _compared(sweep, panel, {label: results for (number, label), results in by_setting.items() if number == index})
        for index, panel in enumerate(sweep.panels)
    )
    return SweepResult(sweep=sweep, comparisons=comparisons, reuse=reuse)


def _refuse_file_on_cluster(sweep: Sweep, scheduler: str | None) -> None:
    """Runs on machines of a cluster share a ledger that all of them can reach."""
    if scheduler is not None and sweep.ledger is not None and not is_postgres(sweep.ledger.path):
        raise ConfigurationError(
            f"scheduler={scheduler!r} with ledger.path={sweep.ledger.path!r}: people whose data is on a cluster have "
            "their ledger in PostgreSQL, not in one machine's file; write path = 'postgresql://ROLE@HOST/DB?commits=FILE'"
        )


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
            spec = spec_of(setting.content, setting.kind, sweep.ledger)
            table = spec.to_dict()
            name = digest([table["problem"], table["algorithm"], panel.judge, setting.content["problem"]])
            if name not in codes:
                codes[name] = code_of(spec, panel.judge)
            found[index, setting.label] = [
                _cell(sweep, panel, setting, spec, codes[name], folder, seed, fresh=fresh) for seed in panel.seeds
            ]
    return found


def _cell(
    sweep: Sweep, panel: Panel, setting: Planned, spec: Spec, code: CodeKey, folder: Path, seed: int, *, fresh: bool
) -> Cell:
    """A setting's work at a seed; a run on the population's ledger is charged once, whatever code makes it."""
    seeds = dict.fromkeys((*sweep.config.seed_keys, "seed"), seed)
    task = Task(table=with_overrides(spec.to_dict(), seeds), judge=panel.judge)
    cell = Cell(
        label=setting.label,
        seed=seed,
        settings=settings_name(with_overrides(spec.departures(), seeds), panel.judge),
        code=code,
        folder=folder,
        work=partial(run_uncharged, task, None if sweep.ledger is None else folder / "output.txt"),
    )
    if spec.ledger is None:
        return cell
    cell = dataclasses.replace(cell, charges=True, attempt=next_attempt(folder, cell.settings) if fresh else 0)
    return dataclasses.replace(cell, work=PrivateRun(table=task.table, home=folder / cell.name))


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
    if sweep.ledger is None:
        return found
    with Ledger.open(sweep.ledger.path) as ledger:
        return composed(found, ledger.book(), sweep.ledger)


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


def composed(comparison: Comparison, book: Book, shared: SharedLedger) -> Comparison:
    """Add the price of everything the comparison's population has paid so far."""
    return dataclasses.replace(comparison, total=total(book, quoted_at(shared, comparison.settings[0].safe_delta)))
