"""Run a study and write what it found: ``summary.json``, ``table.md`` and its pictures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from experiments.cells import Collect, Context
from experiments.figure import draw
from experiments.problems.data import local
from experiments.study import Panel, Scale, Study, study
from experiments.summary import Rows, summarise
from experiments.table import table
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.files import write_atomically, write_json
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
    panels: dict[str, Rows] = {}
    paper = f" The paper: {chosen.statement}" if chosen.statement else ""
    text = f"`{command(chosen, options)}`.{paper} {chosen.note}".strip() + "\n"
    for panel in chosen.panels:
        if panel.needs and local(*panel.needs) is None:
            continue
        rows, older = _rows(panel, out, options)
        if rows:
            panels[panel.title] = rows
            text += "\n" + table(panel, rows) + _of_older_code(older)
    if not panels:
        raise ConfigurationError(f"no arm of {chosen.name} has two finished runs in {out.parent / 'cells'}")
    found = {title: {label: row.to_dict() for label, row in rows.items()} for title, rows in panels.items()}
    summary = {"name": chosen.name, "scale": options.scale, "statement": chosen.statement, "panels": found}
    write_json(out / "summary.json", summary)
    write_atomically(out / "table.md", text.encode())
    for file, picture in chosen.pictures.items():
        of = picture.of or file
        shown = [
            (panel, panels[panel.title]) for panel in chosen.panels if panel.picture == of and panel.title in panels
        ]
        if shown:
            write_atomically(out / f"{file}.png", draw(shown, picture, f"{chosen.name} ({options.scale} scale)"))


def _rows(panel: Panel, out: Path, options: Options) -> tuple[Rows, Counter[str]]:
    count = panel.seeds if options.seeds is None or panel.seeds_fixed else options.seeds
    context = Context(
        panel=panel,
        seeds=range(panel.first_seed, panel.first_seed + count),
        out=out,
        jobs=options.jobs,
        finished=options.finished,
    )
    collect = cast("Collect", load_function(panel.collect, "collect")) if panel.collect else Context.outcomes
    return summarise(panel, collect(context)), context.older


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
