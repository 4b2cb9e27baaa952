"""Clients whose evaluations somebody else makes: they ask for trials and go on when they are told.

Every client is a cohort of one in a thread of its own, which waits where it needs a value, so nobody waits for another
client's evaluation. Who has not been told everything when a round's time is up is absent in it; its trials stay open,
and it finishes that round first when the next one comes: no evaluation is lost, and no point is chosen twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from privbo.protocol.files import load_arrays, save_arrays
from privbo.protocol.messages import Broadcast, FloatArray, IntArray, takes_points
from privbo.protocol.problem import NOT_ALLOWED, Evaluator
from privbo.protocol.processes import limited_loaded_threads, named
from privbo.protocol.space import Space
from privbo.runs.clients import Each
from privbo.runs.spec import Spec
from privbo.runs.states import Snapshot
from privbo.runs.trials import TRIALS, Journal, Pauses

_DIM, _ARRAY = "dim", "array/"
_PATIENCE = 0.05  # seconds until a waiting client looks whether it is still waited for


class _NotToldError(BaseException):
    """A round's time is up, or nobody waits any more. Clients' code must not take it for an error of its own."""


@dataclass(kw_only=True)
class _Asking:
    """The evaluations of one client in one round after the other.

    Attributes:
        journal: Where they are asked for and told.
        client: Its number.
        evaluate: Told why one has no value.
        waits: Tells whether it is still waited for.
    """

    journal: Journal
    client: int
    evaluate: Evaluator
    waits: Callable[[], bool] = lambda: True
    pull: None = None
    _round: int = 0
    _place: int = 0

    def begin(self, round_: int, waits: Callable[[], bool]) -> None:
        """Begin a round, maybe again: its trials are asked for in the same order."""
        self._round, self._place, self.waits = round_, 0, waits

    def __call__(self, clients: IntArray, units: FloatArray) -> FloatArray:  # noqa: ARG002 (there is one client)
        """Values told, ``(n,)``; NaN where a failure was, and for points that nobody may evaluate."""
        points = np.asarray(units, dtype=np.float64)
        kept = self.journal.space.allows(points)
        if not kept.all():
            self.note(self.client, NOT_ALLOWED)
        found = np.full(len(points), np.nan)
        numbers = self.journal.ask(self.client, self._round, self._place, points[kept])
        self._place += len(units)
        while (values := self.journal.values(numbers)) is None:
            if not self.waits():
                raise _NotToldError
            self.journal.wait(_PATIENCE)
        for number in numbers:
            if (failure := self.journal.trials[number].failure) is not None:
                self.note(self.client, f"trial {number}: {failure}")
        found[kept] = values
        return found

    def earlier(self, client: int) -> Sequence[tuple[FloatArray, float]]:
        """PRIVATE: as of any evaluation."""
        return self.evaluate.earlier(client)

    def chosen(self, clients: IntArray, units: FloatArray, place: int) -> FloatArray:
        """The point that is asked for next: as it was asked before, else what was enqueued, else what was chosen."""
        if (known := self.journal.asked_at(self.client, self._round, self._place)) is not None:
            return np.array([known.unit])
        found = self.evaluate.chosen(clients, units, place)
        if np.array_equal(found, units) and (unit := self.journal.next_enqueued(self.client)) is not None:
            return np.array([unit])
        return found

    def note(self, client: int, reason: str) -> None:
        """PRIVATE: as of any evaluation."""
        self.evaluate.note(client, reason)


@dataclass(kw_only=True)
class PendingTrials:
    """Clients that ask for trials and wait in threads until they are told; PRIVATE.

    Attributes:
        space: What they search.
        evaluate: Told of failures; evaluates nothing.
        folder: Where trials, and questions that are not answered yet, are kept.
        patience: Seconds for which a round waits; None waits until everything is told.
        threads: Of numerical libraries, for each client.
        takes_points: Whether clients evaluate points that are enqueued for them.
    """

    space: Space
    evaluate: Evaluator
    folder: Path
    patience: float | None = None
    threads: int = 1
    takes_points: bool = False
    _asking: dict[int, _Asking] = field(default_factory=dict, init=False, repr=False)
    _questions: dict[int, Snapshot] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.journal = Journal(path=self.folder / TRIALS)

    def evaluates(self, client: int) -> _Asking:
        """Give what a client's cohort asks with."""
        if client not in self._asking:
            self._asking[client] = _Asking(journal=self.journal, client=client, evaluate=self.evaluate)
        return self._asking[client]

    def finish(self) -> None:
        """Tell who evaluates that the run is over."""
        self.journal.finish()

    def answer(self, each: Each, broadcast: Broadcast, dim: int) -> FloatArray:
        """Every client's answer, ``(n, dim)``; NaN rows for those that were not told in time, or raised."""
        self.journal.begin(each.clients, self.space, takes_points=self.takes_points)
        self._keep(each, broadcast, dim)
        rows, over = np.full((len(each.clients), dim), np.nan), threading.Event()
        until = None if self.patience is None else time.monotonic() + self.patience

        def waits() -> bool:
            return not over.is_set() and (until is None or time.monotonic() < until)

        threads = [
            threading.Thread(target=self._act, args=(each, client, broadcast, row, waits), daemon=True)
            for client, row in zip(map(int, each.clients), rows, strict=True)
        ]
        try:
            for thread in threads:
                thread.start()
            pauses = Pauses()
            while any(thread.is_alive() for thread in threads):
                self.evaluate.moved()  # an operator's Ctrl-C comes through here
                pauses.after(moved=self.journal.refresh())
        finally:
            over.set()
            for thread in threads:
                thread.join()
        return rows

    def _act(self, each: Each, client: int, broadcast: Broadcast, row: FloatArray, waits: Callable[[], bool]) -> None:
        """Finish what a client has begun, then answer; whatever its code raises is its failure."""
        with limited_loaded_threads(self.threads):
            for question, dim in (*self._unfinished(each, client, broadcast.round), (broadcast, len(row))):
                last = each.finished(client)
                try:
                    self.evaluates(client).begin(question.round, waits)
                    found = each.act(client, question, dim)
                except _NotToldError:
                    each.forget(client)
                    return
                except BaseException as error:
                    each.forget(client)
                    self.evaluate.note(client, named(error))
                    each.mark_finished(client, question.round)
                    continue
                each.mark_finished(client, max(question.round, last))
                if dim and question.round == broadcast.round:
                    row[:] = found[0]

    def _unfinished(self, each: Each, client: int, before: int) -> Iterator[tuple[Broadcast, int]]:
        """Questions before a round in which a client asked for trials that it has not finished."""
        for round_ in self.journal.asked_rounds(client):
            if each.finished(client) < round_ < before:
                arrays = dict(self._questions[round_])
                dim = int(arrays.pop(_DIM))
                said = {name.removeprefix(_ARRAY): array for name, array in arrays.items()}
                yield Broadcast(round=round_, arrays=said), dim

    def _keep(self, each: Each, broadcast: Broadcast, dim: int) -> None:
        """Keep a question until everybody has finished its round, for those who are told late; drop finished ones.

        A round counts as finished by the states that were restored or saved, so a crash leaves what it needs.
        """
        folder = self.folder / "asked"
        folder.mkdir(exist_ok=True)
        arrays = {f"{_ARRAY}{name}": np.asarray(array) for name, array in broadcast.arrays.items()}
        save_arrays(folder / f"{broadcast.round:06d}.npz", {**arrays, _DIM: np.array(dim)})
        open_ = {
            round_
            for client in map(int, each.clients)
            for round_ in self.journal.asked_rounds(client)
            if round_ > each.finished(client)
        }
        for path in folder.glob("*.npz"):
            round_ = int(path.stem)
            if round_ not in open_ | {broadcast.round}:
                path.unlink()
                self._questions.pop(round_, None)
            elif round_ not in self._questions:
                self._questions[round_] = load_arrays(path)


def pending_trials(spec: Spec, evaluate: Evaluator, folder: Path, patience: float | None) -> PendingTrials | None:
    """Give what waits for the trials of a run; None where its objective is called."""
    if not spec.problem.is_asked:
        return None
    return PendingTrials(
        space=spec.problem.search_space,
        evaluate=evaluate,
        folder=folder,
        patience=patience,
        threads=spec.threads,
        takes_points=takes_points(spec.played),
    )
