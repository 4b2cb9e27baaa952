"""``privbo ledger``, ``bundle`` and ``verify-bundle``: what was charged, whether it holds, and what is handed on."""

from __future__ import annotations

import csv
import io
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from accountant.verify.text import shown
from privbo.cli.options import NamedLedger, Overrides, Receipts, RunDir, Trust, Yes, agree, command, say, say_lines
from privbo.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from accountant.ledger import Ledger
    from accountant.ledger.export import Format

app = typer.Typer(help="The privacy-loss ledger of a run.", no_args_is_help=True)


@command(app)
def show(directory: RunDir, ledger: NamedLedger = None) -> object:
    """Entries, totals and verification; of a run, or both ledgers of a private training."""
    from privbo.reports.report import ledger_view
    from privbo.reports.training import is_training, training_ledgers
    from privbo.runs.record import load

    if is_training(directory) and ledger is None:
        return training_ledgers(directory)
    record = load(directory, ledger=ledger)
    with record.ledger:  # which leaves no file of its own behind
        return ledger_view(record)


@command(app, holds="verified")
def verify(directory: RunDir, receipt: Receipts = None, ledger: NamedLedger = None) -> object:
    """Check the ledger against all evidence that stands with it, and against receipts.

    Exit code 3 if anything disagrees, another run's receipt included.
    """
    from privbo.reports.bundle import read_receipts
    from privbo.reports.training import is_training, training_ledgers
    from privbo.runs.evidence import check_directory
    from privbo.runs.manifest import RunDirectory

    if is_training(directory) and not receipt and ledger is None:  # both are of runs
        return training_ledgers(directory)
    home = RunDirectory(directory)
    return check_directory(home, read_receipts(receipt or (), home), ledger=ledger)


@command(app)
def left(
    path: Annotated[
        str, typer.Argument(help="A ledger's file or address, a run's or a party's directory, or site.toml.")
    ],
    delta: Annotated[float | None, typer.Option(help="Where epsilon is quoted; the ledger's own by default.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Count how many more such releases fit.")] = None,
    sample_rate: Annotated[float, typer.Option(help="Of such a release.")] = 1.0,
    ledger: NamedLedger = None,
) -> object:
    """The bound, what has been charged of it so far, and what is left; also of all runs at a site."""
    from privbo.door.sampling import Sample

    event = None if noise_multiplier is None else Sample(n_clients=1, sample_rate=sample_rate).event(noise_multiplier)
    with _opened(path, ledger) as opened:
        return opened.left(delta, event=event)


def _opened(path: str, named: str | None) -> Ledger:
    """The ledger that a path names, or that the run there has or shares; an empty one of a party without one yet.

    Raises:
        ConfigurationError: If there is none.
    """
    from accountant.ledger import Ledger
    from accountant.ledger.address import is_postgres, place_of
    from privbo.protocol.files import require_contained
    from privbo.reports.training import is_training
    from privbo.runs.manifest import RunDirectory, readable_ledger

    if path.endswith(".toml"):
        from privbo.flower.party import POPULATION, ledger_path, read_party, required_policy

        try:
            party = read_party(Path(path))
        except ConfigurationError as error:
            raise ConfigurationError(f"{error}; this reads a party's site.toml, of a run name its directory") from None
        if (own := ledger_path(party)).exists():
            return Ledger.open(own)
        return Ledger.create(None, required_policy(party).ledger_policy(POPULATION))
    if is_postgres(path) or not Path(path).is_dir():
        return Ledger.open(place_of(path))
    inside = (Path(path) / "ledger.sqlite", Path(path) / "_policy" / "ledger.sqlite")
    if found := [file for file in inside if file.is_file()]:
        require_contained(Path(path))
        return Ledger.open(found[0])
    if is_training(Path(path)):
        raise ConfigurationError(f"{path} holds two ledgers; name its training.sqlite or its validation.sqlite")
    home = RunDirectory(Path(path))
    if home.config_path.exists():
        return Ledger.open(readable_ledger(home, home.manifest(), named))
    raise ConfigurationError(
        f"{path} holds no ledger; name the file or address of the one that its runs share, or a site.toml"
    )


