"""The command line. Heavy imports wait until a command needs them.

Longer than 300 lines: the whole command line in one place.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from privbo.cli.flower import app as flower_app
from privbo.protocol.errors import ConfigurationError
from privbo.protocol.text import shown

if TYPE_CHECKING:
    from accountant.ledger.export import Format
    from privbo.comparisons.setting import Data

app = typer.Typer(
    name="privbo",
    help="Differentially private federated optimisation of expensive black boxes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
ledger_app = typer.Typer(help="The privacy-loss ledger of a run.", no_args_is_help=True)
app.add_typer(ledger_app, name="ledger")
app.add_typer(flower_app, name="flower")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="Override a value: --set privacy.epsilon=2")]
OutDir = Annotated[Path | None, typer.Option("--out", help="Directory of the run.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print plan and price; touch no data, import no code.")]
Trust = Annotated[bool, typer.Option("--trust", help="Import code also for --dry-run and from a stranger's directory.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Processes that work on clients; changes no number.")]
Yes = Annotated[bool, typer.Option("--yes", help="Pay the price that is shown without being asked.")]
ShowPrivate = Annotated[bool, typer.Option("--show-private", help="Show what no epsilon covers.")]
Interactive = Annotated[bool, typer.Option("--interactive", help="Figures to zoom and read off; adds 5 MB.")]
RunDir = Annotated[Path, typer.Argument(help="Directory of a run.")]


def main() -> None:
    """Entry point: one clear line and exit code 2 for bad input, 130 for Ctrl-C."""
    from accountant.errors import PrivacyError

    said: set[str] = set()

    def note(message: Warning | str, *_args: object, **_settings: object) -> None:
        if str(message) not in said:  # a sweep would say it once per cell
            said.add(str(message))
            typer.echo(shown(f"note: {message}"), err=True)

    warnings.showwarning = note
    try:
        app()
    except PrivacyError as error:
        typer.echo(shown(f"privbo: {error}"), err=True)
        sys.exit(2)


def _version(asked: bool) -> None:
    if asked:
        from privbo import __version__

        typer.echo(f"privbo {__version__}")
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
        _show(price_run(spec), as_json=as_json)
        return
    try:
        result = carry_out(spec, home, resume=resume is not None, show_private=show_private)
    except KeyboardInterrupt:
        typer.echo(f"privbo: interrupted; go on with: privbo run --resume {home}", err=True)
        raise typer.Exit(130) from None
    _show(result, as_json=as_json)


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

    With --show-private it says who failed and why; exit code 3 if anyone did.
    """
    from privbo.cli.check import rehearse

    found = rehearse(config, overrides or [], show_private=show_private, site=site)
    _show(found, as_json=as_json)
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
    _show(found, as_json=as_json)


@app.command()
def schema() -> None:
    """Print the JSON schema of a configuration file, for editors."""
    from privbo.runs.config import schema as found

    typer.echo(json.dumps(found(), indent=2))


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
        typer.echo(CONFIG.read_text(), nl=False)
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
    interactive: Interactive = False,
    statement: Annotated[
        bool, typer.Option("--statement", help="Also write statement.html: one sheet for an ethics board.")
    ] = False,
    parquet: Annotated[Path | None, typer.Option(help="Also write the public history as Parquet.")] = None,
    as_json: AsJson = False,
) -> None:
    """Report what a run cost: writes report.html and prints the tables, or prints JSON."""
    from privbo.cli.look import read_report, report_run
    from privbo.reports.history import write_parquet
    from privbo.runs.record import load

    if parquet is not None:
        write_parquet(load(directory), parquet)
    if as_json:
        _show(read_report(directory, private=private, regret=regret), as_json=True)
        return
    written = report_run(
        directory, out=out, private=private, regret=regret, interactive=interactive, statement=statement
    )
    _show(written, as_json=False)


