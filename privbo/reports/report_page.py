"""The report of one run as a page, its figures, and its guarantee on one sheet for an ethics board to sign."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from accountant.wording import interval_text, upper_text
from privbo.plans.cost import finite
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import flat, read_json
from privbo.reports.bundle import public_key
from privbo.reports.diagnostics import Diagnostics
from privbo.reports.document import Document
from privbo.reports.figure import ROUNDS, Axis, Figure, Series
from privbo.reports.report import Released, Report, charges_table, price_table, report
from privbo.runs.record import Record

_ENDS = 200  # charges that are listed of either end of a long run
_BLOCKS = 250  # pairs of releases that are drawn of a long run
_SETTINGS = ("algorithm", "privacy", "seed", "device", "problem", "versions", "public_seed")
_CHANGED = {
    "zero-out": "in which that contribution is zero",
    "add-or-remove-one": "with that contribution added or removed",
    "replace-one": "with that contribution replaced by another's",
}


def write_report(record: Record, path: str | Path | None = None) -> Path:
    """Write a run's HTML report, ``report.html`` in its directory unless another path is named; returns the path.

    Raises:
        RunError: If the run is in memory and no path is named.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda c, params: params["x"], n_clients=3)
        >>> privacy = pb.Privacy(noise_multiplier=4.0, noise="simulation")
        >>> record = pb.run(problem, pb.FederatedFLCB(), privacy=privacy, rounds=2, seed=0)
        >>> write_report(record, "report.html").name
        'report.html'
    """
    key = None if record.directory is None else public_key(record.home)
    return document(report(record), key=key).write(record.home.report_path if path is None else Path(path))


def figures(record: Record) -> dict[str, Figure]:
    """Give the report's figures by name; a notebook shows them, and ``plot()`` draws one with Matplotlib. Public.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda c, params: params["x"], n_clients=3)
        >>> privacy = pb.Privacy(noise_multiplier=4.0, noise="simulation")
        >>> record = pb.run(problem, pb.FederatedFLCB(), privacy=privacy, rounds=2, seed=0)
        >>> sorted(figures(record))
        ['delta-epsilon', 'epsilon-by-accountant', 'epsilon-by-release', 'release-norms', 'trade-off']
    """
    return _figures(report(record))


def document(report: Report, private: Diagnostics | None = None, *, key: str | None = None) -> Document:
    """Compose the page.

    Args:
        report: The report.
        private: PRIVATE diagnostics to add in a marked section; such a page is not for export.
        key: Public key that signs what leaves, for readers to compare.
    """
    entries, found = report.entries, report.to_dict()
    settings = flat({name: found[name] for name in _SETTINGS})
    listed = entries if len(entries) <= 2 * _ENDS else (*entries[:_ENDS], *entries[-_ENDS:])
    content = {
        "report": report,
        "private": private,
        "prices": price_table(report.epsilon_at),
        "interval_text": interval_text(report.epsilon_interval, report.planned_event),
        "charges": charges_table("", listed),
        "left_out": len(entries) - len(listed),
        "facts": report.facts | {"signing key": key or "none yet; privbo bundle makes it"},
        "regret": {} if private is None or private.regret is None else flat(vars(private.regret)),
        "changed": _CHANGED[report.adjacency.value],
        "configuration": {name: repr(v) if isinstance(v, float) else v for name, v in settings.items()},  # all digits
        "source": json.dumps(found["source"], indent=1) if report.spec.problem.is_named else None,
    }
    shapes = _figures(report)
    if private is not None and private.mean_best_score:
        lines = [
            Series(label=name, x=range(len(curve)), y=list(map(finite, curve)), colour=index, kind="line")
            for index, (name, curve) in enumerate(private.mean_best_score.items())
        ]
        shapes["best-scores"] = Figure(series=lines, x=ROUNDS, y=Axis(label="mean best score over clients"))
    return Document(title=f"Privacy report: {report.name}", template="report.html.j2", content=content, figures=shapes)


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a statement says that only people know; None leaves a blank to be filled in by hand.

    Attributes:
        purpose: Purpose of the processing.
        organisation: Who is responsible.
        client_is: What one client is: a hospital, a phone, a person.
    """

    purpose: str | None = None
    organisation: str | None = None
    client_is: str | None = None

    def on_top_of(self, path: Path) -> Told:
        """Add what a file keeps of an earlier statement, where nothing else is told now.

        Raises:
            ConfigurationError: If the file holds something else.
        """
        earlier = read_json(path) if path.exists() else {}
        if any(name not in vars(self) or not isinstance(words, str | None) for name, words in earlier.items()):
            raise ConfigurationError(f"{path} holds no words of a statement; move it away")
        return Told(**{name: earlier.get(name) if words is None else words for name, words in vars(self).items()})


