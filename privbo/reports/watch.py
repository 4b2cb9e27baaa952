"""Runs as they stand now, side by side on one page that refreshes: public facts, and on request private ones.

A directory that is being written may not agree with itself for a moment; then what was read before stays, and the
reason stands with it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from markupsafe import Markup

from accountant.errors import PrivacyError
from accountant.wording import upper_text
from privbo.protocol.errors import RunError
from privbo.protocol.files import read_lines, require_contained
from privbo.protocol.messages import ClientHistory
from privbo.protocol.space import Categorical, Parameter, Space
from privbo.protocol.table import Table
from privbo.reports.document import Document
from privbo.reports.figure import Axis, Figure, Series, parallel
from privbo.reports.report import LedgerView, Released, ledger_view, released_by
from privbo.reports.report_page import release_norms
from privbo.runs.best import EVALUATIONS, FACTS, read_history, site_facts
from privbo.runs.manifest import RunDirectory, readable_ledger
from privbo.runs.record import Record, check_record, load

_LINES, _ROWS = 7, 200  # more clients than colours are drawn as quantiles; more trials are on disk


@dataclass(frozen=True, kw_only=True)
class LiveRun:
    """A run as it stands; public.

    Attributes:
        record: Its record; its ledger is closed.
        done: Rounds that have ended.
        charged: What the ledger holds, and the price of the run.
        released: What was broadcast.
    """

    record: Record
    done: int
    charged: LedgerView
    released: tuple[Released, ...]

    @property
    def spent(self) -> float:
        """Epsilon of the releases charged so far; 0 before the first."""
        points = self.charged.cumulative_epsilon
        return min(points[-1].epsilon.values()) if points else 0.0


@dataclass(frozen=True, kw_only=True)
class Trials:
    """PRIVATE: evaluations of the clients whose data lie here.

    Attributes:
        clients: Their numbers.
        space: Their search space.
        history: Their evaluations.
    """

    clients: Sequence[int]
    space: Space
    history: ClientHistory


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A directory as it is shown.

    Attributes:
        directory: Of a run, or a site's folder of one run.
        run: The run; None at a site, and before it could be read.
        problem: The reason for which it could not be read just now, or None.
        present: PRIVATE: last round in which each site, or how many clients in each round, were seen to answer.
        trials: PRIVATE: evaluations that lie here.
    """

    directory: Path
    run: LiveRun | None = None
    problem: str | None = None
    present: Mapping[str, str] | None = None
    trials: Trials | None = None

    @property
    def name(self) -> str:
        """Name to show."""
        return self.directory.name if self.run is None else f"{self.run.record.spec.name} ({self.directory.name})"


def look(
    directory: Path, before: Watched | None = None, *, private: bool = False, ledger: str | Path | None = None
) -> Watched:
    """Read a directory as it stands; nothing in it is changed, and none of its code is imported.

    Args:
        directory: Of a run, or a site's folder of one run.
        before: What was read there the last time: kept where nothing can be read just now.
        private: PRIVATE: read who is present, and the evaluations that lie here.
        ledger: As of ``load``, for a run that names a population's.
    """
    try:
        if (directory / FACTS).exists():
            return _site(directory, private=private)
        record = load(directory, ledger=ledger)
        with record.ledger:
            run = _run(record, None if before is None else before.run)
        if not private:
            return Watched(directory=directory, run=run)
        # Evaluations of a run in one process are there once it has ended.
        space, clients = record.spec.problem.search_space, range(record.spec.problem.n_clients)
        trials = Trials(clients=clients, space=space, history=record.clients) if record.has_clients else None
        return Watched(directory=directory, run=run, present=_present(record.home), trials=trials)
    except (PrivacyError, OSError, ValueError, KeyError) as error:
        problem = str(error) if isinstance(error, PrivacyError) else f"{type(error).__name__} while it was being read"
        return replace(before or Watched(directory=directory), problem=problem)


def _site(directory: Path, *, private: bool) -> Watched:
    if not private:
        raise RunError(f"{directory} is a site's folder, where everything is private; add --private")
    require_contained(directory)
    facts, path = site_facts(directory), directory / EVALUATIONS
    if not path.exists():
        return Watched(directory=directory, problem="its clients have evaluated nothing yet")
    trials = Trials(clients=tuple(facts.clients), space=facts.search_space, history=read_history(path))
    return Watched(directory=directory, trials=trials)


