"""The command ``privbo compare``: a sweep's cells with a live table, or runs side by side, and the tables it prints."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from privbo.cli.terminal import number, render
from privbo.comparisons.choice import recommend
from privbo.comparisons.comparison import Comparison
from privbo.comparisons.results import CellResult, Reuse
from privbo.comparisons.runs import compare
from privbo.comparisons.setting import Data
from privbo.comparisons.sweep import SweepResult, read_sweep, recommended, run_sweep
from privbo.plans.prices import smallest
from privbo.protocol.files import private_folder, write_json
from privbo.protocol.settings import JsonObject
from privbo.reports.compare_page import write_comparison
from privbo.reports.tables import contrast_lines, older_lines, strict_text


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Outcome of the command: a sweep's comparisons or one of runs, and the page.

    Attributes:
        found: As far as it may be shown.
        page: Path of the page.
    """

    found: SweepResult | Comparison
    page: Path

    def to_dict(self) -> JsonObject:
        """Give everything as JSON."""
        return self.found.to_dict() | {"report": str(self.page)}


def compare_sweep(
    path: Path,
    *,
    out: Path | None,
    jobs: int,
    scheduler: str | None,
    budget: float | None,
    private: bool,
    shared_assets: bool,
    fresh: bool = False,
    finished: bool = False,
) -> Compared:
    """Run a sweep's missing cells and write page, tables and summary.

    Raises:
        ConfigurationError: If the sweep or the recommendation asks for what it may not.
    """
    sweep = read_sweep(path)
    folder = out or Path("sweeps") / sweep.config.name
    planned = Counter(s.label for panel in sweep.panels for s in panel.settings for _ in panel.seeds)
    with cell_progress(planned, jobs=jobs if scheduler is None else None) as (on_cell, on_reuse):
        found = run_sweep(
            sweep,
            folder,
            jobs=jobs,
            scheduler=scheduler,
            fresh=fresh,
            finished=finished,
            on_cell=on_cell,
            on_reuse=on_reuse,
        )
    # The results stand before a recommendation may be refused.
    written = _written(found, folder, private=private, shared_assets=shared_assets)
    if budget is None:
        return written
    return _written(recommended(found, budget), folder, private=private, shared_assets=shared_assets)


def compare_runs(
    directories: Sequence[Path],
    *,
    out: Path | None,
    data: Data,
    budget: float | None,
    private: bool,
    shared_assets: bool,
) -> Compared:
    """Compare finished runs; ``data`` says whose data they saw."""
    found = compare([str(directory) for directory in directories], data=data)
    if budget is not None:
        found = dataclasses.replace(found, recommendation=recommend(found, budget))
    return _written(found, out or Path("comparison"), private=private, shared_assets=shared_assets)


def _written(found: SweepResult | Comparison, folder: Path, *, private: bool, shared_assets: bool) -> Compared:
    """Write what may be exported, and on request all of it into the private folder."""
    exportable = found.exportable()
    page = _write(exportable, folder, shared_assets=shared_assets)
    if not private or all(a is b for a, b in zip(_panels(found), _panels(exportable), strict=True)):
        return Compared(found=exportable, page=page)
    return Compared(found=found, page=_write(found, private_folder(folder), shared_assets=shared_assets))


def _write(found: SweepResult | Comparison, folder: Path, *, shared_assets: bool) -> Path:
    name = found.name if isinstance(found, Comparison) else found.sweep.config.name
    page = write_comparison(*_panels(found), folder=folder, name=name, shared_assets=shared_assets)
    # When and why cells were made is of this machine's history, not of the result.
    write_json(folder / "summary.json", {k: v for k, v in found.to_dict().items() if k != "reuse"})
    return page


def _panels(found: SweepResult | Comparison) -> tuple[Comparison, ...]:
    return (found,) if isinstance(found, Comparison) else found.comparisons


@render.register
def _compared(shown: Compared) -> Iterator[RenderableType]:
    for comparison in _panels(shown.found):
        yield from render(comparison)
    yield f"report: {shown.page}"


@render.register
def _comparison(comparison: Comparison) -> Iterator[RenderableType]:
    yield _comparison_table(comparison)
    yield from (escape(words) for words in (*contrast_lines(comparison), *older_lines(comparison)))
    if comparison.shows_utility and comparison.data == "private":
        yield "private diagnostics, not covered by epsilon"
    if comparison.composed is not None:
        least = number(smallest(comparison.composed))
        yield f"all cells together cost epsilon {least} at delta {comparison.composed_delta:.3g}"
    if comparison.recommendation is not None:
        chosen = comparison.recommendation
        yield f"recommended: {escape(chosen.label)} (epsilon {number(chosen.epsilon)})"
        yield escape(chosen.because)


