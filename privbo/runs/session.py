"""Trials that the user evaluates: ``Site`` asks and tells, ``Session`` is the run that goes on meanwhile. PRIVATE."""

from __future__ import annotations

import dataclasses
import operator
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack, cast
from weakref import WeakValueDictionary

from accountant.ledger import Ledger
from accountant.ledger.tables import Place
from privbo.protocol.errors import ConfigurationError, RunError
from privbo.protocol.files import fresh_directory
from privbo.protocol.messages import Algorithm
from privbo.protocol.problem import Problem
from privbo.protocol.space import Space, Value
from privbo.runs.best import file_of_one_run
from privbo.runs.clients import require_answers
from privbo.runs.loop import asked_for, run, run_spec
from privbo.runs.manifest import RunDirectory
from privbo.runs.opening import plan_run, require_beginning
from privbo.runs.record import OnPrivateRound, OnRound, Record
from privbo.runs.spec import RunSettings
from privbo.runs.trials import TRIALS, Journal, Pauses, Trial
from privbo.runs.worker_pool import pool_of

if TYPE_CHECKING:
    import pandas as pd


class Site:
    """PRIVATE: the trials of a run's clients in this place, to be evaluated and told.

    Whatever asks and tells may be another process than the run, may be killed at any moment, and may tell while the
    run stands still: what was told is on the disk and is read when the run goes on.

    .. versionadded:: 0.3.0

    Args:
        directory: Of a run in one process, a site's folder of one run, or the folder in which a site keeps its runs.
        going: Tells whether the run still goes on; by default it does until it says that it has ended.

    Raises:
        RunError: If no trial was asked for there.

    Example:
        >>> import tempfile
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective="ask", n_clients=2)
        >>> with tempfile.TemporaryDirectory() as home:
        ...     run = pb.start(problem, pb.FederatedFLCB(), privacy=pb.NoPrivacy(), rounds=2, directory=home)
        ...     while trials := run.site.ask():
        ...         for trial in trials:
        ...             told = run.site.tell(trial, -abs(trial.params["x"] - 0.3))
        ...     len(run.result().best())
        2
    """

    def __init__(self, directory: str | Path, *, going: Callable[[], bool] | None = None) -> None:
        home = Path(directory).absolute()
        path = file_of_one_run(home, TRIALS) if going is None else home / "private" / TRIALS
        if path is None:
            raise RunError(
                f"{home}: no trial was asked for here; name the directory of a run with objective = 'ask', or a site's "
                "folder, once its first round has begun"
            )
        self._journal, self._going = Journal(path=path), going
        self._journal.refresh()

    def ask(self, client: int | None = None, *, wait: float | None = None) -> tuple[Trial, ...]:
        """Give the trials that wait for a value, the same until they are told; none once the run is over.

        Args:
            client: Only this one's.
            wait: Seconds to wait for one; by default until there is one or the run is over. Name some at a Flower site
                whose run may end before its last planned round: nothing tells a site that it did.

        Raises:
            ConfigurationError: If the client is not here.
        """
        until = None if wait is None else time.monotonic() + wait
        pauses, seen = Pauses(), -1
        while True:
            going = not self.over and (self._going is None or self._going())
            found = tuple(t for t in self.trials(client) if t.state == "open")
            if found or not going or (until is not None and time.monotonic() >= until):
                return found
            pauses.after(moved=seen != len(self._journal.trials))
            seen = len(self._journal.trials)

    def tell(self, trial: Trial | int, value: float | None = None, *, failure: str | Exception | None = None) -> Trial:
        """Tell a trial's value, or why it has none; what is told is durable when this returns.

        Args:
            trial: Or its number.
            value: Larger is better. A trial has one: several objectives are made one before they are told.
            failure: Why there is none: it broke, was not allowed, was stopped early.

        Raises:
            RunError: If there is no such trial, or it was told something else.
            ConfigurationError: If the value is not one finite number.
        """
        try:
            number = None if value is None else float(value)
        except (TypeError, ValueError, OverflowError):
            raise ConfigurationError(
                f"value={value!r}: a trial has one number; make several objectives one, such as a weighted sum"
            ) from None
        return self._journal.tell(_number(trial), value=number, failure=None if failure is None else str(failure))

    def enqueue(self, client: int, params: Mapping[str, Value]) -> None:
        """Keep a point that a client evaluates in place of its next choice, such as a setting known to be good.

        Raises:
            ConfigurationError: If it is no point of the space, or the client is not here.
            RunError: If the run is over.
        """
        if self.over:
            raise RunError("the run is over: its clients evaluate no further point")
        self._journal.enqueue(operator.index(client), params)

    def report(self, trial: Trial | int, step: int, value: float) -> None:
        """Keep a value on the way to a trial's own, for stopping early; it stays here, and no client learns from it."""
        self._journal.report(_number(trial), operator.index(step), float(value))

    def trials(self, client: int | None = None) -> tuple[Trial, ...]:
        """Give every trial so far, by number.

        Raises:
            ConfigurationError: If the client is not here.
        """
        self._journal.refresh()
        if client is not None:
            self._journal.require(client)
        return tuple(t for _, t in sorted(self._journal.trials.items()) if client in (None, t.client))

    def trials_dataframe(self) -> pd.DataFrame:
        """Give every trial so far as a table, with columns as Optuna names them; needs pandas."""
        import pandas as pd

        names = self._journal.space.parameters
        rows = [
            {
                "number": trial.number,
                "client": trial.client,
                "round": trial.round,
                "value": trial.value,
                "datetime_start": trial.asked_at,
                "datetime_complete": trial.told_at or None,
                **{f"params_{name}": trial.params.get(name) for name in names},
                "failure": trial.failure,
                "state": {"open": "RUNNING", "told": "COMPLETE", "failed": "FAIL"}[trial.state],
            }
            for trial in self.trials()
        ]
        table = pd.DataFrame(rows)
        for column in ("datetime_start", "datetime_complete"):
            if column in table:
                table[column] = pd.to_datetime(table[column], utc=True)
        return table

    @property
    def space(self) -> Space:
        """The search space."""
        return self._journal.space

    @property
    def clients(self) -> tuple[int, ...]:
        """Numbers of the clients here."""
        return tuple(self._journal.facts.clients)

    @property
    def over(self) -> bool:
        """Whether the run ended; at a Flower site, whether it has answered the last planned question."""
        self._journal.refresh()
        return self._journal.over


