"""The history of a run as it is written down: public lines and private diagnostics, apart.

A progress bar of the rounds stands on standard error, or as a line below a notebook's cell.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from accountant.ledger.chain import Position
from accountant.verify.text import shown
from privbo.door.clipping import ClipStatistics
from privbo.protocol.files import OnceLines, append_line, read_lines
from privbo.protocol.messages import ClientHistory, Release
from privbo.protocol.settings import JsonObject
from privbo.runs.manifest import RunDirectory


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round as a callback is told of it; public.

    Attributes:
        index: Zero-based round.
        release: The round's release, or None for a round of local work.

    Example:
        >>> Round(index=0, release=None).index
        0
    """

    index: int
    release: Release | None


OnRound = Callable[[Round], None]


@dataclass(frozen=True, kw_only=True)
class PrivateRound:
    """PRIVATE: one round as a callback on the clients' side is told of it; no epsilon covers it.

    Attributes:
        index: Zero-based round.
        clients: Every evaluation so far.
    """

    index: int
    clients: ClientHistory


OnPrivateRound = Callable[[PrivateRound], None]


@dataclass(kw_only=True)
class History:
    """Collects the rounds of a run, and writes them next to the ledger, public and private apart.

    ``lost`` are the charges that a recovery made good: what stands of them stays, and their
    rounds are written down once more.
    """

    home: RunDirectory | None
    on_round: OnRound | None
    lost: frozenset[Position] = frozenset()

    def __post_init__(self) -> None:
        def superseded(row: Mapping[str, Any]) -> bool:
            return "head" in row and (row["sequence"], row["head"]) in self.lost

        path = None if self.home is None else self.home.history_path
        rows = [] if path is None else [row for row in read_lines(path) if "ended" in row and not superseded(row)]
        self._ended = {row["round"]: row["ended"] for row in rows}
        self._lines = None if path is None else OnceLines(path=path, key="round", superseded=superseded)

    def add(
        self, index: int, release: Release | None, clipping: ClipStatistics | None, *, ended: str | None = None
    ) -> None:
        """Write one round down, with the time of its end where the run keeps a grid; a callback hears of it last.

        A round that is replayed ended when it did.
        """
        ended = self._ended.get(index, ended)
        if self._lines is not None:
            line: JsonObject = {"round": index, "released": release is not None}
            if release is not None:
                line |= {
                    "sequence": release.sequence,
                    "head": release.head,
                    "noise_stddev": release.noise_stddev,
                    "norm": float(np.linalg.norm(release.values)),
                }
            self._lines.add(line if ended is None else line | {"ended": ended})
        if self.home is not None and clipping is not None:
            append_line(self.home.clipping_path, {"round": index} | clipping.to_dict())
        if self.on_round is not None:
            self.on_round(Round(index=index, release=release))


@contextmanager
def progress_bar(label: str, rounds: int, on_round: OnRound | None = None) -> Iterator[OnRound]:
    """A bar that counts rounds; yields the callback that moves it and then calls ``on_round``.

    Times are for who sits at a terminal: in a log they would tell how long clients took.
    """
    from rich.console import Console  # no run without a bar loads it
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