@app.command()
def best(
    directory: Annotated[Path, typer.Argument(help="Directory of a run, or a site's folder.")],
    client: Annotated[int | None, typer.Option(min=0, help="This client alone.")] = None,
    common: Annotated[bool, typer.Option("--common", help="PUBLIC: the common setting of the final vote.")] = False,
    as_toml: Annotated[bool, typer.Option("--toml", help="Print TOML, to use as it is.")] = False,
    show_private: ShowPrivate = False,
    as_json: AsJson = False,
) -> None:
    """PRIVATE: the parameters that every local client would use; at a site, its own clients'. --common is public."""
    from privbo.cli.best import common_point, own_points, toml_of

    if as_toml and as_json:
        raise ConfigurationError("--toml and --json are two forms; give one of them")
    if common and (client is not None or show_private):
        raise ConfigurationError("--common is one setting for everybody; drop --client and --show-private")
    found = common_point(directory) if common else own_points(directory, client=client, show_private=show_private)
    if as_toml:
        typer.echo(toml_of(found, alone=client is not None), nl=False)
        return
    _show(found, as_json=as_json)


@app.command()
def trials(
    directory: Annotated[Path, typer.Argument(help="Directory of a run, or a site's folder.")],
    client: Annotated[int | None, typer.Option(min=0, help="This client alone.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also those that were told.")] = False,
    as_json: AsJson = False,
) -> None:
    """PRIVATE: the trials that wait for somebody's value, of a run with objective = "ask"."""
    from privbo.cli.trials import listed

    _show(listed(directory, client=client, everything=everything), as_json=as_json)


@app.command(context_settings={"ignore_unknown_options": True})  # a value may be negative
def tell(
    directory: Annotated[Path, typer.Argument(help="Directory of a run, or a site's folder.")],
    trial: Annotated[int | None, typer.Argument(help="Number of the trial; without it, values are typed in.")] = None,
    value: Annotated[float | None, typer.Argument(help="Its value; larger is better.")] = None,
    failed: Annotated[str | None, typer.Option(help="Why it has none.")] = None,
    as_json: AsJson = False,
) -> None:
    """PRIVATE: tell a trial's value or failure; without a trial, ask for one value after the other."""
    from privbo.cli.trials import told, typed

    if trial is None and failed is not None:
        raise ConfigurationError("--failed is about one trial; give its number")
    if trial is None:
        _show(typed(directory, input, typer.echo), as_json=as_json)
        return
    _show(told(directory, trial, value, failed), as_json=as_json)


