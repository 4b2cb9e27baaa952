"""A run that goes on beside the program that evaluates its trials."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Unpack

from accountant.ledger import Ledger
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.homes import fresh_directory
from privbo.protocol.messages import Algorithm
from privbo.protocol.problem import Problem
from privbo.runs.history import OnPrivateRound, OnRound
from privbo.runs.loop import run
from privbo.runs.record import Record
from privbo.runs.site import Site
from privbo.runs.spec import RunSettings


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

    def __init__(self, problem: Problem, algorithm: Algorithm, directory: Path, settings: StartSettings) -> None:
        self.directory = directory
        self._record: Record | None = None
        self._opened: Record | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._play, args=(problem, algorithm, settings), name=f"privbo run {directory}", daemon=True
        )
        self.site = Site(directory, going=self._thread.is_alive)
        self._thread.start()

    def result(self) -> Record:
        """Wait for the run's end and give its record, whose ledger belongs to the thread that asks first.

        Raises:
            BaseException: What ended the run before its end.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        if self._record is None or self._record.ledger.path is None:
            raise RuntimeError("the run ended without a record")
        if self._opened is None:
            self._opened = dataclasses.replace(self._record, ledger=Ledger.open(self._record.ledger.path))
            self._opened.home.settle(self._record.manifest.created)  # opening touches the file
        return self._opened

    def _play(self, problem: Problem, algorithm: Algorithm, settings: StartSettings) -> None:
        try:
            record = run(problem, algorithm, directory=self.directory, **settings)
            record.ledger.close()  # a ledger belongs to the thread that opened it
            record.home.settle(record.manifest.created)
            self._record = record
        except BaseException as error:  # whatever it is, ``result`` raises it where the run was asked for
            self._error = error


def start(
    problem: Problem,
    algorithm: Algorithm,
    *,
    directory: str | Path | None = None,
    **settings: Unpack[StartSettings],
) -> Session:
    """Start a run whose trials this program, or another one, evaluates; arguments as for ``run``.

    .. versionadded:: 0.3.0

    Args:
        problem: With ``objective="ask"``.
        algorithm: What to run.
        directory: Where the run and its trials are kept; by default ``runs/NAME-DATE-TOKEN``.
        settings: As of ``run``.

    Returns:
        The session; ``session.site`` asks and tells, ``session.result()`` is the record.

    Raises:
        ConfigurationError: If the problem has an objective that can be called: ``run`` calls it.

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
    home = fresh_directory(problem.name) if directory is None else Path(directory)
    return Session(problem, algorithm, home, settings)
