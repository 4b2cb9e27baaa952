"""Cells: independent pieces of work, run in parallel and kept as they finish.

A cell's file is named by a digest of its settings and a digest of the code that makes its
numbers, so the same command goes on where it was killed, and a result of other code is never
taken for this one's. Results are written by this process alone: workers may live on other
machines.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import joblib
from joblib.externals.loky import get_reusable_executor

from privbo.comparisons.results import CellResult, Kept, Reuse, keep, read_kept, summarised
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.threads import limited_threads
from privbo.runs.code import CodeKey


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
        hand_out: Notes durably, in this process, that the work is being handed to a worker.
    """

    label: str
    seed: int
    settings: str
    code: CodeKey
    folder: Path
    work: Callable[[], CellResult]
    charges: bool = False
    attempt: int = 0
    hand_out: Callable[[], None] | None = None

    @property
    def name(self) -> str:
        """Name of its settings and attempt; a run directory of its own bears it."""
        return self.settings if self.attempt == 0 else f"{self.settings}.{self.attempt}"

    @property
    def path(self) -> Path:
        """Where its result is kept."""
        return self.folder / f"{self.name}-{self.code.digest or 'once'}.json"


Shelves: TypeAlias = Mapping[Path, Mapping[str, Sequence[Path]]]
OnCell = Callable[[Cell, CellResult], None]
OnReuse = Callable[[Reuse], None]


@dataclass(frozen=True, kw_only=True)
class Completed:
    """Every cell's result, in the order of the cells, and what was reused of them."""

    cells: tuple[Kept, ...]
    reuse: Reuse


def digest(settings: object) -> str:
    """Give JSON-able settings a short name.

    Example:
        >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
        True
    """
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def complete(
    cells: Sequence[Cell],
    *,
    jobs: int,
    scheduler: str | None = None,
    fresh: bool = False,
    prepare: Callable[[Sequence[Cell]], Sequence[Cell]] = lambda cells: cells,
    on_cell: OnCell | None = None,
    on_reuse: OnReuse | None = None,
) -> Completed:
    """Run what is missing, and return every cell's result in order.

    Args:
        cells: The work.
        jobs: Parallel processes on this machine.
        scheduler: Address of a Dask scheduler to use instead of this machine's processes.
        fresh: Run every cell, whatever is kept; cells that charge people charge them again.
        prepare: Makes the cells that will run ready, all of them before the first one runs and before anything
            is said of them.
        on_cell: Called with every finished cell and its result, old ones first.
        on_reuse: Told before the first cell runs which are reused, which are run, and why.
    """
    there = _shelves(cells)
    kept = [None if fresh else _usable(cell, there) for cell in cells]
    reasons = [_reason(cell, there, fresh=fresh) if k is None else None for cell, k in zip(cells, kept, strict=True)]
    reuse = summarised(kept, reasons)
    todo = list({cell.path: cell for cell, k in zip(cells, kept, strict=True) if k is None}.values())
    ready = prepare(todo)
    if on_reuse is not None:
        on_reuse(reuse)
    for cell, k in zip(cells, kept, strict=True):
        cell.folder.mkdir(parents=True, exist_ok=True)
        if k is not None and on_cell is not None:
            on_cell(cell, k.result)
    made = _made(todo, ready, jobs, scheduler, on_cell)
    found = (k or made[cell.path] for cell, k in zip(cells, kept, strict=True))
    return Completed(cells=tuple(found), reuse=reuse)


def finished(
    cells: Sequence[Cell], *, on_cell: OnCell | None = None, on_reuse: OnReuse | None = None
) -> list[Kept | None]:
    """Read what is there without running anything: results of this code, else the newest of older code.

    An older one names the version that made it (``Kept.made_by``); None where a cell was never run.
    """
    there = _shelves(cells)
    found = [_usable(cell, there) or next(_older(cell, there), None) for cell in cells]
    if on_reuse is not None:
        on_reuse(summarised(found, [None] * len(found)))
    for cell, kept in zip(cells, found, strict=True):
        if kept is not None and on_cell is not None:
            on_cell(cell, kept.result)
    return found


