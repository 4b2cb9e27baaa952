"""Run a study and write what it found: ``summary.json``, tables as Markdown and CSV, pictures as PNG and PDF."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias, cast

import privbo as pb
from experiments.cells import Collect, Context, Found
from experiments.export import comma_separated
from experiments.figure import draw
from experiments.problems.data import local
from experiments.study import Panel, Scale, Study, study
from experiments.summary import Rows, summarise
from experiments.table import table
from experiments.verdicts import judge, table as verdicts, together
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import write_atomically, write_json
from privbo.protocol.settings import JsonObject
from privbo.runs.code import CODE, toolkit
from privbo.runs.sources import load_function


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the command line.

    Attributes:
        scale: ``"paper"`` or ``"small"``.
        seeds: Number of seeds in place of the study's.
        jobs: Parallel processes.
        finished: Run nothing; show arms with two finished runs or more, of older code too.
    """

    scale: Scale = "paper"
    seeds: int | None = None
    jobs: int = 2
    finished: bool = False


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Results over all panels of a study.

    Attributes:
        text: Tables, as Markdown.
        summary: The same as JSON.
        pictures: PNG by the name of the file.
    """

    text: str
    summary: JsonObject
    pictures: dict[str, bytes] = field(default_factory=dict)


Overall: TypeAlias = Callable[[Sequence[tuple[Panel, Found]]], Seen]


def run(name: str, out: Path, options: Options) -> None:
    """Run an experiment by name and write into ``out``.

    Raises:
        ConfigurationError: If its file asks for what it may not, or nothing is finished that could be shown.
    """
    write(study(name, options.scale), out, options)


def write(chosen: Study, out: Path, options: Options) -> None:
    """Run a study and write into ``out``.

    Raises:
        ConfigurationError: If nothing is finished that could be shown.
    """
    out.mkdir(parents=True, exist_ok=True)
    panels: list[tuple[Panel, Rows]] = []
    every: list[tuple[Panel, Found]] = []
    paper = f" The paper: {chosen.statement}" if chosen.statement else ""
    text = f"`{command(chosen, options)}`.{paper} {chosen.note}".strip() + "\n"
    details = ""
    made: Counter[str] = Counter()
    for panel in chosen.panels:
        if panel.needs and local(*panel.needs) is None:
            continue
        found, context = _outcomes(panel, out, options)
        made.update(context.made or [_here()])  # what has no cells is made anew
        if found:
            rows = summarise(panel, found)
            panels.append((panel, rows))
            every.append((panel, found))
            details += "\n" + table(panel, rows) + _of_older_code(context.older)
    if not panels:
        raise ConfigurationError(f"no arm of {chosen.name} has two finished runs in {out.parent / 'cells'}")
    summary: dict[str, object] = {
        "name": chosen.name,
        "scale": options.scale,
        "statement": chosen.statement,
        "made": dict(sorted(made.items())),
        "panels": {panel.title: {label: row.to_dict() for label, row in rows.items()} for panel, rows in panels},
    }
    if chosen.overall:
        seen = cast("Overall", load_function(chosen.overall, "overall"))(every)
        text += "\n" + seen.text
        summary["overall"] = seen.summary
        for file, picture in seen.pictures.items():
            write_atomically(out / f"{file}.png", picture)
    judged = together([one for panel, rows in panels for one in judge(panel, rows, chosen.name)])
    if judged:
        text += f"\n{verdicts(judged)}\n"
    write_json(out / "summary.json", summary)
    tables = {"md": text + details, "csv": comma_separated(panels)}
    for form, content in tables.items():
        write_atomically(out / f"table.{form}", content.encode())
    _draw(chosen, panels, out, f"{chosen.name} ({options.scale} scale)")


def _draw(chosen: Study, panels: Sequence[tuple[Panel, Rows]], out: Path, title: str) -> None:
    for file, asked in chosen.pictures.items():
        shown = [(panel, rows) for panel, rows in panels if panel.picture == (asked.of or file)]
        for form in ("png", "pdf") if shown else ():
            write_atomically(out / f"{file}.{form}", draw(shown, asked, title, form))


def _outcomes(panel: Panel, out: Path, options: Options) -> tuple[Found, Context]:
    count = panel.seeds if options.seeds is None or panel.seeds_fixed else options.seeds
    context = Context(
        panel=panel,
        seeds=range(panel.first_seed, panel.first_seed + count),
        out=out,
        jobs=options.jobs,
        finished=options.finished,
    )
    collect = cast("Collect", load_function(panel.collect, "collect")) if panel.collect else Context.outcomes
    return collect(context), context


def _here() -> str:
    return f"privbo {pb.__version__}, {datetime.now(UTC):%Y-%m-%d}, code {toolkit()[CODE][:8]}"


def _of_older_code(older: Counter[str]) -> str:
    made = ", ".join(f"{count} cells by {maker}" for maker, count in sorted(older.items()))
    return f"\nMade by older code: {made}.\n" if made else ""


def command(chosen: Study, options: Options) -> str:
    """Give the command line of a study."""
    return (
        f"python -m experiments {chosen.name}"
        + (" --scale small" if options.scale == "small" else "")
        + ("" if options.seeds is None else f" --seeds {options.seeds}")
        + (" --finished" if options.finished else "")
    )
