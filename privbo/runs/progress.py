"""A progress bar of a run's rounds on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from privbo.protocol.text import shown
from privbo.runs.history import OnRound, Round


@contextmanager
def progress_bar(label: str, rounds: int) -> Iterator[OnRound]:
    """A bar on standard error that counts rounds; yields the callback that moves it.

    Times are for who sits at a terminal: in a log they would tell how long clients took.
    """
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    times = (TimeRemainingColumn(),) if console.is_terminal else ()
    with Progress(*columns, *times, console=console) as progress:
        task = progress.add_task(shown(label), total=rounds)

        def moved(event: Round) -> None:
            progress.update(task, completed=min(event.index, rounds))

        yield moved
