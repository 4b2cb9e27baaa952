"""A live table of a sweep's cells on standard error: setting, seeds done, epsilon, state, elapsed time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table


class Labelled(Protocol):
    """A finished cell of a sweep."""

    @property
    def label(self) -> str:
        """The setting it belongs to."""
        ...


OnCell: TypeAlias = Callable[[Labelled, Mapping[str, Any]], None]
Clock: TypeAlias = Callable[[], float]


@dataclass(kw_only=True)
class CellTable:
    """What is known of every setting while its cells run elsewhere.

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

    def finished(self, cell: Labelled, result: Mapping[str, Any]) -> None:
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
def cell_progress(planned: Sequence[tuple[str, int]], *, jobs: int | None) -> Iterator[OnCell]:
    """Show the table while cells run; yields the callback that fills it.

    Where standard error is no terminal the table is printed once, at the end.
    """
    table = CellTable(planned=dict(planned), jobs=jobs)
    with Live(table, console=Console(stderr=True), refresh_per_second=2):
        yield table.finished


def _price(result: Mapping[str, Any]) -> str:
    if result["releases"] == 0:
        return "nothing released"
    return "infinite" if result["epsilon"] is None else f"{result['epsilon']:.4g}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"
