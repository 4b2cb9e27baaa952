"""Trials that are evaluated outside: what clients ask for and the values they get. PRIVATE.

``trials.jsonl`` stands on the private side of a run, or in a site's folder of one run. Its lines are appended under a
lock and are on the disk before they count, so that a process killed at any moment loses nothing, and a client
that goes on asks for the same trials under the same numbers::

    {"facts": {...}, "takes_points": true}                          the clients, their space, whether one can enqueue
    {"enqueued": 1, "client": 2, "unit": [...]}                     a point that its client evaluates as soon as it can
    {"asked": 7, "client": 2, "round": 3, "place": 0, "unit": [...]}
    {"reported": 7, "step": 1, "value": 0.4}                        on the way to its value; not shown to clients
    {"told": 7, "value": 0.71}    or    {"told": 7, "failure": "the furnace broke"}
    {"over": true}                                                  the run has ended
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.files import extend_lines, load_arrays, now, save_arrays
from privbo.protocol.messages import Broadcast, FloatArray, IntArray, takes_points
from privbo.protocol.problem import LARGEST_VALUE, NOT_ALLOWED, Evaluator
from privbo.protocol.processes import limited_loaded_threads, named
from privbo.protocol.settings import dump_settings, read_settings
from privbo.protocol.space import Space, Value
from privbo.runs.best import SiteFacts
from privbo.runs.clients import Each
from privbo.runs.spec import Spec

State: TypeAlias = Literal["open", "told", "failed"]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """PRIVATE: a point that a client wants evaluated; it belongs to that client.

    .. versionadded:: 0.3.0

    Attributes:
        number: Its name, for telling.
        client: Whose objective is to be evaluated.
        round: The round it was asked in.
        params: Values by name.
        unit: The same in the unit cube.
        state: ``"open"`` until it is told.
        value: What was told; None where nothing or a failure was.
        failure: Why there is no value; None where there is one, or none yet.
        steps: Values reported on the way, by step.
        asked_at: When it was asked for (UTC).
        told_at: When it was told (UTC).

    Example:
        >>> Trial(number=1, client=0, round=0, params={"x": 0.5}, unit=(0.5,)).state
        'open'
    """

    number: int
    client: int
    round: int
    params: dict[str, Value]
    unit: tuple[float, ...]
    state: State = "open"
    value: float | None = None
    failure: str | None = None
    steps: tuple[tuple[int, float], ...] = ()
    asked_at: str = ""
    told_at: str = ""


TRIALS = "trials.jsonl"
Rows: TypeAlias = Sequence[Mapping[str, Any]]
_SHORTEST, _LONGEST = 0.002, 0.5  # seconds between two looks at the file
_SAME = 1e-9  # coordinates of one point, computed twice


@dataclass(kw_only=True)
class Journal:
    """The trials of some clients, in a file that several processes and threads write.

    Attributes:
        path: ``.../trials.jsonl``.
        trials: Every trial by its number, as far as it was read.
        over: Whether the run has ended.
    """

    path: Path
    trials: dict[int, Trial] = field(default_factory=dict, init=False)
    over: bool = field(default=False, init=False)
    _facts: SiteFacts | None = field(default=None, init=False, repr=False)
    _keys: dict[tuple[int, int, int], int] = field(default_factory=dict, init=False, repr=False)
    _takes_points: bool = field(default=False, init=False, repr=False)
    _enqueued: list[tuple[int, tuple[float, ...]]] = field(default_factory=list, init=False, repr=False)
    _read: int = field(default=0, init=False, repr=False)
    _changed: threading.Condition = field(default_factory=threading.Condition, init=False, repr=False)

    def begin(self, clients: IntArray, space: Space, *, takes_points: bool) -> None:
        """Write down once what the trials speak of; a run that goes on is no longer over.

        Args:
            clients: Who asks.
            space: What they search.
            takes_points: Whether they evaluate points that others enqueue.
        """

        def rows() -> Rows:
            if self._facts is None:
                return [{"facts": dump_settings(SiteFacts.of(clients, space)), "takes_points": takes_points}]
            return [{"over": False}] if self.over else []

        self._append(rows)
        if self.facts.search_space != space:
            raise RunError(f"{self.path} holds trials of another search space; name another directory")

    @property
    def facts(self) -> SiteFacts:
        """The clients and their space.

        Raises:
            RunError: If no trial was asked for yet.
        """
        if self._facts is None:
            raise RunError(f"{self.path}: nothing was asked for yet; the run has not begun")
        return self._facts

    @cached_property
    def space(self) -> Space:
        """The search space."""
        return self.facts.search_space

    def require(self, client: int) -> None:
        """Refuse a client that is not here, once it is known who is.

        Raises:
            ConfigurationError: Naming those that are.
        """
        if self._facts is not None and client not in self._facts.clients:
            raise ConfigurationError(f"client={client} is not here; those that are: {sorted(self._facts.clients)}")

    def refresh(self) -> bool:
        """Read what others appended; tells whether there was anything."""
        grown = self.path.exists() and self.path.stat().st_size > self._read
        if grown:
            self._append(list)
        return grown

    def ask(self, client: int, round_: int, place: int, units: FloatArray) -> list[int]:
        """Ask for a client's evaluations ``(k, n_dims)``; those asked for before, by place in the round, keep numbers.

        Raises:
            RunError: If another point was asked for in the same place before.
        """
        numbers: list[int] = []

        def rows() -> Rows:
            made: list[Mapping[str, Any]] = []
            for index, unit in enumerate(units):
                number = self._keys.get((client, round_, place + index))
                if number is None:
                    number = len(self.trials) + len(made) + 1
                    row = {"asked": number, "client": client, "round": round_, "place": place + index}
                    made.append(row | {"unit": unit.tolist(), "at": now()})
                elif np.abs(np.array(self.trials[number].unit) - unit).max() > _SAME:
                    raise RunError(
                        f"{self.path}: trial {number} was asked at {self.trials[number].unit}, now the same client "
                        f"wants {tuple(unit.tolist())} there; go on with the settings and the privbo it was asked with"
                    )
                numbers.append(number)
            return made

        self._append(rows)
        return numbers

    def asked_at(self, client: int, round_: int, place: int) -> Trial | None:
        """Give the trial that stands in a place of a client's round."""
        number = self._keys.get((client, round_, place))
        return None if number is None else self.trials[number]

    def enqueue(self, client: int, params: Mapping[str, Value]) -> None:
        """Keep a point that a client evaluates in place of its next choice.

        Raises:
            ConfigurationError: If it is no point of the space, or the client is not here or chooses no points.
        """
        self.require(client)
        if self._facts is not None and not self._takes_points:
            raise ConfigurationError(
                "clients of this algorithm take no points from outside, so none can be enqueued; those of shared-prior "
                "and dp-fts-de do"
            )
        unit = self.space.snap(self.space.encode(params)).tolist()
        self._append(lambda: [{"enqueued": len(self._enqueued) + 1, "client": client, "unit": unit}])

    def next_enqueued(self, client: int) -> tuple[float, ...] | None:
        """Take the point that a client evaluates next, if one was enqueued; it stands until it was asked for."""
        asked = [trial.unit for trial in list(self.trials.values()) if trial.client == client]  # other threads add some
        for whose, unit in self._enqueued:
            if whose == client:
                if unit not in asked:
                    return unit
                asked.remove(unit)
        return None

    def tell(self, number: int, *, value: float | None = None, failure: str | None = None) -> Trial:
        """Tell a trial's value, or why it has none. Telling the same again changes nothing.

        Raises:
            RunError: If there is no such trial, or it was told something else.
            ConfigurationError: If the value is no finite number up to 1e100 in magnitude.
        """
        if (value is None) == (failure is None):
            raise ConfigurationError(f"trial {number}: tell either a value or a failure")
        if value is not None and not abs(value) <= LARGEST_VALUE:
            raise ConfigurationError(
                f"trial {number}: value={value!r} is no finite number up to {LARGEST_VALUE:g}; tell a failure instead"
            )

        def rows() -> Rows:
            trial = self.known(number)
            if trial.state != "open":
                if (trial.value, trial.failure) == (value, failure):
                    return []
                said = f"value={trial.value!r}" if trial.state == "told" else f"failure={trial.failure!r}"
                raise RunError(f"trial {number} was told {said}, which stands: its client may have acted on it")
            return [{"told": number} | ({"value": value} if failure is None else {"failure": failure}) | {"at": now()}]

        self._append(rows)
        return self.trials[number]

    def report(self, number: int, step: int, value: float) -> None:
        """Keep a value on the way to a trial's own, the last of each step; it stays here, no client learns from it."""
        if step < 0:
            raise ConfigurationError(f"trial {number}: step={step!r} must be >= 0")
        if not math.isfinite(value):
            raise ConfigurationError(f"trial {number}, step {step}: value={value!r} must be a finite number")
        self._append(lambda: [{"reported": self.known(number).number, "step": step, "value": value}])

    def finish(self) -> None:
        """Say that the run has ended."""
        self._append(lambda: [{"over": True}])

    def known(self, number: int) -> Trial:
        """Give a trial.

        Raises:
            RunError: If there is none of this number.
        """
        if number not in self.trials:
            raise RunError(f"{self.path}: there is no trial {number}; those asked for are 1..{len(self.trials)}")
        return self.trials[number]

    def values(self, numbers: Iterable[int]) -> FloatArray | None:
        """Give the values of some trials, NaN for failures; None while one of them is open."""
        found = [self.trials[number] for number in numbers]
        if any(trial.state == "open" for trial in found):
            return None
        return np.array([math.nan if trial.value is None else trial.value for trial in found])

    def wait(self, seconds: float) -> None:
        """Wait until something is appended or read through this object, at most so long."""
        with self._changed:
            self._changed.wait(seconds)

    def _append(self, made: Callable[[], Rows]) -> None:
        """Read what others appended, then append what is made of it."""
        with self._changed:

            def rows(found: Rows) -> Rows:
                self._take(found)
                return own.setdefault("rows", made())

            own: dict[str, Rows] = {}
            self._read = extend_lines(self.path, self._read, rows)
            self._take(own["rows"])
            self._changed.notify_all()

    def _take(self, rows: Rows) -> None:
        for row in rows:
            match row:
                case {"facts": facts, "takes_points": takes_points}:
                    self._takes_points = bool(takes_points)
                    self._facts = read_settings(SiteFacts, facts, TRIALS)
                case {"asked": number, "client": client, "round": round_, "place": place, "unit": unit, "at": at}:
                    self._keys[client, round_, place] = number
                    self.trials[number] = Trial(
                        number=number,
                        client=client,
                        round=round_,
                        params=self.space.decode(unit),
                        unit=tuple(unit),
                        asked_at=at,
                    )
                case {"enqueued": _, "client": client, "unit": unit}:
                    self._enqueued.append((client, tuple(unit)))
                case {"told": number, "value": value, "at": at}:
                    self._now(number, state="told", value=value, told_at=at)
                case {"told": number, "failure": failure, "at": at}:
                    self._now(number, state="failed", failure=failure, told_at=at)
                case {"reported": number, "step": step, "value": value}:
                    self._now(number, steps=tuple((dict(self.trials[number].steps) | {step: value}).items()))
                case {"over": over}:
                    self.over = over

    def _now(self, number: int, **changes: object) -> None:
        self.trials[number] = replace(self.trials[number], **changes)  # type: ignore[arg-type]  # named fields of Trial