def _comparison_table(comparison: Comparison) -> Table:
    shows = comparison.shows_utility
    what = comparison.measure if shows else "prices; utility is private (--private shows it)"
    table = Table(title=f"{escape(comparison.name)}: {what} ({comparison.data} data)")
    judged = ("utility", "standard error") if shows else ()
    for column in ("setting", "epsilon", "delta", "epsilon at safe delta", *judged, "seeds"):
        table.add_column(column, justify="left" if column == "setting" else "right")
    for row in comparison.rows():
        price = "nothing released" if row.releases == 0 else number(row.epsilon or float("inf"))
        strict = f"{strict_text(row)} ({row.strict_delta:.3g})" if row.releases else ""
        values = (number(row.utility), number(row.standard_error)) if shows else ()
        table.add_row(escape(row.setting), price, number(row.delta), strict, *values, str(row.seeds))
    return table


class Labelled(Protocol):
    """A finished cell of a sweep."""

    @property
    def label(self) -> str:
        """The setting it belongs to."""
        ...


OnCell: TypeAlias = Callable[[Labelled, CellResult], None]
OnReuse: TypeAlias = Callable[[Reuse], None]
Clock: TypeAlias = Callable[[], float]


@dataclass(kw_only=True)
class CellTable:
    """State of every setting while its cells run elsewhere.

    Cells are taken up in order, so the first ``jobs`` unfinished ones are being worked on.

    Attributes:
        planned: Number of cells by setting, in order.
        jobs: Cells that run at the same time; None where a cluster decides.
        clock: Seconds.
    """

    planned: Mapping[str, int]
    jobs: int | None
    clock: Clock = time.monotonic
    done: dict[str, int] = field(default_factory=dict)
    epsilon: dict[str, str] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._begin = self.clock()

    def finished(self, cell: Labelled, result: CellResult) -> None:
        """A cell is there, from now or from before."""
        label, now = cell.label, self.clock()
        self.states()  # whoever works on it has begun
        self.started.setdefault(label, now)
        self.done[label] = self.done.get(label, 0) + 1
        self.epsilon[label] = _price(result)
        if self.done[label] == self.planned[label]:
            self.ended[label] = now
        self.states()

    def states(self) -> dict[str, str]:
        """``"done"``, ``"running"`` or ``"waiting"`` by setting."""
        free, found = self.jobs, {}
        for label, total in self.planned.items():
            left = total - self.done.get(label, 0)
            running = bool(left) and (free > 0 if free is not None else label in self.done)
            found[label] = "running" if running else "waiting" if left else "done"
            if running:
                self.started.setdefault(label, self.clock())
            if free is not None:
                free -= min(free, left)
        return found

    def __rich__(self) -> Table:
        """The table as it is now."""
        states, now = self.states(), self.clock()
        count = sum(self.done.values())
        table = Table(
            title=f"{count} of {sum(self.planned.values())} cells, {_duration(now - self._begin)}", title_justify="left"
        )
        for name in ("setting", "seeds done", "epsilon", "state", "elapsed"):
            table.add_column(name, justify="right" if name in ("seeds done", "epsilon", "elapsed") else "left")
        for label, total in self.planned.items():
            begun = self.started.get(label)
            elapsed = "" if begun is None else _duration(self.ended.get(label, now) - begun)
            seeds = f"{self.done.get(label, 0)}/{total}"
            table.add_row(escape(label), seeds, self.epsilon.get(label, ""), states[label], elapsed)
        return table


@contextmanager
def cell_progress(planned: Mapping[str, int], *, jobs: int | None) -> Iterator[tuple[OnCell, OnReuse]]:
    """Show the table while cells run; yields the callbacks that fill it and that say what is reused.

    Where standard error is no terminal the table is printed once, at the end.
    """
    table, console = CellTable(planned=planned, jobs=jobs), Console(stderr=True)

    def say(reuse: Reuse) -> None:
        for words in reuse.lines():
            console.print(words, soft_wrap=True, markup=False, highlight=False)

    with Live(table, console=console, refresh_per_second=2):
        yield table.finished, say


def _price(result: CellResult) -> str:
    if result.releases == 0:
        return "nothing released"
    return "infinite" if result.epsilon is None else f"{result.epsilon:.4g}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"
