"""``privbo ledger``, ``bundle`` and ``verify-bundle``: what was charged, whether it holds, and what is handed on."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from accountant.verify.text import shown
from privbo.cli.options import AsJson, NamedLedger, Overrides, RunDir, Trust, Yes, say, say_lines, show_result

if TYPE_CHECKING:
    from accountant.ledger.export import Format

app = typer.Typer(help="The privacy-loss ledger of a run.", no_args_is_help=True)


@app.command()
def show(directory: RunDir, ledger: NamedLedger = None, as_json: AsJson = False) -> None:
    """Entries, totals and verification; of a run, or both ledgers of a private training."""
    from privbo.reports.ledger import ledger_view
    from privbo.reports.training import is_training, training_ledgers
    from privbo.runs.record import load

    if is_training(directory) and ledger is None:
        show_result(training_ledgers(directory), as_json=as_json)
        return
    show_result(ledger_view(load(directory, ledger=ledger)), as_json=as_json)


@app.command()
def verify(
    directory: RunDir,
    receipt: Annotated[list[Path] | None, typer.Option(help="Signed receipt that the ledger has to extend.")] = None,
    ledger: NamedLedger = None,
    as_json: AsJson = False,
) -> None:
    """Hold the ledger against all that stands beside it, and against receipts.

    Exit code 3 if anything disagrees, another run's receipt included.
    """
    from privbo.cli.look import verify_ledger
    from privbo.reports.training import is_training, training_ledgers

    of_training = is_training(directory) and not receipt and ledger is None  # both are of runs
    found = training_ledgers(directory) if of_training else verify_ledger(directory, receipt or (), ledger=ledger)
    show_result(found, as_json=as_json)
    if not found.verified:
        raise typer.Exit(3)


@app.command()
def left(
    path: Annotated[
        str, typer.Argument(help="A ledger's file or address, a run's or a party's directory, or site.toml.")
    ],
    delta: Annotated[float | None, typer.Option(help="Where epsilon is quoted; the ledger's own by default.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Count how many more such releases fit.")] = None,
    sample_rate: Annotated[float, typer.Option(help="Of such a release.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Epsilon spent, the bound and what is left; also of all runs at a site."""
    from privbo.cli.left import left_on

    found = left_on(path, delta=delta, noise_multiplier=noise_multiplier, sample_rate=sample_rate)
    show_result(found, as_json=as_json)


@app.command()
def receipt(
    directory: RunDir,
    out: Annotated[Path | None, typer.Option(help="Where it goes; DIR/receipt.json by default.")] = None,
    ledger: NamedLedger = None,
    as_json: AsJson = False,
) -> None:
    """Write a small signed file that says where the ledger stands, for a board to keep."""
    from privbo.reports.bundle import write_receipt

    show_result(write_receipt(directory, out, ledger=ledger), as_json=as_json)


@app.command()
def make(
    config: Annotated[Path, typer.Argument(help="Configuration whose [ledger] is in PostgreSQL.")],
    owner: Annotated[str, typer.Option(help="Address of the same database with a role that may create a schema.")],
    overrides: Overrides = None,
    trust: Trust = False,
) -> None:
    """Make a population's ledger in PostgreSQL, to which the role of its address may append and do nothing else."""
    from privbo.cli.run import make_ledger

    say(make_ledger(config, overrides or (), owner, trust=trust))


@app.command()
def recover(directory: RunDir, yes: Yes = False, ledger: NamedLedger = None, as_json: AsJson = False) -> None:
    """Charge every round that a lost ledger leaves uncertain once more, so that the run may go on; said for ever."""
    from functools import partial

    from privbo.cli.spend import agree
    from privbo.runs.manifest import RunDirectory
    from privbo.runs.recovery import recover

    show_result(recover(RunDirectory(directory), agree=partial(agree, yes=yes), ledger=ledger), as_json=as_json)


@app.command()
def export(
    directory: RunDir,
    form: Annotated[str, typer.Option("--format", help="jsonl, csv or dpevent.")] = "jsonl",
    population: Annotated[bool, typer.Option("--population", help="Every run on the ledger.")] = False,
    out: Annotated[Path | None, typer.Option(help="A file instead of the terminal.")] = None,
    ledger: NamedLedger = None,
) -> None:
    """Charges for other programs: JSON lines, CSV, or dp-accounting's DpEvent."""
    from accountant.ledger.export import export
    from privbo.runs.record import load

    record = load(directory, ledger=ledger)
    content = export(record.ledger, cast("Format", form), None if population else record.run_id)
    if out is None:
        say_lines(_cells_shown(content) if form == "csv" else content)
        return
    from privbo.protocol.files import write_atomically

    write_atomically(out, content.encode())


def _cells_shown(content: str) -> str:
    """Write a table's cells out for a terminal, where a cell of two lines would begin another row."""
    text = io.StringIO()
    rows = csv.reader(io.StringIO(content, newline=""))
    csv.writer(text, lineterminator="\n").writerows(map(shown, row) for row in rows)
    return text.getvalue()


def bundle(
    directory: RunDir,
    out: Annotated[Path | None, typer.Option(help="Where it goes; DIR/bundle.json by default.")] = None,
    ledger: NamedLedger = None,
    as_json: AsJson = False,
) -> None:
    """Write what an auditor can check of a run into one signed file."""
    from privbo.reports.bundle import write_bundle

    show_result(write_bundle(directory, out, ledger=ledger), as_json=as_json)


def verify_bundle(
    file: Annotated[Path, typer.Argument(help="File that privbo bundle wrote.")],
    receipt: Annotated[list[Path] | None, typer.Option(help="Signed receipt that its ledger has to extend.")] = None,
) -> None:
    """Check a bundle and say what was promised to whom, and what no check can know.

    Exit code 3 if anything disagrees, a forged file or another run's receipt included; 4 if nothing disagrees but no
    lower end of epsilon is certified for these releases: neither verified nor refused; 2 without a file to check.
    """
    from accountant.verify.auditor import main as check

    if code := check([str(file), *(f"--receipt={path}" for path in receipt or ())]):
        raise typer.Exit(code)