@dataclass
class Pauses:
    """Pauses between two looks at a file: short after something happened, half a second at most."""

    seconds: float = 0.0

    def after(self, *, moved: bool) -> None:
        """Wait a little, longer every time that nothing had happened."""
        self.seconds = _SHORTEST if moved else min(_LONGEST, max(_SHORTEST, 1.1 * self.seconds))
        time.sleep(self.seconds)


_PATIENCE = 0.05  # seconds until a waiting client looks whether it is still waited for


class _NotToldError(BaseException):
    """A round's time is up, or no caller waits any more. Clients' code must not take it for an error of its own."""


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
        """Values told, ``(n,)``; NaN where a failure was, and for points that may not be evaluated."""
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
class PendingTrials(Each):
    """A cohort of one for every client, which asks for trials and waits in a thread until they are told; PRIVATE.

    Attributes:
        spec: The run.
        folder: Where trials, and questions that are not answered yet, are kept.
        patience: Seconds for which a round waits; None waits until everything is told.
    """

    spec: Spec
    folder: Path
    patience: float | None = None
    _asking: dict[int, _Asking] = field(default_factory=dict, init=False, repr=False)
    _questions: dict[int, tuple[Broadcast, int]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.journal = Journal(path=self.folder / TRIALS)

    def evaluates(self, client: int) -> _Asking:
        """Give what a client's cohort asks with."""
        if client not in self._asking:
            self._asking[client] = _Asking(journal=self.journal, client=client, evaluate=self.evaluate)
        return self._asking[client]

    def answer(self, broadcast: Broadcast, dim: int) -> FloatArray:
        """Every client's answer, ``(n, dim)``; NaN rows for those that were not told in time, or raised."""
        space, points = self.spec.problem.search_space, takes_points(self.spec.played)
        self.journal.begin(self.clients, space, takes_points=points)
        self._keep(broadcast, dim)
        rows, over = np.full((len(self.clients), dim), np.nan), threading.Event()
        until = None if self.patience is None else time.monotonic() + self.patience

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

    def _act(self, client: int, broadcast: Broadcast, row: FloatArray, waits: Callable[[], bool]) -> None:
        """Finish what a client has begun, then answer; whatever its code raises is its failure."""
        before = [self._questions[round_] for round_ in self._open_rounds(client) if round_ < broadcast.round]
        with limited_loaded_threads(self.spec.threads):
            for question, dim in (*before, (broadcast, len(row))):
                last = self.finished(client)
                try:
                    self.evaluates(client).begin(question.round, waits)
                    found = self.act(client, question, dim)
                except _NotToldError:
                    self.forget(client)
                    return
                except BaseException as error:
                    self.forget(client)
                    self.evaluate.note(client, named(error))
                    self.mark_finished(client, question.round)
                    continue
                self.mark_finished(client, max(question.round, last))
                if dim and question.round == broadcast.round:
                    row[:] = found[0]

    def _open_rounds(self, client: int) -> list[int]:
        """Rounds in which a client has asked for trials and that it has not finished, in order."""
        asked = {t.round for t in list(self.journal.trials.values()) if t.client == client}  # other threads add some
        return sorted(round_ for round_ in asked if round_ > self.finished(client))

    def _keep(self, broadcast: Broadcast, dim: int) -> None:
        """Keep a question until all clients have finished its round, for late values; drop finished ones.

        A round counts as finished by the states that were restored or saved, so a crash leaves what it needs.
        """
        folder = self.folder / "asked"
        folder.mkdir(exist_ok=True)
        save_arrays(folder / f"{broadcast.round:06d}-{dim}.npz", broadcast.arrays)
        kept = {broadcast.round}.union(*(self._open_rounds(client) for client in map(int, self.clients)))
        for path in folder.glob("*.npz"):
            round_, asked = map(int, path.stem.split("-"))
            if round_ not in kept:
                path.unlink()
                self._questions.pop(round_, None)
            elif round_ not in self._questions:
                self._questions[round_] = Broadcast(round=round_, arrays=load_arrays(path)), asked
