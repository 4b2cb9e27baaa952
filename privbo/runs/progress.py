"""A progress bar of a run's rounds: on standard error, or as a line below a notebook's cell."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from accountant.verify.text import shown
from privbo.runs.history import OnRound, Round


@contextmanager
def progress_bar(label: str, rounds: int, on_round: OnRound | None = None) -> Iterator[OnRound]:
    """A bar that counts rounds; yields the callback that moves it and then calls ``on_round``.

    Times are for who sits at a terminal: in a log they would tell how long clients took.
    """
    move = _below_the_cell(label, rounds) if Console(file=sys.stderr).is_jupyter else None
    with ExitStack() as stack:
        if move is None:
            console = Console(file=sys.stderr, force_jupyter=False)
            columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
            times = (TimeRemainingColumn(),) if console.is_terminal else ()
            progress = stack.enter_context(Progress(*columns, *times, console=console))
            task = progress.add_task(shown(label), total=rounds)

            def move(done: int) -> None:
                progress.update(task, completed=done)

        def moved(event: Round) -> None:
            move(min(event.index, rounds))
            if on_round is not None:
                on_round(event)

        yield moved


def _below_the_cell(label: str, rounds: int) -> Callable[[int], None] | None:
    """One line of plain text that a notebook replaces round by round, without widgets; None without IPython."""
    try:
        from IPython.display import display
    except ImportError:
        return None

    def text(done: int) -> dict[str, str]:
        filled = 30 * done // max(rounds, 1)
        return {"text/plain": f"{shown(label)} [{'#' * filled}{'.' * (30 - filled)}] {done}/{rounds}"}

    handle = display(text(0), raw=True, display_id=True)
    return lambda done: handle.update(text(done), raw=True)