def statement(report: Report, *, key: str | None = None, told: Told | None = None) -> Document:
    """Compose the statement, a page that prints on one sheet; what is not given stays blank.

    Args:
        report: Of the run.
        key: Public key that signs its bundle and receipts, for the reader to compare; None leaves a blank.
        told: What only people know of it.

    Example:
        >>> import privbo as pb
        >>> problem = pb.Problem(space={"x": pb.Real(0, 1)}, objective=lambda c, params: params["x"], n_clients=3)
        >>> privacy = pb.Privacy(noise_multiplier=4.0, noise="simulation")
        >>> record = pb.run(problem, pb.FederatedFLCB(), privacy=privacy, rounds=2, seed=0)
        >>> "no guarantee" in statement(pb.report(record)).render()
        True
    """
    content = {
        "report": report,
        "key": key,
        "told": told or Told(),
        "changed": _CHANGED[report.adjacency.value],
    }
    return Document(title=f"Privacy statement: {report.name}", template="statement.html.j2", content=content)


def _figures(report: Report) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    quoted, points, releases = report.smallest_epsilon, report.cumulative_epsilon, Axis(label="releases", integers=True)
    if math.isfinite(quoted) and points:
        quoted_by = min(report.epsilon, key=lambda name: report.epsilon[name])
        lines = {
            name: Series(label=name, x=[p.releases for p in points], y=[p.epsilon[name] for p in points], colour=index)
            for index, name in enumerate(points[0].epsilon)
            if min(p.epsilon.get(name, math.inf) for p in points) < math.inf  # an odometer has no point by release
        }
        bound = Axis(label=f"epsilon at delta = {upper_text(report.delta)}", from_zero=True)
        # After a recovery an odometer's total is quoted, which no release has.
        here = [replace(line, colour=0) for name, line in lines.items() if name == quoted_by]
        found["epsilon-by-release"] = Figure(series=here, x=releases, y=bound)
        found["epsilon-by-accountant"] = Figure(series=list(lines.values()), x=releases, y=bound)
    if math.isfinite(report.smallest_epsilon):
        ends = report.attacker.points()
        x, alarms, least = ends["epsilon"], ends["false_alarms"], [delta or None for delta in ends["delta_lower"]]
        series = (
            Series(label="upper bound", x=x, y=ends["delta_upper"]),
            Series(label="lower bound", x=x, y=least, colour=4, kind="line"),
            Series(label="quoted", x=[quoted], y=[report.delta], colour=1, kind="points"),
        )
        found["delta-epsilon"] = Figure(series=series, x=Axis(label="epsilon"), y=Axis(label="delta", log=True))
        found["trade-off"] = Figure(
            series=(
                Series(label="upper bound", x=alarms, y=ends["caught_upper"]),
                Series(label="random guessing", x=alarms, y=alarms, colour=6, dash=1, kind="line"),
            ),
            x=Axis(label="false accusations", log=True, percent=True),
            y=Axis(label="caught at most", percent=True),
        )
    if report.utility.releases:
        found["release-norms"] = release_norms(report.utility.releases)
    if nodes := report.utility.active_nodes:
        bars = Series(label="active nodes", x=[r.depth for r in nodes], y=[r.nodes for r in nodes], kind="bars")
        depth, count = (Axis(label=label, integers=True) for label in ("depth", "active nodes"))
        found["active-nodes"] = Figure(series=(bars,), x=depth, y=count)
    return found


def release_norms(releases: Sequence[Released]) -> Figure:
    """Draw the norm of every release and the typical norm of its noise alone; of many releases the extremes.

    Those are the releases of largest and of smallest norm of every block, of as many blocks as a screen can tell apart.
    """
    size = math.ceil(len(releases) / _BLOCKS)
    if size > 2:
        blocks = [releases[begin : begin + size] for begin in range(0, len(releases), size)]
        ends = {f(block, key=lambda row: row.norm).round for block in blocks for f in (min, max)}
        releases = [row for row in releases if row.round in ends]
    x = [row.round for row in releases]
    series = (
        Series(label="released, noise included", x=x, y=[row.norm for row in releases]),
        Series(label="noise alone, typical", x=x, y=[row.noise_norm for row in releases], colour=1, kind="line"),
    )
    return Figure(series=series, x=ROUNDS, y=Axis(label="norm of the release", from_zero=True))
