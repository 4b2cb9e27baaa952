"""Runs that are going on, side by side on one page that asks for itself again; read by ``privbo.reports.live``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from accountant.errors import PrivacyError
from accountant.wording import upper_text
from privbo.protocol.space import Categorical, Parameter
from privbo.reports import document as doc
from privbo.reports.figure import Axis, Figure, Series, parallel
from privbo.reports.figures import release_norms
from privbo.reports.live import LiveRun, Trials, Watched, best_so_far, look
from privbo.runs.manifest import Manifest, RunDirectory, readable_ledger

_LINES, _ROWS = 7, 200  # more clients than colours are drawn as quantiles; more trials are on disk


@dataclass(kw_only=True)
class Watch:
    """Directories that are watched.

    Attributes:
        directories: Of runs, or sites' folders.
        private: Whether to show what lies on their private sides.
        every: Seconds after which the page asks for itself again.
        ledger: File or address of the ledger of those that name a population's, as of ``load``.
    """

    directories: Sequence[Path]
    private: bool = False
    every: int = 5
    ledger: str | None = None

    def __post_init__(self) -> None:
        self._seen: dict[Path, Watched] = {}
        for home in map(RunDirectory, self.directories):
            if (manifest := _manifest(home)) is not None:
                readable_ledger(home, manifest, self.ledger)  # what is not opened is said at once, and on no page

    def look(self) -> tuple[Watched, ...]:
        """Read every directory as it stands."""
        for path in self.directories:
            self._seen[path] = look(path, self._seen.get(path), private=self.private, ledger=self.ledger)
        return tuple(self._seen[path] for path in self.directories)

    def page(self) -> str:
        """Read every directory, and render the page."""
        return doc.render(document(self.look(), private=self.private, every=self.every))


def _manifest(home: RunDirectory) -> Manifest | None:
    """A run's manifest; None where it can't be read, which the page will say and which may be another thing later."""
    try:
        return home.manifest()
    except PrivacyError:
        return None


def document(watched: Sequence[Watched], *, private: bool, every: int) -> doc.Document:
    """Compose the page."""
    shapes: dict[str, Figure] = {}
    for index, found in enumerate(watched):
        if found.run is not None:
            shapes |= {f"{name}-{index}": shape for name, shape in _run_figures(found.run).items()}
        if found.trials is not None:
            shapes[f"best-{index}"] = _best(found.trials)
    people = {w.run.population: w.run.total for w in watched if w.run is not None and w.run.total.runs > 1}
    content = {
        "watched": watched,
        "private": private,
        "every": every,
        "people": people,
        "trials": [None if w.trials is None else _rows(w.trials) for w in watched],
        "parallel": [None if w.trials is None else _parallel(w.trials, f"trials-{k}") for k, w in enumerate(watched)],
    }
    return doc.Document(title="Runs that are going on", template="watch.html.j2", content=content, figures=shapes)


def _run_figures(run: LiveRun) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    if run.prices:
        x = [p.releases for p in run.prices]
        spent = Series(label="so far", x=x, y=[min(p.epsilon.values()) for p in run.prices])
        plan = Series(label="the plan", x=[1], y=[run.planned], kind="line", colour=1)
        found["spent"] = Figure(
            series=(spent, plan),
            x=Axis(label="releases", integers=True),
            y=Axis(label=f"epsilon at delta = {upper_text(run.delta)}", from_zero=True),
        )
    if run.released:
        found["norms"] = release_norms(run.released)
    return found


def _best(trials: Trials) -> Figure:
    """PRIVATE: best so far by client, or its quartiles over many."""
    curves = best_so_far(trials)
    x = list(range(1, trials.history.values.shape[1] + 1))
    axes = {"x": Axis(label="evaluation", integers=True), "y": Axis(label="best value so far")}
    if len(curves) <= _LINES:
        each = enumerate(curves.items())
        lines = [Series(label=f"client {c}", x=x, y=y, kind="line", colour=k) for k, (c, y) in each]
        return Figure(series=lines, **axes)
    table = np.array([[np.nan if v is None else v for v in y] for y in curves.values()])
    known = np.isfinite(table).any(axis=0)
    levels = (("best quarter from", 0.75), ("median client", 0.5), ("worst quarter up to", 0.25))
    shown = [v for v, k in zip(x, known, strict=True) if k]
    lines = [
        Series(label=name, x=shown, y=_level(table[:, known], q), kind="line", colour=k)
        for k, (name, q) in enumerate(levels)
    ]
    return Figure(series=lines, **axes)


def _level(table: np.ndarray, q: float) -> list[float]:
    return [float(v) for v in np.nanquantile(table, q, axis=0)]


def _rows(trials: Trials) -> list[tuple[object, ...]]:
    """PRIVATE: the last trials, newest first: client, round, parameters, value."""
    history, names = trials.history, list(trials.space.parameters)
    found: list[tuple[object, ...]] = []
    for at in range(history.values.shape[1] - 1, -1, -1):
        for row, client in enumerate(trials.clients):
            if len(found) == _ROWS or np.isnan(history.units[row, at]).any():
                continue
            params = trials.space.decode(history.units[row, at])
            value = float(history.values[row, at])
            found.append((client, int(history.rounds[at]), *(params.get(name, "-") for name in names), value))
    return found


def _parallel(trials: Trials, name: str) -> object:
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