@command(app)
def receipt(
    directory: RunDir,
    out: Annotated[Path | None, typer.Option(help="Where it goes; DIR/receipt.json by default.")] = None,
    ledger: NamedLedger = None,
) -> object:
    """Write a small signed file that states where the ledger stands, for a board to keep."""
    from privbo.reports.bundle import write_receipt

    return write_receipt(directory, out, ledger=ledger)


@app.command()
def make(
    config: Annotated[Path, typer.Argument(help="Configuration whose [ledger] is in PostgreSQL.")],
    owner: Annotated[str, typer.Option(help="Address of the same database with a role that may create a schema.")],
    overrides: Overrides = None,
    trust: Trust = False,
) -> None:
    """Make a population's ledger in PostgreSQL, to which the role of its address may append and do nothing else."""
    from privbo.runs.opening import make_shared, plan_run
    from privbo.runs.spec import read_spec

    spec = read_spec(config, overrides or (), load=trust)
    if spec.ledger is None:
        raise ConfigurationError(f"{config} has no [ledger] table; write one with path = 'postgresql://...'")
    with make_shared(spec.ledger, plan_run(spec), owner) as ledger:
        say(f"{spec.ledger.path}: an empty ledger of {ledger.policy.population!r}; commit log: {ledger.commit_log}")


@command(app)
def recover(directory: RunDir, yes: Yes = False, ledger: NamedLedger = None) -> object:
    """Charge every round that a lost ledger leaves uncertain once more, so that the run may go on."""
    from privbo.runs.manifest import RunDirectory
    from privbo.runs.recovery import recover

    return recover(RunDirectory(directory), agree=partial(agree, yes=yes), ledger=ledger)


@app.command()
def export(
    directory: RunDir,
    form: Annotated[str, typer.Option("--format", help="jsonl, csv or dpevent.")] = "jsonl",
    population: Annotated[bool, typer.Option("--population", help="Every run on the ledger.")] = False,
    out: Annotated[Path | None, typer.Option(help="A file instead of the terminal.")] = None,
    ledger: NamedLedger = None,
) -> None:
    """What was committed and charged, for other programs: JSON lines, CSV, or dp-accounting's DpEvent."""
    from accountant.ledger.export import export
    from privbo.protocol.files import write_atomically
    from privbo.runs.record import load

    record = load(directory, ledger=ledger)
    content = export(record.ledger, cast("Format", form), None if population else record.run_id)
    if out is not None:
        write_atomically(out, content.encode())
    elif form == "csv":  # in a terminal a cell of two lines would begin another row
        text, rows = io.StringIO(), csv.reader(io.StringIO(content, newline=""))
        csv.writer(text, lineterminator="\n").writerows(map(shown, row) for row in rows)
        say_lines(text.getvalue())
    else:
        say_lines(content)


def bundle(
    directory: RunDir,
    out: Annotated[Path | None, typer.Option(help="Where it goes; DIR/bundle.json by default.")] = None,
    statement: Annotated[
        Path | None, typer.Option(help="Statement that is handed over with it: its hash is signed, too.")
    ] = None,
    ledger: NamedLedger = None,
) -> object:
    """Write what an auditor can check of a run into one signed file."""
    from privbo.reports.bundle import write_bundle

    return write_bundle(directory, out, statement=statement, ledger=ledger)


def verify_bundle(
    file: Annotated[Path, typer.Argument(help="File that privbo bundle wrote.")],
    receipt: Receipts = None,
    statement: Annotated[
        Path | None, typer.Option(help="Statement that was handed over with it: it has to be the one that was signed.")
    ] = None,
) -> None:
    """Check a bundle and print what it guarantees to whom, and what no check can know.

    Exit code 3 if anything disagrees, a forged file or another run's receipt included; 4 if nothing disagrees but no
    lower end of epsilon is certified for these releases: neither verified nor refused; 2 without a file to check.
    """
    from accountant.verify.auditor import main as check

    sheet = [] if statement is None else [f"--statement={statement}"]
    if code := check([str(file), *(f"--receipt={path}" for path in receipt or ()), *sheet]):
        raise typer.Exit(code)