def _run(record: Record, before: LiveRun | None) -> LiveRun:
    """The run; prices and releases are taken from before where the ledger has not moved."""
    done = len({row["round"] for row in read_lines(record.home.history_path)})
    if before is not None and before.charged.ledger.head == record.ledger.head:
        return replace(before, done=done, charged=replace(before.charged, ledger=check_record(record)))
    return LiveRun(record=record, done=done, charged=ledger_view(record), released=released_by(record))


def _present(home: RunDirectory) -> Mapping[str, str]:
    """PRIVATE: where each site was seen last; for a run in one process, how many answered in the last rounds."""
    sites = {f"site {row['site']}": f"round {row['round']}" for row in read_lines(home.countersigned_path)}
    return sites or {
        f"round {row['round']}": f"{row['n_participants']} of {row['n_clients']} drawn, {row['n_absent']} absent"
        for row in read_lines(home.clipping_path)[-5:]
    }


@dataclass(kw_only=True)
class Watch:
    """Directories that are watched.

    Attributes:
        directories: Of runs, or sites' folders.
        private: Whether to show what lies on their private sides.
        every: Seconds between two refreshes of the page.
        ledger: File or address of the ledger of those that name a population's, as of ``load``.
    """

    directories: Sequence[Path]
    private: bool = False
    every: int = 5
    ledger: str | None = None

    def __post_init__(self) -> None:
        self._seen: dict[Path, Watched] = {}
        self._first: dict[Path, tuple[float, int]] = {}  # when it was seen first, and the rounds that had ended
        for home in map(RunDirectory, self.directories):
            try:
                manifest = home.manifest()
            except PrivacyError:  # which the page reports; it may be readable later
                if home.path.is_file() or (home.path / "search.json").exists():  # but not ever
                    raise
                continue
            readable_ledger(home, manifest, self.ledger)  # a ledger that is not opened is refused here, not on the page

    def page(self, query: Mapping[str, str] | None = None) -> str:
        """Read every directory as it stands, and render the page.

        Args:
            query: Of the page's address, where it is served: ``client`` lists the trials of one client alone, ``sort``
                names the column by which they stand, largest first. None for a file.
        """
        for path in self.directories:
            self._seen[path] = look(path, self._seen.get(path), private=self.private, ledger=self.ledger)
        watched = [self._seen[path] for path in self.directories]
        runs = [(index, found.run) for index, found in enumerate(watched) if found.run is not None]
        trials = [(index, found.trials) for index, found in enumerate(watched) if found.trials is not None]
        shapes = {f"spent-{index}": _spent(run) for index, run in runs if run.charged.cumulative_epsilon}
        shapes |= {f"norms-{index}": release_norms(run.released) for index, run in runs if run.released}
        shapes |= {f"best-{index}": _best(there) for index, there in trials}
        content = {
            "watched": watched,
            "private": self.private,
            "every": self.every,
            "people": {
                run.record.ledger.policy.population: run.charged.total for _, run in runs if run.charged.total.runs > 1
            },
            "parallel": {index: _parallel(there, f"trials-{index}") for index, there in trials},
            "listed": {index: _listed(there, query or {}) for index, there in trials},
            "query": query,
            "left": {index: self._left(self.directories[index], run) for index, run in runs},
        }
        title = "Runs that are going on"
        return Document(title=title, template="watch.html.j2", content=content, figures=shapes).render()

    def _left(self, path: Path, run: LiveRun) -> str | None:
        """Time that the rounds to come take at the rate of those that ended while this was watching; None of none."""
        now, rounds = time.monotonic(), run.record.spec.rounds
        began, before = self._first.setdefault(path, (now, run.done))
        if run.done == before or run.done >= rounds:
            return None
        return duration_text((now - began) / (run.done - before) * (rounds - run.done))


