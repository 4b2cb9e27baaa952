"""The command ``privbo compare``: a sweep's cells with a live table, or runs side by side, and the tables it prints."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Unpack, cast

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from accountant.verify.text import shown
from accountant.wording import upper_text
from privbo.cli.options import agree, loaded
from privbo.cli.terminal import Result, render
from privbo.comparisons.cells import Cell, CellResult, How, OnCell, OnReuse, Reuse
from privbo.comparisons.comparison import recommend, require_choice
from privbo.comparisons.sweep import SweepResult, compare, run_sweep
from privbo.comparisons.sweep_file import read_sweep
from privbo.comparisons.verdict import Data
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import private_folder, write_json
from privbo.reports.comparison import write_comparison


def compare_sweep(
    path: Path,
    *,
    out: Path | None = None,
    budget: float | None = None,
    private: bool = False,
    yes: bool = False,
    **how: Unpack[How],
) -> Result:
    """Run a sweep's missing cells and write page, tables and summary; ``how`` is as of ``complete``.

    Raises:
        ConfigurationError: If the sweep or the recommendation asks for what it may not, or its cost was refused.
    """
    sweep = read_sweep(path)
    if budget is not None:
        require_choice(sweep.config.data)  # before its cells are paid for
    folder = out or Path("sweeps") / sweep.config.name
    loaded()
    with cell_progress() as (on_cell, on_reuse):
        how |= {"on_cell": on_cell, "on_reuse": on_reuse}
        found = run_sweep(sweep, folder, agree=partial(agree, yes=yes), **how)
    return _written(found, folder, private=private, budget=budget)


def compare_runs(
    directories: Sequence[Path],
    *,
    out: Path | None,
    data: str | None = None,
    budget: float | None = None,
    private: bool = False,
    ledger: str | None = None,
) -> Result:
    """Compare finished runs; ``data`` names whose data they saw, ``ledger`` is as of ``load``.

    Raises:
        ConfigurationError: If ``data`` is unknown, or nothing may be recommended.
    """
    found = compare(directories, data=cast("Data", data or "private"), ledger=ledger)
    if budget is not None:
        require_choice(found.data)
    alone = SweepResult(name=found.name, statement="", comparisons=(found,), reuse=None)
    return _written(alone, out or Path("comparison"), private=private, budget=budget)


def budget_of(recommend: str | None) -> float | None:
    """Read the budget of ``--recommend epsilon=VALUE``.

    Raises:
        ConfigurationError: If it is not written so.
    """
    if recommend is None:
        return None
    name, _, text = recommend.partition("=")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if name.strip() != "epsilon" or not value > 0:
        raise ConfigurationError(f"--recommend {recommend!r}: write epsilon=VALUE with a value > 0")
    return value


def _written(found: SweepResult, folder: Path, *, private: bool, budget: float | None) -> Result:
    """Write what may be exported, and on request all of it into the private folder; the last of them is printed.

    The results stand before a recommendation may be refused.
    """
    exportable = tuple(comparison.exportable() for comparison in found.comparisons)
    shown = dataclasses.replace(found, comparisons=exportable)
    page = _write(shown, folder)
    if private and any(a is not b for a, b in zip(found.comparisons, exportable, strict=True)):
        shown = found
        page = _write(shown, private_folder(folder))
    if budget is not None:
        named = (dataclasses.replace(c, recommendation=recommend(c, budget)) for c in found.comparisons)
        shown = dataclasses.replace(found, comparisons=tuple(named))
        page = _write(shown, folder)
    parts = [part for comparison in shown.comparisons for part in render(comparison)]
    return Result(content=shown.to_dict() | {"report": str(page)}, parts=[*parts, f"report: {page}"])


def _write(found: SweepResult, folder: Path) -> Path:
    page = write_comparison(*found.comparisons, folder=folder, name=found.name)
    # When and why cells were made is of this machine's history, not of the result.
    write_json(folder / "summary.json", {k: v for k, v in found.to_dict().items() if k != "reuse"})
    return page


@contextmanager
def cell_progress() -> Iterator[tuple[OnCell, OnReuse]]:
    """Show how far every setting is while cells run; yields the callbacks that count cells and say what is reused.

    It is drawn from the moment at which it is known what is reused: what is refused before shows none. Where
    standard error is no terminal the table is printed once, at the end and without times: in a log they would tell
    how long clients took.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        MofNCompleteColumn(),
        TextColumn("{task.fields[epsilon]}"),
    )
    times = (TimeElapsedColumn(),) if console.is_terminal else ()
    progress = Progress(*columns, *times, console=console, refresh_per_second=2)
    everything = progress.add_task("all cells", epsilon="")
    tasks: dict[str, TaskID] = {}

    def count(cell: Cell, result: CellResult) -> None:
        epsilon = math.inf if result.epsilon is None else result.epsilon
        price = f"epsilon {upper_text(epsilon)} at delta {upper_text(result.delta)}"
        progress.start_task(tasks[cell.label])
        progress.update(tasks[cell.label], advance=1, epsilon=price if result.releases else "nothing released")
        progress.advance(everything)

    def say(reuse: Reuse, cells: Sequence[Cell]) -> None:
        progress.update(everything, total=len(cells))
        for label, n in Counter(cell.label for cell in cells).items():
            tasks[label] = progress.add_task(shown(label), total=n, start=False, epsilon="")
        for words in reuse.lines():
            console.print(shown(words), soft_wrap=True, markup=False, highlight=False)
        drawn.enter_context(progress)

    with ExitStack() as drawn:
        yield count, say
