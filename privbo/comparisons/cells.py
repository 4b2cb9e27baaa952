"""Cells: independent pieces of work, run in parallel, kept as they finish, and what may be said of reusing them.

A cell's file is named by a digest of its settings and a digest of the code that makes its
numbers, so the same command goes on where it was killed, and a result of other code is never
taken for this one's. Results are written by this process alone: workers may live on other
machines.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np

from privbo.comparisons.verdict import VALUED, Kind, RunCost, Setting
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.files import read_json, today, write_json
from privbo.protocol.messages import FloatArray
from privbo.protocol.processes import limited_threads, process_pool
from privbo.protocol.settings import JsonObject, fields_of, plain, read_settings
from privbo.runs.code import CodeKey
from privbo.runs.record import level

_FORMAT = 5  # of a kept file; files of other formats are made again


@dataclass(frozen=True, kw_only=True)
class CellResult(RunCost):
    """Numbers of one setting at one seed, and what the run costs.

    Attributes:
        curves: By measure, mean over clients after initialisation and every round, ``(n_rounds + 1,)``:
            ``"score"`` (best so far), where the problem states them ``"regret"``, and ``"loss"``;
            ``VALUED`` counts the clients. A driver of its own may keep others. PRIVATE if the clients' data are.
        evaluations: Mean over clients of the evaluations that they made, failed ones too; None where it was not kept.
            PRIVATE as the curves.
        extra: Whatever else a driver of its own keeps.
    """

    curves: Mapping[str, tuple[float, ...]]
    evaluations: float | None = None
    extra: JsonObject = field(default_factory=dict)


def setting_of(
    results: Mapping[int, CellResult],
    *,
    label: str,
    kind: Kind,
    curve: str,
    overrides: JsonObject | None = None,
    older: tuple[str, ...] = (),
) -> Setting:
    """Collect one setting's results by seed, priced as the most expensive; ``curve`` is the measure compared."""

    def rows(name: str) -> FloatArray | None:
        found = [np.asarray(r.curves[name]) for r in results.values() if name in r.curves]
        return level(found) if len(found) == len(results) else None

    made = [r.evaluations for r in results.values() if r.evaluations is not None]
    return Setting(
        label=label,
        kind=kind,
        **max(results.values(), key=lambda r: math.inf if r.epsilon is None else r.epsilon).cost(),
        overrides=overrides or {},
        seeds=tuple(results),
        curves=rows(curve),
        evaluations=np.array(made) if len(made) == len(results) else None,
        valued=rows(VALUED),
        older=older,
    )


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A finished cell on disk.

    Attributes:
        name: Its file's name; equal names hold equal results.
        result: Its numbers.
        code: Code that made them.
        made: Day on which they were made, as ``YYYY-MM-DD``.
        is_current: Whether that code is the code here and now.
    """

    name: str
    result: CellResult
    code: CodeKey
    made: str
    is_current: bool

    @property
    def made_by(self) -> str:
        """Version and day, for tables that show an older result."""
        return f"privbo {self.code.parts.get('version privbo', 'of an unknown version')}, {self.made}"


def read_kept(path: Path, wanted: CodeKey) -> Kept | None:
    """Read a finished cell; None if the file is of another format or damaged, so that the cell runs again."""
    try:
        content = read_json(path)
        if content.get("format") != _FORMAT:
            return None
        code = read_settings(CodeKey, content["code"], "code")
        curves = {
            name: [math.nan if mean is None else mean for mean in curve]  # no client had a value
            for name, curve in content["result"]["curves"].items()
        }
        result = read_settings(CellResult, content["result"] | {"curves": curves}, "cell.result")
    except (RunError, ConfigurationError, KeyError, TypeError, AttributeError):
        return None
    current = code.digest is not None and code.digest == wanted.digest
    return Kept(name=path.stem, result=result, code=code, made=str(content.get("made")), is_current=current)


@dataclass(frozen=True, kw_only=True)
class Reuse:
    """Cells that are read back and cells that are run, and why.

    Attributes:
        cells: Number of cells.
        reused: Of them, results of the code here and now that were there already.
        made: Days on which the reused ones were made, in order.
        reasons: Number of cells that are run, by reason.
        older: Number of cells that are shown though older code made them, by version and day.
    """

    cells: int
    reused: int
    made: tuple[str, ...] = ()
    reasons: Mapping[str, int] = field(default_factory=dict)
    older: Mapping[str, int] = field(default_factory=dict)

    def lines(self) -> tuple[str, ...]:
        """Say it in one to three lines.

        Example:
            >>> Reuse(cells=8, reused=8, made=("2026-11-20", "2026-11-22")).lines()
            ('8 of 8 cells reused, made 2026-11-20 to 2026-11-22',)
        """
        days = " to ".join(dict.fromkeys((self.made[0], self.made[-1]))) if self.made else ""
        found = [f"{self.reused} of {self.cells} cells reused, made {days}"] if self.reused else []
        if self.reasons:
            reasons = "; ".join(f"{reason} ({count})" for reason, count in self.reasons.items())
            found.append(f"{sum(self.reasons.values())} of {self.cells} cells run: {reasons}")
        if self.older:
            shown = "; ".join(f"{count} of {made_by}" for made_by, count in self.older.items())
            found.append(f"{sum(self.older.values())} of {self.cells} cells are shown as older code made them: {shown}")
        return tuple(found)

    def to_dict(self) -> JsonObject:
        """Give the summary as JSON."""
        return fields_of(self) | {"lines": list(self.lines())}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One piece of work.

    Attributes:
        label: Setting it belongs to.
        seed: Its seed.
        settings: Digest of all that was asked for (``digest(...)``), the seed among it.
        code: Code that makes its numbers (``privbo.runs.code.code_key(...)``).
        folder: Where results are kept.
        work: Does it; can be sent to another process.
        charges: Whether it charged people when it ran: its result is then kept and shown as
            older, and never made again just because code changed.
        attempt: Counts the runs that such a cell was charged for.
    """

    label: str
    seed: int
    settings: str
    code: CodeKey
    folder: Path
    work: Callable[[], CellResult]
    charges: bool = False
    attempt: int = 0

    @property
    def name(self) -> str:
        """Name of its settings and attempt; a run directory of its own bears it."""
        return self.settings if self.attempt == 0 else f"{self.settings}.{self.attempt}"

    @property
    def path(self) -> Path:
        """Where its result is kept."""
        return self.folder / f"{self.name}-{self.code.digest or 'once'}.json"


