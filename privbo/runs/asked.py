"""Clients whose evaluations somebody else makes: they ask for trials and go on when they are told.

Every client is a cohort of one in a thread of its own, which waits where it needs a value, so nobody waits for another
client's evaluation. Who has not been told everything when a round's time is up is absent in it; its trials stay open,
and it finishes that round first when the next one comes: no evaluation is lost, and no point is chosen twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from privbo.protocol.evaluator import NOT_ALLOWED
from privbo.protocol.files import load_arrays, save_arrays
from privbo.protocol.limited import named
from privbo.protocol.messages import Broadcast, ClientHistory, Cohort, Evaluate, FloatArray, IntArray
from privbo.protocol.problem import Evaluator
from privbo.protocol.space import Space
from privbo.protocol.threads import limited_loaded_threads
from privbo.runs.answers import joined, shaped
from privbo.runs.trials import TRIALS, Journal, Pauses

Snapshot: TypeAlias = Mapping[str, npt.NDArray[np.generic]]
FINISHED = "finished_round"
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


@dataclass(frozen=True, kw_only=True)
class Desk:
    """The place where clients' trials are asked and told.

    Attributes:
        folder: Where trials, and questions that are not answered yet, are kept; PRIVATE.
        patience: Seconds for which a round waits; None waits until everything is told.
        threads: Of numerical libraries, for each client.
    """

    folder: Path
    patience: float | None = None
    threads: int = 1


@dataclass(kw_only=True)
class Asked:
    """Clients that ask for trials; PRIVATE.

    Attributes:
        clients: Their numbers, ``(n,)``.
        space: What they search.
        made: Makes the cohort of some of them.
        evaluate: Told of failures; evaluates nothing.
        desk: Where trials are asked and told.
        takes_points: Whether clients evaluate points that are enqueued for them.
    """

    clients: IntArray
    space: Space
    made: Callable[[IntArray, Evaluate], Cohort]
    evaluate: Evaluator
    desk: Desk
    takes_points: bool = False
    _cohorts: dict[int, tuple[Cohort, _Asking]] = field(default_factory=dict, init=False, repr=False)
    _kept: dict[int, dict[str, npt.NDArray[np.generic]]] = field(default_factory=dict, init=False, repr=False)
    _histories: dict[int, ClientHistory] = field(default_factory=dict, init=False, repr=False)
    _questions: dict[int, Snapshot] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.journal = Journal(path=self.desk.folder / TRIALS)

    def answer(self, broadcast: Broadcast, dim: int) -> FloatArray:
        """Every client's answer, ``(n, dim)``; NaN rows for those that were not told in time, or raised."""
        self.journal.begin(self.clients, self.space, takes_points=self.takes_points)
        self._keep(broadcast, dim)
        rows, over = np.full((len(self.clients), dim), np.nan), threading.Event()
        until = None if self.desk.patience is None else time.monotonic() + self.desk.patience

        def waits() -> bool:
            return not over.is_set() and (until is None or time.monotonic() < until)

        threads = [
            threading.Thread(target=self._act, args=(client, broadcast, row, waits), daemon=True)
            for client, row in zip(map(int, self.clients), rows, strict=True)
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

    def snapshot(self) -> Snapshot:
        """Every client's state after the last round that it finished, by number and name."""
        return {f"{client}/{name}": array for client, kept in self._kept.items() for name, array in kept.items()}

    def restore(self, snapshot: Snapshot) -> None:
        """Take the state of ``snapshot``."""
        self._cohorts.clear()
        self._histories.clear()
        self._kept.clear()
        for key, array in snapshot.items():
            client, _, name = key.partition("/")
            self._kept.setdefault(int(client), {})[name] = array

    def history(self) -> ClientHistory:
        """PRIVATE: every evaluation of the rounds that clients finished; NaN for one that has none."""
        for client in self._kept.keys() - self._histories.keys():
            self._histories[client] = self._cohort(client)[0].history()
        return joined([self._histories.get(int(client)) for client in self.clients])

    def _act(self, client: int, broadcast: Broadcast, row: FloatArray, waits: Callable[[], bool]) -> None:
        """Finish what a client has begun, then answer; whatever its code raises is its failure."""
        with limited_loaded_threads(self.desk.threads):
            for question, dim in (*self._unfinished(client, broadcast.round), (broadcast, len(row))):
                try:
                    found = self._respond(client, question, dim, waits)
                except _NotToldError:
                    self._cohorts.pop(client, None)  # it stopped in the middle of something
                    return
                except BaseException as error:
                    self._cohorts.pop(client, None)
                    self.evaluate.note(client, named(error))
                    self._kept[client] = {**self._kept.get(client, {}), FINISHED: np.array(question.round)}
                    continue
                if dim and question.round == broadcast.round:
                    row[:] = found[0]

    def _respond(self, client: int, question: Broadcast, dim: int, waits: Callable[[], bool]) -> FloatArray:
        cohort, asking = self._cohort(client)
        asking.begin(question.round, waits)
        found = shaped(cohort.respond(question), dim)
        kept, history = dict(cohort.snapshot()), cohort.history()
        self._kept[client] = {**kept, FINISHED: np.array(max(question.round, self._finished(client)))}
        self._histories[client] = history
        return found

    def _cohort(self, client: int) -> tuple[Cohort, _Asking]:
        if client not in self._cohorts:
            asking = _Asking(journal=self.journal, client=client, evaluate=self.evaluate)
            cohort = self.made(np.array([client]), asking)
            kept = {name: array for name, array in self._kept.get(client, {}).items() if name != FINISHED}
            if kept:
                cohort.restore(kept)
            self._cohorts[client] = cohort, asking
        return self._cohorts[client]

    def _finished(self, client: int) -> int:
        found = self._kept.get(client, {}).get(FINISHED)
        return -1 if found is None else int(found)

    def _unfinished(self, client: int, before: int) -> Iterator[tuple[Broadcast, int]]:
        """Questions before a round in which a client asked for trials that it has not finished."""
        for round_ in self.journal.asked_rounds(client):
            if self._finished(client) < round_ < before:
                arrays = dict(self._questions[round_])
                dim = int(arrays.pop(_DIM))
                said = {name.removeprefix(_ARRAY): array for name, array in arrays.items()}
                yield Broadcast(round=round_, arrays=said), dim

    def _keep(self, broadcast: Broadcast, dim: int) -> None:
        """Keep a question until everybody has finished its round, for those who are told late; drop finished ones.

        A round counts as finished by the states that were restored or saved, so a crash leaves what it needs.
        """
        folder = self.desk.folder / "asked"
        folder.mkdir(exist_ok=True)
        arrays = {f"{_ARRAY}{name}": np.asarray(array) for name, array in broadcast.arrays.items()}
        save_arrays(folder / f"{broadcast.round:06d}.npz", {**arrays, _DIM: np.array(dim)})
        open_ = {
            round_
            for client in map(int, self.clients)
            for round_ in self.journal.asked_rounds(client)
            if round_ > self._finished(client)
        }
        for path in folder.glob("*.npz"):
            round_ = int(path.stem)
            if round_ not in open_ | {broadcast.round}:
                path.unlink()
                self._questions.pop(round_, None)
            elif round_ not in self._questions:
                self._questions[round_] = load_arrays(path)