def _number(trial: Trial | int) -> int:
    return trial.number if isinstance(trial, Trial) else operator.index(trial)


class StartSettings(RunSettings, total=False):
    """What ``start`` takes by name: what ``run`` does, but for the directory."""

    resume: bool
    name: str | None
    executor: object
    progress: bool
    on_round: OnRound | None
    on_private_round: OnPrivateRound | None


class Session:
    """A run in a thread of its own, which waits wherever a trial is not told yet.

    If the program ends, the run stands still; the same call with ``resume=True`` goes on with it, and asks for the
    same trials.

    .. versionadded:: 0.3.0

    Attributes:
        directory: Of the run.
        site: Its trials: ``site.ask()``, ``site.tell(trial, value)``.

    Example:
        See ``privbo.Site``:

        >>> Session.__name__
        'Session'
    """

    def __init__(self, directory: Path, play: Callable[[], Record]) -> None:
        self.directory = directory
        self._end: Future[Record] = Future()
        self._opened: Record | None = None
        thread = threading.Thread(target=self._play, args=(play,), name=f"privbo run {directory}", daemon=True)
        self.site = Site(directory, going=thread.is_alive)
        thread.start()

    def result(self) -> Record:
        """Wait for the run's end and give its record, whose ledger belongs to the thread that asks first.

        Raises:
            BaseException: What ended the run before its end.
        """
        record = self._end.result()
        if self._opened is None:
            place = cast("Place", record.ledger.path)  # a run whose trials are asked for is in no memory
            self._opened = dataclasses.replace(record, ledger=Ledger.open(place))
            record.home.settle(record.manifest.created)  # opening touches the file
        return self._opened

    def _play(self, play: Callable[[], Record]) -> None:
        try:
            record = play()
            record.ledger.close()  # a ledger belongs to the thread that opened it
            record.home.settle(record.manifest.created)
            self._end.set_result(record)
        except BaseException as error:  # whatever it is, ``result`` raises it where the run was asked for
            self._end.set_exception(error)


_sessions: WeakValueDictionary[Path, Session] = WeakValueDictionary()


def start(
    problem: Problem,
    algorithm: Algorithm | None = None,
    *,
    directory: str | Path | None = None,
    **settings: Unpack[StartSettings],
) -> Session:
    """Start a run whose trials this program, or another one, evaluates; arguments as for ``run``.

    .. versionadded:: 0.3.0

    Args:
        problem: With ``objective="ask"``.
        algorithm: What to run, as of ``run``.
        directory: Where the run and its trials are kept; by default ``runs/NAME-DATE-TOKEN``.
        settings: As of ``run``.

    Returns:
        The session; ``session.site`` asks and tells, ``session.result()`` is the record. With ``resume=True`` it is
        the one of this program that plays the run still, if there is one, as it was started.

    Raises:
        ConfigurationError: If the problem has an objective that can be called, which ``run`` does, or a setting is
            impossible; nothing was touched.
        PolicyError: As of ``run``, and so ``BudgetExceeded`` and ``RunError``.

    Example:
        >>> import tempfile
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective="ask", n_clients=2)
        >>> with tempfile.TemporaryDirectory() as home:
        ...     run = pb.start(problem, pb.FederatedFLCB(), privacy=pb.NoPrivacy(), rounds=1, directory=home)
        ...     while trials := run.site.ask():
        ...         for trial in trials:
        ...             told = run.site.tell(trial, failure="the furnace broke")
        ...     sorted(run.result().failures)
        [0, 1]
    """
    if not problem.is_asked:
        raise ConfigurationError("the problem's objective can be called; use privbo.run, or give it objective='ask'")
    described = {name: value for name, value in settings.items() if name not in (run.__kwdefaults__ or {})}
    callbacks = {name: settings.get(name) for name in ("on_round", "on_private_round")}
    spec = asked_for(problem, algorithm, settings.get("name"), cast("RunSettings", described), **callbacks)
    home = (fresh_directory(spec.name) if directory is None else Path(directory)).absolute()
    pool_of(settings.get("executor", "serial"), spec)
    plan, place = plan_run(spec), RunDirectory(home)  # what is refused is refused here, not in the thread
    if settings.get("resume"):
        place.manifest().spec.require_same(spec)
        if (earlier := _sessions.get(home.resolve())) is not None and not earlier._end.done():
            return earlier
    else:
        require_answers(spec)
        require_beginning(spec, plan, place)
    play = partial(
        run_spec,
        spec,
        home,
        resume=settings.get("resume", False),
        progress=settings.get("progress", False),
        on_round=settings.get("on_round"),
        on_private_round=settings.get("on_private_round"),
    )
    session = _sessions[home.resolve()] = Session(home, play)
    return session