@app.command()
def watch(
    directories: Annotated[list[Path], typer.Argument(help="Directories of runs, or a site's folders.")],
    private: Annotated[
        bool, typer.Option("--private", help="PRIVATE: who is present and, where their data lie, clients' trials.")
    ] = False,
    static: Annotated[Path | None, typer.Option(help="Write a file that reloads itself, and serve nothing.")] = None,
    once: Annotated[bool, typer.Option("--once", help="With --static: write it once.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="On 127.0.0.1; 0 takes a free one.")] = 0,
    every: Annotated[int, typer.Option(min=1, help="Seconds between two looks.")] = 5,
) -> None:
    """Watch runs as they go on, side by side in a browser: public facts, unless --private asks for more."""
    import threading

    from privbo.cli.watch import live_server, write_until
    from privbo.reports.watch_page import Watch

    if once and static is None:
        raise ConfigurationError("--once is for --static FILE")
    watched = Watch(directories=directories, private=private, every=every)
    stop = threading.Event()
    try:
        if static is not None:
            if once:
                stop.set()
            typer.echo(f"{static}, every {every} s" if not once else str(static))
            write_until(watched.page, static, every=every, stop=stop, private=private)
            return
        server, address = live_server(watched.page, port)
        typer.echo(f"open once: {address}")
        server.serve_forever()
    except KeyboardInterrupt:
        return


@app.command()
def compare(
    what: Annotated[list[Path], typer.Argument(help="One sweep file (TOML), or directories of runs.")],
    out: Annotated[Path | None, typer.Option(help="Folder of cells, page and tables.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Parallel processes, one thread each.")] = 2,
    scheduler: Annotated[str | None, typer.Option(help="Address of a Dask scheduler to use instead.")] = None,
    recommend: Annotated[str | None, typer.Option(help="Best setting within a budget: epsilon=2")] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Whose data runs saw: private (the default), public, simulated or proxy; a sweep says so."),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Also write and print utilities over private data, into OUT/private.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run every cell of a sweep again; over private data this charges again.")
    ] = False,
    finished: Annotated[
        bool, typer.Option("--finished", help="Run nothing: show a sweep's finished cells, older code's too, named.")
    ] = False,
    yes: Yes = False,
    interactive: Interactive = False,
    as_json: AsJson = False,
) -> None:
    """Utility against epsilon: a sweep of settings over seeds, or runs side by side.

    Cells of a sweep are kept and reused while settings and code are the same; it says how many, and why others run.
    Over private data only prices and paid choices are shown unless --private is given, and what is to be charged is
    shown and asked for first.
    """
    from privbo.cli.compare import compare_runs, compare_sweep

    budget, is_sweep = _budget(recommend), len(what) == 1 and what[0].suffix == ".toml"
    whose = _data(data, is_sweep=is_sweep)
    _cells_of_a_sweep(fresh=fresh, finished=finished, is_sweep=is_sweep)
    try:
        if is_sweep:
            found = compare_sweep(
                what[0],
                out=out,
                jobs=jobs,
                scheduler=scheduler,
                budget=budget,
                private=private,
                interactive=interactive,
                fresh=fresh,
                finished=finished,
                yes=yes,
            )
        else:
            found = compare_runs(what, out=out, data=whose, budget=budget, private=private, interactive=interactive)
    except KeyboardInterrupt:
        typer.echo("privbo: interrupted; the same command goes on with what is left", err=True)
        raise typer.Exit(130) from None
    _show(found, as_json=as_json)


def _data(name: str | None, *, is_sweep: bool) -> Data:
    from typing import get_args

    from privbo.comparisons.setting import Data

    if name is None:
        return "private"
    if is_sweep:
        raise ConfigurationError("--data is for runs; a sweep says it itself: data = ... in its file")
    if name not in get_args(Data):
        raise ConfigurationError(f"--data {name!r}: write one of {', '.join(get_args(Data))}")
    return cast("Data", name)


def _cells_of_a_sweep(*, fresh: bool, finished: bool, is_sweep: bool) -> None:
    if (fresh or finished) and not is_sweep:
        raise ConfigurationError("--fresh and --finished are for a sweep's cells; runs are compared as they are")
    if fresh and finished:
        raise ConfigurationError("--fresh runs every cell and --finished none; give one of them")


def _budget(recommend: str | None) -> float | None:
    if recommend is None:
        return None
    name, _, text = recommend.partition("=")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if name.strip() != "epsilon" or not value > 0:
        raise ConfigurationError(f"--recommend {recommend!r}: write epsilon=VALUE with a value > 0")
    return value


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
    interactive: Interactive = False,
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
        interactive=interactive,
        yes=yes,
    )
    _show(found, as_json=as_json)
    if not found.passed:
        raise typer.Exit(3)


@app.command()
def calibrate(
    rounds: Annotated[int | None, typer.Option(help="Number of releases.")] = None,
    sample_rate: Annotated[float | None, typer.Option(help="Probability of taking part.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise std over L2 sensitivity.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Target epsilon.")] = None,
    delta: Annotated[float, typer.Option(help="Failure probability.")] = 1e-5,
    as_json: AsJson = False,
) -> None:
    """Find the one of epsilon, noise multiplier, sample rate and rounds that is not given."""
    from privbo.plans.calibration import calibrate as solve

    found = solve(
        rounds=rounds, sample_rate=sample_rate, noise_multiplier=noise_multiplier, epsilon=epsilon, delta=delta
    )
    _show(found, as_json=as_json)


