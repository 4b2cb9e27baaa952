"""The command line. Heavy imports wait until a command needs them."""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from pathlib import Path
from typing import Annotated

import typer

from privbo.cli.clients import best, tell, trials, watch
from privbo.cli.comparing import compare
from privbo.cli.flower import app as flower_app
from privbo.cli.ledger import app as ledger_app
from privbo.cli.ledger import bundle, verify_bundle
from privbo.cli.options import (
    AsJson,
    DryRun,
    Jobs,
    NamedLedger,
    OutDir,
    Overrides,
    RunDir,
    ShowPrivate,
    Trust,
    Yes,
    say,
    say_lines,
    show_result,
)
from privbo.protocol.errors import ConfigurationError

app = typer.Typer(
    name="privbo",
    help="Differentially private federated optimisation of expensive black boxes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(ledger_app, name="ledger")
app.add_typer(flower_app, name="flower")


def main() -> None:
    """Entry point: one clear line and exit code 2 for bad input, 3 for evidence that disagrees, 130 for Ctrl-C."""
    from accountant.errors import DisagreementError, PrivacyError

    said: set[str] = set()

    def note(message: Warning | str, *_args: object, **_settings: object) -> None:
        if str(message) not in said:  # a sweep would say it once per cell
            said.add(str(message))
            say(f"note: {message}", err=True)

    warnings.showwarning = note
    try:
        app()
    except PrivacyError as error:
        say(f"privbo: {error}", err=True)
        sys.exit(3 if isinstance(error, DisagreementError) else 2)
    except OSError as error:  # a full disk, a folder that can't be written
        say(f"privbo: {error}; mend that and try again: a run goes on with --resume DIR", err=True)
        sys.exit(2)
    except Exception as error:  # a fault of ours, told whole; what it quotes of others' files is printable
        for part in traceback.format_exception(error):
            _say_part(part)
        sys.exit(1)


def _say_part(part: str) -> None:
    """Print one part of a traceback: lines of code as they are, a message as one line."""
    lines = part.splitlines() if part.startswith(("  File ", "\n")) else [part.removesuffix("\n")]
    for line in lines:
        say(line, err=True)


def _version(asked: bool) -> None:
    if asked:
        from privbo import __version__

        say(f"privbo {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


@app.command()
def run(
    config: Annotated[Path | None, typer.Argument(help="Configuration file (TOML).")] = None,
    overrides: Overrides = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this directory.")] = None,
    directory: OutDir = None,
    jobs: Jobs = None,
    dry_run: DryRun = False,
    trust: Trust = False,
    show_private: ShowPrivate = False,
    as_json: AsJson = False,
) -> None:
    """Run a configuration, or go on with an interrupted run."""
    from privbo.cli.run import carry_out, price_run, read_run

    if (config is None) == (resume is None):
        raise ConfigurationError("give a configuration file or --resume DIR")
    spec, home = read_run(
        config,
        overrides or [],
        resume=resume,
        directory=directory,
        jobs=jobs,
        load=trust or not dry_run,
        trust=trust,
    )
    if dry_run:
        show_result(price_run(spec), as_json=as_json)
        return
    try:
        result = carry_out(spec, home, resume=resume is not None, show_private=show_private)
    except KeyboardInterrupt:
        say(f"privbo: interrupted; go on with: privbo run --resume {home}", err=True)
        raise typer.Exit(130) from None
    show_result(result, as_json=as_json)


@app.command()
def check(
    config: Annotated[Path, typer.Argument(help="Configuration file (TOML).")],
    overrides: Overrides = None,
    site: Annotated[
        Path | None, typer.Option(help="A federation's site.toml: try this site's own clients and objective out.")
    ] = None,
    show_private: ShowPrivate = False,
    as_json: AsJson = False,
) -> None:
    """Try a configuration out: its code, its price, one evaluation per client. Charges, writes and sends nothing.

    It prints what the policy says, with --site the site's own. With --show-private it says who failed and why; exit
    code 3 if anyone did, or if the run is refused.
    """
    from privbo.cli.check import rehearse

    found = rehearse(config, overrides or [], show_private=show_private, site=site)
    show_result(found, as_json=as_json)
    if not found.passed:
        raise typer.Exit(3)


@app.command()
def scout(
    config: Annotated[Path, typer.Argument(help="Configuration file (TOML); its problem and its ledger are taken.")],
    epsilon: Annotated[float, typer.Option(help="Price of the one release.")],
    points: Annotated[int, typer.Option(min=3, max=256, help="Evaluations of every client.")] = 16,
    overrides: Overrides = None,
    directory: OutDir = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Estimate how alike clients' surfaces are, by one small paid release, and what sharing may then bring."""
    from privbo.cli.scout import scout as find

    found = find(config, overrides or [], epsilon=epsilon, n_points=points, directory=directory, yes=yes)
    show_result(found, as_json=as_json)


@app.command()
def schema() -> None:
    """Print the JSON schema of a configuration file, for editors."""
    from privbo.runs.config import schema as found

    say_lines(json.dumps(found(), indent=2) + "\n")


@app.command()
def quickstart(
    overrides: Overrides = None,
    directory: OutDir = None,
    dry_run: DryRun = False,
    show_private: ShowPrivate = False,
    show_config: Annotated[bool, typer.Option("--print", help="Print the configuration, to start from.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run the packaged example: 40 clients tune a classifier of tumours."""
    from privbo.quickstart import CONFIG

    if show_config:
        say_lines(CONFIG.read_text())
        return
    run(
        config=CONFIG,
        overrides=overrides,
        directory=directory,
        dry_run=dry_run,
        show_private=show_private,
        as_json=as_json,
    )


@app.command("report")
def report_command(
    directory: RunDir,
    out: Annotated[Path | None, typer.Option(help="Where the page goes; DIR/report.html by default.")] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Add private diagnostics; the page stays private.")
    ] = False,
    regret: Annotated[
        Path | None, typer.Option(help="Private diagnostics with regret: the configuration whose problem states it.")
    ] = None,
    statement: Annotated[
        bool, typer.Option("--statement", help="Also write statement.html: one sheet for an ethics board.")
    ] = False,
    parquet: Annotated[Path | None, typer.Option(help="Also write the public history as Parquet.")] = None,
    ledger: NamedLedger = None,
    as_json: AsJson = False,
) -> None:
    """Report what a run cost: writes report.html and prints the tables, or prints JSON."""
    from privbo.cli.look import read_report, report_run
    from privbo.reports.history import write_parquet
    from privbo.runs.record import load

    if parquet is not None:
        write_parquet(load(directory, ledger=ledger), parquet)
    if as_json:
        show_result(read_report(directory, private=private, regret=regret, ledger=ledger), as_json=True)
        return
    written = report_run(directory, out=out, private=private, regret=regret, statement=statement, ledger=ledger)
    show_result(written, as_json=False)


app.command()(best)
app.command()(trials)
app.command(context_settings={"ignore_unknown_options": True})(tell)  # a value may be negative
app.command()(watch)
app.command()(compare)


@app.command()
def audit(
    target: Annotated[Path, typer.Argument(help="Directory of a run; with --empirical also a configuration.")],
    empirical: Annotated[bool, typer.Option("--empirical", help="Attack the mechanism as a black box.")] = False,
    trials: Annotated[int, typer.Option(min=1000, help="Releases per side of the attack.")] = 20_000,
    publish_norms: Annotated[
        float | None, typer.Option(help="Release a noisy histogram of norms with this noise multiplier; charged.")
    ] = None,
    yes: Yes = False,
    out: Annotated[Path | None, typer.Option(help="Where the page goes; DIR/private/audit.html by default.")] = None,
    trust: Trust = False,
    ledger: NamedLedger = None,
    as_json: AsJson = False,
) -> None:
    """PRIVATE: audit the clipping. Exit code 3 if the black-box audit contradicts the claim."""
    from privbo.cli.look import audit_target

    found = audit_target(
        target,
        empirical=empirical,
        trials=trials,
        publish=publish_norms,
        out=out,
        yes=yes,
        trust=trust,
        ledger=ledger,
    )
    show_result(found, as_json=as_json)
    if not found.passed:
        raise typer.Exit(3)


@app.command()
def calibrate(
    rounds: Annotated[
        int | None, typer.Option("--releases", "--rounds", help="Number of releases; a run may have more rounds.")
    ] = None,
    sample_rate: Annotated[float | None, typer.Option(help="Probability of taking part.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise std over L2 sensitivity.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Target epsilon.")] = None,
    delta: Annotated[float, typer.Option(help="Failure probability.")] = 1e-5,
    as_json: AsJson = False,
) -> None:
    """Find the one of epsilon, noise multiplier, sample rate and releases that is not given."""
    from privbo.plans.calibration import calibrate as solve

    found = solve(
        rounds=rounds, sample_rate=sample_rate, noise_multiplier=noise_multiplier, epsilon=epsilon, delta=delta
    )
    show_result(found, as_json=as_json)


app.command()(bundle)
app.command("verify-bundle")(verify_bundle)


if __name__ == "__main__":
    main()