def next_attempt(folder: Path, settings: str) -> int:
    """Number of the next run of a cell that charges: one after the last that was finished."""
    names = {path.stem.rpartition("-")[0] for path in folder.glob(f"{settings}*-*.json")}
    return max((_attempt(name) + 1 for name in names), default=0)


def _attempt(name: str) -> int:
    return int(name.partition(".")[2] or 0)


def _shelves(cells: Sequence[Cell]) -> Shelves:
    """Files of results by folder and settings; every folder is listed once, however many cells there are."""
    return {folder: _by_settings(folder) for folder in {cell.folder for cell in cells}}


def _by_settings(folder: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in folder.glob("*-*.json"):
        found.setdefault(path.stem.rpartition("-")[0].partition(".")[0], []).append(path)
    return found


def _usable(cell: Cell, there: Shelves) -> Kept | None:
    if cell.charges:
        return next(_older(cell, there), None)
    if cell.code.digest is None or not cell.path.exists():
        return None
    found = read_kept(cell.path, cell.code)
    return found if found is not None and found.is_current else None


def _older(cell: Cell, there: Shelves) -> Iterator[Kept]:
    """Kept results of a cell's settings, whatever code made them, the newest first."""
    paths = there[cell.folder].get(cell.settings, [])
    order = sorted(paths, key=lambda p: (_attempt(p.stem.rpartition("-")[0]), p.stat().st_mtime_ns), reverse=True)
    return (kept for path in order if (kept := read_kept(path, cell.code)) is not None)


def _reason(cell: Cell, there: Shelves, *, fresh: bool) -> str:
    """Say why a cell is run."""
    older = next(_older(cell, there), None)
    if older is None:
        return "never run before"
    if fresh:
        return "asked for by --fresh" + (", charged again" if cell.charges else "")
    return ", ".join(cell.code.changes_since(older.code)) or "its file was damaged"


def _made(
    asked: Sequence[Cell], todo: Sequence[Cell], jobs: int, scheduler: str | None, on_cell: OnCell | None
) -> dict[Path, Kept]:
    """Run cells made ready, and give their results by the path of what was asked."""
    found: dict[Path, Kept] = {}
    if not todo:
        return found
    _renew_workers([cell.code for cell in todo])
    with _backend(jobs, scheduler) as parallel:
        for index, result in parallel(joblib.delayed(_run)(i, _handed_out(cell)) for i, cell in enumerate(todo)):
            cell = todo[index]
            keep(cell.path, result, cell.code)
            kept = read_kept(cell.path, cell.code)
            if kept is None:
                raise ConfigurationError(f"{cell.path} can't be read back; {cell.label!r} returned no plain numbers")
            found[asked[index].path] = kept
            if on_cell is not None:
                on_cell(cell, result)
    return found


_SENT: dict[str, str] = {}  # modules that this process's workers may have loaded, and their digests


def _renew_workers(codes: Sequence[CodeKey]) -> None:
    """End worker processes that stayed for more work and hold code that has changed since."""
    wanted = {name: digest for code in codes for name, digest in code.modules.items()}
    if any(_SENT.get(name, digest) != digest for name, digest in wanted.items()):
        get_reusable_executor().shutdown(wait=True)
        _SENT.clear()
    _SENT.update(wanted)


def _handed_out(cell: Cell) -> Callable[[], CellResult]:
    if cell.hand_out is not None:
        cell.hand_out()
    return cell.work


def _run(index: int, work: Callable[[], CellResult]) -> tuple[int, CellResult]:
    with limited_threads(1):
        return index, work()


@contextmanager
def _backend(jobs: int, scheduler: str | None) -> Iterator[joblib.Parallel]:
    if scheduler is None:
        with joblib.parallel_config("loky", inner_max_num_threads=1):
            yield joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")
        return
    try:
        from distributed import Client
    except ImportError:
        raise ConfigurationError("--scheduler needs Dask; install privbo[dask]") from None
    try:
        client = Client(scheduler, timeout="10s")  # type: ignore[no-untyped-call]  # Dask has no types
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"scheduler {scheduler!r} does not answer ({error}); start one, or drop it") from None
    with client, joblib.parallel_config("dask", wait_for_workers_timeout=30):
        yield joblib.Parallel(return_as="generator_unordered")
