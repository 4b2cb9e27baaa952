"""Options that several commands have, and what a command shows in the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from accountant.verify.text import shown, shown_lines

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="Override a value: --set privacy.epsilon=2")]
OutDir = Annotated[Path | None, typer.Option("--out", help="Directory of the run.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print plan and price; touch no data, import no code.")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Import code also for --dry-run, audits and from a stranger's directory.")
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Processes that work on clients; changes no number.")]
Yes = Annotated[bool, typer.Option("--yes", help="Pay the price that is shown without being asked.")]
ShowPrivate = Annotated[bool, typer.Option("--show-private", help="Show what no epsilon covers.")]
NamedLedger = Annotated[
    str | None,
    typer.Option("--ledger", help="File or address of the population's ledger, for a run that you did not make here."),
]
RunDir = Annotated[Path, typer.Argument(help="Directory of a run.")]


def say(line: str, *, err: bool = False) -> None:
    """Print one line; nothing in it steers the terminal or begins another line."""
    typer.echo(shown(line), err=err)


def say_lines(text: str) -> None:
    """Print a text of several lines that are our own; nothing in them steers the terminal."""
    typer.echo(shown_lines(text), nl=False)


def show_result(result: object, *, as_json: bool) -> None:
    """Show a result in the terminal, or print it as JSON."""
    if as_json:
        from privbo.protocol.plain import plain

        say_lines(json.dumps(plain(result), indent=2, allow_nan=False) + "\n")
        return
    from privbo.cli.terminal import show

    show(result)
