"""Options that several commands have, and what commands do alike: print a result, ask before they spend."""

from __future__ import annotations

import functools
import gc
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from accountant.verify.text import shown, shown_lines
from privbo.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from privbo.plans.cost import Spending

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="Override a value: --set privacy.epsilon=2")]
OutDir = Annotated[Path | None, typer.Option("--out", help="Directory of the run.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print plan and price; touch no data, import no code.")]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Import code also for dry runs, audits and a stranger's directory."),
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Processes that work on clients; changes no number.")]
Yes = Annotated[bool, typer.Option("--yes", help="Accept the cost that is shown without being asked.")]
ShowPrivate = Annotated[bool, typer.Option("--show-private", help="Show what no epsilon covers.")]
Rehearses = Annotated[
    bool, typer.Option("--rehearsal/--no-rehearsal", help="Try every client's objective before a private run begins.")
]
NamedLedger = Annotated[
    str | None,
    typer.Option("--ledger", help="File or address of the population's ledger, for a run that you did not make here."),
]
RunDir = Annotated[Path, typer.Argument(help="Directory of a run.")]
AnyDir = Annotated[Path, typer.Argument(help="Directory of a run, or a site's folder.")]
Client = Annotated[int | None, typer.Option(min=0, help="This client alone.")]
Receipts = Annotated[list[Path] | None, typer.Option(help="Signed receipt that the ledger has to extend.")]
Command = TypeVar("Command", bound=Callable[..., object])


def command(
    app: typer.Typer,
    *,
    holds: str = "passed",
    **settings: Any,  # noqa: ANN401  # Typer's own
) -> Callable[[Command], Command]:
    """Register a function as a command that prints what the function returns, as JSON with ``--json``.

    Where that has an attribute ``holds`` that is false, the exit code is 3.
    """

    def register(function: Command) -> Command:
        @functools.wraps(function)
        def printed(*, as_json: bool, **options: object) -> None:
            result = function(**options)
            show_result(result, as_json=as_json)
            if not getattr(result, holds, True):
                raise typer.Exit(3)

        plain = inspect.signature(function, eval_str=True)
        added = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)
        vars(printed)["__signature__"] = plain.replace(parameters=[*plain.parameters.values(), added])
        app.command(**settings)(printed)
        return function

    return register


LOADING = 1_000_000  # objects before a program looks for garbage, while it loads what stays


def loaded() -> None:
    """Note that all a command needs is loaded: it stays, and what objectives leave behind goes sooner from now on."""
    if gc.get_threshold()[0] == LOADING:  # else a caller in Python has its own
        gc.freeze()
        gc.set_threshold(50_000, 20)


def say(line: str, *, err: bool = False) -> None:
    """Print one line; nothing in it steers the terminal or begins another line."""
    typer.echo(shown(line), err=err)


def say_lines(text: str) -> None:
    """Print a text of several lines that are our own; nothing in them steers the terminal."""
    typer.echo(shown_lines(text), nl=False)


def show_result(result: object, *, as_json: bool) -> None:
    """Show a result in the terminal, or print it as JSON."""
    if as_json:
        from privbo.protocol.settings import plain

        say_lines(json.dumps(plain(result), indent=2, allow_nan=False) + "\n")
        return
    from privbo.cli.terminal import show

    show(result)


def agree(price: Spending | None, *, yes: bool) -> None:
    """Show a price and the new total on standard error and ask; not where ``yes`` is given or nothing is to be charged.

    Raises:
        ConfigurationError: If the answer is no, or no terminal is there to ask at.
    """
    if price is None:
        return
    say(f"privbo: {price.words}", err=True)
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError("nothing was charged; add --yes to accept that")
    if not typer.confirm("Charge that?", err=True):
        raise ConfigurationError("nothing was charged")
