"""The report of a finished run on the command line: its page and, where they are asked for, private diagnostics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from privbo.audits.clipping import NOTE
from privbo.cli.terminal import Shown, render
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import require_no_link
from privbo.protocol.messages import FloatArray
from privbo.protocol.plain import fields_of, plain
from privbo.protocol.settings import JsonObject
from privbo.protocol.table import Table
from privbo.reports.bundle import known_public_key, public_key
from privbo.reports.comparison import verdict_lines
from privbo.reports.diagnostics import Diagnostics, diagnostics
from privbo.reports.report import Report, report
from privbo.reports.report_page import document
from privbo.reports.report_page import statement as statement_of
from privbo.runs.manifest import RunDirectory
from privbo.runs.record import load
from privbo.runs.spec import read_spec

Milestones: TypeAlias = Mapping[str, Mapping[str, float]]  # mean best score by moment, by arm


@dataclass(frozen=True, kw_only=True)
class WrittenReport:
    """A report of a run, of one that has just finished too, with what was asked for and where it was written.

    Attributes:
        report: The report.
        directory: Of a run that has just finished; None of one that is read again.
        page: The page; None where none was written.
        statement: One sheet for a board; None where none was asked for.
        diagnostics: PRIVATE diagnostics, where they were asked for.
        milestones: PRIVATE: of a run that has just finished, mean best score over clients at a few points of it, by
            arm, where they were asked for.
    """

    report: Report
    directory: Path | None = None
    page: Path | None = None
    statement: Path | None = None
    diagnostics: Diagnostics | None = None
    milestones: Milestones | None = None

    def to_dict(self) -> JsonObject:
        """Give the report as JSON-able data with its places and, where they were asked for, diagnostics."""
        places = {"directory": self.directory, "report": self.page, "statement": self.statement}
        found = self.report.to_dict() | {name: str(path) for name, path in places.items() if path is not None}
        if self.diagnostics is not None and self.milestones is not None:
            found["private_diagnostics"] = {
                "note": NOTE,
                "milestones": plain(self.milestones),
                "verdicts": [fields_of(v) | {"answer": v.answer} for v in self.diagnostics.verdicts],
            }
        elif self.diagnostics is not None:
            found["private_diagnostics"] = plain(self.diagnostics)
        return found


@render.register
def _written(found: WrittenReport) -> Iterator[Shown]:
    yield from render(found.report)
    if found.milestones is not None:
        yield Table(
            title=f"{NOTE[0].upper()}{NOTE[1:]}",
            headings=("mean best score over clients", *next(iter(found.milestones.values()))),
            rows=[(label, *row.values()) for label, row in found.milestones.items()],
        )
    if found.diagnostics is not None:
        yield from verdict_lines(found.diagnostics.verdicts)
    elif found.directory is not None:
        yield "clients' scores are private: --show-private shows them, and privbo report --private later"
    yield f"report: {found.page}"
    if found.statement is not None:
        yield f"statement, with blanks for purpose and signature: {found.statement}"


def report_run(
    directory: Path,
    *,
    out: Path | None = None,
    private: bool = False,
    regret: Path | None = None,
    statement: bool = False,
    ledger: str | None = None,
    write: bool = True,
) -> WrittenReport:
    """Report a run; with ``private`` or ``regret`` its private diagnostics, too.

    Args:
        directory: Of the run.
        out: Where the page goes; ``report.html`` in the run's directory, or in its private folder where it holds
            diagnostics.
        private: PRIVATE: add diagnostics.
        regret: PRIVATE: add them with regret; the configuration whose problem states its best values.
        statement: Also write a statement for a board beside the page.
        ledger: As of ``load``.
        write: Whether to write pages at all.

    Raises:
        ConfigurationError: If regret is asked for and the problem states no best values.
        RunError: If the private folder is a link.
    """
    home = RunDirectory(directory)
    if write:
        require_no_link(home.private)
    found = report(load(directory, ledger=ledger))
    attainable = None if regret is None else _best_values(home, regret)
    shown = diagnostics(home, attainable) if private or regret is not None else None
    if not write:
        return WrittenReport(report=found, diagnostics=shown)
    target = out or (home.report_path if shown is None else home.private / "report.html")
    key = public_key(home) if statement else known_public_key(home)
    page = document(found, shown, key=key).write(target)
    sheet = statement_of(found, key=key).write(target.with_name("statement.html")) if statement else None
    return WrittenReport(report=found, diagnostics=shown, page=page, statement=sheet)


def _best_values(home: RunDirectory, config: Path) -> FloatArray | Callable[[], FloatArray]:
    """Best values that the reader's own configuration states; the code that the directory names is not imported."""
    ours, theirs = read_spec(config).problem, home.manifest().spec.problem
    spaces = [(problem.n_clients, dict(problem.search_space.parameters)) for problem in (ours, theirs)]
    if spaces[0] != spaces[1]:
        raise ConfigurationError(f"{config} states another problem than {home.path}'s; name the run's configuration")
    if ours.best_values is None:
        raise ConfigurationError(f"{config}: the problem states no best_values, so regret is not defined")
    return ours.best_values