@ledger_app.command("show")
def ledger_show(directory: RunDir, as_json: AsJson = False) -> None:
    """Entries, totals and verification."""
    from privbo.reports.ledger import ledger_view
    from privbo.runs.record import load

    _show(ledger_view(load(directory)), as_json=as_json)


@ledger_app.command("verify")
def ledger_verify(
    directory: RunDir,
    receipt: Annotated[list[Path] | None, typer.Option(help="Signed receipt that the ledger has to extend.")] = None,
    as_json: AsJson = False,
) -> None:
    """Hold the ledger against all that stands beside it, and against receipts; exit code 3 if anything disagrees."""
    from privbo.cli.look import verify_ledger

    found = verify_ledger(directory, receipt or ())
    _show(found, as_json=as_json)
    if not found.verified:
        raise typer.Exit(3)


@ledger_app.command("receipt")
def ledger_receipt(
    directory: RunDir,
    out: Annotated[Path | None, typer.Option(help="Where it goes; DIR/receipt.json by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a small signed file that says where the ledger stands, for a board to keep."""
    from privbo.reports.bundle import write_receipt

    _show(write_receipt(directory, out), as_json=as_json)


@app.command()
def bundle(
    directory: RunDir,
    out: Annotated[Path | None, typer.Option(help="Where it goes; DIR/bundle.json by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write everything public about a run into one signed file, for an officer."""
    from privbo.reports.bundle import write_bundle

    _show(write_bundle(directory, out), as_json=as_json)


@app.command("verify-bundle")
def verify_bundle(file: Annotated[Path, typer.Argument(help="File that privbo bundle wrote.")]) -> None:
    """Check a bundle and say what was promised to whom; exit code 3 if anything disagrees."""
    from accountant.ledger.officer import main as check

    if code := check([str(file)]):
        raise typer.Exit(code)


@ledger_app.command("make")
def ledger_make(
    config: Annotated[Path, typer.Argument(help="Configuration whose [ledger] is in PostgreSQL.")],
    owner: Annotated[str, typer.Option(help="Address of the same database with a role that may create a schema.")],
    overrides: Overrides = None,
    trust: Trust = False,
) -> None:
    """Make a population's ledger in PostgreSQL, to which the role of its address may append and do nothing else."""
    from privbo.cli.run import make_ledger

    typer.echo(make_ledger(config, overrides or (), owner, trust=trust))


@ledger_app.command("recover")
def ledger_recover(directory: RunDir, yes: Yes = False, as_json: AsJson = False) -> None:
    """Charge every round that a lost ledger leaves uncertain once more, so that the run may go on; said for ever."""
    from functools import partial

    from privbo.cli.spend import agree
    from privbo.runs.manifest import RunDirectory
    from privbo.runs.recovery import recover

    _show(recover(RunDirectory(directory), agree=partial(agree, yes=yes)), as_json=as_json)


@ledger_app.command("export")
def ledger_export(
    directory: RunDir,
    form: Annotated[str, typer.Option("--format", help="jsonl, csv or dpevent.")] = "jsonl",
    population: Annotated[bool, typer.Option("--population", help="Every run on the ledger.")] = False,
    out: Annotated[Path | None, typer.Option(help="A file instead of the terminal.")] = None,
) -> None:
    """Charges for other programs: JSON lines, CSV, or dp-accounting's DpEvent."""
    from accountant.ledger.export import export
    from privbo.runs.record import load

    record = load(directory)
    content = export(record.ledger, cast("Format", form), None if population else record.run_id)
    if out is None:
        typer.echo("".join(map(shown, content.splitlines(keepends=True))), nl=False)
        return
    from privbo.protocol.files import write_atomically

    write_atomically(out, content.encode())


def _show(result: object, *, as_json: bool) -> None:
    if as_json:
        from privbo.protocol.plain import plain

        typer.echo(json.dumps(plain(result), indent=2, allow_nan=False))
        return
    from privbo.cli.terminal import show

    show(result)


if __name__ == "__main__":
    main()