def duration_text(seconds: float) -> str:
    """Give a duration in the largest unit of which it has at least two, below ten seconds to a digit or two.

    Example:
        >>> duration_text(0.0412), duration_text(90.0), duration_text(600.0), duration_text(1e6)
        ('0.041 seconds', '90 seconds', '10 minutes', '12 days')
    """
    units = {"days": 86400.0, "hours": 3600.0, "minutes": 60.0}
    return next(
        (f"{seconds / s:.0f} {name}" for name, s in units.items() if seconds >= 2 * s),
        f"{seconds:.{0 if seconds >= 10 else 2}{'f' if seconds >= 10 else 'g'}} seconds",
    )


def _spent(run: LiveRun) -> Figure:
    points, planned = run.charged.cumulative_epsilon, run.charged.smallest_epsilon
    spent = Series(label="so far", x=[p.releases for p in points], y=[min(p.epsilon.values()) for p in points])
    plan = Series(label="the plan", x=[1], y=[planned], kind="line", colour=1)
    return Figure(
        series=(spent, plan),
        x=Axis(label="releases", integers=True),
        y=Axis(label=f"epsilon at delta = {upper_text(run.charged.delta)}", from_zero=True),
    )


def _listed(trials: Trials, query: Mapping[str, str]) -> Table:
    """PRIVATE: the last trials, newest first or by a column: client, round, parameters, value."""
    history, names, client, sort = trials.history, list(trials.space.parameters), query.get("client"), query.get("sort")
    rows, (n_clients, count) = [], history.values.shape
    newest = ((row, at) for at in range(count)[::-1] for row in range(n_clients))
    wanted = ((row, at) for row, at in newest if client in (None, str(trials.clients[row])))
    for row, at in ((row, at) for row, at in wanted if not np.isnan(history.units[row, at]).any()):
        params = trials.space.decode(history.units[row, at])
        made = (trials.clients[row], int(history.rounds[at]))
        rows.append((*made, *map(params.get, names), float(history.values[row, at])))
    headings = ("client", "round", *names, "value")
    if sort in headings:  # what is not a number stands last
        column = headings.index(sort)
        rows.sort(key=lambda row: _number(row[column]), reverse=True)
    return Table(headings=headings, rows=rows[:_ROWS])


def _number(cell: object) -> float:
    return float(cell) if isinstance(cell, int | float) and not math.isnan(cell) else -math.inf


def _best(trials: Trials) -> Figure:
    """PRIVATE: best so far by client, or its quartiles over many."""
    best = np.fmax.accumulate(trials.history.values, axis=1)
    x = np.arange(1, 1 + best.shape[1])
    lines = {f"client {client}": row for client, row in zip(trials.clients, best, strict=True)}
    if len(best) > _LINES:
        known = np.isfinite(best).any(axis=0)
        best, x = best[:, known], x[known]
        levels = {"best quarter from": 0.75, "median client": 0.5, "worst quarter up to": 0.25}
        lines = {name: np.nanquantile(best, level, axis=0) for name, level in levels.items()}
    series = [
        Series(label=name, x=x.tolist(), y=y.tolist(), kind="line", colour=k)
        for k, (name, y) in enumerate(lines.items())
    ]
    return Figure(series=series, x=Axis(label="evaluation", integers=True), y=Axis(label="best value so far"))


def _parallel(trials: Trials, name: str) -> Markup | None:
    """PRIVATE: parallel coordinates of all trials, the best quarter in front."""
    history = trials.history
    units = history.units.reshape(-1, history.units.shape[-1])
    values = history.values.ravel()
    known = np.isfinite(values) & np.isfinite(units).all(axis=1)
    units, values = units[known][-_ROWS:], values[known][-_ROWS:]
    if not len(values):
        return None
    low, high = float(values.min()), float(values.max())
    height = (values - low) / ((high - low) or 1.0)
    axes = [(parameter, _end(p, 0.0), _end(p, 1.0)) for parameter, p in trials.space.parameters.items()]
    rows = np.column_stack([units, height])
    return parallel([*axes, ("value", f"{low:.3g}", f"{high:.3g}")], rows.tolist(), name)


def _end(parameter: Parameter, unit: float) -> str:
    value = parameter.decode(min(unit, 1 - 1e-9) if isinstance(parameter, Categorical) else unit)
    return f"{value:.3g}" if isinstance(value, float) else str(value)