OnCell = Callable[[Cell, CellResult], None]
OnReuse = Callable[[Reuse, Sequence[Cell]], None]


class How(TypedDict, total=False):
    """How cells are carried out, which changes no number.

    Attributes:
        jobs: Parallel processes on this machine; 2 unless it is given.
        scheduler: Address of a Dask scheduler to use instead of this machine's processes.
        fresh: Run every cell, whatever is kept; cells that charge people charge them again.
        finished: Run nothing: read results of this code, else the newest of older code, which name the version that
            made them (``Kept.made_by``).
        on_cell: Called with every finished cell and its result, old ones first.
        on_reuse: Told before the first cell runs which are reused, which are run, and why, and all cells.
    """

    jobs: int
    scheduler: str | None
    fresh: bool
    finished: bool
    on_cell: OnCell
    on_reuse: OnReuse


def _say_nothing(*_: object) -> None:
    """Take note of nothing."""


def digest(settings: object) -> str:
    """Give JSON-able settings a short name.

    Example:
        >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
        True
    """
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def complete(
    cells: Sequence[Cell], prepare: Callable[[Sequence[Cell]], None] = lambda _: None, **how: Unpack[How]
) -> tuple[list[Kept | None], Reuse]:
    """Run what is missing, and return every cell's result in order, and what was reused; None where none is finished.

    Args:
        cells: The work.
        prepare: Called with the cells that will run, before the first one runs and before anything is said of them.
        how: See ``How``.
    """
    fresh, finished = how.get("fresh", False), how.get("finished", False)
    on_cell, on_reuse = how.get("on_cell", _say_nothing), how.get("on_reuse", _say_nothing)
    stored: dict[tuple[Path, str], list[Path]] = {}  # by folder and settings; every folder is listed once
    for folder in {cell.folder for cell in cells}:
        for path in folder.glob("*-*.json"):
            stored.setdefault((folder, _asked(path)[0]), []).append(path)
    files = [stored.get((cell.folder, cell.settings), []) for cell in cells]
    kept = [None if fresh else _read(cell, there) for cell, there in zip(cells, files, strict=True)]
    older = [k or _newest(cell, there) for cell, k, there in zip(cells, kept, files, strict=True)]
    missing = [(c, old) for c, k, old in zip(cells, kept, older, strict=True) if k is None and not finished]
    if finished:
        kept = older
    there = [k for k in kept if k is not None]
    reuse = Reuse(
        cells=len(kept),
        reused=sum(k.is_current for k in there),
        made=tuple(sorted({k.made for k in there if k.is_current})),
        reasons=Counter(_reason(cell, old, fresh=fresh) for cell, old in missing),
        older=Counter(k.made_by for k in there if not k.is_current),
    )
    todo = list({cell.path: cell for cell, _ in missing}.values())
    prepare(todo)
    on_reuse(reuse, cells)
    for cell, k in zip(cells, kept, strict=True):
        if k is not None:
            on_cell(cell, k.result)
    made = _made(todo, how.get("jobs", 2), how.get("scheduler"), on_cell)
    return [k or made.get(cell.path) for cell, k in zip(cells, kept, strict=True)], reuse


