"""Cells: independent pieces of work, run in parallel, kept as they finish, never run twice.

A cell's file is named by a hash of its settings, so the same command goes on where it was
killed. Results are written by this process alone: workers may live on other machines.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib

from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import read_json, write_json
from privbo.protocol.threads import limited_threads

OnCell = Callable[["Cell", dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One piece of work.

    Attributes:
        label: The setting it belongs to.
        seed: Its seed.
        path: Where its result is kept; a cell whose file exists is finished.
        work: What it does; returns plain JSON-able data and can be sent to another process.
    """

    label: str
    seed: int
    path: Path
    work: Callable[[], dict[str, Any]]


def digest(settings: object) -> str:
    """A short name for JSON-able settings."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def complete(
    cells: Sequence[Cell], *, jobs: int, scheduler: str | None = None, on_cell: OnCell | None = None
) -> list[dict[str, Any]]:
    """Run what is missing and return every cell's result, in order.

    Args:
        cells: The work.
        jobs: Parallel processes on this machine.
        scheduler: Address of a Dask scheduler to use instead of this machine's processes.
        on_cell: Called with every finished cell and its result, old ones first.
    """
    missing = {cell.path: cell for cell in cells if not cell.path.exists()}
    for cell in cells:
        cell.path.parent.mkdir(parents=True, exist_ok=True)
        if on_cell is not None and cell.path not in missing:
            on_cell(cell, read_json(cell.path))
    todo = list(missing.values())
    if todo:
        with _backend(jobs, scheduler) as parallel:
            for index, result in parallel(joblib.delayed(_run)(i, cell.work) for i, cell in enumerate(todo)):
                write_json(todo[index].path, result)
                if on_cell is not None:
                    on_cell(todo[index], result)
    return [read_json(cell.path) for cell in cells]


def _run(index: int, work: Callable[[], dict[str, Any]]) -> tuple[int, dict[str, Any]]:
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
