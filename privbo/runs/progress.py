"""A progress bar of a run's rounds: on standard error, or as a line below a notebook's cell."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from accountant.verify.text import shown
from privbo.runs.history import OnRound, Round


@contextmanager
def progress_bar(label: str, rounds: int) -> Iterator[OnRound]:
    """A bar that counts rounds; yields the callback that moves it.

    Times are for who sits at a terminal: in a log they would tell how long clients took.
    """
    below = _below_the_cell(label, rounds) if Console(file=sys.stderr).is_jupyter else None
    if below is not None:
        yield below
        return
    console = Console(file=sys.stderr, force_jupyter=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    times = (TimeRemainingColumn(),) if console.is_terminal else ()
    with Progress(*columns, *times, console=console) as progress:
        task = progress.add_task(shown(label), total=rounds)

        def moved(event: Round) -> None:
            progress.update(task, completed=min(event.index, rounds))

        yield moved


def _below_the_cell(label: str, rounds: int) -> OnRound | None:
    """One line of plain text that a notebook replaces round by round, without widgets; None without IPython."""
    try:
        from IPython.display import display
    except ImportError:
        return None

    def text(done: int) -> dict[str, str]:
        filled = 30 * done // max(rounds, 1)
        return {"text/plain": f"{shown(label)} [{'#' * filled}{'.' * (30 - filled)}] {done}/{rounds}"}

    handle = display(text(0), raw=True, display_id=True)

    def moved(event: Round) -> None:
        handle.update(text(min(event.index, rounds)), raw=True)

    return moved