def next_attempt(folder: Path, settings: str) -> int:
    """Number of the next run of a cell that charges: one after the last that was finished."""
    return max((_asked(path)[1] + 1 for path in folder.glob(f"{settings}*-*.json")), default=0)


def _asked(path: Path) -> tuple[str, int]:
    """The settings and the attempt that a result's name states."""
    settings, _, attempt = path.stem.rpartition("-")[0].partition(".")
    return settings, int(attempt or 0)


def _read(cell: Cell, paths: Sequence[Path]) -> Kept | None:
    """The result that is not made again: this code's, or any of a cell that charged people."""
    if cell.charges:
        return _newest(cell, paths)
    found = read_kept(cell.path, cell.code)
    return found if found is not None and found.is_current else None


def _newest(cell: Cell, paths: Sequence[Path]) -> Kept | None:
    """The newest kept result of a cell's settings, whatever code made it."""
    order = sorted(paths, key=lambda p: (_asked(p)[1], p.stat().st_mtime_ns), reverse=True)
    return next((kept for path in order if (kept := read_kept(path, cell.code)) is not None), None)


def _reason(cell: Cell, older: Kept | None, *, fresh: bool) -> str:
    """Say why a cell is run."""
    if older is None:
        return "never run before"
    if fresh:
        return "asked for by --fresh" + (", charged again" if cell.charges else "")
    return ", ".join(cell.code.changes_since(older.code)) or "its file was damaged"


def _made(todo: Sequence[Cell], jobs: int, scheduler: str | None, on_cell: OnCell) -> dict[Path, Kept]:
    """Run cells, and give their results by path."""
    found: dict[Path, Kept] = {}
    if not todo:
        return found
    for cell in todo:
        cell.folder.mkdir(parents=True, exist_ok=True)
    with closing(_results(todo, jobs, scheduler)) as results:
        for cell, result in results:
            content = {"format": _FORMAT, "made": today(), "code": plain(cell.code), "result": plain(result)}
            write_json(cell.path, content)
            kept = read_kept(cell.path, cell.code)
            if kept is None:
                raise ConfigurationError(f"{cell.path} can't be read back; {cell.label!r} returned no plain numbers")
            found[cell.path] = kept
            on_cell(cell, result)
    return found


def _results(cells: Sequence[Cell], jobs: int, scheduler: str | None) -> Generator[tuple[Cell, CellResult]]:
    """Give cells and their results, as they finish."""
    if scheduler is None and jobs == 1:
        for cell in cells:
            yield cell, _run(cell.work)
        return
    with process_pool(min(jobs, len(cells))) if scheduler is None else _dask(f"dask:{scheduler}") as submit:
        futures = {submit(_run, cell.work): cell for cell in cells}
        for done in as_completed(futures):
            yield futures[done], done.result()


def _run(work: Callable[[], CellResult]) -> CellResult:
    with limited_threads(1):
        return work()


@contextmanager
def _dask(scheduler: str) -> Iterator[Callable[..., Future[CellResult]]]:
    """Give what submits calls to a cluster."""
    from privbo.runs.worker_pool import dask_client

    with dask_client(scheduler) as client:
        try:
            client.wait_for_workers(1, timeout=30)
        except TimeoutError:
            raise ConfigurationError(f"scheduler {scheduler!r} has no worker after 30 s; start one") from None
        yield client.get_executor(pure=False).submit
